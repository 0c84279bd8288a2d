//! Growth and shrinking in place: the sweep moves a few lines with each name that comes or goes.
//!
//! What moves always lands in lines that no entry of the old layout stands in any more: growing by a third from the top, a
//! line's target lies further up by a third of its number, shrinking by a quarter from the bottom, further down by a quarter.
//! Only near the bottom is that less than the reach of an entry, so the first lines of the map move at once.

use crate::lane::map::homes::{Homes, Layout, tag};
use crate::lane::map::line::{Line, REACH, SLOTS, each};
use crate::lane::map::{Keys, LINES_MIN, LOAD_MAX, LOAD_MIN, LaneMap, salt};
use crate::prefetch::read_soon;

/// Half lines moved with each name that comes or goes while the map grows: a store's share of the work is small.
const PACE_UP: usize = 3;
/// The same while it shrinks: memory follows soon.
const PACE_DOWN: usize = 8;
/// Lines at the bottom that move at once.
const AT_ONCE: usize = 16;
const _: () = assert!(AT_ONCE * 4 / 3 > AT_ONCE + REACH, "growing: what moves lands above the old entries");
const _: () = assert!(AT_ONCE - AT_ONCE / 4 + REACH < AT_ONCE + 1, "shrinking: what moves lands below them");
/// A smaller map changes its size at once.
const SWEPT_MIN: usize = 2 * AT_ONCE;
/// Most entries on their way at once.
pub(super) const MOVING_MAX: usize = (SWEPT_MIN + REACH) * SLOTS;
/// Lines between what is moved and what is asked for.
const AHEAD: usize = 8;

impl LaneMap {
    /// Before `count` names come: growth work, so that the map is never too full.
    #[inline]
    pub(super) fn make_room(&mut self, keys: &impl Keys, count: usize) {
        if self.homes.sweeping() {
            self.sweep(keys, count);
        } else if (self.len + count) * 100 > self.homes.new.lines * SLOTS * LOAD_MAX {
            self.grow(keys, count);
        }
    }

    /// After `count` names were taken out: shrinking, so that memory follows the number of names.
    #[inline]
    pub(super) fn left(&mut self, keys: &impl Keys, count: usize) {
        if self.len() == 0 {
            self.reset();
        } else if self.homes.sweeping() {
            self.sweep(keys, count);
        } else if self.len * 100 < self.homes.new.lines * SLOTS * LOAD_MIN && self.homes.new.lines > LINES_MIN {
            let lines = self.homes.new.lines;
            self.begin(keys, (lines - lines / 4).max(LINES_MIN));
        }
    }

    /// The last name went.
    fn reset(&mut self) {
        let lines = self.lines_in_use().count();
        self.lines.release(0, lines);
        self.homes = Homes::of(Layout::first(LINES_MIN));
    }

    /// Begins to grow; a small map grows at once, until the names fit.
    #[cold]
    fn grow(&mut self, keys: &impl Keys, count: usize) {
        loop {
            let lines = self.homes.new.lines;
            let more = lines + (lines / 3).max(LINES_MIN);
            if more + REACH > self.lines.len() {
                // As many names as there may be are here; what finds no room goes to the side maps.
                return;
            }
            self.begin(keys, more);
            let full = (self.len + count) * 100 > self.homes.new.lines * SLOTS * LOAD_MAX;
            if !full || self.homes.sweeping() {
                return;
            }
        }
    }

    #[cold]
    fn begin(&mut self, keys: &impl Keys, lines: usize) {
        self.homes.begin(lines);
        self.debt = 0;
        let (old, growing) = (self.homes.old.lines, self.homes.growing);
        if old < SWEPT_MIN {
            self.move_at_once(keys, 0..old);
            self.end_sweep();
        } else if !growing {
            self.move_at_once(keys, 0..AT_ONCE);
        }
    }

    #[inline(never)]
    fn sweep(&mut self, keys: &impl Keys, names: usize) {
        self.debt += names * if self.homes.growing { PACE_UP } else { PACE_DOWN };
        while self.debt >= 2 && self.homes.sweeping() {
            self.debt -= 2;
            let edge = self.homes.edge;
            if self.homes.growing && edge <= AT_ONCE {
                self.move_at_once(keys, 0..edge);
                self.end_sweep();
            } else if !self.homes.growing && edge == self.homes.old.lines {
                self.end_sweep();
            } else {
                self.step(keys);
            }
        }
    }

    fn end_sweep(&mut self) {
        let (old, new) = (self.homes.old.lines, self.homes.new.lines);
        self.homes = Homes::of(self.homes.new);
        if new < old {
            self.lines.release(new + REACH, old + REACH);
        }
    }

    /// Moves the entries of several old homes by their names.
    fn move_at_once(&mut self, keys: &impl Keys, old_homes: std::ops::Range<usize>) {
        let mut moving = std::mem::take(&mut self.moving);
        let mut marked = 0u64;
        for (i, home) in old_homes.clone().enumerate() {
            marked |= u64::from(self.take_home(home, &mut moving)) << i;
        }
        moving.iter().for_each(|&(_, slot)| keys.ask(slot));
        for home in old_homes.clone().filter(|home| marked >> (home - old_homes.start) & 1 == 1) {
            self.mark_targets(home);
        }
        self.homes.edge = if self.homes.growing { old_homes.start } else { old_homes.end };
        self.len -= moving.len();
        for (_, slot) in moving.drain(..) {
            self.put_by_name(keys, slot);
        }
        self.moving = moving;
    }

    /// Moves the entries of the next old home. Its place and their tags tell where to; a name is read only for an entry on
    /// the boundary of two new homes, or when other bits of the hash become the tags.
    fn step(&mut self, keys: &impl Keys) {
        let home = if self.homes.growing { self.homes.edge - 1 } else { self.homes.edge };
        self.ask_for_next(keys, home);
        let mut moving = std::mem::take(&mut self.moving);
        if self.take_home(home, &mut moving) {
            self.mark_targets(home);
        }
        self.homes.edge = if self.homes.growing { home } else { home + 1 };
        self.len -= moving.len();
        let targets = self.homes.targets(home);
        // Free places of the target lines are kept here: reading a line back right after a store to it stalls.
        let mut free: [u32; 3] = std::array::from_fn(|i| self.lines[targets.first + i].free());
        for (tag, slot) in moving.drain(..) {
            let Some(target) = targets.home(tag) else {
                let (target, tag) = self.new_place(keys, slot);
                self.settle(keys, &mut free, targets.first, target, tag, slot);
                continue;
            };
            self.settle(keys, &mut free, targets.first, target, tag, slot);
        }
        self.moving = moving;
    }

    /// Puts a moved entry into its new home if there is room, else further on.
    #[inline(always)]
    fn settle(&mut self, keys: &impl Keys, free: &mut [u32; 3], first: usize, home: usize, tag: u16, slot: u32) {
        let places = &mut free[home - first];
        if *places == 0 {
            self.put(keys, home, tag, slot);
            // It may have taken a place in one of the other target lines.
            *free = std::array::from_fn(|i| self.lines[first + i].free());
            return;
        }
        self.lines[home].set(places.trailing_zeros() as usize, tag, slot, 0);
        *places &= *places - 1;
        self.len += 1;
    }

    fn new_place(&self, keys: &impl Keys, slot: u32) -> (usize, u16) {
        let (new, hash) = (self.homes.new, keys.hash(keys.name(slot)));
        (new.home(hash), tag(new.raw_tag(hash), salt(keys.owner(slot))))
    }

    fn put_by_name(&mut self, keys: &impl Keys, slot: u32) {
        let (home, tag) = self.new_place(keys, slot);
        self.put(keys, home, tag, slot);
    }

    /// Takes all entries of an old home out of the lines; whether the home was marked.
    fn take_home(&mut self, home: usize, moving: &mut Vec<(u16, u32)>) -> bool {
        let line = self.lines[home];
        let leaving = line.taken() & !line.away();
        moving.extend(each(leaving).map(|k| (line.tag(k), line.slot(k))));
        let mut left = line;
        each(leaving).for_each(|k| left.clear(k));
        left.unmark();
        self.lines[home] = left;
        for at in home + 1..=home + REACH {
            if self.lines[at - 1].passed() == 0 {
                break;
            }
            let line = self.lines[at];
            for k in each(line.away()).filter(|&k| line.distance(k) == at - home) {
                moving.push((line.tag(k), line.slot(k)));
                self.lines[at].clear(k);
                self.lines[home..at].iter_mut().for_each(Line::unpass);
            }
        }
        line.marked()
    }

    /// What an old home's mark says is said by its new homes from now on, as long as any name is in a side map.
    fn mark_targets(&mut self, home: usize) {
        if self.crowd.len() > 0 {
            let (low, high) = self.homes.target_span(home);
            (low..=high).for_each(|line| self.lines[line].mark());
        }
    }

    fn ask_for_next(&self, keys: &impl Keys, home: usize) {
        let ahead = |by: usize| if self.homes.growing { home.saturating_sub(by) } else { home + by };
        let far = ahead(2 * AHEAD);
        read_soon(&self.lines[far]);
        read_soon(&self.lines[far * self.homes.new.lines / self.homes.old.lines]);
        if !self.homes.same_tags() {
            let line = &self.lines[ahead(AHEAD / 2)];
            each(line.taken()).for_each(|k| keys.ask(line.slot(k)));
        }
    }
}
