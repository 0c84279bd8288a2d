//! The topology as hwloc tells it. Needs its library (Debian: `libhwloc-dev`, `libudev-dev`).

use super::{Node, Topology};
use hwlocality::object::types::ObjectType;

/// What hwloc found at start.
pub(super) struct Hwloc {
    nodes: Vec<Node>,
}

impl Hwloc {
    /// Reads this machine. `None` when hwloc cannot, or looks at another machine than this one.
    pub fn read() -> Option<Self> {
        let topology = hwlocality::Topology::new().ok()?;
        if !topology.is_this_system() {
            return None;
        }
        let nodes = topology.objects_with_type(ObjectType::NUMANode).filter_map(|object| {
            let id = object.os_index()?.try_into().ok()?;
            let cores: Vec<usize> = object.cpuset()?.iter_set().map(usize::from).collect();
            (!cores.is_empty()).then_some(Node { id, cores })
        });
        let nodes: Vec<Node> = nodes.collect();
        (!nodes.is_empty()).then_some(Self { nodes })
    }
}

impl Topology for Hwloc {
    fn nodes(&self) -> Vec<Node> {
        self.nodes.clone()
    }
}
