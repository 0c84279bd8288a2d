//! Comparing all tags of a line at once.
#![cfg_attr(
    all(not(loom), target_arch = "x86_64"),
    expect(unsafe_code, reason = "vector comparisons have no safe call outside functions that name their feature")
)]

use crate::lane::map::homes::{PLACE_MASK, SALT_BITS};

/// Slots of a line.
pub(crate) const SLOTS: usize = 10;

/// Eight tags, and the last two.
#[inline]
#[target_feature(enable = "sse2")]
#[cfg(all(not(loom), target_arch = "x86_64"))]
fn halves(tags: &[u16; SLOTS]) -> (core::arch::x86_64::__m128i, core::arch::x86_64::__m128i) {
    use core::arch::x86_64::{_mm_cvtsi32_si128, _mm_loadu_si128};
    // SAFETY: the first sixteen of the array's twenty bytes, at any alignment.
    let eight = unsafe { _mm_loadu_si128(tags.as_ptr().cast()) };
    (eight, _mm_cvtsi32_si128(i32::from(tags[8]) | i32::from(tags[9]) << 16))
}

/// Bit k is set where tag k equals `tag`.
#[inline(always)]
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub(crate) fn equal(tags: &[u16; SLOTS], tag: u16) -> u32 {
    // SAFETY: SSE2 is part of every x86_64 target.
    unsafe { equal_sse2(tags, tag) }
}

#[inline]
#[target_feature(enable = "sse2")]
#[cfg(all(not(loom), target_arch = "x86_64"))]
fn equal_sse2(tags: &[u16; SLOTS], tag: u16) -> u32 {
    use core::arch::x86_64::{_mm_cmpeq_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16};
    let wanted = _mm_set1_epi16(tag as i16);
    let (low, high) = halves(tags);
    let (low, high) = (_mm_cmpeq_epi16(low, wanted), _mm_cmpeq_epi16(high, wanted));
    _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32 & ((1 << SLOTS) - 1)
}

/// Where tag k is one of two, and where the slot is empty.
#[inline(always)]
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub(crate) fn either_or_none(tags: &[u16; SLOTS], one: u16, two: u16) -> (u32, u32) {
    // SAFETY: SSE2 is part of every x86_64 target.
    unsafe { either_or_none_sse2(tags, one, two) }
}

#[inline]
#[target_feature(enable = "sse2")]
#[cfg(all(not(loom), target_arch = "x86_64"))]
fn either_or_none_sse2(tags: &[u16; SLOTS], one: u16, two: u16) -> (u32, u32) {
    use core::arch::x86_64::{
        __m128i, _mm_cmpeq_epi16, _mm_movemask_epi8, _mm_or_si128, _mm_packs_epi16, _mm_set1_epi16, _mm_setzero_si128,
    };
    let (one, two, zero) = (_mm_set1_epi16(one as i16), _mm_set1_epi16(two as i16), _mm_setzero_si128());
    let (low, high) = halves(tags);
    let either = |tags: __m128i| _mm_or_si128(_mm_cmpeq_epi16(tags, one), _mm_cmpeq_epi16(tags, two));
    let bits = |low, high| _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32 & ((1 << SLOTS) - 1);
    (bits(either(low), either(high)), bits(_mm_cmpeq_epi16(low, zero), _mm_cmpeq_epi16(high, zero)))
}

/// Where the place bits of tag k, counted from `base` on, are more than `boundary`, and where they are equal to it.
#[inline(always)]
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub(crate) fn beyond(tags: &[u16; SLOTS], base: u16, boundary: u16) -> (u32, u32) {
    // SAFETY: SSE2 is part of every x86_64 target.
    unsafe { beyond_sse2(tags, base, boundary) }
}

#[inline]
#[target_feature(enable = "sse2")]
#[cfg(all(not(loom), target_arch = "x86_64"))]
fn beyond_sse2(tags: &[u16; SLOTS], base: u16, boundary: u16) -> (u32, u32) {
    use core::arch::x86_64::{
        __m128i, _mm_and_si128, _mm_cmpeq_epi16, _mm_cmpgt_epi16, _mm_movemask_epi8, _mm_packs_epi16, _mm_set1_epi16,
        _mm_srli_epi16, _mm_sub_epi16,
    };
    let (base, mask, boundary) =
        (_mm_set1_epi16(base as i16), _mm_set1_epi16(PLACE_MASK as i16), _mm_set1_epi16(boundary as i16));
    let places = |tags: __m128i| {
        let place = _mm_srli_epi16::<{ SALT_BITS as i32 }>(tags);
        _mm_and_si128(_mm_sub_epi16(place, base), mask)
    };
    let (low, high) = halves(tags);
    let (low, high) = (places(low), places(high));
    let bits = |low, high| _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32 & ((1 << SLOTS) - 1);
    (
        bits(_mm_cmpgt_epi16(low, boundary), _mm_cmpgt_epi16(high, boundary)),
        bits(_mm_cmpeq_epi16(low, boundary), _mm_cmpeq_epi16(high, boundary)),
    )
}

/// Where the place bits of tag k, counted from `base` on, are more than `boundary`, and where they are equal to it.
#[inline(always)]
#[cfg(any(loom, not(target_arch = "x86_64")))]
pub(crate) fn beyond(tags: &[u16; SLOTS], base: u16, boundary: u16) -> (u32, u32) {
    let place = |tag: u16| (tag >> SALT_BITS).wrapping_sub(base) & PLACE_MASK as u16;
    tags.iter().enumerate().fold((0, 0), |(above, equal), (k, &tag)| {
        (above | u32::from(place(tag) > boundary) << k, equal | u32::from(place(tag) == boundary) << k)
    })
}

/// Bit k is set where tag k equals `tag`.
#[inline(always)]
#[cfg(any(loom, not(target_arch = "x86_64")))]
pub(crate) fn equal(tags: &[u16; SLOTS], tag: u16) -> u32 {
    tags.iter().enumerate().fold(0, |bits, (k, &t)| bits | u32::from(t == tag) << k)
}

/// Where tag k is one of two, and where the slot is empty.
#[inline(always)]
#[cfg(any(loom, not(target_arch = "x86_64")))]
pub(crate) fn either_or_none(tags: &[u16; SLOTS], one: u16, two: u16) -> (u32, u32) {
    (equal(tags, one) | equal(tags, two), equal(tags, 0))
}

#[cfg(test)]
mod tests {
    use super::{SLOTS, beyond, either_or_none, equal};
    use crate::lane::map::homes::SALT_BITS;

    #[test]
    fn every_slot_is_seen() {
        for tag in [0, 1, 0x8000, 0xffff] {
            for bits in 0..1u32 << SLOTS {
                let tags = std::array::from_fn(|k| if bits >> k & 1 == 1 { tag } else { tag ^ 1 << k });
                assert_eq!(equal(&tags, tag), bits);
            }
        }
    }

    #[test]
    fn both_tags_and_empty_slots_are_seen_at_once() {
        let mut kinds = [0usize; SLOTS];
        let mut seed = 1u64;
        for _ in 0..20_000 {
            for kind in &mut kinds {
                seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                *kind = (seed >> 33) as usize % 4;
            }
            let tags = kinds.map(|kind| [0, 7, 0xffff, 0x8007][kind]);
            let of = |kind| (0..SLOTS).fold(0, |bits, k| bits | u32::from(kinds[k] == kind) << k);
            assert_eq!(either_or_none(&tags, 7, 0xffff), (of(1) | of(2), of(0)));
            assert_eq!(either_or_none(&tags, 7, 7), (of(1), of(0)));
        }
    }

    #[test]
    fn places_wrap_around_their_base() {
        let tags =
            [0, 31, 32, 63, 64, 1023 << SALT_BITS, 1024 << SALT_BITS, 2046 << SALT_BITS, 2047 << SALT_BITS, 65535];
        for base in [0, 1, 2, 1000, 2046, 2047] {
            for boundary in [0, 1, 2, 1024, 2046, i16::MAX as u16] {
                let place = |tag: u16| (tag / 32 + 2048 - base) % 2048;
                let bits = |is: &dyn Fn(u16) -> bool| (0..SLOTS).fold(0, |b, k| b | u32::from(is(tags[k])) << k);
                let want = (bits(&|tag| place(tag) > boundary), bits(&|tag| place(tag) == boundary));
                assert_eq!(beyond(&tags, base, boundary), want, "base {base}, boundary {boundary}");
            }
        }
    }
}
