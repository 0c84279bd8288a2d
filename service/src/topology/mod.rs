//! Which memory nodes the machine has and which cores belong to them, and where lanes go.
//!
//! A shard belongs to a node (shard modulo nodes) and its lanes run on that node's cores: memory of the arena is committed
//! by the lane that first touches it, and on Linux the first touch decides the node. Reading the topology blocks on a few
//! small files; it happens once, at start.

#[cfg(feature = "hwloc")]
mod hwloc;
mod sysfs;

use core_affinity::CoreId;

/// One memory node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    /// The system's number of it.
    pub id: u32,
    /// The system's numbers of its cores, ascending.
    pub cores: Vec<usize>,
}

/// A source of the machine's topology. Tests inject their own.
pub trait Topology {
    /// The memory nodes that have cores, by number. Empty when the source cannot tell.
    fn nodes(&self) -> Vec<Node>;
}

/// This machine's topology: hwloc's view where it is built in, else sysfs.
pub fn this_machine() -> Box<dyn Topology> {
    #[cfg(feature = "hwloc")]
    if let Some(topology) = hwloc::Hwloc::read() {
        return Box::new(topology);
    }
    Box::new(sysfs::Sysfs::default())
}

/// The core for each lane, `lanes[shard * lanes_per_shard + lane]`: a shard's lanes take turns on the cores of its node that
/// this process may use. Where no core of a node may be used, all usable ones serve; `None` where there is none at all.
pub fn place_lanes(nodes: &[Node], usable: &[CoreId], shards: u32, lanes_per_shard: u32) -> Vec<Option<CoreId>> {
    let of_node = |node: Option<&Node>| {
        let cores = usable.iter().copied().filter(|c| node.is_some_and(|n| n.cores.contains(&c.id)));
        let cores: Vec<CoreId> = cores.collect();
        if cores.is_empty() { usable.to_vec() } else { cores }
    };
    // Shards of one node continue where the last one stopped, so that they do not crowd its first cores.
    let nodes_len = nodes.len().max(1) as u32;
    (0..shards)
        .flat_map(|shard| {
            let cores = of_node(nodes.get((shard % nodes_len) as usize));
            let first = shard / nodes_len * lanes_per_shard;
            (0..lanes_per_shard)
                .map(move |lane| (!cores.is_empty()).then(|| cores[(first + lane) as usize % cores.len()]))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Node, Topology, place_lanes};
    use core_affinity::CoreId;

    /// Two sockets of four cores.
    struct TwoSockets;
    impl Topology for TwoSockets {
        fn nodes(&self) -> Vec<Node> {
            vec![Node { id: 0, cores: (0..4).collect() }, Node { id: 1, cores: (4..8).collect() }]
        }
    }

    fn cores(ids: impl IntoIterator<Item = usize>) -> Vec<CoreId> {
        ids.into_iter().map(|id| CoreId { id }).collect()
    }
    fn placed(usable: &[CoreId], shards: u32, lanes: u32) -> Vec<usize> {
        let placed = place_lanes(&TwoSockets.nodes(), usable, shards, lanes);
        placed.into_iter().map(|c| c.expect("a core").id).collect()
    }

    #[test]
    fn lanes_run_on_their_shards_node() {
        assert_eq!(placed(&cores(0..8), 2, 2), [0, 1, 4, 5]);
        assert_eq!(placed(&cores(0..8), 4, 2), [0, 1, 4, 5, 2, 3, 6, 7]);
        assert_eq!(placed(&cores(0..8), 2, 5), [0, 1, 2, 3, 0, 4, 5, 6, 7, 4]);
    }

    #[test]
    fn cores_that_the_process_may_not_use_are_left_out() {
        assert_eq!(placed(&cores([2, 6, 7]), 2, 2), [2, 2, 6, 7]);
        // Nothing usable on node 1: its shard runs where it can.
        assert_eq!(placed(&cores([1, 3]), 2, 1), [1, 1]);
        assert_eq!(place_lanes(&TwoSockets.nodes(), &[], 1, 2), [None, None]);
        assert_eq!(place_lanes(&[], &cores([5]), 2, 1), [Some(CoreId { id: 5 }); 2]);
    }

    #[test]
    fn this_machine_is_read_without_failing() {
        let nodes = super::this_machine().nodes();
        assert!(nodes.iter().all(|n| !n.cores.is_empty()), "{nodes:?}");
    }
}
