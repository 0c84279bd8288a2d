//! The two byte forms in which vLLM feeds a block to its hash function: Python pickle, protocol 5, and canonical CBOR. Only
//! the shapes that a block has: `(parent digest, (tokens), None or (extras))`, and the seed text.

/// Writes values one after another.
pub(super) trait Writer {
    /// Opens a tuple of `len` values.
    fn open(&mut self, len: usize);
    /// Closes it.
    fn close(&mut self, len: usize);
    fn nil(&mut self);
    fn int(&mut self, v: i64);
    fn bytes(&mut self, b: &[u8]);
    fn text(&mut self, t: &str);
    /// A text that is one and the same Python object wherever it appears.
    fn shared_text(&mut self, t: &'static str);
}

/// Canonical CBOR.
pub(super) struct Cbor<'b>(pub(super) &'b mut Vec<u8>);

impl Cbor<'_> {
    fn head(&mut self, major: u8, n: u64) {
        let major = major << 5;
        match n {
            0..=23 => self.0.push(major | n as u8),
            24..=0xff => self.0.extend([major | 24, n as u8]),
            0x100..=0xffff => {
                self.0.push(major | 25);
                self.0.extend((n as u16).to_be_bytes());
            }
            0x1_0000..=0xffff_ffff => {
                self.0.push(major | 26);
                self.0.extend((n as u32).to_be_bytes());
            }
            _ => {
                self.0.push(major | 27);
                self.0.extend(n.to_be_bytes());
            }
        }
    }
}

impl Writer for Cbor<'_> {
    fn open(&mut self, len: usize) {
        self.head(4, len as u64);
    }
    fn close(&mut self, _len: usize) {}
    fn nil(&mut self) {
        self.0.push(0xf6);
    }
    fn int(&mut self, v: i64) {
        if v < 0 { self.head(1, (-1 - v).unsigned_abs()) } else { self.head(0, v.unsigned_abs()) }
    }
    fn bytes(&mut self, b: &[u8]) {
        self.head(2, b.len() as u64);
        self.0.extend(b);
    }
    fn text(&mut self, t: &str) {
        self.head(3, t.len() as u64);
        self.0.extend(t.as_bytes());
    }
    fn shared_text(&mut self, t: &'static str) {
        self.text(t);
    }
}

/// Pickle, protocol 5, in one frame.
pub(super) struct Pickle<'b> {
    out: &'b mut Vec<u8>,
    /// Objects memoised so far: texts, byte strings and tuples.
    memo: u32,
    shared: Vec<(&'static str, u32)>,
}

/// `PROTO 5`, then `FRAME` and its length.
const PICKLE_HEADER_BYTES: usize = 11;
/// Python splits what is longer into several frames.
pub(super) const PICKLE_FRAME_BYTES_MAX: usize = 64 * 1024;

impl<'b> Pickle<'b> {
    /// Clears `out` and begins a pickle in it.
    pub(super) fn begin(out: &'b mut Vec<u8>) -> Self {
        out.clear();
        out.extend([0x80, 5, 0x95, 0, 0, 0, 0, 0, 0, 0, 0]);
        Self { out, memo: 0, shared: Vec::new() }
    }

    /// Ends it. `false` if Python would have split it into frames.
    pub(super) fn end(self) -> bool {
        self.out.push(b'.');
        let frame = self.out.len() - PICKLE_HEADER_BYTES;
        self.out[3..PICKLE_HEADER_BYTES].copy_from_slice(&(frame as u64).to_le_bytes());
        frame < PICKLE_FRAME_BYTES_MAX
    }

    fn memoise(&mut self) -> u32 {
        self.out.push(0x94);
        self.memo += 1;
        self.memo - 1
    }

    fn sized(&mut self, short: u8, long: u8, bytes: &[u8]) {
        match u8::try_from(bytes.len()) {
            Ok(n) => self.out.extend([short, n]),
            Err(_) => {
                self.out.push(long);
                self.out.extend((bytes.len() as u32).to_le_bytes());
            }
        }
        self.out.extend(bytes);
    }
}

impl Writer for Pickle<'_> {
    fn open(&mut self, len: usize) {
        if len > 3 {
            self.out.push(b'(');
        }
    }

    fn close(&mut self, len: usize) {
        match len {
            0 => return self.out.push(b')'),
            1..=3 => self.out.push(0x84 + len as u8),
            _ => self.out.push(b't'),
        }
        self.memoise();
    }

    fn nil(&mut self) {
        self.out.push(b'N');
    }

    fn int(&mut self, v: i64) {
        if let Ok(v) = u8::try_from(v) {
            self.out.extend([b'K', v]);
        } else if let Ok(v) = u16::try_from(v) {
            self.out.push(b'M');
            self.out.extend(v.to_le_bytes());
        } else if let Ok(v) = i32::try_from(v) {
            self.out.push(b'J');
            self.out.extend(v.to_le_bytes());
        } else {
            // LONG1: as few little-endian bytes as hold the value and its sign.
            let bytes = v.to_le_bytes();
            let fits = |n: &usize| v << (64 - 8 * n) >> (64 - 8 * n) == v;
            let n = (1..8).find(fits).unwrap_or(8);
            self.out.extend([0x8a, n as u8]);
            self.out.extend(&bytes[..n]);
        }
    }

    fn bytes(&mut self, b: &[u8]) {
        self.sized(b'C', b'B', b);
        self.memoise();
    }

    fn text(&mut self, t: &str) {
        self.sized(0x8c, b'X', t.as_bytes());
        self.memoise();
    }

    fn shared_text(&mut self, t: &'static str) {
        match self.shared.iter().find(|(known, _)| *known == t) {
            Some(&(_, place)) => match u8::try_from(place) {
                Ok(place) => self.out.extend([b'h', place]),
                Err(_) => {
                    self.out.push(b'j');
                    self.out.extend(place.to_le_bytes());
                }
            },
            None => {
                let place = self.memo;
                self.text(t);
                self.shared.push((t, place));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pickled_integers_of_every_width() {
        let pickled = |v| {
            let mut out = Vec::new();
            let mut p = Pickle::begin(&mut out);
            p.int(v);
            assert!(p.end());
            out[PICKLE_HEADER_BYTES..out.len() - 1].to_vec()
        };
        // As CPython 3.11 writes them.
        assert_eq!(pickled(255), [b'K', 255]);
        assert_eq!(pickled(256), [b'M', 0, 1]);
        assert_eq!(pickled(65_536), [b'J', 0, 0, 1, 0]);
        assert_eq!(pickled(-2), [b'J', 0xfe, 0xff, 0xff, 0xff]);
        assert_eq!(pickled(1 << 31), [0x8a, 5, 0, 0, 0, 0x80, 0]);
        assert_eq!(pickled(0xffff_ffff), [0x8a, 5, 0xff, 0xff, 0xff, 0xff, 0]);
        assert_eq!(pickled(-(1 << 31) - 1), [0x8a, 5, 0xff, 0xff, 0xff, 0x7f, 0xff]);
    }

    #[test]
    fn cbor_heads_of_every_width() {
        let mut out = Vec::new();
        for v in [23, 24, 255, 256, 65_535, 65_536, 0xffff_ffff, 0x1_0000_0000, -1, -257] {
            Cbor(&mut out).int(v);
        }
        let want = [
            0x17, 0x18, 24, 0x18, 255, 0x19, 1, 0, 0x19, 255, 255, 0x1a, 0, 1, 0, 0, 0x1a, 255, 255, 255, 255, 0x1b, 0,
            0, 0, 1, 0, 0, 0, 0, 0x20, 0x39, 1, 0,
        ];
        assert_eq!(out, want);
    }
}
