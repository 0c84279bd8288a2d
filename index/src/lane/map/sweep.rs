//! Growth and shrinking in place: the sweep moves a few lines with each name that comes or goes.
//!
//! What moves always lands in lines that no entry of the old layout stands in any more: growing by a third from the top, a
//! line's target lies further up by a third of its number, shrinking by a sixth from the bottom, further down by a sixth.
//! Only near the bottom is that less than the reach of an entry, so the first lines of the map move at once.

use crate::lane::map::homes::{Homes, Layout, tag};
use crate::lane::map::line::{FAR, Line, REACH, SLOTS, each};
use crate::lane::map::{Keys, LINES_MIN, LOAD_IDLE, LOAD_MAX, LOAD_MIN, LaneMap, salt};
use crate::prefetch::read_soon;

/// Half lines moved with each name that comes or goes while the map grows: a store's share of the work is small.
const PACE_UP: usize = 3;
/// The same while it shrinks: memory follows soon.
const PACE_DOWN: usize = 8;
/// Lines at the bottom that move at once, growing and shrinking.
const AT_ONCE_UP: usize = 32;
const AT_ONCE_DOWN: usize = 48;
/// The map shrinks by a sixth of its lines at least.
const SHRINK_LEAST: usize = 6;
const _: () = assert!(AT_ONCE_UP * 4 / 3 > AT_ONCE_UP + REACH, "growing: what moves lands above the old entries");
const _: () = assert!(AT_ONCE_DOWN / SHRINK_LEAST > REACH, "shrinking: what moves lands below them");
/// A smaller map changes its size at once.
const SWEPT_MIN: usize = 64;
const _: () =
    assert!(SWEPT_MIN >= AT_ONCE_DOWN && SWEPT_MIN <= u64::BITS as usize, "marks of what moves at once are a word");
/// Most entries on their way at once.
pub(super) const MOVING_MAX: usize = (SWEPT_MIN + REACH) * SLOTS;
/// Lines between what is moved and what is asked for.
const AHEAD: usize = 8;
/// Lines on a page.
const PAGE_LINES: usize = 4096 / size_of::<Line>();
/// Pages given back in one go, before or after a batch: a few microseconds, and faster than a sweep leaves them.
const PAGES_GIVEN: usize = 16;
/// Entries of the side map that a moving home tries to bring back to the lines.
const BROUGHT_BACK: usize = 8;

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
        } else {
            self.departed += count;
            let (lines, slots) = (self.homes.new.lines, self.homes.new.lines * SLOTS);
            if self.len * 100 < slots * LOAD_MIN && lines > LINES_MIN {
                self.begin(keys, (lines - lines / 4).max(LINES_MIN));
            } else if self.departed > slots && self.len * 100 < slots * LOAD_IDLE && lines > SWEPT_MIN {
                self.begin(keys, lines - lines / SHRINK_LEAST);
            }
        }
        if self.touched > self.lines_used() {
            self.give_back();
        }
    }

    /// The last name went. Its lines are few by now, as the map shrank on the way; the pages behind them go as ever.
    fn reset(&mut self) {
        let lines = self.lines_used();
        self.lines[..lines].fill(Line::EMPTY);
        self.homes = Homes::of(Layout::first(LINES_MIN));
    }

    /// Gives some of the pages behind the layout back, from the end on. Nothing stands there any more.
    #[cold]
    fn give_back(&mut self) {
        let kept = self.lines_used();
        let from = (self.touched.saturating_sub(PAGES_GIVEN * PAGE_LINES) / PAGE_LINES * PAGE_LINES).max(kept);
        self.lines.release(from, self.touched);
        self.touched = from;
    }

    /// Begins to grow; a small map grows at once, until the names fit.
    #[cold]
    fn grow(&mut self, keys: &impl Keys, count: usize) {
        loop {
            let lines = self.homes.new.lines;
            let more = lines + (lines / 3).max(LINES_MIN);
            if more + REACH > self.lines.len() {
                // As many names as there may be are here; what finds no room goes to the side map.
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
        self.touched = self.touched.max(self.lines_used());
        (self.debt, self.departed) = (0, 0);
        let (old, growing) = (self.homes.old.lines, self.homes.growing);
        if old < SWEPT_MIN {
            self.move_at_once(keys, 0..old);
            self.end_sweep();
        } else if !growing {
            self.move_at_once(keys, 0..AT_ONCE_DOWN);
        }
    }

    #[inline(never)]
    fn sweep(&mut self, keys: &impl Keys, names: usize) {
        self.debt += names * if self.homes.growing { PACE_UP } else { PACE_DOWN };
        while self.debt >= 2 && self.homes.sweeping() {
            self.debt -= 2;
            let edge = self.homes.edge;
            if self.homes.growing && edge <= AT_ONCE_UP {
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
        self.homes = Homes::of(self.homes.new);
    }

    /// Moves the entries of several old homes by their names.
    fn move_at_once(&mut self, keys: &impl Keys, old_homes: std::ops::Range<usize>) {
        let mut moving = std::mem::take(&mut self.moving);
        let mut marked = 0u64;
        for (i, home) in old_homes.clone().enumerate() {
            let line = self.lines[home];
            marked |= u64::from(line.marked()) << i;
            let leaving = line.taken() & !line.away();
            moving.extend(each(leaving).map(|k| (line.tag(k), line.slot(k))));
            self.empty(home, leaving);
            self.take_displaced(keys, home, &mut moving);
        }
        moving.iter().for_each(|&(_, slot)| keys.ask(slot));
        self.homes.edge = if self.homes.growing { old_homes.start } else { old_homes.end };
        self.len -= moving.len();
        for (tag, slot) in moving.drain(..) {
            self.put_by_name(keys, tag, slot);
        }
        self.moving = moving;
        for home in old_homes.clone().filter(|home| marked >> (home - old_homes.start) & 1 == 1) {
            self.move_crowd(keys, home);
        }
    }

    /// Moves the entries of the next old home. Its place and their tags tell where to; a name is read only for an entry on
    /// the boundary of two new homes, for one far from home, or when other bits of the hash become the tags.
    fn step(&mut self, keys: &impl Keys) {
        let home = if self.homes.growing { self.homes.edge - 1 } else { self.homes.edge };
        self.ask_for_next(keys, home);
        let line = self.lines[home];
        let leaving = line.taken() & !line.away();
        self.empty(home, leaving);
        let edge = if self.homes.growing { home } else { home + 1 };
        if line.passed() > 0 {
            let mut displaced = std::mem::take(&mut self.moving);
            self.take_displaced(keys, home, &mut displaced);
            self.homes.edge = edge;
            for few in displaced.chunks(SLOTS) {
                self.settle(keys, home, &Line::of(few), (1 << few.len()) - 1);
            }
            displaced.clear();
            self.moving = displaced;
        }
        self.homes.edge = edge;
        self.settle(keys, home, &line, leaving);
        if line.marked() {
            self.move_crowd(keys, home);
        }
    }

    /// Puts some entries of an old home, held in a line, into the new homes that their tags tell, one home after the other: a
    /// line is read once, as reading it right after a store to it stalls.
    #[inline(always)]
    fn settle(&mut self, keys: &impl Keys, home: usize, line: &Line, leaving: u32) {
        self.len -= leaving.count_ones() as usize;
        if !self.homes.same_tags() {
            return each(leaving).for_each(|k| self.put_by_name(keys, line.tag(k), line.slot(k)));
        }
        let targets = self.homes.targets(home);
        let parted = targets.part(line, leaving);
        for (i, coming) in parted.to.into_iter().enumerate().filter(|part| part.1 != 0) {
            let left = self.lines[targets.first + i].fill(line, coming);
            self.len += (coming.count_ones() - left.count_ones()) as usize;
            each(left).for_each(|k| self.put(keys, targets.first + i, line.tag(k), line.slot(k)));
        }
        each(parted.unclear).for_each(|k| self.put_by_name(keys, line.tag(k), line.slot(k)));
    }

    /// Puts an entry of the old layout where its name tells. Its old tag tells what is mixed into the new one: whose the name
    /// is need not be read.
    fn put_by_name(&mut self, keys: &impl Keys, old_tag: u16, slot: u32) {
        let Homes { old, new, .. } = self.homes;
        let hash = keys.hash(keys.name(slot));
        // A tag of 1 may stand for 0.
        let salt = if old_tag == 1 { salt(keys.owner(slot)) } else { old_tag ^ old.raw_tag(hash) };
        self.put(keys, new.home(hash), tag(new.raw_tag(hash), salt), slot);
    }

    /// Empties the slots of an old home that are leaving, and its mark.
    #[inline(always)]
    fn empty(&mut self, home: usize, leaving: u32) {
        let line = &mut self.lines[home];
        line.unmark();
        if line.alone(leaving) {
            line.clear_all();
        } else {
            each(leaving).for_each(|k| line.clear(k));
        }
    }

    /// Takes the entries of an old home out of the lines behind it.
    fn take_displaced(&mut self, keys: &impl Keys, home: usize, displaced: &mut Vec<(u16, u32)>) {
        for at in home + 1..=home + REACH {
            if self.lines[at - 1].passed() == 0 {
                return;
            }
            let line = self.lines[at];
            for k in each(line.at_distance((at - home).min(FAR))) {
                let slot = line.slot(k);
                if at - home < FAR || self.homes.old.home(keys.hash(keys.name(slot))) == home {
                    displaced.push((line.tag(k), slot));
                    self.lines[at].clear(k);
                    self.lines[home..at].iter_mut().for_each(Line::unpass);
                }
            }
        }
    }

    /// An old home's entries in the side map: some of them may find room in the lines now; the marks of the others' new homes
    /// tell of them from now on.
    #[cold]
    fn move_crowd(&mut self, keys: &impl Keys, home: usize) {
        for _ in 0..BROUGHT_BACK {
            let Some((hash, owner, slot)) = self.crowd.first(self.homes.old.span(home)) else { return };
            self.crowd.remove(hash, owner, slot);
            let new = self.homes.new;
            self.put(keys, new.home(hash), tag(new.raw_tag(hash), salt(owner)), slot);
        }
        let (low, high) = self.homes.old.span(home).into_inner();
        for target in self.homes.target_span(home) {
            let (first, last) = self.homes.new.span(target).into_inner();
            if self.crowd.any(first.max(low)..=last.min(high)) {
                self.lines[target].mark();
            }
        }
    }

    fn ask_for_next(&self, keys: &impl Keys, home: usize) {
        let ahead = |by: usize| {
            if self.homes.growing { home.saturating_sub(by) } else { (home + by).min(self.homes.old.lines) }
        };
        let far = ahead(2 * AHEAD);
        read_soon(&self.lines[far]);
        let to = if self.homes.growing { far + far / 3 } else { far * self.homes.new.lines / self.homes.old.lines };
        read_soon(&self.lines[to]);
        if !self.homes.same_tags() {
            let line = &self.lines[ahead(AHEAD / 2)];
            each(line.taken()).for_each(|k| keys.ask(line.slot(k)));
        }
    }
}
