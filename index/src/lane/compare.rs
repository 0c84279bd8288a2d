//! An event's names against the arena's, eight at a time.

use crate::sync::{AtomicU64, Ordering};
use crate::types::EngineHash;

/// Names in which an event and a stretch of the arena agree from their beginnings on.
#[inline]
pub(crate) fn common_names(names: &[EngineHash], arena: &[AtomicU64]) -> u32 {
    let n = names.len().min(arena.len());
    let (names, arena) = (&names[..n], &arena[..n]);
    let eights = names.chunks_exact(8).zip(arena.chunks_exact(8));
    let same = 8 * eights.take_while(|(names, words)| differ(names.iter(), words.iter()) == 0).count();
    let rest = names[same..].iter().zip(&arena[same..]);
    (same + rest.take_while(|(name, word)| name.0 == word.load(Ordering::Relaxed)).count()) as u32
}

/// The same with the stretch read from its end. Both have one length.
#[inline]
pub(crate) fn same_backwards(names: &[EngineHash], arena: &[AtomicU64]) -> u32 {
    debug_assert_eq!(names.len(), arena.len());
    let eights = names.chunks_exact(8).zip(arena.rchunks_exact(8));
    let same = 8 * eights.take_while(|(names, words)| differ(names.iter(), words.iter().rev()) == 0).count();
    let rest = names[same..].iter().zip(arena[..arena.len() - same].iter().rev());
    (same + rest.take_while(|(name, word)| name.0 == word.load(Ordering::Relaxed)).count()) as u32
}

/// The bits in which names and words differ anywhere.
#[inline]
fn differ<'a>(names: impl Iterator<Item = &'a EngineHash>, words: impl Iterator<Item = &'a AtomicU64>) -> u64 {
    names.zip(words).fold(0, |bits, (name, word)| bits | (name.0 ^ word.load(Ordering::Relaxed)))
}

#[cfg(test)]
mod tests {
    use super::{common_names, same_backwards};
    use crate::sync::AtomicU64;
    use crate::types::EngineHash;

    #[test]
    fn the_first_difference_is_found_wherever_it_is() {
        for n in 0..40u64 {
            for at in 0..=n {
                let names: Vec<EngineHash> = (0..n).map(EngineHash).collect();
                let words = |of: &dyn Fn(u64) -> u64| -> Vec<AtomicU64> {
                    (0..n).map(|i| AtomicU64::new(of(i) ^ u64::from(of(i) == at) << 40)).collect()
                };
                assert_eq!(u64::from(common_names(&names, &words(&|i| i))), at, "of {n}");
                assert_eq!(u64::from(same_backwards(&names, &words(&|i| n - 1 - i))), at, "of {n}, backwards");
            }
        }
    }
}
