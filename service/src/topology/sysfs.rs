//! The topology as Linux tells it in `/sys/devices/system/node`: no library needed.

use super::machine::{Node, Topology};
use std::path::{Path, PathBuf};

/// Most bytes of a core list that are read.
const LIST_BYTES_MAX: usize = 64 * 1024;
/// Highest core number that is believed.
const CORE_MAX: usize = 1 << 16;

/// Reads the node directories below a root.
#[derive(Clone, Debug)]
pub struct Sysfs {
    root: PathBuf,
}

impl Sysfs {
    /// Another root than the system's, for tests.
    pub fn at(root: PathBuf) -> Self {
        Self { root }
    }
}

impl Default for Sysfs {
    fn default() -> Self {
        Self { root: PathBuf::from("/sys/devices/system/node") }
    }
}

impl Topology for Sysfs {
    fn name(&self) -> &'static str {
        "sysfs"
    }

    fn nodes(&self) -> Vec<Node> {
        let Ok(entries) = std::fs::read_dir(&self.root) else { return Vec::new() };
        let mut nodes: Vec<Node> = entries.flatten().filter_map(|entry| node(&entry.path())).collect();
        nodes.sort_by_key(|n| n.id);
        nodes
    }
}

/// A directory `nodeN` with a core list that is not empty.
fn node(path: &Path) -> Option<Node> {
    let id = path.file_name()?.to_str()?.strip_prefix("node")?.parse().ok()?;
    let list = std::fs::read_to_string(path.join("cpulist")).ok()?;
    let cores = parse_list(list.get(..list.len().min(LIST_BYTES_MAX))?)?;
    (!cores.is_empty()).then_some(Node { id, cores })
}

/// Parses `0-3,8,10-11`. `None` when it is not of that form.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cores = Vec::new();
    for part in text.trim().split(',').filter(|p| !p.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        if first > last || last > CORE_MAX {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::{Sysfs, parse_list};
    use crate::topology::{Node, Topology};

    #[test]
    fn core_lists() {
        assert_eq!(parse_list("0-3,8,10-11\n"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(parse_list("\n"), Some(vec![]));
        for bad in ["3-1", "x", "0-", "0-99999999"] {
            assert_eq!(parse_list(bad), None, "{bad}");
        }
    }

    #[test]
    fn a_machine_with_two_nodes() {
        let root = tempfile::tempdir().unwrap();
        for (node, list) in [("node1", "2-3\n"), ("node0", "0-1\n"), ("node2", "\n"), ("power", "x")] {
            std::fs::create_dir(root.path().join(node)).unwrap();
            std::fs::write(root.path().join(node).join("cpulist"), list).unwrap();
        }
        let nodes = Sysfs::at(root.path().into()).nodes();
        assert_eq!(nodes, [Node { id: 0, cores: vec![0, 1] }, Node { id: 1, cores: vec![2, 3] }]);
        assert!(Sysfs::at(root.path().join("missing")).nodes().is_empty());
    }
}
