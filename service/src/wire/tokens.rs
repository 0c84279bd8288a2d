//! Token ids as they lie in the message. A bigram tree (EAGLE) sends pairs `[t_i, t_i+1]`; they are folded back to raw
//! tokens here: `n` pairs stand for `n + 1` tokens.

use super::msgpack::{Cursor, Head, ReadError};
use super::token_room::fill;
use core::fmt;

/// Why a token field could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum TokenError {
    /// Not msgpack, or neither an unsigned number nor a pair of them.
    Read(ReadError),
    /// Negative, or beyond 32 bits.
    OutOfRange,
    /// A pair does not begin with the token that the pair before ended with.
    BrokenBigrams,
}

impl From<ReadError> for TokenError {
    fn from(e: ReadError) -> Self {
        TokenError::Read(e)
    }
}

/// The token ids of one event, checked: every id fits 32 bits, and bigrams follow one another.
#[derive(Clone, Copy, Default)]
pub struct Tokens<'a> {
    raw: &'a [u8],
    words: &'a [u8],
    units: usize,
    bigram: bool,
}

impl<'a> Tokens<'a> {
    /// Reads `units` values that a head announced, checking each. Plain tokens are written into `room`, where it has room for
    /// them, and the rest of it is left there.
    pub(crate) fn read(at: &mut Cursor<'a>, units: usize, room: &mut &'a mut [u8]) -> Result<Self, TokenError> {
        let start = *at;
        let bigram = units > 0 && matches!(at.rest().first(), Some(0x90..=0x9f | 0xdc | 0xdd));
        let mut words: &[u8] = &[];
        if bigram {
            check_pairs(at, units)?;
        } else if let Some(bytes) = units.checked_mul(4).filter(|&bytes| bytes > 0 && bytes <= room.len()) {
            fill(at, units, room)?;
            let (own, rest) = core::mem::take(room).split_at_mut(bytes);
            (words, *room) = (own, rest);
        } else {
            check_plain(at, units)?;
        }
        Ok(Self { raw: start.until(at), words, units, bigram })
    }

    /// The tokens as little-endian words, one after another, if the decoder wrote them down.
    pub(crate) fn words(&self) -> Option<&'a [u8]> {
        (!self.words.is_empty()).then_some(self.words)
    }

    /// Elements of the field: tokens, or pairs of a bigram tree. What the engine's block size counts.
    pub fn units(&self) -> usize {
        self.units
    }

    /// Raw tokens: as many as units, one more for bigrams.
    pub fn len(&self) -> usize {
        self.units + usize::from(self.bigram)
    }

    /// Whether there is none, as in a placeholder.
    pub fn is_empty(&self) -> bool {
        self.units == 0
    }

    /// Whether the field holds pairs.
    pub fn is_bigram(&self) -> bool {
        self.bigram
    }

    /// The raw tokens, in order. Reads the message again; allocates nothing.
    pub fn iter(&self) -> TokenIter<'a> {
        TokenIter { at: Cursor::new(self.raw), left: self.len(), bigram: self.bigram, first: true }
    }

    /// The raw tokens in a vector. Allocates.
    pub fn to_vec(&self) -> Vec<u32> {
        self.iter().collect()
    }
}

fn check_plain(at: &mut Cursor<'_>, units: usize) -> Result<(), TokenError> {
    for _ in 0..units {
        read_token(at)?;
    }
    Ok(())
}

fn check_pairs(at: &mut Cursor<'_>, units: usize) -> Result<(), TokenError> {
    let mut before = None;
    for _ in 0..units {
        if at.array()? != 2 {
            return Err(TokenError::Read(ReadError::WrongType));
        }
        let first = read_token(at)?;
        if before.is_some_and(|b| b != first) {
            return Err(TokenError::BrokenBigrams);
        }
        before = Some(read_token(at)?);
    }
    Ok(())
}

#[inline]
pub(super) fn read_token(at: &mut Cursor<'_>) -> Result<u32, TokenError> {
    match at.head()? {
        Head::Unsigned(v) => u32::try_from(v).map_err(|_| TokenError::OutOfRange),
        Head::Signed(_) => Err(TokenError::OutOfRange),
        _ => Err(TokenError::Read(ReadError::WrongType)),
    }
}

impl PartialEq for Tokens<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.bigram == other.bigram && self.iter().eq(other.iter())
    }
}

impl fmt::Debug for Tokens<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", if self.bigram { "bigram " } else { "" })?;
        f.debug_list().entries(self.iter()).finish()
    }
}

/// Iterator of [`Tokens::iter`].
#[derive(Clone, Debug)]
pub struct TokenIter<'a> {
    at: Cursor<'a>,
    left: usize,
    bigram: bool,
    first: bool,
}

impl Iterator for TokenIter<'_> {
    type Item = u32;

    #[inline]
    fn next(&mut self) -> Option<u32> {
        self.left = self.left.checked_sub(1)?;
        if !self.bigram {
            return read_token(&mut self.at).ok();
        }
        if core::mem::take(&mut self.first) {
            return peek_first(self.at).ok();
        }
        self.at.array().ok()?;
        read_token(&mut self.at).ok()?;
        read_token(&mut self.at).ok()
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for TokenIter<'_> {}

/// The first token of the first pair, which no pair before it ended with.
fn peek_first(mut at: Cursor<'_>) -> Result<u32, TokenError> {
    at.array()?;
    read_token(&mut at)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tokens(bytes: &[u8], units: usize) -> Result<Tokens<'_>, TokenError> {
        Tokens::read(&mut Cursor::new(bytes), units, &mut &mut [][..])
    }

    #[test]
    fn plain_tokens_of_every_width() {
        let t = tokens(&[5, 0xcc, 200, 0xcd, 1, 0, 0xce, 0xff, 0xff, 0xff, 0xff, 0xd1, 0, 7], 5).unwrap();
        assert_eq!(t.to_vec(), [5, 200, 256, u32::MAX, 7]);
        assert_eq!((t.len(), t.units(), t.is_bigram()), (5, 5, false));
    }

    #[test]
    fn pairs_fold_to_one_token_more() {
        let t = tokens(&[0x92, 1, 2, 0x92, 2, 3, 0x92, 3, 4], 3).unwrap();
        assert_eq!(t.to_vec(), [1, 2, 3, 4]);
        assert_eq!((t.len(), t.units(), t.is_bigram()), (4, 3, true));
        assert_eq!(t.iter().len(), 4);
    }

    #[test]
    fn what_is_no_token_is_told_apart() {
        let wide = [0xcf, 0, 0, 0, 1, 0, 0, 0, 0];
        assert_eq!(tokens(&wide, 1), Err(TokenError::OutOfRange));
        assert_eq!(tokens(&[0xff], 1), Err(TokenError::OutOfRange));
        assert_eq!(tokens(&[0x92, 1, 2, 0x92, 3, 4], 2), Err(TokenError::BrokenBigrams));
        assert_eq!(tokens(&[0x93, 1, 2, 3], 1), Err(TokenError::Read(ReadError::WrongType)));
        assert_eq!(tokens(&[1, 0x92, 1, 2], 2), Err(TokenError::Read(ReadError::WrongType)));
        assert_eq!(tokens(&[1, 0xcd, 0], 2), Err(TokenError::Read(ReadError::Broken)));
    }
}
