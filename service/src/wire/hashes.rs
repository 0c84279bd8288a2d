//! Block hashes as they lie in the message: read one after another, never copied by the decoder.

use super::msgpack::{Cursor, Head, ReadError};
use core::fmt;
use kvatlas_index::EngineHash;

/// Shortest and longest digest accepted as a block hash, bytes. Engines write 16 or 32.
const DIGEST_BYTES: core::ops::RangeInclusive<usize> = 8..=64;

/// One block hash in the form the engine wrote.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum WireHash<'a> {
    /// The bit pattern of an integer of either sign.
    Int(u64),
    /// A whole digest.
    Digest(&'a [u8]),
}

impl<'a> WireHash<'a> {
    /// The whole digest, if the engine sent it.
    pub fn digest(self) -> Option<&'a [u8]> {
        match self {
            WireHash::Int(_) => None,
            WireHash::Digest(bytes) => Some(bytes),
        }
    }

    /// The 64-bit name: of a digest the last 8 bytes, big-endian, which is also what vLLM sends as an integer.
    #[inline]
    pub fn name(self) -> EngineHash {
        match self {
            WireHash::Int(bits) => EngineHash(bits),
            WireHash::Digest(bytes) => EngineHash(bytes.last_chunk::<8>().map_or(0, |tail| u64::from_be_bytes(*tail))),
        }
    }
}

/// Reads one block hash; the cursor stays where it was if the value is none.
#[inline]
pub(crate) fn read_hash<'a>(at: &mut Cursor<'a>) -> Result<WireHash<'a>, ReadError> {
    if let Some(value) = at.rest().first_chunk::<WIDE_BYTES>()
        && is_wide(value)
    {
        at.advance(WIDE_BYTES);
        return Ok(WireHash::Int(wide_name(value).0));
    }
    at.expect(|head| match head {
        Head::Unsigned(v) => Some(WireHash::Int(v)),
        Head::Signed(v) => Some(WireHash::Int(v.cast_unsigned())),
        Head::Bytes(b) if DIGEST_BYTES.contains(&b.len()) => Some(WireHash::Digest(b)),
        _ => None,
    })
}

/// Bytes of the form that nearly every hash has: an integer of eight bytes, whose sign does not matter.
const WIDE_BYTES: usize = 9;

/// Whether a value of [`WIDE_BYTES`] is of that form.
#[inline]
fn is_wide(value: &[u8; WIDE_BYTES]) -> bool {
    matches!(value[0], 0xcf | 0xd3)
}

#[inline]
fn wide_name(value: &[u8; WIDE_BYTES]) -> EngineHash {
    let [_, bits @ ..] = value;
    EngineHash(u64::from_be_bytes(*bits))
}

/// The block hashes of one event.
#[derive(Clone, Copy, Default)]
pub struct Hashes<'a> {
    raw: &'a [u8],
    len: usize,
    /// Every hash is an integer of eight bytes.
    all_wide: bool,
}

impl<'a> Hashes<'a> {
    /// Reads `len` values that a head announced, checking each.
    pub(crate) fn read(at: &mut Cursor<'a>, len: usize) -> Result<Self, ReadError> {
        let start = *at;
        let (values, _) = at.rest().as_chunks::<WIDE_BYTES>();
        let wide = values.iter().take(len).take_while(|value| is_wide(value)).count();
        at.advance(WIDE_BYTES * wide);
        for _ in wide..len {
            read_hash(at)?;
        }
        Ok(Self { raw: start.until(at), len, all_wide: wide == len })
    }

    /// How many.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The names, in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = EngineHash> + 'a {
        self.wire().map(WireHash::name)
    }

    /// The hashes as the engine wrote them, in order.
    pub fn wire(&self) -> WireHashes<'a> {
        WireHashes { at: Cursor::new(self.raw), left: self.len }
    }

    /// Appends the first `count` names, or all if there are fewer. Allocates where `out` must grow.
    pub fn append_to(&self, count: usize, out: &mut Vec<EngineHash>) {
        if self.all_wide {
            let (values, _) = self.raw.as_chunks::<WIDE_BYTES>();
            out.extend(values.iter().take(count).map(wide_name));
        } else {
            out.extend(self.iter().take(count));
        }
    }

    /// The names in a vector. Allocates.
    pub fn to_vec(&self) -> Vec<EngineHash> {
        let mut names = Vec::with_capacity(self.len);
        self.append_to(self.len, &mut names);
        names
    }
}

impl PartialEq for Hashes<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.wire().eq(other.wire())
    }
}

impl fmt::Debug for Hashes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Iterator of [`Hashes::wire`].
#[derive(Clone, Debug)]
pub struct WireHashes<'a> {
    at: Cursor<'a>,
    left: usize,
}

impl<'a> Iterator for WireHashes<'a> {
    type Item = WireHash<'a>;

    #[inline]
    fn next(&mut self) -> Option<WireHash<'a>> {
        self.left = self.left.checked_sub(1)?;
        read_hash(&mut self.at).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for WireHashes<'_> {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_of_either_sign_and_digests_are_the_same_names() {
        let mut bytes = vec![0xff, 0xcf];
        bytes.extend(u64::MAX.to_be_bytes());
        bytes.extend([0xc4, 32]);
        bytes.extend([9; 24]);
        bytes.extend(0x0b_u64.to_be_bytes());
        bytes.extend([0xc4, 16]);
        bytes.extend([9; 8]);
        bytes.extend((-2_i64).to_be_bytes());
        let mut at = Cursor::new(&bytes);
        let hashes = Hashes::read(&mut at, 4).unwrap();
        assert_eq!(hashes.to_vec(), [u64::MAX, u64::MAX, 0x0b, u64::MAX - 1].map(EngineHash));
        assert_eq!(hashes.iter().len(), 4);
        assert!(hashes.iter().eq(hashes.to_vec()));
        assert!(at.rest().is_empty());
    }

    #[test]
    fn wide_integers_are_the_same_names_in_a_row_and_one_by_one() {
        let names: Vec<u64> = (0..9u64).map(|n| n.wrapping_mul(u64::MAX / 7)).collect();
        for narrow in 0..=names.len() {
            let mut bytes = Vec::new();
            for (i, name) in names.iter().enumerate() {
                bytes.push(if i == narrow { 5 } else { [0xcf, 0xd3][i % 2] });
                if i != narrow {
                    bytes.extend(name.to_be_bytes());
                }
            }
            let hashes = Hashes::read(&mut Cursor::new(&bytes), names.len()).unwrap();
            assert!(hashes.iter().eq(hashes.to_vec()));
            let mut some = Vec::new();
            hashes.append_to(4, &mut some);
            assert_eq!(some, hashes.to_vec()[..4]);
        }
    }

    #[test]
    fn a_text_or_a_short_digest_is_no_hash() {
        for bytes in [&[0xa1_u8, b'x'][..], &[0xc4, 7, 1, 1, 1, 1, 1, 1, 1], &[0xc0], &[0xca, 0, 0, 0, 0]] {
            assert_eq!(Hashes::read(&mut Cursor::new(bytes), 1).map(|h| h.len()), Err(ReadError::WrongType));
        }
    }
}
