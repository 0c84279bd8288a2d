//! Private names of a lane's holders, kept where the lane map points: eight names of one holder at consecutive positions share
//! a line and a short header, so a name needs no position of its own.
//!
//! ```text
//! names:     granule x 8 x u64
//! granules:  u32 position of the first name | u32 the alias before it | u32 holder 24, live 8
//! ```
//!
//! An *alias* is granule * 8 + place; the lane map has it with bit 31 set. A name goes on in the granule of the name before
//! it while positions go on; splits never touch it, since positions do not move. What is freed is taken again lowest first,
//! so that the end of the range empties.

use crate::error::ConfigError;
use crate::place::Site;
use crate::prefetch::read_soon;
use crate::reserved::Reserved;

/// Names of a granule.
pub(crate) const PLACES: u32 = 8;
/// Marks an alias among the lane map's slots.
pub(crate) const ALIAS: u32 = 1 << 31;
/// Granules that are kept back, so that what was checked before a step never fails within it.
const SPARE: usize = 64;
const GROUP: usize = 64;
/// Bytes of a granule's names and header.
const GRANULE_BYTES: u64 = PLACES as u64 * 8 + size_of::<Granule>() as u64;

/// Header of eight names.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Granule {
    first: u32,
    before: u32,
    /// Holder << 8 | live places.
    holder: u32,
}
const _: () = assert!(size_of::<Granule>() == 12);

impl Granule {
    pub const EMPTY: Self = Self { first: 0, before: 0, holder: 0 };
}

/// The private names of a lane.
pub(crate) struct Aliases {
    names: Reserved<u64>,
    granules: Reserved<Granule>,
    /// A set bit is a free granule that was used before.
    free: Vec<u64>,
    /// A set bit is a word of `free` that is not zero.
    groups: Vec<u64>,
    /// All words of `groups` below this one are zero.
    first_group: usize,
    /// Granules ever used; number 0 never is, so that alias 0 is none.
    known: usize,
    live: usize,
    names_live: usize,
    granules_max: usize,
}

impl Aliases {
    /// Reserves room for `names_max` names, where granules are full.
    pub fn new(names_max: usize, site: &mut Site) -> Result<Self, ConfigError> {
        let granules_max = names_max / PLACES as usize;
        let all = 1 + granules_max + SPARE;
        Ok(Self {
            names: Reserved::new("private names", all * PLACES as usize, site)?,
            granules: Reserved::new("granules of private names", all, site)?,
            free: Vec::new(),
            groups: Vec::new(),
            first_group: 0,
            known: 1,
            live: 0,
            names_live: 0,
            granules_max,
        })
    }

    /// Names that surely still find a place.
    pub fn room(&self) -> usize {
        self.granules_max.saturating_sub(self.live)
    }
    /// Names.
    pub fn len(&self) -> usize {
        self.names_live
    }
    /// Bytes of the granules in use.
    pub fn bytes(&self) -> u64 {
        self.live as u64 * GRANULE_BYTES + ((self.free.capacity() + self.groups.capacity()) * 8) as u64
    }

    #[inline(always)]
    pub fn name(&self, alias: u32) -> u64 {
        self.names[alias as usize]
    }
    /// Asks for the line of an alias and for that of its granule.
    #[inline]
    pub fn ask(&self, alias: u32) {
        read_soon(self.name_word(alias));
        read_soon(self.granule(alias));
    }
    #[inline(always)]
    pub fn name_word(&self, alias: u32) -> &u64 {
        &self.names[alias as usize]
    }
    #[inline(always)]
    fn granule(&self, alias: u32) -> &Granule {
        &self.granules[(alias / PLACES) as usize]
    }
    #[inline(always)]
    pub fn holder(&self, alias: u32) -> u32 {
        self.granule(alias).holder >> 8
    }
    /// Where a live name stands.
    #[inline(always)]
    pub fn position(&self, alias: u32) -> u32 {
        self.granule(alias).first + alias % PLACES
    }

    /// Whether a holder has a name there; the alias may be a rumour.
    #[inline]
    pub fn is_live(&self, alias: u32, holder: u32) -> bool {
        let word = self.granule(alias).holder;
        word >> 8 == holder && word >> (alias % PLACES) & 1 == 1
    }

    /// The alias of the position below a live one, as far as is known; a rumour.
    #[inline]
    pub fn below(&self, alias: u32) -> u32 {
        if alias.is_multiple_of(PLACES) { self.granule(alias).before } else { alias - 1 }
    }

    /// About the alias that is so many names below another one, at most as many as a granule has; a rumour. Asks for the names
    /// of a granule that comes soon.
    #[inline]
    pub fn further_below(&self, alias: u32, names: u32) -> u32 {
        debug_assert!(names < PLACES);
        let place = alias % PLACES;
        if place >= names {
            return alias - names;
        }
        let before = self.granule(alias).before;
        read_soon(self.granule(before));
        before.saturating_sub(names - place - 1)
    }

    /// Places for a holder's names at positions from this one on, as many as are next to one another: behind `latest`, if that
    /// is the holder's name of the position before, else in a new granule. The names are written, but not live before
    /// `close` says how many of them are. The first place, and how many.
    #[inline]
    pub fn open(
        &mut self,
        latest: u32,
        holder: u32,
        position: u32,
        names: impl ExactSizeIterator<Item = u64>,
    ) -> (u32, usize) {
        let (place, granule) = (latest % PLACES, &self.granules[(latest / PLACES) as usize]);
        // The holder's, the latest place live and none behind it, and the position the next one.
        let goes_on = place + 1 < PLACES
            && granule.holder >> 8 == holder
            && (granule.holder & 0xff) >> place == 1
            && granule.first + place + 1 == position;
        let first = if goes_on {
            latest + 1
        } else {
            let number = self.take();
            self.granules[number as usize] = Granule { first: position, before: latest, holder: holder << 8 };
            number * PLACES
        };
        let count = names.len().min((PLACES - first % PLACES) as usize);
        for (word, name) in self.names[first as usize..][..count].iter_mut().zip(names) {
            *word = name;
        }
        (first, count)
    }

    /// Makes `count` names live from the first place on that was opened last; gives a granule back that was opened in vain.
    #[inline]
    pub fn close(&mut self, first: u32, count: u32) {
        self.names_live += count as usize;
        let number = (first / PLACES) as usize;
        let granule = &mut self.granules[number];
        let places = ((1 << count) - 1) << (first % PLACES);
        debug_assert!(granule.holder & places == 0);
        granule.holder |= places;
        if granule.holder & 0xff == 0 {
            *granule = Granule::EMPTY;
            self.give(number);
        }
    }

    /// Takes a live name out.
    pub fn remove(&mut self, alias: u32) {
        self.remove_places(alias / PLACES, 1 << (alias % PLACES));
    }

    /// Takes live names of a granule out: a set bit is a place.
    #[inline]
    fn remove_places(&mut self, number: u32, places: u32) {
        self.names_live -= places.count_ones() as usize;
        let granule = &mut self.granules[number as usize];
        debug_assert!(granule.holder & places == places, "places {places:x} of granule {number} are live");
        granule.holder &= !places;
        if granule.holder & 0xff == 0 {
            *granule = Granule::EMPTY;
            self.give(number as usize);
        }
    }

    /// Takes live names out, those of a granule next to one another in one step.
    #[inline]
    pub fn remove_all(&mut self, aliases: &[u32]) {
        for same in aliases.chunk_by(|a, b| a / PLACES == b / PLACES) {
            let places = same.iter().fold(0, |places, alias| places | 1 << (alias % PLACES));
            self.remove_places(same[0] / PLACES, places);
        }
    }

    fn take(&mut self) -> u32 {
        self.live += 1;
        while self.groups.get(self.first_group) == Some(&0) {
            self.first_group += 1;
        }
        let i = self.first_group;
        let Some(group) = self.groups.get_mut(i) else {
            let granule = self.known;
            self.known += 1;
            assert!(granule < self.granules.len(), "room was asked for before each step");
            return granule as u32;
        };
        let word = i * 64 + group.trailing_zeros() as usize;
        let bits = &mut self.free[word];
        let granule = word * GROUP + bits.trailing_zeros() as usize;
        *bits &= *bits - 1;
        if *bits == 0 {
            *group &= !(1 << (word % 64));
        } else {
            // Likely to be taken next.
            let next = word * GROUP + bits.trailing_zeros() as usize;
            read_soon(&self.names[next * PLACES as usize]);
            read_soon(&self.granules[next]);
        }
        granule as u32
    }

    fn give(&mut self, granule: usize) {
        self.live -= 1;
        let word = granule / GROUP;
        if word >= self.free.len() {
            self.free.resize(word + 1, 0);
            self.groups.resize(word / 64 + 1, 0);
        }
        self.free[word] |= 1 << (granule % GROUP);
        self.groups[word / 64] |= 1 << (word % 64);
        self.first_group = self.first_group.min(word / 64);
        // A group's names are one page. Much more is known than used: the page goes back.
        if self.free[word] == u64::MAX && self.live < self.known / 2 {
            let names = GROUP * PLACES as usize;
            self.names.release(word * names, (word + 1) * names);
        }
        if self.live == 0 {
            self.reset();
        }
    }

    /// The last name went: everything goes back.
    fn reset(&mut self) {
        self.names.release(0, self.known * PLACES as usize);
        self.granules.release(0, self.known);
        // The bits' memory stays (a bit for eight names), so that the next names need none.
        self.free.clear();
        self.groups.clear();
        (self.first_group, self.known) = (0, 1);
    }

    /// Granules from 1 up to this one may be in use.
    pub fn end(&self) -> u32 {
        self.known as u32
    }

    /// Whose names a granule has.
    pub fn holder_of(&self, granule: u32) -> Option<u32> {
        let word = self.granules[granule as usize].holder;
        (word & 0xff != 0).then_some(word >> 8)
    }

    /// The next granule of a holder after this one.
    pub fn next_granule(&self, after: u32, holder: u32) -> Option<u32> {
        (after + 1..self.end()).find(|&granule| self.holder_of(granule) == Some(holder))
    }

    /// Every name of a holder: alias and name. Walks the headers of all granules in use.
    pub fn of(&self, holder: u32) -> impl Iterator<Item = (u32, u64)> {
        let mine = move |g: &usize| self.granules[*g].holder >> 8 == holder;
        (1..self.known).filter(mine).flat_map(move |g| {
            let all = g as u32 * PLACES..(g as u32 + 1) * PLACES;
            all.filter(move |&alias| self.is_live(alias, holder)).map(|alias| (alias, self.name(alias)))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::{Aliases, PLACES};
    use crate::place::Site;

    /// One name after another one.
    fn append(aliases: &mut Aliases, latest: u32, holder: u32, position: u32, name: u64) -> u32 {
        let (place, count) = aliases.open(latest, holder, position, [name].into_iter());
        assert_eq!(count, 1);
        aliases.close(place, 1);
        place
    }

    #[test]
    fn a_stretch_shares_granules_and_freed_ones_are_taken_again() {
        let mut aliases = Aliases::new(8_000, &mut Site::default()).unwrap();
        let stretch = |aliases: &mut Aliases, holder, from: u32| {
            let mut latest = 0;
            (0..20)
                .map(|i| {
                    latest = append(aliases, latest, holder, from + i, u64::from(from + i));
                    latest
                })
                .collect::<Vec<_>>()
        };
        let first = stretch(&mut aliases, 3, 100);
        assert_eq!((aliases.live, aliases.len()), (3, 20));
        let second = stretch(&mut aliases, 4, 100);
        for (i, &alias) in first.iter().enumerate() {
            assert_eq!((aliases.position(alias), aliases.name(alias)), (100 + i as u32, 100 + i as u64));
            assert!(aliases.is_live(alias, 3) && !aliases.is_live(alias, 4));
            assert_eq!(aliases.below(alias), if i == 0 { 0 } else { first[i - 1] });
        }
        assert_eq!(aliases.of(4).map(|(alias, _)| alias).collect::<Vec<_>>(), second);
        first.iter().for_each(|&alias| aliases.remove(alias));
        assert_eq!((aliases.live, aliases.len()), (3, 20));
        let third = stretch(&mut aliases, 5, 7);
        assert_eq!(third[0] / PLACES, first[0] / PLACES);
        assert!(!aliases.is_live(first[0], 3));
        second.iter().chain(&third).for_each(|&alias| aliases.remove(alias));
        assert_eq!((aliases.live, aliases.known, aliases.free.len(), aliases.groups.len()), (0, 1, 0, 0));
    }

    /// What was opened is live as far as it was closed, and a later name goes on where that ends.
    #[test]
    fn names_opened_together_are_live_as_far_as_they_are_closed() {
        for (before, count, closed) in
            (1..PLACES).flat_map(|b| (1..12).flat_map(move |c| (0..=c).map(move |n| (b, c, n))))
        {
            let mut aliases = Aliases::new(8_000, &mut Site::default()).unwrap();
            let mut latest = 0;
            (0..before).for_each(|i| latest = append(&mut aliases, latest, 9, 40 + i, u64::from(100 + i)));
            let names = (0..count).map(|i| u64::from(100 + before + i));
            let (first, room) = aliases.open(latest, 9, 40 + before, names.collect::<Vec<_>>().into_iter());
            assert_eq!((first, room as u32), (latest + 1, count.min(PLACES - before)));
            let closed = closed.min(room as u32);
            aliases.close(first, closed);
            assert_eq!((aliases.len() as u32, aliases.of(9).count() as u32), (before + closed, before + closed));
            latest += closed;
            let next = append(&mut aliases, latest, 9, 40 + before + closed, 7);
            assert_eq!(next / PLACES == latest / PLACES, before + closed < PLACES);
            assert_eq!((aliases.position(next), aliases.below(next)), (40 + before + closed, latest));
            let all: Vec<_> = aliases.of(9).map(|(alias, _)| alias).collect();
            aliases.remove_all(&all);
            assert_eq!((aliases.live, aliases.len(), aliases.known), (0, 0, 1));
        }
    }

    /// A granule that was opened in vain is free again, also where others are in use.
    #[test]
    fn what_is_opened_in_vain_goes_back() {
        let mut aliases = Aliases::new(8_000, &mut Site::default()).unwrap();
        let kept = append(&mut aliases, 0, 1, 50, 1);
        for _ in 0..3 {
            let (first, room) = aliases.open(kept, 2, 51, [1; 20].into_iter());
            assert_eq!((first / PLACES, room), (kept / PLACES + 1, PLACES as usize));
            assert_eq!((aliases.holder(first), aliases.name(first + 1), aliases.is_live(first, 2)), (2, 1, false));
            aliases.close(first, 0);
            assert_eq!((aliases.live, aliases.len(), aliases.holder_of(first / PLACES)), (1, 1, None));
        }
        assert_eq!(append(&mut aliases, kept, 3, 60, 1) / PLACES, kept / PLACES + 1);
    }

    /// Another name of the same position, a gap, another holder, a dead name: each begins a granule.
    #[test]
    fn only_the_next_position_of_the_holder_goes_on() {
        let mut aliases = Aliases::new(8_000, &mut Site::default()).unwrap();
        let a = append(&mut aliases, 0, 1, 50, 1);
        let twin = append(&mut aliases, a, 1, 50, 2);
        let gap = append(&mut aliases, a, 1, 52, 3);
        let other = append(&mut aliases, a, 2, 51, 4);
        let next = append(&mut aliases, a, 1, 51, 5);
        assert_eq!(next, a + 1);
        let fork = append(&mut aliases, a, 1, 51, 6);
        aliases.remove(next);
        let again = append(&mut aliases, a, 1, 51, 7);
        assert_eq!(again, next);
        let granules = [a, twin, gap, other, fork].map(|alias| alias / PLACES);
        assert!((1..5).all(|i| !granules[..i].contains(&granules[i])), "{granules:?}");
        aliases.remove(a);
        assert_ne!(append(&mut aliases, a, 1, 51, 8) / PLACES, a / PLACES);
    }
}
