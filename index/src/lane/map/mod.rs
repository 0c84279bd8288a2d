//! The lane's map of names: cache lines of tags and slots, without the names themselves, which are kept where the slots point.
//!
//! ```text
//! line, 64 bytes:  10 x u16 tag | u32 meta | 10 x u32 slot         ten entries (line.rs)
//! ```
//!
//! A probe begins at the home line of the name's hash and goes on while entries passed the line it looks at, at most seven
//! lines further. What finds no room that near goes to the side map, and its home is marked; so nothing wraps, no crowd of
//! equal hashes lengthens a probe, and an insert cannot fail. A removal from a passed line takes an entry back from the
//! following lines, so that churn does not spread entries out.
//!
//! The map grows and shrinks in place, a few lines with each name that comes or goes, inside one reserved range (homes.rs,
//! sweep.rs), and comes back to a fair load where names only come and go: no second table, no moment of rebuilding. Stretches of names are worked on 64 at a time (batch.rs). One thread
//! only; nothing here allocates but the side map, where a crowd comes to a size that it did not have before (crowd.rs).

mod batch;
mod crowd;
pub(crate) mod homes;
pub(crate) mod line;
mod sweep;
mod tags;
#[cfg(test)]
mod tests;

use crate::error::ConfigError;
use crate::lane::map::batch::{BATCH, Planned};
use crate::lane::map::crowd::Crowd;
use crate::lane::map::homes::{Homes, Layout, tag};
use crate::lane::map::line::{FAR, Line, REACH, SLOTS, each};
use crate::place::Site;
use crate::prefetch::read_soon;
use crate::reserved::Reserved;

/// The owner of canonical names, which are everybody's.
pub(crate) const EVERYBODY: u32 = u32::MAX;

/// Beyond this load, in per cent of the slots, the map grows by a third.
const LOAD_MAX: usize = 67;
/// Below this load it shrinks by a quarter.
const LOAD_MIN: usize = 45;
/// Below this load it shrinks by a sixth once as many names as it has slots have left since its size changed: what grew for a
/// moment would keep half its slots empty for as long as names only come and go.
const LOAD_IDLE: usize = 54;
/// Lines of an empty map.
const LINES_MIN: usize = 4;

/// What the map reads back: the names and owners of slots.
pub(crate) trait Keys {
    /// Hash of a name.
    fn hash(&self, name: u64) -> u64;
    /// The name a slot stands for.
    fn name(&self, slot: u32) -> u64;
    /// Whose name it is there.
    fn owner(&self, slot: u32) -> u32;
    /// Asks for the line that `name` reads.
    fn ask(&self, slot: u32);
}

/// Keys that make new slots for names.
pub(crate) trait Append: Keys {
    /// Slots for the next names, as far as they are next to one another: the first one, and how many, at least one. From now on
    /// `name` and `owner` tell of them.
    fn open(&mut self, names: impl ExactSizeIterator<Item = u64>) -> (u32, usize);
    /// The first `count` of the slots opened last are taken, the others were not.
    fn close(&mut self, count: usize);
}

/// Two owners' equal names share a home but seldom a tag.
#[inline(always)]
fn salt(owner: u32) -> u16 {
    if owner == EVERYBODY { 0 } else { (owner % ((1 << homes::SALT_BITS) - 1) + 1) as u16 }
}

/// The map.
pub(crate) struct LaneMap {
    lines: Reserved<Line>,
    homes: Homes,
    /// Entries in lines.
    len: usize,
    /// Lines to move, in halves, before the next name comes or goes.
    debt: usize,
    /// Names that left since the last sweep began.
    departed: usize,
    /// Entries on their way from one line to another.
    moving: Vec<(u16, u32)>,
    /// Lines below this one may have memory: the pages from the layout's end on are given back a few at a time.
    touched: usize,
    /// Entries that found no room near their home.
    crowd: Crowd,
    plan: Box<[Planned; BATCH]>,
    /// Names of the plan, worked out for these homes.
    planned: usize,
    planned_in: Homes,
}

impl LaneMap {
    /// Reserves room for `names_max` names where the site wants it.
    pub fn new(names_max: usize, site: &mut Site) -> Result<Self, ConfigError> {
        // The last growth ends at half the load at which it began, and a little more for rounding.
        let lines_max = (names_max * 100 / (SLOTS * LOAD_MAX) + LINES_MIN) * 3 / 2 + REACH;
        Ok(Self {
            lines: Reserved::new("lane map", lines_max, site)?,
            homes: Homes::of(Layout::first(LINES_MIN)),
            len: 0,
            debt: 0,
            departed: 0,
            moving: Vec::with_capacity(sweep::MOVING_MAX),
            touched: LINES_MIN + REACH,
            crowd: Crowd::new(),
            plan: Box::new([Planned::default(); BATCH]),
            planned: 0,
            planned_in: Homes::of(Layout::first(LINES_MIN)),
        })
    }

    /// Entries.
    pub fn len(&self) -> usize {
        self.len + self.crowd.len()
    }

    /// Bytes of the lines in use, of those yet to be given back, and of the side map.
    pub fn bytes(&self) -> u64 {
        (self.touched.max(self.lines_used()) * size_of::<Line>()) as u64 + self.crowd.bytes()
    }

    /// Asks for the line where a name is at home, to be looked at soon.
    #[inline]
    pub fn expect(&self, keys: &impl Keys, name: u64) {
        read_soon(&self.lines[self.homes.place(keys.hash(name)).0]);
    }

    /// What probably is an owner's name, by the tag in its home line alone: reads no name.
    #[inline]
    pub fn candidate(&self, keys: &impl Keys, name: u64, owner: u32) -> Option<u32> {
        let (home, raw) = self.homes.place(keys.hash(name));
        let line = &self.lines[home];
        each(line.with_tag(tag(raw, salt(owner)))).next().map(|k| line.slot(k))
    }

    /// The slot of an owner's name.
    #[inline]
    pub fn find(&self, keys: &impl Keys, name: u64, owner: u32) -> Option<u32> {
        let (home, raw) = self.homes.place(keys.hash(name));
        self.find_from(keys, name, owner, home, tag(raw, salt(owner)))
    }

    #[inline(always)]
    fn find_from(&self, keys: &impl Keys, name: u64, owner: u32, home: usize, tag: u16) -> Option<u32> {
        let is = |slot| keys.name(slot) == name && keys.owner(slot) == owner;
        let line = &self.lines[home];
        let here = each(line.with_tag(tag)).map(|k| line.slot(k)).find(|&slot| is(slot));
        if here.is_some() || line.ends_here() {
            return here;
        }
        match self.seek_further(home, tag, is) {
            Some((at, k)) => Some(self.lines[at].slot(k)),
            None if line.marked() => self.crowd.get(keys.hash(name), owner, |slot| keys.name(slot) == name),
            None => None,
        }
    }

    /// The canonical slot of a name and the owner's own one, in one pass over the lines.
    #[inline(always)]
    fn find_both(&self, keys: &impl Keys, name: u64, owner: u32, home: usize, raw: u16) -> (Option<u32>, Option<u32>) {
        let (mut canonical, mut own) = (None, None);
        let (everybodys, owners) = (tag(raw, 0), tag(raw, salt(owner)));
        for at in home..=home + REACH {
            let line = &self.lines[at];
            for k in each(line.with_tag(everybodys) | line.with_tag(owners)) {
                let slot = line.slot(k);
                if keys.name(slot) == name {
                    match keys.owner(slot) {
                        EVERYBODY => canonical = Some(slot),
                        of if of == owner => own = Some(slot),
                        _ => {}
                    }
                }
            }
            if line.passed() == 0 {
                break;
            }
        }
        if self.lines[home].marked() {
            let in_crowd = |owner| self.crowd.get(keys.hash(name), owner, |slot| keys.name(slot) == name);
            canonical = canonical.or_else(|| in_crowd(EVERYBODY));
            own = own.or_else(|| in_crowd(owner));
        }
        (canonical, own)
    }

    /// Takes the entry `name -> slot` out; whether it was there.
    pub fn remove(&mut self, keys: &impl Keys, name: u64, slot: u32) -> bool {
        let (home, raw) = self.homes.place(keys.hash(name));
        let there = self.take(keys, name, slot, home, tag(raw, salt(keys.owner(slot))));
        self.left(keys, 1);
        there
    }

    /// Line and place of the entry with this tag of which `is` says that it is the one, behind its home.
    #[inline(never)]
    fn seek_further(&self, home: usize, tag: u16, is: impl Fn(u32) -> bool) -> Option<(usize, usize)> {
        let mut at = home;
        while self.lines[at].passed() > 0 && at < home + REACH {
            at += 1;
            let line = &self.lines[at];
            if let Some(k) = each(line.with_tag(tag)).find(|&k| is(line.slot(k))) {
                return Some((at, k));
            }
        }
        None
    }

    /// Adds an entry that is not there.
    #[inline(always)]
    fn put(&mut self, keys: &impl Keys, home: usize, tag: u16, slot: u32) {
        let line = &mut self.lines[home];
        let free = line.free();
        if free == 0 {
            return self.put_further(keys, home, tag, slot);
        }
        line.set(free.trailing_zeros() as usize, tag, slot, 0);
        self.len += 1;
    }

    /// The same where the home is full.
    #[inline(never)]
    fn put_further(&mut self, keys: &impl Keys, home: usize, tag: u16, slot: u32) {
        for distance in 1..=REACH {
            let line = &mut self.lines[home + distance];
            let free = line.free();
            if free != 0 {
                line.set(free.trailing_zeros() as usize, tag, slot, distance);
                self.lines[home..home + distance].iter_mut().for_each(Line::pass);
                self.len += 1;
                return;
            }
        }
        self.lines[home].mark();
        self.crowd.insert(keys.hash(keys.name(slot)), keys.owner(slot), slot);
    }

    /// Takes the entry `name -> slot` out; whether it was there.
    #[inline(always)]
    fn take(&mut self, keys: &impl Keys, name: u64, slot: u32, home: usize, tag: u16) -> bool {
        let line = &mut self.lines[home];
        let here = each(line.with_tag(tag)).find(|&k| line.slot(k) == slot);
        let Some(k) = here else {
            return !line.ends_here() && self.take_further(keys, name, slot, home, tag);
        };
        line.clear(k);
        self.len -= 1;
        if line.passed() > 0 {
            self.pull_back(keys, home);
        }
        true
    }

    /// The same where it is not in its home line.
    #[inline(never)]
    fn take_further(&mut self, keys: &impl Keys, name: u64, slot: u32, home: usize, tag: u16) -> bool {
        let Some((at, k)) = self.seek_further(home, tag, |there| there == slot) else {
            return self.lines[home].marked() && self.leave_crowd(keys, name, slot, home);
        };
        self.lines[at].clear(k);
        self.lines[home..at].iter_mut().for_each(Line::unpass);
        self.len -= 1;
        if self.lines[at].passed() > 0 {
            self.pull_back(keys, at);
        }
        true
    }

    #[cold]
    fn leave_crowd(&mut self, keys: &impl Keys, name: u64, slot: u32, home: usize) -> bool {
        let hash = keys.hash(name);
        let there = self.crowd.remove(hash, keys.owner(slot), slot);
        if !self.crowd.any(self.homes.span(hash)) {
            self.lines[home].unmark();
        }
        there
    }

    /// A place in a line that entries had passed came free: one of them comes back, and so on where it stood.
    #[inline(never)]
    fn pull_back(&mut self, keys: &impl Keys, mut at: usize) {
        /// Entries moved for one that went: what is left over is moved by later removals.
        const MOVES_MAX: usize = 8;
        for _ in 0..MOVES_MAX {
            let back = (at + 1..=at + REACH).find_map(|from| {
                let line = &self.lines[from];
                each(line.away()).map(|k| (from, k, self.distance(keys, from, k))).find(|back| back.2 >= from - at)
            });
            let Some((from, k, distance)) = back else { return };
            let line = &mut self.lines[from];
            let (tag, slot) = (line.tag(k), line.slot(k));
            line.clear(k);
            let passed_on = line.passed() > 0;
            self.lines[at..from].iter_mut().for_each(Line::unpass);
            let line = &mut self.lines[at];
            line.set(line.free().trailing_zeros() as usize, tag, slot, distance - (from - at));
            if !passed_on {
                return;
            }
            at = from;
        }
    }

    /// Lines from home of an entry.
    #[inline(always)]
    fn distance(&self, keys: &impl Keys, at: usize, k: usize) -> usize {
        match self.lines[at].distance(k) {
            FAR => at - self.homes.place(keys.hash(keys.name(self.lines[at].slot(k)))).0,
            near => near,
        }
    }

    /// The map's own invariants, and every entry's slot. For tests and checks.
    pub fn check(&self, keys: &impl Keys) -> Result<Vec<u32>, String> {
        let mut passed = vec![0; self.lines_used()];
        let mut slots = Vec::new();
        for (at, line) in self.lines_in_use() {
            for k in each(line.taken()) {
                let slot = line.slot(k);
                let (home, raw) = self.homes.place(keys.hash(keys.name(slot)));
                let wanted = tag(raw, salt(keys.owner(slot)));
                let there = (home..=home + REACH).contains(&at) && line.distance(k) == (at - home).min(FAR);
                if !there || line.tag(k) != wanted {
                    return Err(format!(
                        "slot {slot} stands in line {at}, {} lines from home {home}",
                        line.distance(k)
                    ));
                }
                passed[home..at].iter_mut().for_each(|p| *p += 1);
                slots.push(slot);
            }
        }
        if let Some((at, line)) = self.lines_in_use().find(|(at, line)| line.passed() != passed[*at]) {
            return Err(format!("line {at} was passed by {} entries, counts {}", passed[at], line.passed()));
        }
        if slots.len() != self.len {
            return Err(format!("{} entries in lines, counted {}", slots.len(), self.len));
        }
        self.check_marks(keys)?;
        self.crowd.check()?;
        slots.extend(self.crowd.iter().map(|entry| entry.2));
        Ok(slots)
    }

    /// A home is marked if and only if one of its names is in the side map, which knows them by their hashes and owners; what
    /// is beyond the layout is empty.
    fn check_marks(&self, keys: &impl Keys) -> Result<(), String> {
        let mut crowded = vec![false; self.lines_used()];
        for (hash, owner, slot) in self.crowd.iter() {
            if (keys.hash(keys.name(slot)), keys.owner(slot)) != (hash, owner) {
                return Err(format!("slot {slot} is in the side map under another name's hash or owner"));
            }
            crowded[self.homes.place(hash).0] = true;
        }
        let mut behind = self.lines_used()..self.touched.max(self.lines_used());
        if let Some(at) = behind.find(|&at| self.lines[at] != Line::EMPTY) {
            return Err(format!("line {at} behind the layout is not empty"));
        }
        match self.lines_in_use().find(|(at, line)| line.marked() != crowded[*at]) {
            Some((at, line)) => Err(format!("line {at} is marked: {}, should be: {}", line.marked(), crowded[at])),
            None => Ok(()),
        }
    }

    fn lines_in_use(&self) -> impl Iterator<Item = (usize, &Line)> {
        self.lines.iter().take(self.lines_used()).enumerate()
    }

    /// Lines of the layouts and the spare ones behind them.
    fn lines_used(&self) -> usize {
        self.homes.new.lines.max(self.homes.old.lines) + REACH
    }
}
