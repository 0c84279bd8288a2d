//! Layouts: which core issues, which answers lookups, which applies events. Read from one file and checked once.

use core_affinity::CoreId;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The layouts that come with the harness.
const BUILT_IN: &str = include_str!("../../layouts.toml");
/// Threads of one layout.
const CORES_MAX: usize = 256;

/// Why a layout cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum LayoutError {
    /// The file cannot be read.
    #[error("layouts {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file is not what it should be.
    #[error("layouts: {0}")]
    Parse(#[from] toml::de::Error),
    /// There is no layout of this name.
    #[error("no layout \"{name}\"; there are {known}")]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: String,
    },
    /// A role has no core.
    #[error("layout \"{layout}\": {role} names no core")]
    Empty {
        /// The layout.
        layout: String,
        /// The role.
        role: &'static str,
    },
    /// A role names a core twice.
    #[error("layout \"{layout}\": {role} names core {core} twice")]
    Twice {
        /// The layout.
        layout: String,
        /// The role.
        role: &'static str,
        /// The core.
        core: usize,
    },
    /// A core issues and serves: a slow lane would delay the issuer, which is what an open loop must not have.
    #[error("layout \"{layout}\": core {core} both issues and serves")]
    Shared {
        /// The layout.
        layout: String,
        /// The core.
        core: usize,
    },
    /// A core that this process may not use.
    #[error("layout \"{layout}\": core {core} is not among those this process may use ({usable})")]
    Absent {
        /// The layout.
        layout: String,
        /// The core.
        core: usize,
        /// The cores there are.
        usable: String,
    },
    /// More cores than the ladder starts threads for.
    #[error("layout \"{layout}\": {cores} cores, at most {CORES_MAX}")]
    TooMany {
        /// The layout.
        layout: String,
        /// How many.
        cores: usize,
    },
}

/// One layout as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Layout {
    /// What it is, in words.
    #[serde(default)]
    pub about: String,
    /// Cores that issue.
    pub issuers: Vec<usize>,
    /// Cores that answer lookups.
    pub queries: Vec<usize>,
    /// Cores that apply events.
    pub events: Vec<usize>,
}

/// What the thread of a serving core does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Role {
    /// The core.
    pub core: usize,
    /// The number of its query lane.
    pub query: Option<usize>,
    /// The number of its event lane.
    pub event: Option<usize>,
}

impl Layout {
    /// Reads one layout out of a file, or out of those built in, and checks what does not depend on the machine.
    pub fn load(file: Option<&Path>, name: &str) -> Result<Layout, LayoutError> {
        match file {
            Some(path) => {
                let read = std::fs::read_to_string(path);
                Self::parse(&read.map_err(|source| LayoutError::Read { path: path.to_owned(), source })?, name)
            }
            None => Self::parse(BUILT_IN, name),
        }
    }

    fn parse(text: &str, name: &str) -> Result<Layout, LayoutError> {
        let mut all: BTreeMap<String, Layout> = toml::from_str(text)?;
        let Some(layout) = all.remove(name) else {
            let known = all.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(LayoutError::Unknown { name: name.to_owned(), known });
        };
        layout.check(name)?;
        Ok(layout)
    }

    fn check(&self, name: &str) -> Result<(), LayoutError> {
        let layout = || name.to_owned();
        for (role, cores) in [("issuers", &self.issuers), ("queries", &self.queries), ("events", &self.events)] {
            if cores.is_empty() {
                return Err(LayoutError::Empty { layout: layout(), role });
            }
            let mut seen = BTreeSet::new();
            if let Some(&core) = cores.iter().find(|&&c| !seen.insert(c)) {
                return Err(LayoutError::Twice { layout: layout(), role, core });
            }
        }
        let serving: BTreeSet<usize> = self.queries.iter().chain(&self.events).copied().collect();
        if let Some(&core) = self.issuers.iter().find(|c| serving.contains(c)) {
            return Err(LayoutError::Shared { layout: layout(), core });
        }
        let cores = serving.len() + self.issuers.len();
        if cores > CORES_MAX { Err(LayoutError::TooMany { layout: layout(), cores }) } else { Ok(()) }
    }

    /// Checks that this process may run on every core. The list has to be taken before the first pin.
    pub fn check_cores(&self, name: &str, usable: &[CoreId]) -> Result<(), LayoutError> {
        let mut all = self.issuers.iter().chain(&self.queries).chain(&self.events);
        match all.find(|&&core| usable.iter().all(|u| u.id != core)) {
            None => Ok(()),
            Some(&core) => {
                let usable = usable.iter().map(|u| u.id.to_string()).collect::<Vec<_>>().join(", ");
                Err(LayoutError::Absent { layout: name.to_owned(), core, usable })
            }
        }
    }

    /// The serving threads: one for each core that answers lookups or applies events.
    pub fn roles(&self) -> Vec<Role> {
        let serving: BTreeSet<usize> = self.queries.iter().chain(&self.events).copied().collect();
        let number = |cores: &[usize], core| cores.iter().position(|&c| c == core);
        let role = |core| Role { core, query: number(&self.queries, core), event: number(&self.events, core) };
        serving.into_iter().map(role).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: &str = "[x]\n";

    fn parse(body: &str) -> Result<Layout, LayoutError> {
        Layout::parse(&format!("{HEAD}{body}"), "x")
    }

    #[test]
    fn every_built_in_layout_is_valid_and_two_cores_are_enough() {
        for name in ["two", "three", "four", "eight"] {
            Layout::load(None, name).expect(name);
        }
        let two = Layout::load(None, "two").unwrap();
        assert_eq!(two.roles(), [Role { core: 1, query: Some(0), event: Some(0) }]);
        two.check_cores("two", &[CoreId { id: 0 }, CoreId { id: 1 }]).unwrap();
    }

    #[test]
    fn cores_of_both_roles_are_one_thread() {
        let layout = parse("issuers = [0]\nqueries = [3, 1]\nevents = [2, 3]").unwrap();
        let roles = layout.roles();
        assert_eq!(roles.len(), 3);
        assert_eq!(roles[0], Role { core: 1, query: Some(1), event: None });
        assert_eq!(roles[1], Role { core: 2, query: None, event: Some(0) });
        assert_eq!(roles[2], Role { core: 3, query: Some(0), event: Some(1) });
    }

    #[test]
    fn refusals_say_what_is_wrong() {
        assert!(matches!(
            parse("issuers = []\nqueries = [1]\nevents = [1]"),
            Err(LayoutError::Empty { role: "issuers", .. })
        ));
        assert!(matches!(
            parse("issuers = [0]\nqueries = [1, 1]\nevents = [1]"),
            Err(LayoutError::Twice { role: "queries", core: 1, .. })
        ));
        assert!(matches!(
            parse("issuers = [0]\nqueries = [0]\nevents = [1]"),
            Err(LayoutError::Shared { core: 0, .. })
        ));
        assert!(matches!(parse("issuers = [0]\nqueries = [1]\nevents = [1]\ncores = 2"), Err(LayoutError::Parse(_))));
        assert!(matches!(Layout::load(None, "ten"), Err(LayoutError::Unknown { .. })));
        assert!(matches!(Layout::load(Some(Path::new("no/such/file")), "two"), Err(LayoutError::Read { .. })));
        let two = Layout::load(None, "two").unwrap();
        assert!(matches!(two.check_cores("two", &[CoreId { id: 0 }]), Err(LayoutError::Absent { core: 1, .. })));
    }
}
