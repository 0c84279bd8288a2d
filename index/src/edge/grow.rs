//! Growing and shrinking, a few homes at a time.

use super::Edge;
use super::bucket::{SLOTS, WORDS, unpack};
use super::directory::{Class, Directory, Move};
use crate::fault::{Fault, injected};
use crate::sync::Ordering;

/// Homes that one step moves: about twenty links, a microsecond or two.
const STEP_BUCKETS: u32 = if cfg!(loom) { 1 } else { 4 };
/// Links of a step for which there is memory from the beginning: more only where buckets overflow far.
pub(super) const STEP_LINKS: usize = 8 * SLOTS * STEP_BUCKETS as usize;
/// Buckets whose memory is given back together (64 KiB: a few microseconds).
pub(super) const CHUNK_BUCKETS: u32 = 1024;

/// A link being moved: where it is, and its hash.
pub(super) struct Moving {
    bucket: u32,
    slot: u32,
    link: u64,
    hash: u64,
}

impl Edge {
    /// What the table should do next: go on with a move, or begin one. Below three sevenths of the slots it shrinks, which
    /// leaves a sixth of the way to the next growth.
    pub(super) fn due(&self, at: Directory) -> Move {
        let (class, len) = (self.classes[at.class], self.len());
        if at.to != Move::None {
            at.to
        } else if len > class.room() && at.class + 1 < self.classes.len() {
            Move::Grow
        } else if at.class > 0 && len < class.slots() * 3 / 7 {
            Move::Shrink
        } else {
            Move::None
        }
    }

    /// Moves a few links if the table is growing or shrinking, or should. Called by a lane that holds no lock of the table,
    /// each time a link came or goes.
    #[inline]
    pub fn advance(&self, rehash: &dyn Fn(u32, u32) -> u64) {
        if self.due(self.directory()) != Move::None {
            self.with_every_lock(0, &mut || self.step(rehash));
        }
    }

    /// Takes the locks by recursion: guards of any number of lanes without memory for them.
    #[cold]
    fn with_every_lock(&self, lane: usize, then: &mut dyn FnMut()) {
        match self.lanes.get(lane) {
            Some(lock) => {
                let _held = lock.lock();
                self.with_every_lock(lane + 1, then);
            }
            None => then(),
        }
    }

    /// One step of a move, under every lane's lock.
    fn step(&self, rehash: &dyn Fn(u32, u32) -> u64) {
        let mut at = self.directory();
        at.to = self.due(at);
        if at.to == Move::None {
            return;
        }
        let (old, new) = (self.classes[at.class], self.classes[at.target()]);
        let from = at.moved;
        let end = (from + STEP_BUCKETS).min(old.buckets);
        let mut moving = self.step.lock();
        self.collect(old, from, end, rehash, &mut moving);
        for link in moving.iter() {
            self.place(new, link.hash, link.link);
        }
        if injected(Fault::ClearedBeforePublished) {
            moving.iter().for_each(|m| self.take_out(old, m.hash, m.bucket, m.slot as usize));
        }
        at.changes += 1;
        at.moved = end;
        let left = at.class;
        if end == old.buckets {
            at = Directory { class: at.target(), to: Move::None, moved: 0, changes: at.changes };
        }
        // Release: pairs with the Acquire in `find`.
        self.directory.store(at.pack(), Ordering::Release);
        if !injected(Fault::ClearedBeforePublished) {
            moving.iter().for_each(|m| self.take_out(old, m.hash, m.bucket, m.slot as usize));
        }
        moving.clear();
        self.give_back(self.classes[left], from, end);
    }

    /// The links with a home in `from..end`. They stand there or, in a row of passed buckets, behind it.
    fn collect(&self, old: Class, from: u32, end: u32, rehash: &dyn Fn(u32, u32) -> u64, moving: &mut Vec<Moving>) {
        for step in 0..old.buckets {
            if step >= end - from && self.bucket(old, old.after(from, step - 1))[SLOTS].load(Ordering::Relaxed) == 0 {
                break;
            }
            let bucket = old.after(from, step);
            for (slot, word) in self.bucket(old, bucket)[..SLOTS].iter().enumerate() {
                let link = word.load(Ordering::Relaxed);
                if link != 0 {
                    moving.push(Moving { bucket, slot: slot as u32, link, hash: 0 });
                }
            }
        }
        // Apart from the loop above: the reads of several links' headers and contents overlap.
        for link in moving.iter_mut() {
            let (run, granule) = unpack(link.link);
            link.hash = rehash(run, granule);
        }
        moving.retain(|m| (from..end).contains(&old.home(m.hash)));
    }

    /// Gives back the memory of chunks that the move has left, all of whose words are zero now. The first one goes last: the
    /// links that overflow the end of the table stand there.
    fn give_back(&self, old: Class, from: u32, end: u32) {
        if old.buckets < CHUNK_BUCKETS || cfg!(loom) {
            return;
        }
        let chunk = |buckets: u32| (buckets / CHUNK_BUCKETS * CHUNK_BUCKETS) as usize * WORDS;
        let (begin, first) = (old.from * WORDS, chunk(CHUNK_BUCKETS));
        if end == old.buckets {
            self.words.release(begin, first);
            let last = chunk(from).max(first);
            self.words.release(begin + last, old.buckets as usize * WORDS - last);
        } else if chunk(end) > chunk(from).max(first)
            && self.bucket(old, CHUNK_BUCKETS - 1)[SLOTS].load(Ordering::Relaxed) == 0
        {
            self.words.release(begin + chunk(from), chunk(end) - chunk(from));
        }
    }
}
