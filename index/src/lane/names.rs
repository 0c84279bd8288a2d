//! What names of one lane mean: a map of canonical names shared by all ranks of the lane, and per holder the exceptions.
//!
//! A holder has each name at one position. A position that it holds has *at least the one default name* of its run's kind:
//! the canonical name (ENG) where it holds the run under canonical names, one private name where it holds it under private
//! ones. Further names of a held position are counted as twins; stores beyond the first of a name as copies. The canonical
//! map keeps no keys: ENG is the key store, and a name is mapped to a position as long as a rank of this lane holds that
//! position canonically (invariant I10, I11).

use crate::config::IndexConfig;
use crate::cover::NO_KEY;
use crate::error::{ConfigError, IndexError};
use crate::hash::{HashKey, IntMap, shrink};
use crate::lane::alias::{ALIAS, Aliases, PLACES};
use crate::lane::map::{Append, EVERYBODY, Keys, LaneMap};
use crate::layout::Arena;
use crate::place::Site;
use crate::prefetch::read_soon;
use crate::sync::Ordering;
use crate::types::EngineHash;
use std::ops::Deref;

/// What the names of a lane's holders mean: canonical names by position, private names by alias, in one map.
pub(crate) struct LaneNames {
    map: LaneMap,
    aliases: Aliases,
    key: HashKey,
    private_max: u32,
}

/// How the map reads back what a slot stands for.
struct Slots<'a, A> {
    arena: &'a Arena,
    aliases: A,
    key: HashKey,
}

impl<A: Deref<Target = Aliases>> Keys for Slots<'_, A> {
    #[inline(always)]
    fn hash(&self, name: u64) -> u64 {
        self.key.one(name)
    }
    #[inline(always)]
    fn name(&self, slot: u32) -> u64 {
        if slot & ALIAS == 0 { self.arena.name(slot) } else { self.aliases.name(slot & !ALIAS) }
    }
    #[inline(always)]
    fn owner(&self, slot: u32) -> u32 {
        if slot & ALIAS == 0 { EVERYBODY } else { self.aliases.holder(slot & !ALIAS) }
    }
    #[inline(always)]
    fn ask(&self, slot: u32) {
        if slot & ALIAS == 0 {
            self.arena.names(slot, 1).iter().for_each(read_soon);
        } else {
            read_soon(self.aliases.name_word(slot & !ALIAS));
        }
    }
}

/// A holder's names at consecutive positions, appended one after the other.
struct Appending<'a> {
    slots: Slots<'a, &'a mut Aliases>,
    holder: u32,
    latest: u32,
    position: u32,
    /// The first of the places opened last.
    opened: u32,
}

impl Keys for Appending<'_> {
    #[inline(always)]
    fn hash(&self, name: u64) -> u64 {
        self.slots.hash(name)
    }
    #[inline(always)]
    fn name(&self, slot: u32) -> u64 {
        self.slots.name(slot)
    }
    #[inline(always)]
    fn owner(&self, slot: u32) -> u32 {
        self.slots.owner(slot)
    }
    #[inline(always)]
    fn ask(&self, slot: u32) {
        self.slots.ask(slot);
    }
}

impl Append for Appending<'_> {
    #[inline(always)]
    fn open(&mut self, names: impl ExactSizeIterator<Item = u64>) -> (u32, usize) {
        let (first, count) = self.slots.aliases.open(self.latest, self.holder, self.position, names);
        self.opened = first;
        (first | ALIAS, count)
    }
    #[inline(always)]
    fn close(&mut self, count: usize) {
        self.slots.aliases.close(self.opened, count as u32);
        if count > 0 {
            self.latest = self.opened + count as u32 - 1;
            self.position += count as u32;
        }
    }
}

impl LaneNames {
    /// Reserves room for the canonical names of all blocks that there may be, and for the private names that there may be,
    /// where the site wants it.
    pub fn new(config: &IndexConfig, key: HashKey, site: &mut Site) -> Result<Self, ConfigError> {
        let private_max = config.private_names_max_per_lane;
        let map = LaneMap::new(config.blocks_max as usize + private_max as usize, site)?;
        Ok(Self { map, aliases: Aliases::new(private_max as usize, site)?, key, private_max })
    }

    /// Asks for the line of a name, to be looked at soon.
    #[inline]
    pub fn expect(&self, arena: &Arena, name: u64) {
        self.map.expect(&self.slots(arena), name);
    }

    /// Asks for the lines of names, to be looked at soon.
    #[inline]
    pub fn expect_all(&mut self, arena: &Arena, names: &[EngineHash]) {
        let slots = Slots { arena, aliases: &self.aliases, key: self.key };
        self.map.expect_all(&slots, names.iter().map(|n| n.0));
    }

    /// A position that probably has this name: nothing but the map's line is read.
    #[inline]
    pub fn candidate(&self, arena: &Arena, name: u64) -> Option<u32> {
        self.map.candidate(&self.slots(arena), name, EVERYBODY).filter(|slot| slot & ALIAS == 0)
    }

    /// The position with this canonical name.
    #[inline]
    pub fn find(&self, arena: &Arena, name: u64) -> Option<u32> {
        self.map.find(&self.slots(arena), name, EVERYBODY)
    }

    #[inline(always)]
    fn slots<'a>(&'a self, arena: &'a Arena) -> Slots<'a, &'a Aliases> {
        Slots { arena, aliases: &self.aliases, key: self.key }
    }

    /// Maps names to the positions from `from` on, whose ENG words are written already, up to the first name that has a
    /// position or that the holder has privately. How many were mapped.
    #[inline]
    pub fn insert_stretch(
        &mut self,
        arena: &Arena,
        holder: u32,
        of: &HolderNames,
        names: &[EngineHash],
        from: u32,
    ) -> u32 {
        let slots = Slots { arena, aliases: &self.aliases, key: self.key };
        let owner = if of.private_len == 0 { EVERYBODY } else { holder };
        self.map.insert_stretch(&slots, names.iter().map(|n| n.0), owner, from)
    }

    /// Takes the mappings of positions out, as far as there are any. Their ENG words are still theirs.
    #[inline]
    pub fn remove_stretch(&mut self, arena: &Arena, from: u32, count: u32) {
        let names = arena.names(from, count).iter().map(|word| word.load(Ordering::Relaxed));
        let slots = Slots { arena, aliases: &self.aliases, key: self.key };
        self.map.remove_stretch(&slots, names, from);
    }

    /// Takes the mapping of one canonical name out, if it is to this position.
    #[inline]
    pub fn remove_one(&mut self, arena: &Arena, name: u64, position: u32) {
        let slots = Slots { arena, aliases: &self.aliases, key: self.key };
        self.map.remove(&slots, name, position);
    }

    /// Private names that surely still find a place; an error at the limit.
    #[inline]
    pub fn room(&self) -> Result<usize, IndexError> {
        match self.aliases.room() {
            0 => Err(IndexError::PrivateNamesFull { limit: self.private_max }),
            room => Ok(room),
        }
    }

    fn alias(&self, arena: &Arena, holder: u32, name: u64) -> Option<u32> {
        self.map.find(&self.slots(arena), name, holder).map(|slot| slot & !ALIAS)
    }

    /// Where a holder has a private name.
    pub fn private(&self, arena: &Arena, holder: u32, of: &HolderNames, name: u64) -> Option<u32> {
        if of.private_len == 0 {
            return None;
        }
        self.alias(arena, holder, name).map(|alias| self.aliases.position(alias))
    }

    /// Names up to the first that a holder has privately.
    pub fn not_private(&mut self, arena: &Arena, holder: u32, of: &HolderNames, names: &[EngineHash]) -> usize {
        if of.private_len == 0 {
            return names.len();
        }
        let slots = Slots { arena, aliases: &self.aliases, key: self.key };
        self.map.not_private(&slots, names.iter().map(|n| n.0), holder)
    }

    /// Gives a holder private names at positions from `from` on, up to the first name that it has privately already or, as
    /// `elsewhere` says of its position, canonically. How many. Room was asked for before.
    pub fn add_private(
        &mut self,
        arena: &Arena,
        holder: u32,
        of: &mut HolderNames,
        (names, from): (&[EngineHash], u32),
        elsewhere: impl Fn(u32) -> bool,
    ) -> u32 {
        let slots = Slots { arena, aliases: &mut self.aliases, key: self.key };
        let mut appending = Appending { slots, holder, latest: of.latest_alias, position: from, opened: 0 };
        let names = names.iter().map(|n| n.0);
        let taken = self.map.insert_private(&mut appending, names, holder, elsewhere);
        of.latest_alias = appending.latest;
        of.private_len += u64::from(taken);
        taken
    }

    /// Gives a holder one private name, or moves it to another position.
    pub fn set_private(&mut self, arena: &Arena, holder: u32, of: &mut HolderNames, name: u64, position: u32) {
        self.remove_private(arena, holder, of, name);
        let added = self.add_private(arena, holder, of, (&[EngineHash(name)], position), |_| false);
        debug_assert_eq!(added, 1);
    }

    /// Forgets a private name; where it stood.
    pub fn remove_private(&mut self, arena: &Arena, holder: u32, of: &mut HolderNames, name: u64) -> Option<u32> {
        if of.private_len == 0 {
            return None;
        }
        let alias = self.alias(arena, holder, name)?;
        let position = self.aliases.position(alias);
        self.unmap(arena, alias, name);
        of.private_len -= 1;
        Some(position)
    }

    /// The alias of a holder's private name, if it is the one expected below the last removal.
    #[inline]
    pub fn expected_alias(&self, holder: u32, of: &HolderNames, name: u64) -> Option<u32> {
        let below = of.below_alias;
        let expected = self.aliases.is_live(below, holder) && self.aliases.name(below) == name;
        expected.then_some(below)
    }

    /// The alias of a holder's private name, which is expected below the last removal.
    pub fn alias_of(&self, arena: &Arena, holder: u32, of: &HolderNames, name: u64) -> Option<u32> {
        if of.private_len == 0 {
            return None;
        }
        self.expected_alias(holder, of, name).or_else(|| self.alias(arena, holder, name))
    }

    /// Where a live alias stands.
    pub fn position(&self, alias: u32) -> u32 {
        self.aliases.position(alias)
    }

    /// The aliases of a holder's private name and of those that were stored before it, as far as they bear the following names
    /// and there is nothing unusual about them. A name behind another one costs no probe.
    pub fn aliases_down(
        &self,
        holder: u32,
        of: &HolderNames,
        alias: u32,
        following: &[EngineHash],
    ) -> ([u32; ALIASES_AT_ONCE], usize) {
        let mut found = [alias; ALIASES_AT_ONCE];
        let (mut count, mut at) = (1, alias);
        while count < found.len().min(following.len() + 1) {
            let (above, name) = (at, following[count - 1].0);
            at = self.aliases.below(above);
            // Links are rumours and may lead in circles; inside a granule there is none.
            let again = above.is_multiple_of(PLACES) && found[..count].iter().any(|a| a / PLACES == at / PLACES);
            let same = !again && self.aliases.is_live(at, holder) && self.aliases.name(at) == name;
            if !same || !of.usual(self.aliases.position(at), name) {
                break;
            }
            found[count] = at;
            count += 1;
        }
        (found, count)
    }

    /// Forgets private names of a holder, found as [`Self::aliases_down`] does; expects the one below them next.
    pub fn remove_aliases(&mut self, arena: &Arena, holder: u32, of: &mut HolderNames, aliases: &[u32]) {
        let Some(&last) = aliases.last() else { return };
        let slots = Slots { arena, aliases: &self.aliases, key: self.key };
        let entries = aliases.iter().map(|&alias| (self.aliases.name(alias), alias | ALIAS));
        self.map.remove_entries(&slots, entries, holder);
        of.private_len -= aliases.len() as u64;
        // Read before the granule is given back.
        of.below_alias = self.aliases.below(last);
        self.aliases.remove_all(aliases);
    }

    /// Forgets one private name of a holder; expects the one below it next, and asks for the map's line of the one that is so
    /// many names further down.
    #[inline]
    pub fn remove_alias(&mut self, arena: &Arena, of: &mut HolderNames, alias: u32, name: u64, ahead: u32) {
        // Read before the granule is given back.
        of.below_alias = self.aliases.below(alias);
        let further = self.aliases.further_below(of.below_alias, ahead);
        self.expect(arena, self.aliases.name(further));
        of.private_len -= 1;
        self.unmap(arena, alias, name);
    }

    /// Asks for the place where the next removal of a private name is expected.
    #[inline]
    pub fn expect_private(&self, of: &HolderNames) {
        self.aliases.ask(of.below_alias);
    }

    fn unmap(&mut self, arena: &Arena, alias: u32, name: u64) {
        let slots = Slots { arena, aliases: &self.aliases, key: self.key };
        let there = self.map.remove(&slots, name, alias | ALIAS);
        debug_assert!(there, "a live alias is mapped");
        self.aliases.remove(alias);
    }

    /// Forgets the names of a granule; how many.
    fn unmap_granule(&mut self, arena: &Arena, granule: u32, holder: u32) -> u64 {
        let mut gone = 0;
        for alias in granule * PLACES..(granule + 1) * PLACES {
            if self.aliases.is_live(alias, holder) {
                self.unmap(arena, alias, self.aliases.name(alias));
                gone += 1;
            }
        }
        gone
    }

    /// Forgets all private names of a holder. Walks the headers of the lane's private names.
    pub fn clear_private(&mut self, arena: &Arena, holder: u32, of: &mut HolderNames) {
        let mut granule = 0;
        while of.private_len > 0 {
            granule = self.aliases.next_granule(granule, holder).expect("private names are counted");
            of.private_len -= self.unmap_granule(arena, granule, holder);
        }
    }

    /// Looks at some granules from `from` on, round and round but at none twice, and forgets the names of holders that have
    /// left: `gone` hears whose and how many. The granule to go on with.
    pub fn sweep_private(
        &mut self,
        arena: &Arena,
        from: u32,
        granules: u32,
        has_left: impl Fn(u32) -> bool,
        mut gone: impl FnMut(u32, u64),
    ) -> u32 {
        let mut at = from;
        for _ in 0..granules.min(self.aliases.end() - 1) {
            let granule = if at < self.aliases.end() { at } else { 1 };
            at = granule + 1;
            if let Some(holder) = self.aliases.holder_of(granule).filter(|&holder| has_left(holder)) {
                gone(holder, self.unmap_granule(arena, granule, holder));
            }
        }
        at
    }

    /// Whether more than three quarters of the private names that there may be are there, by the room they take.
    pub fn scarce(&self) -> bool {
        self.aliases.room() < self.private_max as usize / PLACES as usize / 4
    }

    /// Every private name of a holder and where it stands. Walks the headers of the lane's private names.
    pub fn private_of(&self, holder: u32) -> impl Iterator<Item = (u64, u32)> {
        self.aliases.of(holder).map(|(alias, name)| (name, self.aliases.position(alias)))
    }

    /// The private names by granule.
    pub fn aliases(&self) -> &Aliases {
        &self.aliases
    }

    /// Private names.
    pub fn private_len(&self) -> usize {
        self.aliases.len()
    }

    /// Canonical names.
    pub fn canonical_len(&self) -> usize {
        self.map.len() - self.aliases.len()
    }

    /// Bytes of the map and of the private names.
    pub fn bytes(&self) -> u64 {
        self.map.bytes() + self.aliases.bytes()
    }

    /// Checks the map's own invariants. Walks all of it.
    pub fn check(&self, arena: &Arena) -> Result<(), String> {
        let slots = self.slots(arena);
        let found = |slot: u32| self.map.find(&slots, slots.name(slot), slots.owner(slot)) == Some(slot);
        let mapped = self.map.check(&slots)?;
        let live = |slot: u32| self.aliases.is_live(slot & !ALIAS, slots.owner(slot));
        match mapped.iter().find(|&&slot| !found(slot) || slot & ALIAS != 0 && !live(slot)) {
            Some(slot) => Err(format!("slot {slot:x} of the lane map is not found by its name")),
            None => Ok(()),
        }
    }
}

/// Private names removed at a time.
pub(crate) const ALIASES_AT_ONCE: usize = 64;
/// Exceptions of a kind that a holder keeps room for (a KiB).
const KEPT: usize = 56;

/// A canonical name that is likely to come next, and where it stood. The position may be gone, or be another block's by now.
#[derive(Clone, Copy, Default)]
pub(crate) struct Hint {
    pub name: u64,
    /// The root where there is no hint.
    pub position: u32,
}

/// The names of one holder that the canonical map does not tell.
pub(crate) struct HolderNames {
    /// Private names.
    pub private_len: u64,
    /// The private name given last; a rumour.
    pub latest_alias: u32,
    /// The private name below the last one removed; a rumour.
    pub below_alias: u32,
    /// The run that it stands in, as far as that was known; 0 when not.
    pub below_alias_run: u32,
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
    /// The run that had it, as far as it was known; 0 when not.
    pub below_run: u32,
    /// Which of that run's keys is this holder's, or `NO_KEY`; a rumour.
    pub below_key: u8,
    /// The last block stored: what the next store goes on from.
    pub latest: Hint,
}

impl HolderNames {
    pub fn new(key: HashKey) -> Self {
        Self {
            private_len: 0,
            latest_alias: 0,
            below_alias: 0,
            below_alias_run: 0,
            twins: IntMap::with_hasher(key),
            copies: IntMap::with_hasher(key),
            held: 0,
            twin_names: 0,
            below: Hint::default(),
            below_run: 0,
            below_key: NO_KEY,
            latest: Hint::default(),
        }
    }

    /// Holds nothing from now on. The maps keep the memory of a few entries.
    pub fn forget(&mut self, key: HashKey) {
        let mut new = Self::new(key);
        std::mem::swap(&mut new.twins, &mut self.twins);
        std::mem::swap(&mut new.copies, &mut self.copies);
        new.twins.clear();
        shrink(&mut new.twins, KEPT);
        new.copies.clear();
        shrink(&mut new.copies, KEPT);
        *self = new;
    }

    /// Whether every name is the only one of its position, canonical, and stored once.
    #[inline]
    pub fn is_plain(&self) -> bool {
        self.private_len == 0 && self.is_regular()
    }

    /// Whether every name is the only one of its position, and stored once.
    #[inline]
    pub fn is_regular(&self) -> bool {
        self.twins.is_empty() && self.copies.is_empty()
    }

    /// Whether any exception is kept in a map.
    #[inline]
    pub fn has_maps(&self) -> bool {
        !self.twins.is_empty() || !self.copies.is_empty()
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
        shrink(&mut self.copies, KEPT);
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
                shrink(&mut self.twins, KEPT);
            }
            Some(more) => *more -= 1,
        }
        self.twin_names -= 1;
        true
    }

    /// Bytes of the maps.
    pub fn bytes(&self) -> u64 {
        (self.twins.capacity() * 9 + self.copies.capacity() * 17) as u64 * 8 / 7
    }
}
