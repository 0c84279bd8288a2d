//! What belongs where: pure, from a machine and what was asked for.

use super::machine::Machine;
use super::pin::Spot;

/// How shards and memory nodes go together.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Numa {
    /// As `Prefer` where there is more than one node, else as `Off`.
    #[default]
    Auto,
    /// One shard unless told otherwise, no memory is bound, nothing is pinned on account of nodes.
    Off,
    /// One shard for each node; its memory is the node's as long as the node has some; its lanes run there.
    Prefer,
    /// As `Prefer`, but memory comes from the node only.
    Bind,
}

/// Lanes of a shard that are started unless the configuration says how many.
const LANES_DEFAULT_MAX: usize = 8;
/// Shards that are made unless the configuration says how many; the index's own limit.
const SHARDS_DEFAULT_MAX: usize = 64;

/// What the configuration asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Asked {
    /// How shards and memory nodes go together.
    pub numa: Numa,
    /// Shards; 0 for one for each memory node.
    pub shards: u32,
    /// Lanes of a shard; 0 for half of its share of the cores.
    pub lanes_per_shard: u32,
    /// Pin lanes also where there is one node.
    pub pin_lanes: bool,
    /// Threads that answer lookups; 0 for the cores that lanes leave over.
    pub lookup_threads: usize,
    /// Pin lookup threads also where there is one node.
    pub pin_lookups: bool,
}

/// Who runs where, and whose memory lies where.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Plan {
    /// Lanes of each shard.
    pub lanes_per_shard: u32,
    /// The memory node of each shard; `None` for any.
    pub shards: Vec<Option<u32>>,
    /// The spot of each lane, `lanes[shard * lanes_per_shard + lane]`; `None` for anywhere.
    pub lanes: Vec<Option<Spot>>,
    /// The spot of each lookup thread; `None` for anywhere.
    pub lookups: Vec<Option<Spot>>,
}

impl Plan {
    /// Plans for a machine. A shard belongs to the node of its number, counted over the nodes that this process may use; its lanes
    /// take turns on that node's cores. Lookup threads take the cores that are left, from each node in turn: every lookup asks
    /// every shard, so they are spread evenly.
    pub fn new(machine: &Machine, asked: &Asked) -> Self {
        let nodes: Vec<_> = machine.usable_nodes().collect();
        let by_node = match asked.numa {
            Numa::Off => false,
            Numa::Auto => nodes.len() > 1,
            Numa::Prefer | Numa::Bind => !nodes.is_empty(),
        };
        let shards = match asked.shards {
            0 if by_node => nodes.len().clamp(1, SHARDS_DEFAULT_MAX),
            0 => 1,
            shards => shards as usize,
        };
        let lanes_per_shard = match asked.lanes_per_shard {
            0 => (machine.cores.len() / (2 * shards)).clamp(1, LANES_DEFAULT_MAX),
            lanes => lanes as usize,
        };
        // Without nodes every shard runs anywhere, as on a machine with one.
        let everywhere = [machine.cores.as_slice()];
        let homes: Vec<&[usize]> =
            if nodes.is_empty() { everywhere.to_vec() } else { nodes.iter().map(|n| n.cores.as_slice()).collect() };
        let spot = |core: usize| Spot { core, node: machine.node_of(core) };
        let several = by_node && nodes.len() > 1;
        let lanes = if several || asked.pin_lanes { lane_cores(&homes, shards, lanes_per_shard) } else { Vec::new() };
        let lookups = if several || asked.pin_lookups {
            lookup_cores(&homes, &lanes, asked.lookup_threads).into_iter().map(|core| core.map(spot)).collect()
        } else {
            vec![None; asked.lookup_threads]
        };
        let mut lanes: Vec<_> = lanes.into_iter().map(|core| core.map(spot)).collect();
        lanes.resize(shards * lanes_per_shard, None);
        let node_of_shard = |shard: usize| by_node.then(|| nodes[shard % nodes.len()].id);
        Self {
            lanes_per_shard: lanes_per_shard as u32,
            shards: (0..shards).map(node_of_shard).collect(),
            lanes,
            lookups,
        }
    }
}

/// A core for each lane. Shards of one node continue where the last one stopped, so that they do not crowd its first cores.
fn lane_cores(homes: &[&[usize]], shards: usize, lanes_per_shard: usize) -> Vec<Option<usize>> {
    let core = |shard: usize, lane: usize| {
        let cores = homes[shard % homes.len()];
        let turn = shard / homes.len() * lanes_per_shard + lane;
        (!cores.is_empty()).then(|| cores[turn % cores.len()])
    };
    (0..shards).flat_map(|shard| (0..lanes_per_shard).map(move |lane| core(shard, lane))).collect()
}

/// A core for each lookup thread: those without a lane where there are some, from each node in turn.
fn lookup_cores(homes: &[&[usize]], lanes: &[Option<usize>], threads: usize) -> Vec<Option<usize>> {
    let in_turn = |keep: &dyn Fn(usize) -> bool| -> Vec<usize> {
        let kept: Vec<Vec<usize>> =
            homes.iter().map(|cores| cores.iter().copied().filter(|c| keep(*c)).collect()).collect();
        let longest = kept.iter().map(Vec::len).max().unwrap_or(0);
        (0..longest).flat_map(|i| kept.iter().filter_map(move |cores| cores.get(i).copied())).collect()
    };
    let free = in_turn(&|core| !lanes.contains(&Some(core)));
    let cores = if free.is_empty() { in_turn(&|_| true) } else { free };
    let threads = if threads == 0 { cores.len().max(1) } else { threads };
    (0..threads).map(|i| (!cores.is_empty()).then(|| cores[i % cores.len()])).collect()
}

#[cfg(test)]
mod tests {
    use super::super::machine::{Node, Topology};
    use super::*;

    /// Sockets of four cores each.
    struct Sockets(u32);
    impl Topology for Sockets {
        fn name(&self) -> &'static str {
            "test"
        }
        fn nodes(&self) -> Vec<Node> {
            let cores = |socket: usize| (socket * 4..socket * 4 + 4).collect();
            (0..self.0).map(|socket| Node { id: socket, cores: cores(socket as usize) }).collect()
        }
    }

    fn machine(sockets: u32) -> Machine {
        Machine::from_source(&Sockets(sockets), (0..sockets as usize * 4).collect())
    }
    fn cores(spots: &[Option<Spot>]) -> Vec<usize> {
        spots.iter().map(|s| s.expect("a core").core).collect()
    }
    fn asked(shards: u32, lanes_per_shard: u32) -> Asked {
        Asked { shards, lanes_per_shard, ..Asked::default() }
    }

    #[test]
    fn two_sockets_get_a_shard_each_and_everything_runs_at_home() {
        let plan = Plan::new(&machine(2), &Asked::default());
        assert_eq!((plan.shards.as_slice(), plan.lanes_per_shard), ([Some(0), Some(1)].as_slice(), 2));
        assert_eq!(cores(&plan.lanes), [0, 1, 4, 5]);
        assert_eq!(cores(&plan.lookups), [2, 6, 3, 7], "one node, then the other");
        assert!(plan.lanes.iter().flatten().all(|s| s.node == Some(s.core as u32 / 4)));
    }

    #[test]
    fn lanes_run_on_their_shards_node() {
        let placed = |shards, lanes| cores(&Plan::new(&machine(2), &asked(shards, lanes)).lanes);
        assert_eq!(placed(4, 2), [0, 1, 4, 5, 2, 3, 6, 7]);
        assert_eq!(placed(2, 5), [0, 1, 2, 3, 0, 4, 5, 6, 7, 4]);
        let plan = Plan::new(&machine(2), &asked(3, 1));
        assert_eq!(plan.shards, [Some(0), Some(1), Some(0)]);
    }

    #[test]
    fn one_node_is_left_alone_unless_asked() {
        let plan = Plan::new(&machine(1), &Asked::default());
        assert_eq!(plan, Plan { lanes_per_shard: 2, shards: vec![None], lanes: vec![None; 2], lookups: vec![] });
        let numa = Numa::Bind;
        let plan = Plan::new(&machine(1), &Asked { numa, pin_lanes: true, pin_lookups: true, ..Asked::default() });
        assert_eq!(
            (plan.shards.as_slice(), cores(&plan.lanes), cores(&plan.lookups)),
            ([Some(0)].as_slice(), vec![0, 1], vec![2, 3])
        );
    }

    #[test]
    fn off_is_off_on_two_sockets_too() {
        let plan = Plan::new(&machine(2), &Asked { numa: Numa::Off, lookup_threads: 3, ..Asked::default() });
        assert_eq!((plan.shards.len(), plan.shards[0], plan.lanes_per_shard), (1, None, 4));
        assert!(plan.lanes.iter().chain(&plan.lookups).all(Option::is_none));
        assert_eq!(plan.lookups.len(), 3);
    }

    #[test]
    fn a_node_without_usable_cores_gets_no_shard() {
        let machine = Machine::from_source(&Sockets(2), vec![1, 3]);
        let plan = Plan::new(&machine, &Asked { numa: Numa::Prefer, ..Asked::default() });
        assert_eq!(plan.shards, [Some(0)]);
        let plan = Plan::new(&machine, &Asked { numa: Numa::Prefer, shards: 2, pin_lanes: true, ..Asked::default() });
        assert_eq!((plan.shards.as_slice(), cores(&plan.lanes)), ([Some(0); 2].as_slice(), vec![1, 3]));
    }

    #[test]
    fn lookups_share_cores_with_lanes_where_none_is_left() {
        let plan = Plan::new(&machine(2), &Asked { lookup_threads: 5, ..asked(2, 4) });
        assert_eq!(cores(&plan.lookups), [0, 4, 1, 5, 2]);
    }

    #[test]
    fn a_machine_that_says_nothing_runs_anyway() {
        let nothing = Machine { source: "none", ..Machine::default() };
        let asked = Asked { numa: Numa::Bind, pin_lanes: true, pin_lookups: true, ..Asked::default() };
        let plan = Plan::new(&nothing, &asked);
        assert_eq!(plan, Plan { lanes_per_shard: 1, shards: vec![None], lanes: vec![None], lookups: vec![None] });
    }
}
