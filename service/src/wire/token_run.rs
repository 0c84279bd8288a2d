//! Runs of three-byte numbers with vectors of 32 bytes, where the processor has them (AVX2, and BMI2 for the shifts): sixteen ids and the one after
//! them in the instructions that [`super::token_room`] needs for four.
//!
//! The same windows, table of widths and results as there; what is left at the end of a message or of the room, and whatever
//! is of no usual form, is left to it.

#![expect(unsafe_code, reason = "unaligned loads and stores of whole vectors")]

use super::token_room::{MARKER, after_run};
use core::arch::x86_64::{
    __m256i, _mm256_cmpeq_epi8, _mm256_loadu_si256, _mm256_movemask_epi8, _mm256_permutevar8x32_epi32,
    _mm256_set1_epi8, _mm256_setr_epi8, _mm256_setr_epi32, _mm256_shuffle_epi8, _mm256_storeu_si256,
};

/// Three-byte numbers that are looked for at once.
const RUN_MAX: usize = 16;
/// Bytes looked at: two vectors. They hold a whole run and eight bytes more, from which the number after it is cut.
const WINDOW_BYTES: usize = 64;
const _: () = assert!(WINDOW_BYTES >= 3 * RUN_MAX + 8);
/// Bytes written: a whole run and one number more.
const OUT_BYTES: usize = 4 * (RUN_MAX + 1);

/// A bit for each place of a marker.
const PLACES: u64 = {
    let (mut places, mut place) = (0, 0);
    while place < RUN_MAX {
        places |= 1 << (3 * place);
        place += 1;
    }
    places
};

/// Whether this processor has the instructions. Asks it once; later calls read a flag.
#[inline]
pub(super) fn is_available() -> bool {
    std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("bmi2")
}

/// Takes what `message` begins with, at most `left` ids, and writes them to the front of `room`: ids taken, and their bytes.
/// Stops early at a value of no usual form and where message or room end within a window. What stands behind the ids in the
/// room is overwritten.
#[target_feature(enable = "avx2,bmi2")]
pub(super) fn take_runs(message: &[u8], left: usize, room: &mut [u8]) -> (usize, usize) {
    let (mut taken, mut bytes) = (0, 0);
    while taken < left
        && let Some(window) = message[bytes..].first_chunk::<WINDOW_BYTES>()
        && let Some(out) = room[4 * taken..].first_chunk_mut::<OUT_BYTES>()
    {
        let run = leading_run(window).min(left - taken);
        // All places are decoded as if they were in the run: what is not is overwritten.
        decode_run(window, out);
        let (more, width) = if run < left - taken { after_run(window, 3 * run, &mut out[4 * run..]) } else { (0, 0) };
        if run + more == 0 {
            break;
        }
        taken += run + more;
        bytes += 3 * run + width;
    }
    (taken, bytes)
}

/// Three-byte numbers in a row at the window's front, at most [`RUN_MAX`].
#[inline]
#[target_feature(enable = "avx2")]
fn leading_run(window: &[u8; WINDOW_BYTES]) -> usize {
    let (low, high) = halves(window);
    let marker = _mm256_set1_epi8(MARKER.cast_signed());
    let low = _mm256_movemask_epi8(_mm256_cmpeq_epi8(load(low), marker)).cast_unsigned();
    let high = _mm256_movemask_epi8(_mm256_cmpeq_epi8(load(high), marker)).cast_unsigned();
    let markers = u64::from(low) | u64::from(high) << 32;
    // The bit behind the last place stops the count there.
    ((!markers & PLACES | 1 << (3 * RUN_MAX)).trailing_zeros() / 3) as usize
}

/// Writes the sixteen numbers that stand in the window if all its places are three-byte numbers.
#[inline]
#[target_feature(enable = "avx2")]
fn decode_run(window: &[u8; WINDOW_BYTES], out: &mut [u8; OUT_BYTES]) {
    // In each half of a vector lie four numbers: their low byte is the third, their high byte the second.
    let places = _mm256_setr_epi8(
        2, 1, -1, -1, 5, 4, -1, -1, 8, 7, -1, -1, 11, 10, -1, -1, 2, 1, -1, -1, 5, 4, -1, -1, 8, 7, -1, -1, 11, 10, -1,
        -1,
    );
    // Four numbers are three words of four bytes: the second three go to the upper half. Whole vectors are loaded, one of
    // them a second time: of two halves put together the compiler loads only what is used, word by word.
    let upper = _mm256_setr_epi32(0, 1, 2, 3, 3, 4, 5, 6);
    let (low, _) = halves(window);
    let first = _mm256_permutevar8x32_epi32(load(low), upper);
    let second = _mm256_permutevar8x32_epi32(load(middle(window)), upper);
    let (words, _) = out.as_chunks_mut::<32>();
    if let [one, two] = words {
        store(one, _mm256_shuffle_epi8(first, places));
        store(two, _mm256_shuffle_epi8(second, places));
    }
}

fn halves(window: &[u8; WINDOW_BYTES]) -> (&[u8; 32], &[u8; 32]) {
    let (halves, _) = window.as_chunks::<32>();
    (&halves[0], &halves[1])
}

#[inline]
#[target_feature(enable = "avx2")]
fn load(bytes: &[u8; 32]) -> __m256i {
    // SAFETY: the reference is to 32 readable bytes, and the load asks for no alignment.
    unsafe { _mm256_loadu_si256(bytes.as_ptr().cast()) }
}

/// Where the ninth number begins, and as many bytes as a vector has.
#[inline]
fn middle(window: &[u8; WINDOW_BYTES]) -> &[u8; 32] {
    let (_, rest) = window.split_first_chunk::<24>().unwrap_or((&[0; 24], &[]));
    rest.first_chunk().unwrap_or(&[0; 32])
}

#[inline]
#[target_feature(enable = "avx2")]
fn store(bytes: &mut [u8; 32], vector: __m256i) {
    // SAFETY: the reference is to 32 writable bytes, and the store asks for no alignment.
    unsafe { _mm256_storeu_si256(bytes.as_mut_ptr().cast(), vector) }
}
