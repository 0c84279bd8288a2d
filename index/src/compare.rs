//! Comparing hashes with those in the arena: the leading blocks in which they agree.
//!
//! The arena's words may change under the comparison. What is read is a rumour until the run's version is confirmed, so all
//! that counts is that every word is read after the version and before its confirmation.
#![cfg_attr(
    all(not(loom), not(miri), target_arch = "x86_64"),
    expect(unsafe_code, reason = "no atomic load is wider than a word, and the compiler does not join two of them")
)]

use crate::sync::{AtomicU64, Ordering};
use crate::types::{ContentHash, EngineHash};

/// Blocks compared at once.
const STRIDE: usize = 8;

/// A hash that the arena has words of.
pub(crate) trait Word: Copy {
    fn word(self) -> u64;
}
impl Word for ContentHash {
    #[inline(always)]
    fn word(self) -> u64 {
        self.0
    }
}
impl Word for EngineHash {
    #[inline(always)]
    fn word(self) -> u64 {
        self.0
    }
}

/// Blocks in which a query and the first `len` words of an arena stretch agree from their beginnings on. The words behind them
/// may be read, and do not count.
#[inline(always)]
pub(crate) fn common_of<W: Word>(query: &[W], arena: &[AtomicU64], len: u32) -> u32 {
    let n = query.len().min(len as usize).min(arena.len());
    let (queries, arenas) = (query.as_chunks::<STRIDE>().0, arena.as_chunks::<STRIDE>().0);
    let mut same = 0;
    for (query, arena) in queries.iter().zip(arenas) {
        let agree = agree(query, arena);
        same += agree;
        if agree < STRIDE || same >= n {
            return same.min(n) as u32;
        }
    }
    // At the end of the query or of the region.
    let rest = query[same..n].iter().zip(&arena[same..n]);
    (same + rest.take_while(|(q, a)| q.word() == a.load(Ordering::Relaxed)).count()) as u32
}

/// Blocks in which a query and an arena stretch agree from their beginnings on.
#[inline]
pub(crate) fn common<W: Word>(query: &[W], arena: &[AtomicU64]) -> u32 {
    common_of(query, arena, arena.len() as u32)
}

/// The same with the arena stretch read from its end. Both have one length.
#[inline]
pub(crate) fn common_backwards<W: Word>(query: &[W], arena: &[AtomicU64]) -> u32 {
    debug_assert_eq!(query.len(), arena.len());
    let mut same = 0;
    for (query, arena) in query.as_chunks::<STRIDE>().0.iter().zip(arena.as_rchunks::<STRIDE>().1.iter().rev()) {
        let differs = query.iter().zip(arena.iter().rev());
        if differs.fold(0, |differs, (q, a)| differs | (q.word() ^ a.load(Ordering::Relaxed))) != 0 {
            break;
        }
        same += STRIDE;
    }
    let rest = query[same..].iter().zip(arena[..arena.len() - same].iter().rev());
    (same + rest.take_while(|(q, a)| q.word() == a.load(Ordering::Relaxed)).count()) as u32
}

/// Blocks in which two stretches of [`STRIDE`] agree from their beginnings on.
#[inline(always)]
#[cfg(not(all(not(loom), not(miri), target_arch = "x86_64")))]
fn agree<W: Word>(query: &[W; STRIDE], arena: &[AtomicU64; STRIDE]) -> usize {
    query.iter().zip(arena).take_while(|(q, a)| q.word() == a.load(Ordering::Relaxed)).count()
}

/// Blocks in which two stretches of [`STRIDE`] agree from their beginnings on.
#[inline(always)]
#[cfg(all(not(loom), not(miri), target_arch = "x86_64"))]
fn agree<W: Word>(query: &[W; STRIDE], arena: &[AtomicU64; STRIDE]) -> usize {
    const { assert!(size_of::<[AtomicU64; STRIDE]>() == 64 && size_of::<[W; STRIDE]>() == 64) };
    let mask: u32;
    // SAFETY: both arrays are 64 bytes long and are only read. Each load stands for two relaxed loads of
    // aligned words; x86 reads an aligned word in one piece also as half of a wider load, and keeps loads in order, so the
    // fence in `Version::confirm` comes after them. SSE2 is part of every x86_64 target. The block may not be moved across
    // fences: it is not marked as leaving memory alone.
    unsafe {
        core::arch::asm!(
            "movdqu {a}, [{q}]",
            "movdqu {t}, [{w}]",
            "pcmpeqd {a}, {t}",
            "movdqu {b}, [{q} + 16]",
            "movdqu {t}, [{w} + 16]",
            "pcmpeqd {b}, {t}",
            "packssdw {a}, {b}",
            "movdqu {b}, [{q} + 32]",
            "movdqu {t}, [{w} + 32]",
            "pcmpeqd {b}, {t}",
            "movdqu {c}, [{q} + 48]",
            "movdqu {t}, [{w} + 48]",
            "pcmpeqd {c}, {t}",
            "packssdw {b}, {c}",
            "packsswb {a}, {b}",
            "pmovmskb {mask:e}, {a}",
            q = in(reg) query.as_ptr(),
            w = in(reg) arena.as_ptr(),
            a = out(xmm_reg) _,
            b = out(xmm_reg) _,
            c = out(xmm_reg) _,
            t = out(xmm_reg) _,
            mask = lateout(reg) mask,
            options(nostack, preserves_flags, readonly)
        );
    }
    // Two bits for each block, one for each half of it.
    (mask ^ 0x1_ffff).trailing_zeros() as usize / 2
}

#[cfg(test)]
mod tests {
    use super::{common, common_backwards, common_of};
    use crate::sync::AtomicU64;
    use crate::types::ContentHash;

    #[test]
    fn agrees_up_to_the_first_difference_in_either_half_of_any_word() {
        for len in 0..40usize {
            let query: Vec<_> = (0..len as u64).map(|i| ContentHash(i * 0x1_0000_0001 + 7)).collect();
            for differs in 0..=len {
                for flip in [1, 1 << 31, 1 << 32, 1 << 63] {
                    let word =
                        |(i, q): (usize, &ContentHash)| AtomicU64::new(if i == differs { q.0 ^ flip } else { q.0 });
                    let mut arena: Vec<_> = query.iter().enumerate().map(word).collect();
                    assert_eq!(common(&query, &arena), differs as u32);
                    arena.reverse();
                    assert_eq!(common_backwards(&query, &arena), differs as u32);
                    arena.reverse();
                    arena.push(AtomicU64::new(1));
                    assert_eq!(common(&query, &arena), differs as u32);
                    assert_eq!(common(&query[..len / 2], &arena), differs.min(len / 2) as u32);
                    assert_eq!(common_of(&query, &arena, len as u32 / 3), differs.min(len / 3) as u32);
                }
            }
        }
    }
}
