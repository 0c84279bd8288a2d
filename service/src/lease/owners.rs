//! The owners of each prefix, and what was removed: an owner joins by a commit only, and leaves when it lost blocks or its life.

use super::hex;
use super::record::Prefix;
use super::target::{Sequences, Target};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// A committed owner.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Owner {
    /// The worker in the life that was seeded.
    pub target: Target,
    /// How far its events were applied when it was proven: what was removed later is removed from it.
    pub proven: Sequences,
}

/// A worker lost blocks of the prefix.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Tombstone {
    /// The worker in the life in which it did.
    pub target: Target,
    /// How far its events were applied when that was seen.
    pub sequences: Sequences,
    /// When.
    pub at: Duration,
}

/// Owners and removals of one prefix.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct OwnerSet {
    /// The partition's revision when the owners changed last.
    pub revision: u64,
    /// The owners, in the order in which they joined.
    pub owners: Vec<Owner>,
    /// The latest removal of each worker.
    pub tombstones: Vec<Tombstone>,
}

/// Every prefix of a partition of which something is known.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Prefixes {
    #[serde(with = "as_list")]
    sets: BTreeMap<Prefix, OwnerSet>,
    /// The largest revision of a set without owners that was forgotten: watchers who saw less have to start over.
    pub forgotten: u64,
}

impl OwnerSet {
    /// Whether a worker is an owner, in whichever life.
    pub fn has(&self, worker: &str) -> bool {
        self.owners.iter().any(|owner| owner.target.worker == worker)
    }

    /// Whether the target lost blocks after it was proven.
    pub(super) fn is_buried(&self, target: &Target, proven: &Sequences) -> bool {
        self.tombstones.iter().any(|stone| stone.target == *target && stone.sequences.any_after(proven))
    }

    /// Remembers a removal: one for each worker, and of the limit's many the oldest goes.
    fn bury(&mut self, stone: Tombstone, limit: usize) {
        if let Some(known) = self.tombstones.iter_mut().find(|known| known.target.worker == stone.target.worker) {
            if known.target == stone.target {
                known.sequences.advance(&stone.sequences);
                known.at = stone.at;
            } else {
                *known = stone;
            }
            return;
        }
        if self.tombstones.len() >= limit
            && let Some(oldest) = (0..self.tombstones.len()).min_by_key(|i| self.tombstones[*i].at)
        {
            self.tombstones.swap_remove(oldest);
        }
        self.tombstones.push(stone);
    }
}

impl Prefixes {
    /// What is known of a prefix.
    pub fn get(&self, prefix: &[u8]) -> Option<&OwnerSet> {
        self.sets.get(prefix)
    }

    /// All, by prefix.
    pub fn iter(&self) -> impl Iterator<Item = (&Prefix, &OwnerSet)> {
        self.sets.iter()
    }

    /// Prefixes of which something is known.
    pub fn len(&self) -> usize {
        self.sets.len()
    }

    /// Nothing is known; what was before this revision is forgotten.
    pub(super) fn new(forgotten: u64) -> Self {
        Self { sets: BTreeMap::new(), forgotten }
    }

    /// Whether nothing is known of any.
    pub fn is_empty(&self) -> bool {
        self.sets.is_empty()
    }

    /// Whether there is room for the prefix, made by forgetting one without owners if need be.
    pub(super) fn make_room(&mut self, prefix: &[u8], limit: usize) -> bool {
        if self.sets.contains_key(prefix) || self.sets.len() < limit {
            return true;
        }
        let empty = self.sets.iter().filter(|(_, set)| set.owners.is_empty()).min_by_key(|(_, set)| set.revision);
        let Some(empty) = empty.map(|(prefix, _)| prefix.clone()) else { return false };
        if let Some(set) = self.sets.remove(&empty) {
            self.forgotten = self.forgotten.max(set.revision);
        }
        true
    }

    /// As a machine without tombstones would.
    #[cfg(test)]
    pub(super) fn forget_tombstones(&mut self) {
        self.sets.values_mut().for_each(|set| set.tombstones.clear());
    }

    pub(super) fn join(&mut self, prefix: &[u8], owner: Owner, revision: u64) {
        let set = self.sets.entry(prefix.to_vec()).or_default();
        set.owners.retain(|known| known.target.worker != owner.target.worker);
        set.owners.push(owner);
        set.revision = revision;
    }

    /// A worker lost blocks of a prefix: it is no owner any more, unless it was proven later. `watched` says that a lease of the
    /// prefix is out, so that the removal matters even where no owner is known. Whether the owners changed.
    pub(super) fn removed(
        &mut self,
        prefix: &[u8],
        stone: Tombstone,
        watched: bool,
        limits: (usize, usize),
        revision: u64,
    ) -> bool {
        let (prefixes_max, tombstones_max) = limits;
        let known = self.sets.contains_key(prefix) || (watched && self.make_room(prefix, prefixes_max));
        if !known {
            return false;
        }
        let set = self.sets.entry(prefix.to_vec()).or_default();
        let before = set.owners.len();
        set.owners.retain(|owner| owner.target != stone.target || !stone.sequences.any_after(&owner.proven));
        let changed = set.owners.len() < before;
        if changed {
            set.revision = revision;
        }
        set.bury(stone, tombstones_max);
        changed
    }

    /// A worker's life is over: no prefix has it as an owner any more. Whether any had.
    pub(super) fn gone(&mut self, target: &Target, revision: u64) -> bool {
        let mut changed = false;
        for set in self.sets.values_mut() {
            let before = set.owners.len();
            set.owners.retain(|owner| owner.target != *target);
            if set.owners.len() < before {
                set.revision = revision;
                changed = true;
            }
        }
        changed
    }
}

/// JSON has no maps with keys of bytes.
mod as_list {
    use super::{BTreeMap, OwnerSet, Prefix, hex};
    use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error};

    pub(super) fn serialize<S: Serializer>(sets: &BTreeMap<Prefix, OwnerSet>, to: S) -> Result<S::Ok, S::Error> {
        sets.iter().map(|(prefix, set)| (hex::encode(prefix), set)).collect::<Vec<_>>().serialize(to)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<Prefix, OwnerSet>, D::Error> {
        let list = Vec::<(String, OwnerSet)>::deserialize(from)?;
        let decoded = list.into_iter().map(|(prefix, set)| Some((hex::decode(&prefix)?, set)));
        decoded.collect::<Option<_>>().ok_or_else(|| D::Error::custom("a prefix is not hexadecimal"))
    }
}
