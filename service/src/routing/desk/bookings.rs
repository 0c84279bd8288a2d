//! The book: what was dispatched and has not ended. Kept in the order of the last sign of life, so that the next one to expire is
//! found without a search; a warm book allocates nothing.

use crate::routing::Slot;
use std::collections::HashMap;
use std::time::Duration;

/// No entry.
const NONE: u32 = u32::MAX;

/// One reservation.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Booking {
    /// Its number: never 0, never given twice.
    pub number: u64,
    /// The worker.
    pub slot: Slot,
    /// Data-parallel rank of the worker.
    pub rank: u32,
    /// When it was dispatched.
    pub dispatched_at: Duration,
    /// The last sign of life of whoever holds it.
    pub touched_at: Duration,
    /// Tokens of the prompt, or the mean where they were not known: what was added to the worker's tally.
    pub tokens: u64,
    /// Tokens of the prompt, where they were known.
    pub prompt_tokens: Option<u64>,
    /// Tokens that were expected to be found cached; `None` where nothing could be said of the prompt.
    pub predicted_tokens: Option<u64>,
    /// The prefill that it was expected to take.
    pub prefill: Duration,
    /// Whether its first token came.
    pub begun: bool,
    /// Whether its worker counts as wedged where nothing comes of it: its caller is one who tells of first tokens.
    pub watched: bool,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    booking: Booking,
    /// Touched just before, and just after.
    older: u32,
    newer: u32,
}

/// Every open reservation of a desk.
#[derive(Debug)]
pub(super) struct Bookings {
    entries: Vec<Entry>,
    free: Vec<u32>,
    by_number: HashMap<u64, u32>,
    oldest: u32,
    newest: u32,
    first_number: u64,
    next_number: u64,
}

impl Bookings {
    /// An empty book whose first number is this one (0 counts as 1).
    pub fn new(first_number: u64) -> Self {
        let first_number = first_number.max(1);
        Self {
            entries: Vec::new(),
            free: Vec::new(),
            by_number: HashMap::new(),
            oldest: NONE,
            newest: NONE,
            first_number,
            next_number: first_number,
        }
    }

    /// The number that the next booking gets.
    pub fn next_number(&self) -> u64 {
        self.next_number
    }

    /// Uses up the next number.
    pub fn take_number(&mut self) -> u64 {
        let number = self.next_number;
        self.next_number += 1;
        number
    }

    /// Whether a number was used up here.
    pub fn was_made(&self, number: u64) -> bool {
        (self.first_number..self.next_number).contains(&number)
    }

    /// Open reservations.
    pub fn len(&self) -> usize {
        self.by_number.len()
    }

    /// Notes a reservation under a number that was taken before; its last sign of life is the newest of all.
    pub fn open(&mut self, booking: Booking) {
        let entry = Entry { booking, older: NONE, newer: NONE };
        let at = match self.free.pop() {
            Some(at) => {
                self.entries[at as usize] = entry;
                at
            }
            None => {
                self.entries.push(entry);
                self.entries.len() as u32 - 1
            }
        };
        self.link(at);
        self.by_number.insert(booking.number, at);
    }

    /// An open reservation.
    pub fn get(&self, number: u64) -> Option<&Booking> {
        self.by_number.get(&number).map(|at| &self.entries[*at as usize].booking)
    }

    /// A sign of life. `None`: it is not open.
    pub fn touch(&mut self, now: Duration, number: u64) -> Option<&mut Booking> {
        let at = *self.by_number.get(&number)?;
        self.unlink(at);
        self.link(at);
        let booking = &mut self.entries[at as usize].booking;
        booking.touched_at = booking.touched_at.max(now);
        Some(booking)
    }

    /// Takes a reservation out. `None`: it is not open, so somebody released it before.
    pub fn close(&mut self, number: u64) -> Option<Booking> {
        let at = self.by_number.remove(&number)?;
        self.unlink(at);
        self.free.push(at);
        Some(self.entries[at as usize].booking)
    }

    /// The reservation without a sign of life for the longest time.
    pub fn oldest(&self) -> Option<&Booking> {
        (self.oldest != NONE).then(|| &self.entries[self.oldest as usize].booking)
    }

    /// Every open reservation, by its last sign of life.
    pub fn iter(&self) -> impl Iterator<Item = &Booking> {
        let mut at = self.oldest;
        std::iter::from_fn(move || {
            let entry = self.entries.get(at as usize)?;
            at = entry.newer;
            Some(&entry.booking)
        })
    }

    fn link(&mut self, at: u32) {
        let older = std::mem::replace(&mut self.newest, at);
        self.entries[at as usize].older = older;
        self.entries[at as usize].newer = NONE;
        match older {
            NONE => self.oldest = at,
            _ => self.entries[older as usize].newer = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let Entry { older, newer, .. } = self.entries[at as usize];
        match older {
            NONE => self.oldest = newer,
            _ => self.entries[older as usize].newer = newer,
        }
        match newer {
            NONE => self.newest = older,
            _ => self.entries[newer as usize].older = older,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(book: &mut Bookings, at_ms: u64) -> u64 {
        let number = book.take_number();
        let at = Duration::from_millis(at_ms);
        book.open(Booking {
            number,
            slot: 0,
            rank: 0,
            dispatched_at: at,
            touched_at: at,
            tokens: 1,
            prompt_tokens: None,
            predicted_tokens: None,
            prefill: Duration::ZERO,
            begun: false,
            watched: false,
        });
        number
    }

    fn numbers(book: &Bookings) -> Vec<u64> {
        book.iter().map(|booking| booking.number).collect()
    }

    #[test]
    fn the_oldest_sign_of_life_comes_first_and_rooms_are_used_again() {
        let mut book = Bookings::new(0);
        let (a, b, c) = (open(&mut book, 1), open(&mut book, 2), open(&mut book, 3));
        assert_eq!((a, numbers(&book)), (1, vec![a, b, c]));
        assert!(book.touch(Duration::from_millis(4), a).is_some());
        assert_eq!((numbers(&book), book.oldest().unwrap().number), (vec![b, c, a], b));
        assert_eq!(book.close(c).map(|booking| booking.number), Some(c));
        assert_eq!((book.close(c), book.touch(Duration::ZERO, c).is_none()), (None, true), "closed once");
        let d = open(&mut book, 5);
        assert_eq!((numbers(&book), book.entries.len(), book.len()), (vec![b, a, d], 3, 3));
        for number in [b, d, a] {
            assert!(book.close(number).is_some());
        }
        assert_eq!((book.len(), book.oldest(), numbers(&book)), (0, None, vec![]));
        assert_eq!((open(&mut book, 6), numbers(&book)), (5, vec![5]), "numbers are never given twice");
    }

    #[test]
    fn time_never_runs_backwards_in_the_book() {
        let mut book = Bookings::new(7);
        let a = open(&mut book, 9);
        assert_eq!(book.touch(Duration::from_millis(1), a).unwrap().touched_at, Duration::from_millis(9));
    }
}
