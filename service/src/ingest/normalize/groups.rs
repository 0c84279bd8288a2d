//! KV-cache groups: a hybrid model keeps its layers in several, and each announces the same hashes.
//!
//! Only one group is read. A group with full attention needs every block of a prefix, so it is the one that says how much of
//! a prefix is there; beside it, groups with a window only take away from that. Removals do not say the kind, so it is
//! remembered from the stores, for a bounded number of groups.

use std::collections::BTreeMap;

/// What to do with the events of a group.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Reading {
    /// Every block of a prefix is announced.
    Dense,
    /// The only groups there are have a window: blocks may be skipped.
    TailAligned,
    /// Another group is read.
    LeftOut,
    /// Its kind is not known: it may skip blocks.
    Unlearned,
}

/// Whether blocks of this attention kind depend on all tokens before them.
pub(crate) fn is_full_kind(kind: &str) -> bool {
    matches!(kind, "full_attention" | "mla_attention" | "sink_full_attention")
}

/// The groups of one rank, as far as they are known.
pub(super) struct Groups {
    /// Whether the group has full attention.
    full: BTreeMap<u64, bool>,
    /// The group that is read.
    read: Option<(u64, bool)>,
    /// Groups without a kind other than 0 were seen.
    unlearned: bool,
    count_max: usize,
}

impl Groups {
    pub(super) fn new(count_max: usize) -> Self {
        Self { full: BTreeMap::new(), read: None, unlearned: false, count_max }
    }

    /// As after stores of this group alone, which has full attention; as [`Self::new`] without one.
    pub(super) fn with_main(count_max: usize, main: Option<u64>) -> Self {
        Self {
            full: main.map(|group| (group, true)).into_iter().collect(),
            read: main.map(|g| (g, true)),
            ..Self::new(count_max)
        }
    }

    /// The group that is read, if its kind was said.
    pub(super) fn main(&self) -> Option<u64> {
        self.read.map(|(group, _)| group)
    }

    /// Learns from a store. `true` if another group is read from now on: what was read before has to go.
    pub(super) fn learn(&mut self, group: Option<u64>, kind: Option<&str>) -> bool {
        let group = group.unwrap_or(0);
        let Some(kind) = kind else {
            self.unlearned |= group != 0 && !self.full.contains_key(&group);
            return false;
        };
        let full = is_full_kind(kind);
        if self.read == Some((group, full)) {
            return false;
        }
        if self.full.len() >= self.count_max && !self.full.contains_key(&group) {
            return false;
        }
        self.full.insert(group, full);
        match self.read {
            None => {
                self.read = Some((group, full));
                false
            }
            Some((_, false)) if full => {
                self.read = Some((group, true));
                true
            }
            // The kind of a group does not change within one life.
            Some(_) => false,
        }
    }

    pub(super) fn reading(&self, group: Option<u64>) -> Reading {
        let group = group.unwrap_or(0);
        match (self.read, self.full.get(&group)) {
            (Some((read, true)), _) if read == group => Reading::Dense,
            (Some((read, false)), _) if read == group => Reading::TailAligned,
            (_, Some(_)) => Reading::LeftOut,
            // Versions before kinds: group 0 is the main one.
            (None, None) if group == 0 => Reading::Dense,
            _ => Reading::Unlearned,
        }
    }

    /// Why answers about the rank are not exact, if its groups are the reason.
    pub(super) fn upper_bound(&self) -> Option<&'static str> {
        match self.read {
            Some((_, false)) => Some("only window groups: every block of a prefix is asked for, not just the window"),
            Some((read, true)) if self.full.iter().any(|(&g, &full)| g != read && !full) => {
                Some("window groups beside the full group are left out")
            }
            Some((read, true)) if self.full.keys().any(|&g| g != read) => {
                Some("further full-attention groups are left out")
            }
            _ if self.unlearned => Some("groups of unknown kind are left out"),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_full_group_is_read_wherever_it_stands() {
        let mut groups = Groups::new(8);
        assert!(!groups.learn(Some(0), Some("sliding_window")));
        assert_eq!(groups.reading(Some(0)), Reading::TailAligned);
        assert!(groups.learn(Some(1), Some("full_attention")), "the full group takes over");
        assert_eq!(groups.reading(Some(0)), Reading::LeftOut);
        assert_eq!(groups.reading(Some(1)), Reading::Dense);
        assert_eq!(groups.reading(Some(2)), Reading::Unlearned);
        assert_eq!(groups.upper_bound(), Some("window groups beside the full group are left out"));
        assert!(!groups.learn(Some(2), Some("mla_attention")));
        assert_eq!(groups.reading(Some(2)), Reading::LeftOut);
    }

    #[test]
    fn what_needs_no_mark_is_told_by_its_main_group() {
        let mut groups = Groups::new(8);
        groups.learn(Some(3), Some("full_attention"));
        assert_eq!((groups.main(), groups.upper_bound()), (Some(3), None));
        for mut again in [groups, Groups::with_main(8, Some(3))] {
            // Removals carry no kind, and stores may carry none either.
            assert_eq!((again.reading(Some(3)), again.reading(Some(0))), (Reading::Dense, Reading::Unlearned));
            assert!(!again.learn(Some(3), Some("full_attention")));
            assert!(!again.learn(Some(1), Some("sliding_window")));
            assert!(again.upper_bound().is_some());
        }
        assert_eq!(Groups::with_main(8, None).reading(None), Reading::Dense);
    }

    #[test]
    fn without_kinds_group_0_is_the_main_one() {
        let mut groups = Groups::new(8);
        groups.learn(None, None);
        assert_eq!((groups.reading(None), groups.reading(Some(0))), (Reading::Dense, Reading::Dense));
        assert_eq!(groups.upper_bound(), None);
        groups.learn(Some(3), None);
        assert_eq!(groups.reading(Some(3)), Reading::Unlearned);
        assert!(groups.upper_bound().is_some());
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut groups = Groups::new(2);
        for group in 0..100 {
            groups.learn(Some(group), Some("mamba"));
        }
        assert_eq!(groups.full.len(), 2);
        assert_eq!(groups.reading(Some(50)), Reading::Unlearned);
    }
}
