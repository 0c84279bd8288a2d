//! Who holds the most of a prompt. Where beginnings are shared nearly everybody does: so many are drawn, and only these looked at.

use crate::routing::columns::Slot;
use rand::{Rng, RngExt};

/// Puts the candidates with the highest figure in `out`, if that is at least `least` (and not 0), and says the figure; 0 and nobody
/// otherwise. One pass; allocates only where `out` has to grow.
pub(super) fn deepest(candidates: &[Slot], figures: &[u32], least: u32, out: &mut Vec<Slot>) -> u32 {
    out.clear();
    let (mut depth, least) = (0, least.max(1));
    for slot in candidates {
        let blocks = figures[*slot as usize];
        if blocks < depth || blocks < least {
            continue;
        }
        if blocks > depth {
            out.clear();
            depth = blocks;
        }
        out.push(*slot);
    }
    depth
}

/// Keeps at most `most` of them (but one), each as likely as any other: the same draw as from a reservoir, with a random number for
/// each that stays and not for each that is seen.
pub(super) fn sample(slots: &mut Vec<Slot>, most: usize, rng: &mut dyn Rng) {
    let most = most.max(1);
    if slots.len() <= most {
        return;
    }
    for at in 0..most {
        let other = rng.random_range(at..slots.len());
        slots.swap(at, other);
    }
    slots.truncate(most);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::testing::seeded;

    #[test]
    fn the_deepest_of_the_candidates() {
        let mut out = vec![9];
        let figures = [3, 5, 1, 5, 9];
        assert_eq!((deepest(&[0, 1, 2, 3], &figures, 1, &mut out), out.as_slice()), (5, [1, 3].as_slice()));
        assert_eq!((deepest(&[0, 2], &figures, 3, &mut out), out.as_slice()), (3, [0].as_slice()));
        assert_eq!((deepest(&[0, 2], &figures, 4, &mut out), out.as_slice()), (0, [].as_slice()));
        assert_eq!((deepest(&[0, 1], &[0, 0], 0, &mut out), out.as_slice()), (0, [].as_slice()), "nothing is nobody's");
    }

    #[test]
    fn everybody_is_as_likely_to_be_kept() {
        let mut rng = seeded(70);
        let mut kept = [0; 100];
        for _ in 0..10_000 {
            let mut slots: Vec<Slot> = (0..100).collect();
            sample(&mut slots, 32, &mut rng);
            assert_eq!(slots.len(), 32);
            slots.iter().for_each(|slot| kept[*slot as usize] += 1);
            slots.sort_unstable();
            slots.dedup();
            assert_eq!(slots.len(), 32, "each once");
        }
        // 3,200 of 10,000 with a deviation of 47.
        assert!(kept.iter().all(|count| (2_960..=3_440).contains(count)), "{kept:?}");
    }

    #[test]
    fn a_limit_of_none_keeps_one() {
        let mut slots = vec![4, 5];
        sample(&mut slots, 0, &mut seeded(71));
        assert_eq!(slots.len(), 1);
    }
}
