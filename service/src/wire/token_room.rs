//! Token ids written down as they are read, so that a block is hashed where it lies.
//!
//! Nearly every id of a vocabulary is a msgpack number of three bytes, and the rest have one, two or five. A window of the
//! message is compared with the three-byte marker in all places where one may stand; as many ids as stand there in a row
//! are taken at once, and the one after them by a table of widths. No branch depends on which ids are wide: they follow no
//! pattern that a processor could guess. Whatever is none of the four forms is left to the reader of single values, whose
//! errors and rules are the ones that count.

use super::msgpack::Cursor;
#[cfg(target_arch = "x86_64")]
use super::token_run;
use super::tokens::{TokenError, read_token};

/// Room for the token ids of one batch, used again for the next.
#[derive(Clone, Debug, Default)]
pub struct TokenRoom {
    words: Vec<u8>,
}

/// Bytes that a room grows to: 32,768 tokens. Further ones of a batch are read from the message when they are hashed.
const ROOM_BYTES_MAX: usize = 128 << 10;

impl TokenRoom {
    /// Room for a payload: four bytes for each of its bytes, as long as that is not over the limit.
    pub(super) fn for_payload(&mut self, payload_bytes: usize) -> &mut [u8] {
        let bytes = payload_bytes.saturating_mul(4).saturating_add(OUT_BYTES).min(ROOM_BYTES_MAX);
        if self.words.len() < bytes {
            self.words.resize(bytes.next_power_of_two().min(ROOM_BYTES_MAX), 0);
        }
        &mut self.words
    }
}

/// Three-byte numbers that are looked for at once.
const RUN_MAX: usize = 10;
/// Bytes looked at: a whole run, and what the number after it may have together with what is loaded beyond it.
const WINDOW_BYTES: usize = 3 * RUN_MAX + 8;
/// Bytes written: a whole run and one number more.
const OUT_BYTES: usize = 4 * (RUN_MAX + 1);

/// Reads `units` token ids and writes them as little-endian words to the front of `room`, which has that much room. What
/// stands behind them there is overwritten.
pub(super) fn fill(at: &mut Cursor<'_>, units: usize, room: &mut [u8]) -> Result<(), TokenError> {
    fill_by(take_runs, at, units, room)
}

/// A way to take the usual ids that a message begins with: ids taken, and their bytes.
type Take = fn(&[u8], usize, &mut [u8]) -> (usize, usize);

#[inline(always)]
fn fill_by(take: Take, at: &mut Cursor<'_>, units: usize, room: &mut [u8]) -> Result<(), TokenError> {
    let mut done = 0;
    while done < units {
        let (tokens, bytes) = take(at.rest(), units - done, &mut room[4 * done..]);
        at.advance(bytes);
        done += tokens;
        if done < units {
            let token = read_token(at)?;
            room[4 * done..4 * done + 4].copy_from_slice(&token.to_le_bytes());
            done += 1;
        }
    }
    Ok(())
}

/// By the widest vectors of this processor first, then by those that every processor has.
#[inline]
fn take_runs(message: &[u8], left: usize, room: &mut [u8]) -> (usize, usize) {
    #[cfg(target_arch = "x86_64")]
    if token_run::is_available() {
        #[expect(unsafe_code, reason = "a function for processors with AVX2 and BMI2")]
        // SAFETY: the processor was asked on the line above.
        let (tokens, bytes) = unsafe { token_run::take_runs(message, left, room) };
        if tokens == left {
            return (tokens, bytes);
        }
        let (more, further) = take_short_runs(&message[bytes..], left - tokens, &mut room[4 * tokens..]);
        return (tokens + more, bytes + further);
    }
    take_short_runs(message, left, room)
}

/// Takes window after window, until message or room end within one or a value is of no usual form.
fn take_short_runs(message: &[u8], left: usize, room: &mut [u8]) -> (usize, usize) {
    let (mut taken, mut bytes) = (0, 0);
    while taken < left
        && let Some(window) = message[bytes..].first_chunk::<WINDOW_BYTES>()
        && let Some(out) = room[4 * taken..].first_chunk_mut::<OUT_BYTES>()
    {
        let (tokens, width) = take_window(window, left - taken, out);
        if tokens == 0 {
            break;
        }
        taken += tokens;
        bytes += width;
    }
    (taken, bytes)
}

/// Takes what the window begins with, at most `left`: tokens taken, and their bytes. None if the first is of no usual form.
#[inline(always)]
fn take_window(window: &[u8; WINDOW_BYTES], left: usize, out: &mut [u8; OUT_BYTES]) -> (usize, usize) {
    let run = leading_run(window).min(left);
    // All places are decoded as if they were in the run: what is not is overwritten.
    for place in 0..RUN_MAX {
        let token = u16::from_be_bytes([window[3 * place + 1], window[3 * place + 2]]);
        out[4 * place..4 * place + 4].copy_from_slice(&u32::from(token).to_le_bytes());
    }
    let (more, width) = if run < left { after_run(window, 3 * run, &mut out[4 * run..]) } else { (0, 0) };
    (run + more, 3 * run + width)
}

/// Takes the number that begins at `start` in the window, by the table of widths: 1 and its bytes, or nothing if it is of no
/// usual form.
#[inline(always)]
pub(super) fn after_run(window: &[u8], start: usize, out: &mut [u8]) -> (usize, usize) {
    let Some(bytes) = window.get(start..).and_then(|rest| rest.first_chunk::<8>()) else { return (0, 0) };
    let width = WIDTHS[usize::from(bytes[0])];
    let token = (u64::from_be_bytes(*bytes) >> width.shift) as u32 & (u32::MAX >> width.narrow);
    if let Some(word) = out.first_chunk_mut::<4>() {
        *word = token.to_le_bytes();
    }
    (usize::from(width.bytes != 0), usize::from(width.bytes))
}

/// How a number is cut out of the eight bytes that begin with its marker.
#[derive(Clone, Copy)]
struct Width {
    /// Bytes of the number and its marker; 0 for another value.
    bytes: u8,
    shift: u8,
    narrow: u8,
}

/// By marker: one byte (its own marker), `cc`, `cd` and `ce`.
const WIDTHS: [Width; 256] = {
    let mut widths = [Width { bytes: 0, shift: 0, narrow: 0 }; 256];
    let mut marker = 0;
    while marker < 0x80 {
        widths[marker] = Width { bytes: 1, shift: 56, narrow: 24 };
        marker += 1;
    }
    widths[0xcc] = Width { bytes: 2, shift: 48, narrow: 24 };
    widths[0xcd] = Width { bytes: 3, shift: 40, narrow: 16 };
    widths[0xce] = Width { bytes: 5, shift: 24, narrow: 0 };
    widths
};

/// Marker of the three-byte number.
pub(super) const MARKER: u8 = 0xcd;

/// Three-byte numbers in a row at the window's front, at most [`RUN_MAX`].
#[cfg(target_arch = "x86_64")]
#[inline(always)]
#[expect(unsafe_code, reason = "vector instructions that every processor of this architecture has")]
fn leading_run(window: &[u8; WINDOW_BYTES]) -> usize {
    // SAFETY: SSE2 is part of the x86-64 architecture.
    let markers = unsafe { equal_to_marker(window) };
    ((!markers & PLACES | 1 << (3 * RUN_MAX)).trailing_zeros() / 3) as usize
}

/// A bit for each of the first 32 bytes: whether it is the marker.
#[cfg(target_arch = "x86_64")]
#[inline]
#[target_feature(enable = "sse2")]
fn equal_to_marker(window: &[u8; WINDOW_BYTES]) -> u32 {
    use core::arch::x86_64::{_mm_cmpeq_epi8, _mm_movemask_epi8, _mm_set_epi64x, _mm_set1_epi8};
    let word = |at: usize| i64::from_le_bytes(core::array::from_fn(|i| window[at + i]));
    let marker = _mm_set1_epi8(MARKER.cast_signed());
    let low = _mm_cmpeq_epi8(_mm_set_epi64x(word(8), word(0)), marker);
    let high = _mm_cmpeq_epi8(_mm_set_epi64x(word(24), word(16)), marker);
    _mm_movemask_epi8(low).cast_unsigned() | _mm_movemask_epi8(high).cast_unsigned() << 16
}

/// A bit for each place of a marker.
#[cfg(target_arch = "x86_64")]
const PLACES: u32 = {
    let (mut places, mut place) = (0, 0);
    while place < RUN_MAX {
        places |= 1 << (3 * place);
        place += 1;
    }
    places
};

/// Three-byte numbers in a row at the window's front, at most [`RUN_MAX`].
#[cfg(not(target_arch = "x86_64"))]
#[inline(always)]
fn leading_run(window: &[u8; WINDOW_BYTES]) -> usize {
    let others = (0..RUN_MAX).fold(0u32, |bits, place| bits | u32::from(window[3 * place] != MARKER) << place);
    (others | 1 << RUN_MAX).trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Tokens;

    fn encode(token: u32, wide: bool, out: &mut Vec<u8>) {
        match token {
            _ if wide => {
                out.push(0xcf);
                out.extend(u64::from(token).to_be_bytes());
            }
            0..0x80 => out.push(token as u8),
            0x80..0x100 => out.extend([0xcc, token as u8]),
            0x100..0x1_0000 => {
                out.push(0xcd);
                out.extend((token as u16).to_be_bytes());
            }
            _ => {
                out.push(0xce);
                out.extend(token.to_be_bytes());
            }
        }
    }

    fn mix(state: &mut u64) -> u64 {
        *state = state.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        *state >> 33
    }

    /// Every mixture of widths, every length and every distance to the end of message and room.
    #[test]
    fn written_down_and_read_one_by_one_are_the_same() {
        let mut state = 1;
        for case in 0..20_000u64 {
            let (units, tail) = (1 + mix(&mut state) as usize % 90, mix(&mut state) as usize % 80);
            let rare = 1 + case % 17;
            let mut bytes = Vec::new();
            let mut want = Vec::new();
            for _ in 0..units {
                let bits = if mix(&mut state).is_multiple_of(rare) { 1 + mix(&mut state) as u32 % 31 } else { 12 };
                let token = mix(&mut state) as u32 & ((1 << bits) - 1);
                encode(token, mix(&mut state).is_multiple_of(200), &mut bytes);
                want.push(token);
            }
            bytes.extend(core::iter::repeat_n(0xcd, tail));
            let words_len = 4 * units + mix(&mut state) as usize % 90;
            let mut words = vec![0xee; words_len];
            let mut room = &mut words[..];
            let mut at = Cursor::new(&bytes);
            let tokens = Tokens::read(&mut at, units, &mut room).unwrap();
            assert_eq!(at.rest().len(), tail, "case {case}");
            assert_eq!(tokens.to_vec(), want, "case {case}");
            let mut short = vec![0xee; words_len];
            fill_by(take_short_runs, &mut Cursor::new(&bytes), units, &mut short).unwrap();
            assert_eq!(short[..4 * units], *tokens.words().unwrap(), "case {case}");
            let written: Vec<u32> =
                tokens.words().unwrap().chunks_exact(4).map(|w| u32::from_le_bytes([w[0], w[1], w[2], w[3]])).collect();
            assert_eq!(written, want, "case {case}");
        }
    }

    /// A value that is no token is found in every place, with the same error as without room.
    #[test]
    fn what_is_no_token_is_found_wherever_it_stands() {
        for bad in [&[0xff_u8][..], &[0xc0], &[0xa1, b'x'], &[0xcf, 0, 0, 0, 1, 0, 0, 0, 0], &[0x91, 1], &[0xc1]] {
            for place in 1..40 {
                let mut bytes = [0xcd, 1, 2].repeat(place);
                bytes.extend(bad);
                bytes.extend([0xcd, 1, 2].repeat(30));
                let units = place + 31;
                let mut words = vec![0; 4 * units + 64];
                let with = Tokens::read(&mut Cursor::new(&bytes), units, &mut &mut words[..]).unwrap_err();
                let without = Tokens::read(&mut Cursor::new(&bytes), units, &mut &mut [][..]).unwrap_err();
                assert_eq!(with, without, "{bad:02x?} at {place}");
                let short = fill_by(take_short_runs, &mut Cursor::new(&bytes), units, &mut words).unwrap_err();
                assert_eq!(short, without, "{bad:02x?} at {place}");
            }
        }
    }

    #[test]
    fn a_message_cut_anywhere_is_broken() {
        let bytes = [0xcd, 1, 2, 5, 0xcc, 200, 0xce, 0, 1, 0, 0].repeat(6);
        for cut in 0..bytes.len() {
            let mut words = [0; 256];
            let read = Tokens::read(&mut Cursor::new(&bytes[..cut]), 24, &mut &mut words[..]);
            assert!(read.is_err(), "cut at {cut}");
        }
    }
}
