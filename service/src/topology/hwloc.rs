//! The topology as hwloc tells it. Needs its library (Debian: `libhwloc-dev`, `libudev-dev`).

use super::machine::{Node, Topology};
use hwlocality::object::types::ObjectType;

/// What hwloc found at start.
pub(super) struct Hwloc {
    nodes: Vec<Node>,
}

impl Hwloc {
    /// Reads this machine. `None` when hwloc cannot, or looks at another machine than this one.
    pub fn read() -> Option<Self> {
        let topology = hwlocality::Topology::new().ok()?;
        if topology.is_this_system() { Self::of(&topology) } else { None }
    }

    fn of(topology: &hwlocality::Topology) -> Option<Self> {
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
    fn name(&self) -> &'static str {
        "hwloc"
    }

    fn nodes(&self) -> Vec<Node> {
        self.nodes.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synthetic_machine_with_two_sockets() {
        let builder = hwlocality::Topology::builder();
        let topology = builder.from_synthetic("pack:2 [numa] core:4 pu:1").unwrap().build().unwrap();
        assert!(!topology.is_this_system(), "a description is not believed to be this machine");
        let nodes = Hwloc::of(&topology).unwrap().nodes();
        assert_eq!(nodes, [Node { id: 0, cores: (0..4).collect() }, Node { id: 1, cores: (4..8).collect() }]);
    }

    #[test]
    fn this_machine_is_read() {
        let hwloc = Hwloc::read().expect("hwloc knows this machine");
        assert!(hwloc.nodes().iter().all(|n| !n.cores.is_empty()));
    }
}
