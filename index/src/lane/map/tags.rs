//! Comparing all tags of a line at once.
#![cfg_attr(
    all(not(loom), target_arch = "x86_64"),
    expect(unsafe_code, reason = "vector comparisons have no safe call outside functions that name their feature")
)]

/// Slots of a line.
pub(crate) const SLOTS: usize = 10;

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
    use core::arch::x86_64::{
        _mm_cmpeq_epi16, _mm_cvtsi32_si128, _mm_movemask_epi8, _mm_packs_epi16, _mm_set_epi64x, _mm_set1_epi16,
    };
    let word = |i: usize| (0..4).fold(0, |w, k| w | i64::from(tags[i + k]) << (16 * k));
    let wanted = _mm_set1_epi16(tag as i16);
    let low = _mm_cmpeq_epi16(_mm_set_epi64x(word(4), word(0)), wanted);
    let high = _mm_cmpeq_epi16(_mm_cvtsi32_si128(i32::from(tags[8]) | i32::from(tags[9]) << 16), wanted);
    _mm_movemask_epi8(_mm_packs_epi16(low, high)) as u32 & ((1 << SLOTS) - 1)
}

/// Bit k is set where tag k equals `tag`.
#[inline(always)]
#[cfg(any(loom, not(target_arch = "x86_64")))]
pub(crate) fn equal(tags: &[u16; SLOTS], tag: u16) -> u32 {
    tags.iter().enumerate().fold(0, |bits, (k, &t)| bits | u32::from(t == tag) << k)
}

#[cfg(test)]
mod tests {
    use super::{SLOTS, equal};

    #[test]
    fn every_slot_is_seen() {
        for tag in [0, 1, 0x8000, 0xffff] {
            for bits in 0..1u32 << SLOTS {
                let tags = std::array::from_fn(|k| if bits >> k & 1 == 1 { tag } else { tag ^ 1 << k });
                assert_eq!(equal(&tags, tag), bits);
            }
        }
    }
}
