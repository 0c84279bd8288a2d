//! A whole block digest: 16 or 32 bytes, of which the wire often carries 8.

use core::fmt;

/// A digest of an engine's hash function.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest {
    bytes: [u8; 32],
    len: u8,
}

impl Digest {
    /// A SHA-256 digest.
    pub const fn sha256(bytes: [u8; 32]) -> Self {
        Self { bytes, len: 32 }
    }

    /// An XXH3-128 digest in its canonical byte order.
    pub fn xxh3_128(value: u128) -> Self {
        let mut bytes = [0; 32];
        bytes[..16].copy_from_slice(&value.to_be_bytes());
        Self { bytes, len: 16 }
    }

    /// A digest from the wire or a setting: 16 or 32 bytes.
    pub fn from_slice(slice: &[u8]) -> Option<Self> {
        let mut bytes = [0; 32];
        match slice.len() {
            16 | 32 => {
                bytes[..slice.len()].copy_from_slice(slice);
                Some(Self { bytes, len: slice.len() as u8 })
            }
            _ => None,
        }
    }

    /// The digest's bytes.
    pub fn as_slice(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }

    /// The first 8 bytes, big-endian: SGLang's name of a block.
    pub fn head(&self) -> u64 {
        self.as_slice().first_chunk::<8>().map_or(0, |b| u64::from_be_bytes(*b))
    }

    /// The last 8 bytes, big-endian: vLLM's name of a block.
    pub fn tail(&self) -> u64 {
        self.as_slice().last_chunk::<8>().map_or(0, |b| u64::from_be_bytes(*b))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_slice().iter().try_for_each(|b| write!(f, "{b:02x}"))
    }
}
