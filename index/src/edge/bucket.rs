//! A bucket of child links: what its words say, and who passed it.

use crate::sync::{AtomicU64, Ordering};

/// Links of a bucket. Loom's models have small ones, so that they overflow.
pub(super) const SLOTS: usize = if cfg!(loom) { 2 } else { 7 };
pub(super) const WORDS: usize = SLOTS + 1;
pub(super) const ID_BITS: u32 = 26;
pub(super) const ID_MASK: u64 = (1 << ID_BITS) - 1;
/// A passing count that is no longer counted.
const COUNT_MAX: u64 = 0xffff;

#[inline]
pub(super) fn pack(hash: u64, run: u32, granule: u32) -> u64 {
    tag(hash) << (2 * ID_BITS) | u64::from(run) << ID_BITS | u64::from(granule)
}
#[inline]
pub(super) fn tag(hash: u64) -> u64 {
    (hash & 0xfff).max(1)
}
/// Which slots of a bucket have a tag, one bit each. Looks at all of them without a branch: where among them the link is, is
/// anybody's guess.
#[inline(always)]
pub(super) fn tagged(bucket: &[AtomicU64; WORDS], tag: u64) -> u32 {
    // Acquire: pairs with the Release stores of `place` and `take_out`, so that what follows is read after it.
    let has = |i: usize| u32::from(bucket[i].load(Ordering::Acquire) >> (2 * ID_BITS) == tag) << i;
    (0..SLOTS).fold(0, |all, i| all | has(i))
}
#[inline]
pub(super) fn unpack(slot: u64) -> (u32, u32) {
    ((slot >> ID_BITS & ID_MASK) as u32, (slot & ID_MASK) as u32)
}

/// Where the passing count of a hash is in its word.
#[inline]
fn passing_shift(hash: u64) -> u32 {
    (hash >> 8 & 0x30) as u32
}
/// How many links with the same two bits of their hash passed a bucket. At its highest a count stays for good: probes go on
/// there.
#[inline]
pub(super) fn passed(bucket: &[AtomicU64; WORDS], hash: u64) -> u64 {
    // Acquire: pairs with `count_passing`; a count that fell because links moved leads to the directory that says so.
    bucket[SLOTS].load(Ordering::Acquire) >> passing_shift(hash) & COUNT_MAX
}
/// Counts a link that passes a bucket, or passes it no more.
pub(super) fn count_passing(bucket: &[AtomicU64; WORDS], hash: u64, comes: bool) {
    let (one, counts) = (1u64 << passing_shift(hash), &bucket[SLOTS]);
    let mut word = counts.load(Ordering::Relaxed);
    while (word / one) & COUNT_MAX != COUNT_MAX {
        let next = if comes { word + one } else { word - one };
        match counts.compare_exchange(word, next, Ordering::AcqRel, Ordering::Relaxed) {
            Ok(_) => break,
            Err(now) => word = now,
        }
    }
}
