//! A cursor over msgpack bytes: reads one value or steps over it, builds nothing.
//!
//! No recursion: stepping over a value counts the values still owed, so depth costs nothing. A declared length is compared
//! with the bytes that are left before anything is done with it.

/// Why a value could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReadError {
    /// The bytes end inside a value, or the reserved marker `c1` was met: nothing after this place can be read.
    Broken,
    /// The value is of another type than the one asked for. The cursor has not moved.
    WrongType,
}

/// The head of a value: what the marker says, the cursor standing after it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) enum Head<'a> {
    Nil,
    Bool,
    Unsigned(u64),
    /// Negative numbers only.
    Signed(i64),
    Float(f64),
    Text(&'a [u8]),
    Bytes(&'a [u8]),
    /// That many values follow.
    Array(usize),
    /// That many pairs of values follow.
    Map(usize),
    Extension,
}

/// A place in a message.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cursor<'a> {
    rest: &'a [u8],
}

impl<'a> Cursor<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// The bytes not read yet.
    #[inline]
    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    /// The bytes between `self` and `later`, a cursor over the same message further on.
    #[inline]
    pub(crate) fn until(&self, later: &Cursor<'a>) -> &'a [u8] {
        &self.rest[..self.rest.len() - later.rest.len()]
    }

    #[inline]
    fn take(&mut self, n: usize) -> Result<&'a [u8], ReadError> {
        let (head, tail) = self.rest.split_at_checked(n).ok_or(ReadError::Broken)?;
        self.rest = tail;
        Ok(head)
    }

    #[inline]
    fn be<const N: usize>(&mut self) -> Result<[u8; N], ReadError> {
        let (head, tail) = self.rest.split_first_chunk::<N>().ok_or(ReadError::Broken)?;
        self.rest = tail;
        Ok(*head)
    }

    #[inline]
    fn length(&mut self, width: usize) -> Result<usize, ReadError> {
        Ok(match width {
            1 => usize::from(self.be::<1>()?[0]),
            2 => usize::from(u16::from_be_bytes(self.be()?)),
            _ => u32::from_be_bytes(self.be()?) as usize,
        })
    }

    /// A container of `count` values of at least a byte each: more than the bytes left cannot be true.
    #[inline]
    fn owed(&self, count: usize, values_each: usize) -> Result<usize, ReadError> {
        if count > self.rest.len() / values_each { Err(ReadError::Broken) } else { Ok(count) }
    }

    /// Reads the next head; texts and bytes whole. Containers are left to the caller.
    #[inline]
    pub(crate) fn head(&mut self) -> Result<Head<'a>, ReadError> {
        let marker = self.be::<1>()?[0];
        Ok(match marker {
            0x00..=0x7f => Head::Unsigned(u64::from(marker)),
            0x80..=0x8f => Head::Map(self.owed(usize::from(marker & 0x0f), 2)?),
            0x90..=0x9f => Head::Array(self.owed(usize::from(marker & 0x0f), 1)?),
            0xa0..=0xbf => Head::Text(self.take(usize::from(marker & 0x1f))?),
            0xe0..=0xff => Head::Signed(i64::from(marker as i8)),
            _ => return self.wide_head(marker),
        })
    }

    fn wide_head(&mut self, marker: u8) -> Result<Head<'a>, ReadError> {
        let signed = |v: i64| if v < 0 { Head::Signed(v) } else { Head::Unsigned(v.unsigned_abs()) };
        Ok(match marker {
            0xc0 => Head::Nil,
            0xc2 | 0xc3 => Head::Bool,
            0xc4..=0xc6 => {
                let n = self.length(1 << (marker - 0xc4))?;
                Head::Bytes(self.take(n)?)
            }
            0xc7..=0xc9 => {
                let n = self.length(1 << (marker - 0xc7))?;
                self.take(1)?;
                self.take(n)?;
                Head::Extension
            }
            0xca => Head::Float(f64::from(f32::from_be_bytes(self.be()?))),
            0xcb => Head::Float(f64::from_be_bytes(self.be()?)),
            0xcc => Head::Unsigned(u64::from(self.be::<1>()?[0])),
            0xcd => Head::Unsigned(u64::from(u16::from_be_bytes(self.be()?))),
            0xce => Head::Unsigned(u64::from(u32::from_be_bytes(self.be()?))),
            0xcf => Head::Unsigned(u64::from_be_bytes(self.be()?)),
            0xd0 => signed(i64::from(i8::from_be_bytes(self.be()?))),
            0xd1 => signed(i64::from(i16::from_be_bytes(self.be()?))),
            0xd2 => signed(i64::from(i32::from_be_bytes(self.be()?))),
            0xd3 => signed(i64::from_be_bytes(self.be()?)),
            0xd4..=0xd8 => {
                self.take(1 + (1 << (marker - 0xd4)))?;
                Head::Extension
            }
            0xd9..=0xdb => {
                let n = self.length(1 << (marker - 0xd9))?;
                Head::Text(self.take(n)?)
            }
            0xdc | 0xdd => {
                let n = self.length(2 << (marker - 0xdc))?;
                Head::Array(self.owed(n, 1)?)
            }
            0xde | 0xdf => {
                let n = self.length(2 << (marker - 0xde))?;
                Head::Map(self.owed(n, 2)?)
            }
            _ => return Err(ReadError::Broken),
        })
    }

    /// Steps over one value, however deep. Linear in its bytes.
    pub(crate) fn skip(&mut self) -> Result<(), ReadError> {
        let mut owed: u64 = 1;
        while owed > 0 {
            owed -= 1;
            owed += match self.head()? {
                Head::Array(n) => n as u64,
                Head::Map(n) => 2 * n as u64,
                _ => 0,
            };
        }
        Ok(())
    }

    /// Reads a head and keeps the cursor where it was unless `accept` takes it.
    #[inline]
    pub(crate) fn expect<T>(&mut self, accept: impl FnOnce(Head<'a>) -> Option<T>) -> Result<T, ReadError> {
        let before = *self;
        match accept(self.head()?) {
            Some(value) => Ok(value),
            None => {
                *self = before;
                Err(ReadError::WrongType)
            }
        }
    }

    /// Steps over bytes that were looked at in [`Self::rest`].
    #[inline]
    pub(crate) fn advance(&mut self, bytes: usize) {
        self.rest = &self.rest[bytes..];
    }

    /// Steps over these very bytes; the cursor stays where it was if others come next.
    #[inline(always)]
    pub(crate) fn literal<const N: usize>(&mut self, bytes: &[u8; N]) -> bool {
        let found = self.rest.first_chunk::<N>() == Some(bytes);
        if found {
            self.advance(N);
        }
        found
    }

    /// Reads the head of an array: how many values follow.
    #[inline(always)]
    pub(crate) fn array(&mut self) -> Result<usize, ReadError> {
        // The usual forms of a short and of a long one, without the call that the rarer heads cost.
        if let [marker @ 0x90..=0x9f, rest @ ..] = self.rest {
            let count = usize::from(marker & 0x0f);
            if count <= rest.len() {
                self.rest = rest;
                return Ok(count);
            }
        }
        if let [0xdc, high, low, rest @ ..] = self.rest {
            let count = usize::from(u16::from_be_bytes([*high, *low]));
            if count <= rest.len() {
                self.rest = rest;
                return Ok(count);
            }
        }
        self.rare_array()
    }

    #[cold]
    fn rare_array(&mut self) -> Result<usize, ReadError> {
        self.expect(|h| if let Head::Array(n) = h { Some(n) } else { None })
    }

    /// Reads a token id: an unsigned number, whatever its width.
    #[inline]
    pub(crate) fn unsigned(&mut self) -> Result<u64, ReadError> {
        self.expect(|h| if let Head::Unsigned(v) = h { Some(v) } else { None })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn heads(bytes: &[u8]) -> Vec<Head<'_>> {
        let mut at = Cursor::new(bytes);
        let mut out = Vec::new();
        while !at.rest().is_empty() {
            out.push(at.head().unwrap());
        }
        out
    }

    #[test]
    fn integers_of_every_width_keep_value_and_sign() {
        let bytes = [
            &[0x7f_u8][..],
            &[0xe0],
            &[0xcc, 0xff],
            &[0xcd, 1, 0],
            &[0xce, 0xff, 0xff, 0xff, 0xff],
            &[0xcf, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
            &[0xd0, 0x80],
            &[0xd1, 0x80, 0],
            &[0xd2, 0x80, 0, 0, 0],
            &[0xd3, 0x80, 0, 0, 0, 0, 0, 0, 0],
            &[0xd3, 0, 0, 0, 0, 0, 0, 0, 5],
        ]
        .concat();
        let want = [
            Head::Unsigned(127),
            Head::Signed(-32),
            Head::Unsigned(255),
            Head::Unsigned(256),
            Head::Unsigned(u64::from(u32::MAX)),
            Head::Unsigned(u64::MAX),
            Head::Signed(-128),
            Head::Signed(-32768),
            Head::Signed(i64::from(i32::MIN)),
            Head::Signed(i64::MIN),
            Head::Unsigned(5),
        ];
        assert_eq!(heads(&bytes), want);
    }

    #[test]
    fn a_length_beyond_the_bytes_is_broken_at_once() {
        for bytes in [
            &[0xdd_u8, 0xff, 0xff, 0xff, 0xff][..],
            &[0xdf, 0x7f, 0xff, 0xff, 0xff, 0xc0],
            &[0xc6, 0xff, 0xff, 0xff, 0xff],
            &[0xdb, 0, 0, 0, 9, b'a'],
            &[0xc1],
            &[0xcb, 0],
            &[],
        ] {
            assert_eq!(Cursor::new(bytes).head(), Err(ReadError::Broken), "{bytes:02x?}");
        }
    }

    #[test]
    fn a_million_levels_are_stepped_over_without_recursion() {
        let mut bytes = vec![0x91_u8; 1_000_000];
        bytes.extend([0xc0, 0x2a]);
        let mut at = Cursor::new(&bytes);
        at.skip().unwrap();
        assert_eq!(at.rest(), [0x2a]);
    }

    #[test]
    fn every_kind_of_value_is_stepped_over() {
        let bytes = [
            &[0x82_u8, 0xa1, b'a', 0x92, 1, 2, 0xa1, b'b', 0x80][..],
            &[0xd4, 0, 1],
            &[0xd8, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1],
            &[0xc7, 2, 0, 1, 1],
            &[0xc9, 0, 0, 0, 1, 0, 1],
            &[0xc3],
            &[0xca, 0, 0, 0, 0],
            &[0xdc, 0, 1, 0xc0],
            &[0xde, 0, 1, 0xc0, 0xc0],
        ]
        .concat();
        let mut at = Cursor::new(&bytes);
        for _ in 0..9 {
            at.skip().unwrap();
        }
        assert!(at.rest().is_empty());
    }
}
