//! Work on up to 64 names at a time: hash, home and tag of each once and its line asked for; then, eight names ahead of the
//! work, the line after a home that was passed; then the work itself. A new name whose home has a free slot, none with its
//! tags and was not passed takes one look at one line.

use crate::lane::map::homes::{Homes, tag};
use crate::lane::map::{Append, EVERYBODY, Keys, LaneMap, salt};
use crate::prefetch::read_soon;

/// Names worked on at a time.
pub(crate) const BATCH: usize = 64;
/// Names between the second stage and the work.
const AHEAD: usize = 8;

/// A name of the batch at hand: where it is at home, and its tag before an owner is mixed in.
#[derive(Clone, Copy, Default)]
pub(crate) struct Planned {
    name: u64,
    home: u32,
    /// The slot to be taken out.
    slot: u32,
    raw: u16,
}

impl LaneMap {
    /// Maps canonical names to the slots from `from` on, up to the first name that has a slot already, everybody's or the
    /// owner's. How many were mapped.
    pub fn insert_stretch(
        &mut self,
        keys: &impl Keys,
        names: impl ExactSizeIterator<Item = u64>,
        owner: u32,
        from: u32,
    ) -> u32 {
        let (mut names, salt) = (names, salt(owner));
        let mut taken = 0;
        if names.len() == 1 {
            return names.next().map_or(0, |name| self.insert_one(keys, name, owner, from));
        }
        while names.len() > 0 {
            let count = names.len().min(BATCH);
            self.make_room(keys, count);
            self.plan(keys, names.by_ref().take(count).map(|name| (name, 0)));
            let mut at = 0;
            while at < count {
                at += self.insert_new(at, count, count, salt, 0, from + taken + at as u32);
                if at == count {
                    break;
                }
                let Planned { name, home, raw, .. } = self.plan[at % BATCH];
                if self.is_there(keys, name, owner, home as usize, raw) {
                    return taken + at as u32;
                }
                self.put(keys, home as usize, tag(raw, 0), from + taken + at as u32);
                at += 1;
            }
            taken += count as u32;
        }
        taken
    }

    /// A stretch of one name: its line has been asked for by whoever saw the event come, or is waited for here.
    fn insert_one(&mut self, keys: &impl Keys, name: u64, owner: u32, slot: u32) -> u32 {
        self.make_room(keys, 1);
        let (home, raw) = self.homes.place(keys.hash(name));
        if self.is_there(keys, name, owner, home, raw) {
            return 0;
        }
        self.put(keys, home, tag(raw, 0), slot);
        1
    }

    /// Maps planned names from number `at` up to `end` to slots from `slot` on, as long as each is surely new and finds room at
    /// home: one look at one line. How many. Their tags get `mixed`, and `salt` is the owner's.
    #[inline(always)]
    fn insert_new(&mut self, at: usize, end: usize, planned: usize, salt: u16, mixed: u16, slot: u32) -> usize {
        let (lines, plan) = (&mut self.lines[..], &self.plan);
        let mut j = at;
        while j < end {
            if j + AHEAD < planned {
                let home = plan[(j + AHEAD) % BATCH].home as usize;
                if lines[home].passed() > 0 {
                    read_soon(&lines[home + 1]);
                }
            }
            let Planned { home, raw, .. } = plan[j % BATCH];
            let line = &mut lines[home as usize];
            let Some(k) = line.free_for_new(tag(raw, 0), tag(raw, salt)) else { break };
            line.set(k, tag(raw, mixed), slot + (j - at) as u32, 0);
            j += 1;
        }
        self.len += j - at;
        j - at
    }

    /// Whether a name has a slot, everybody's or the owner's.
    #[inline(never)]
    fn is_there(&self, keys: &impl Keys, name: u64, owner: u32, home: usize, raw: u16) -> bool {
        if owner == EVERYBODY {
            return self.find_from(keys, name, EVERYBODY, home, tag(raw, 0)).is_some();
        }
        let (canonical, own) = self.find_both(keys, name, owner, home, raw);
        canonical.is_some() || own.is_some()
    }

    /// Gives an owner slots for names, up to the first name that it has one for already, or that has a canonical slot of which
    /// `elsewhere` says that the owner has it. How many got one.
    pub fn insert_private<K: Append>(
        &mut self,
        keys: &mut K,
        names: impl ExactSizeIterator<Item = u64>,
        owner: u32,
        elsewhere: impl Fn(u32) -> bool,
    ) -> u32 {
        let (mut names, salt) = (names, salt(owner));
        let mut taken = 0;
        while names.len() > 0 {
            let count = names.len().min(BATCH);
            self.make_room(keys, count);
            self.plan(keys, names.by_ref().take(count).map(|name| (name, 0)));
            let mut begin = 0;
            while begin < count {
                let (slot, room) = keys.open(self.plan[begin..count].iter().map(|planned| planned.name));
                let (mut at, end) = (begin, begin + room);
                while at < end {
                    let slot = slot + (at - begin) as u32;
                    let new = self.insert_new(at, end, count, salt, salt, slot);
                    at += new;
                    if at == end {
                        break;
                    }
                    let Planned { name, home, raw, .. } = self.plan[at % BATCH];
                    let (canonical, private) = self.find_both(keys, name, owner, home as usize, raw);
                    if private.is_some() || canonical.is_some_and(&elsewhere) {
                        keys.close(at - begin);
                        return taken + at as u32;
                    }
                    self.put(keys, home as usize, tag(raw, salt), slot + new as u32);
                    at += 1;
                }
                keys.close(room);
                begin = end;
            }
            taken += count as u32;
        }
        taken
    }

    /// Names up to the first of which the owner has a slot of its own.
    pub fn not_private(&mut self, keys: &impl Keys, names: impl ExactSizeIterator<Item = u64>, owner: u32) -> usize {
        let mut names = names;
        let mut seen = 0;
        while names.len() > 0 {
            let count = names.len().min(BATCH);
            self.plan(keys, names.by_ref().take(count).map(|name| (name, 0)));
            for &Planned { name, home, raw, .. } in &self.plan[..count] {
                if self.find_from(keys, name, owner, home as usize, tag(raw, salt(owner))).is_some() {
                    return seen;
                }
                seen += 1;
            }
        }
        seen
    }

    /// Takes out canonical names of the slots from `from` on. Names that have another slot or none are left alone.
    pub fn remove_stretch(&mut self, keys: &impl Keys, names: impl ExactSizeIterator<Item = u64>, from: u32) {
        let entries = (0..names.len() as u32).map(|i| from + i);
        self.remove_entries(keys, names.zip(entries), EVERYBODY);
    }

    /// Takes out an owner's entries `name -> slot`. Names that have another slot or none are left alone.
    pub fn remove_entries(&mut self, keys: &impl Keys, entries: impl ExactSizeIterator<Item = (u64, u32)>, owner: u32) {
        let mut entries = entries;
        if entries.len() == 1 {
            entries.for_each(|(name, slot)| _ = self.remove(keys, name, slot));
            return;
        }
        let salt = salt(owner);
        while entries.len() > 0 {
            let count = entries.len().min(BATCH);
            self.plan(keys, entries.by_ref().take(count));
            for j in 0..count {
                if let Some(ahead) = self.plan[..count].get(j + AHEAD) {
                    let home = ahead.home as usize;
                    if self.lines[home].passed() > 0 {
                        read_soon(&self.lines[home + 1]);
                    }
                }
                let Planned { name, home, raw, slot } = self.plan[j];
                self.take(keys, name, slot, home as usize, tag(raw, salt));
            }
            self.left(keys, count);
        }
    }

    /// Asks for the lines of up to so many names as a batch has, to be looked at soon. If they are the next batch, what was
    /// worked out here is not worked out again.
    #[inline]
    pub fn expect_all(&mut self, keys: &impl Keys, names: impl Iterator<Item = u64>) {
        self.plan(keys, names.take(BATCH).map(|name| (name, 0)));
    }

    /// Works out the homes of a batch and asks for their lines. They stay right until the map's layout moves.
    #[inline(always)]
    fn plan(&mut self, keys: &impl Keys, names: impl Iterator<Item = (u64, u32)>) {
        if self.planned_in != self.homes {
            self.planned_in = self.homes;
            self.planned = 0;
        }
        if self.homes.sweeping() {
            self.plan_by(keys, names, Homes::place_swept);
        } else {
            self.plan_by(keys, names, Homes::place_still);
        }
    }

    #[inline(always)]
    fn plan_by(
        &mut self,
        keys: &impl Keys,
        names: impl Iterator<Item = (u64, u32)>,
        place: impl Fn(&Homes, u64) -> (usize, u16),
    ) {
        let (homes, lines) = (self.homes, &self.lines[..]);
        let mut count = 0;
        for (planned, (name, slot)) in self.plan.iter_mut().zip(names) {
            if count < self.planned && planned.name == name {
                planned.slot = slot;
            } else {
                let (home, raw) = place(&homes, keys.hash(name));
                *planned = Planned { name, home: home as u32, raw, slot };
                read_soon(&lines[home]);
            }
            count += 1;
        }
        self.planned = self.planned.max(count);
    }
}
