//! What names of one lane mean: a map of canonical names shared by all ranks of the lane, and per holder the exceptions.
//!
//! A holder has each name at one position. A position that it holds has *at least the one default name* of its run's kind:
//! the canonical name (ENG) where it holds the run under canonical names, one private name where it holds it under private
//! ones. Further names of a held position are counted as twins; stores beyond the first of a name as copies. The canonical
//! map keeps no keys: ENG is the key store, and a name is mapped to a position as long as a rank of this lane holds that
//! position canonically (invariant I10, I11).

use crate::config::IndexConfig;
use crate::error::ConfigError;
use crate::hash::{HashKey, IntMap, shrink};
use crate::lane::map::{EVERYBODY, Keys, LaneMap};
use crate::lane::table::{Keyed, Table};
use crate::layout::Arena;
use crate::prefetch::read_soon;
use crate::sync::Ordering;
use crate::types::EngineHash;

/// Canonical names of the lane: name -> position.
pub(crate) struct CanonicalMap {
    map: LaneMap,
    key: HashKey,
}

/// How the map reads back what a position stands for.
struct Canonical<'a> {
    arena: &'a Arena,
    key: HashKey,
}

impl Keys for Canonical<'_> {
    #[inline(always)]
    fn hash(&self, name: u64) -> u64 {
        self.key.one(name)
    }
    #[inline(always)]
    fn name(&self, slot: u32) -> u64 {
        self.arena.name(slot)
    }
    #[inline(always)]
    fn owner(&self, _slot: u32) -> u32 {
        EVERYBODY
    }
    #[inline(always)]
    fn ask(&self, slot: u32) {
        self.arena.names(slot, 1).iter().for_each(read_soon);
    }
}

impl CanonicalMap {
    /// Reserves room for the names of all blocks that there may be.
    pub fn new(config: &IndexConfig, key: HashKey) -> Result<Self, ConfigError> {
        Ok(Self { map: LaneMap::new(config.blocks_max as usize, key)?, key })
    }

    /// Asks for the line of a name, to be looked at soon.
    #[inline]
    pub fn expect(&self, arena: &Arena, name: u64) {
        self.map.expect(&Canonical { arena, key: self.key }, name);
    }

    /// A position that probably has this name: nothing but the map's line is read.
    #[inline]
    pub fn candidate(&self, arena: &Arena, name: u64) -> Option<u32> {
        self.map.candidate(&Canonical { arena, key: self.key }, name, EVERYBODY)
    }

    /// The position with this canonical name.
    #[inline]
    pub fn find(&self, arena: &Arena, name: u64) -> Option<u32> {
        self.map.find(&Canonical { arena, key: self.key }, name, EVERYBODY)
    }

    /// Maps names to the positions from `from` on, whose ENG words are written already, up to the first name that has a
    /// position. How many were mapped.
    #[inline]
    pub fn insert_stretch(&mut self, arena: &Arena, names: &[EngineHash], from: u32) -> u32 {
        self.map.insert_stretch(&Canonical { arena, key: self.key }, names.iter().map(|n| n.0), from)
    }

    /// Takes the mappings of positions out, as far as there are any.
    #[inline]
    pub fn remove_stretch(&mut self, arena: &Arena, from: u32, count: u32) {
        let names = arena.names(from, count).iter().map(|word| word.load(Ordering::Relaxed));
        self.map.remove_stretch(&Canonical { arena, key: self.key }, names, from);
    }

    pub fn len(&self) -> usize {
        self.map.len()
    }

    /// Bytes of the map.
    pub fn bytes(&self) -> u64 {
        self.map.bytes()
    }

    /// Checks the map's own invariants. Walks all of it.
    pub fn check(&self, arena: &Arena) -> Result<(), String> {
        let positions = self.map.check(&Canonical { arena, key: self.key })?;
        let all = positions.iter().all(|&p| self.find(arena, arena.name(p)) == Some(p));
        if all { Ok(()) } else { Err("an entry of the lane map is not found by its name".to_owned()) }
    }
}

/// Private names of one holder: name -> position.
pub(crate) struct PrivateNames {
    table: Table<Keyed>,
    key: HashKey,
}

impl PrivateNames {
    fn new(key: HashKey) -> Self {
        Self { table: Table::new(), key }
    }

    pub fn is_empty(&self) -> bool {
        self.table.len() == 0
    }

    #[inline]
    pub fn get(&self, name: u64) -> Option<u32> {
        if self.is_empty() {
            return None;
        }
        self.table.find(self.key.one(name), name, |_| true)
    }

    /// Adds a name, or moves it to another position.
    #[inline]
    pub fn insert(&mut self, name: u64, position: u32) {
        let (hash, key) = (self.key.one(name), self.key);
        if !self.table.replace(hash, name, position) {
            self.table.add(hash, name, position, |name, _| key.one(name.unwrap_or(0)));
        }
    }

    /// Forgets a name; where it stood.
    #[inline]
    pub fn remove(&mut self, name: u64) -> Option<u32> {
        let key = self.key;
        self.table.remove(key.one(name), name, |_| true, |name, _| key.one(name.unwrap_or(0)))
    }

    /// Every name and where it stands.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32)> + '_ {
        self.table.iter().map(|(name, position)| (name.unwrap_or(0), position))
    }

    /// Bytes of the table.
    pub fn bytes(&self) -> u64 {
        self.table.bytes()
    }
}

/// A canonical name that is likely to come next, and where it stood. The position may be gone, or be another block's by now.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hint {
    pub name: u64,
    /// The root where there is no hint.
    pub position: u32,
}

/// The names of one holder that the canonical map does not tell.
pub(crate) struct HolderNames {
    /// Private names: name -> position.
    pub private: PrivateNames,
    /// Names of a position beyond its default one: position -> how many.
    pub twins: IntMap<u32, u32>,
    /// Stores of a name beyond the first: name -> how many.
    pub copies: IntMap<u64, u64>,
    /// Positions held.
    pub held: u64,
    /// Sum of `twins`.
    pub twin_names: u64,
    /// The block below the last removal: what an engine that frees tails first removes next.
    pub below: Hint,
    /// The last block stored: what the next store goes on from.
    pub latest: Hint,
}

impl HolderNames {
    pub fn new(key: HashKey) -> Self {
        Self {
            private: PrivateNames::new(key),
            twins: IntMap::with_hasher(key),
            copies: IntMap::with_hasher(key),
            held: 0,
            twin_names: 0,
            below: Hint::default(),
            latest: Hint::default(),
        }
    }

    /// Whether every name is the only one of its position, canonical, and stored once.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.private.is_empty() && self.twins.is_empty() && self.copies.is_empty()
    }

    /// Distinct names.
    pub fn count(&self) -> u64 {
        self.held + self.twin_names
    }

    /// Whether a held position has no name but its default one, and this name no further copy.
    #[inline]
    pub fn usual(&self, position: u32, name: u64) -> bool {
        (self.twins.is_empty() || !self.twins.contains_key(&position))
            && (self.copies.is_empty() || !self.copies.contains_key(&name))
    }

    pub fn add_copies(&mut self, name: u64, more: u64) {
        if more > 0 {
            // An engine may claim any count. The first copy counts too, so the sum stays inside 64 bits.
            let copies = self.copies.entry(name).or_insert(0);
            *copies = copies.saturating_add(more).min(u64::MAX - 1);
        }
    }

    /// Only the first store of a name counts from now on.
    pub fn drop_copies(&mut self, name: u64) {
        self.copies.remove(&name);
        shrink(&mut self.copies);
    }

    /// One copy less; false when only the last one is left.
    pub fn take_copy(&mut self, name: u64) -> bool {
        if self.copies.is_empty() {
            return false;
        }
        match self.copies.get_mut(&name) {
            None => false,
            Some(1) => {
                self.drop_copies(name);
                true
            }
            Some(more) => {
                *more -= 1;
                true
            }
        }
    }

    pub fn add_twin(&mut self, position: u32) {
        *self.twins.entry(position).or_insert(0) += 1;
        self.twin_names += 1;
    }

    /// Takes one twin away; false when the position has only its default name.
    pub fn take_twin(&mut self, position: u32) -> bool {
        match self.twins.get_mut(&position) {
            None => return false,
            Some(1) => {
                self.twins.remove(&position);
                shrink(&mut self.twins);
            }
            Some(more) => *more -= 1,
        }
        self.twin_names -= 1;
        true
    }

    /// Bytes of the maps.
    pub fn bytes(&self) -> u64 {
        self.private.bytes() + (self.twins.capacity() * 9 + self.copies.capacity() * 17) as u64 * 8 / 7
    }
}
