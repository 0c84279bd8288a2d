//! The machine as it was found at start.

#[cfg(feature = "hwloc")]
use super::hwloc;
use super::sysfs::Sysfs;

/// Where Linux says whether transparent huge pages are there at all.
const HUGE_PAGES_SETTING: &str = "/sys/kernel/mm/transparent_hugepage/enabled";

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
    /// Name of the source, for logs and status.
    fn name(&self) -> &'static str;
    /// The memory nodes that have cores, by number. Empty when the source cannot tell.
    fn nodes(&self) -> Vec<Node>;
}

/// What was found.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Machine {
    /// Who told: `hwloc`, `sysfs`, or a test's source.
    pub source: &'static str,
    /// The memory nodes that have cores, by number, each with those of its cores that this process may use.
    pub nodes: Vec<Node>,
    /// The cores that this process may use, ascending.
    pub cores: Vec<usize>,
    /// The system's setting of transparent huge pages (`always`, `madvise`, `never`), if it has one.
    pub transparent_huge_pages: Option<String>,
}

impl Machine {
    /// This machine: hwloc's view where it is built in, else sysfs. Call it before any thread is pinned: a pinned thread may use
    /// its own core only.
    pub fn this() -> Self {
        let cores = core_affinity::get_core_ids().unwrap_or_default().into_iter().map(|core| core.id).collect();
        let mut machine = Self::from_source(this_topology().as_ref(), cores);
        machine.transparent_huge_pages =
            std::fs::read_to_string(HUGE_PAGES_SETTING).ok().and_then(|text| chosen(&text).map(str::to_owned));
        machine
    }

    /// A machine as a source tells it, for a process that may use these cores.
    pub fn from_source(topology: &dyn Topology, mut cores: Vec<usize>) -> Self {
        cores.sort_unstable();
        cores.dedup();
        let mut nodes = topology.nodes();
        nodes.iter_mut().for_each(|node| node.cores.retain(|core| cores.binary_search(core).is_ok()));
        nodes.sort_by_key(|node| node.id);
        Self { source: topology.name(), nodes, cores, transparent_huge_pages: None }
    }

    /// The nodes on which this process may run something.
    pub fn usable_nodes(&self) -> impl Iterator<Item = &Node> {
        self.nodes.iter().filter(|node| !node.cores.is_empty())
    }

    /// The node of a core.
    pub fn node_of(&self, core: usize) -> Option<u32> {
        self.nodes.iter().find(|node| node.cores.contains(&core)).map(|node| node.id)
    }
}

fn this_topology() -> Box<dyn Topology> {
    #[cfg(feature = "hwloc")]
    if let Some(topology) = hwloc::Hwloc::read() {
        return Box::new(topology);
    }
    Box::new(Sysfs::default())
}

/// The word in brackets of `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    Some(text.split_once('[')?.1.split_once(']')?.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Source(Vec<Node>);
    impl Topology for Source {
        fn name(&self) -> &'static str {
            "test"
        }
        fn nodes(&self) -> Vec<Node> {
            self.0.clone()
        }
    }

    #[test]
    fn cores_that_the_process_may_not_use_are_left_out() {
        let nodes = vec![Node { id: 1, cores: vec![2, 3] }, Node { id: 0, cores: vec![0, 1] }];
        let machine = Machine::from_source(&Source(nodes), vec![3, 2, 2]);
        assert_eq!(machine.cores, [2, 3]);
        assert_eq!(machine.nodes, [Node { id: 0, cores: vec![] }, Node { id: 1, cores: vec![2, 3] }]);
        assert_eq!(machine.usable_nodes().map(|n| n.id).collect::<Vec<_>>(), [1]);
        assert_eq!((machine.node_of(2), machine.node_of(0)), (Some(1), None));
    }

    #[test]
    fn this_machine_is_read_without_failing() {
        let machine = Machine::this();
        assert!(!machine.cores.is_empty(), "{machine:?}");
        assert!(machine.nodes.iter().flat_map(|n| &n.cores).all(|c| machine.cores.contains(c)), "{machine:?}");
    }

    #[test]
    fn the_setting_is_the_word_in_brackets() {
        assert_eq!(chosen("always [madvise] never\n"), Some("madvise"));
        assert_eq!((chosen("always"), chosen("[x")), (None, None));
    }
}
