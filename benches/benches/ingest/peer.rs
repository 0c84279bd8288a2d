//! The baseline: payloads into typed structs with rmp-serde, the way the routers of the field read these events, and XXH3 of
//! each block's tokens. Structs own what they hold; arrays and maps go through hand-written visitors, which is faster than
//! serde's internally tagged enums.

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use std::fmt;
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// `[timestamp, events, rank]`.
#[derive(Deserialize)]
pub struct Batch {
    #[allow(dead_code, reason = "read, as a peer would")]
    timestamp: f64,
    events: Vec<Event>,
    #[serde(default)]
    #[allow(dead_code, reason = "read, as a peer would")]
    rank: Option<i32>,
}

/// One event, owned.
pub enum Event {
    Stored { hashes: Vec<Hash>, parent: Option<Hash>, tokens: Vec<u32>, block_size: usize, medium: Option<String> },
    Removed { hashes: Vec<Hash> },
    Cleared,
}

/// A block hash: an integer of either sign, or a digest.
#[derive(Clone, Copy)]
pub struct Hash(pub u64);

impl<'de> Deserialize<'de> for Hash {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Word;
        impl Visitor<'_> for Word {
            type Value = Hash;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a block hash")
            }
            fn visit_u64<E: Error>(self, v: u64) -> Result<Hash, E> {
                Ok(Hash(v))
            }
            fn visit_i64<E: Error>(self, v: i64) -> Result<Hash, E> {
                Ok(Hash(v.cast_unsigned()))
            }
            fn visit_bytes<E: Error>(self, v: &[u8]) -> Result<Hash, E> {
                let tail = v.last_chunk::<8>().ok_or_else(|| E::custom("short digest"))?;
                Ok(Hash(u64::from_be_bytes(*tail)))
            }
        }
        from.deserialize_any(Word)
    }
}

#[derive(Default)]
struct Fields {
    hashes: Vec<Hash>,
    parent: Option<Hash>,
    tokens: Vec<u32>,
    block_size: usize,
    medium: Option<String>,
}

impl Fields {
    fn event<E: Error>(self, tag: &str) -> Result<Event, E> {
        let Fields { hashes, parent, tokens, block_size, medium } = self;
        match tag {
            "BlockStored" => Ok(Event::Stored { hashes, parent, tokens, block_size, medium }),
            "BlockRemoved" => Ok(Event::Removed { hashes }),
            "AllBlocksCleared" => Ok(Event::Cleared),
            _ => Err(E::custom("unknown event")),
        }
    }
}

impl<'de> Deserialize<'de> for Event {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Tagged;
        impl<'de> Visitor<'de> for Tagged {
            type Value = Event;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an event")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Event, A::Error> {
                let (mut tag, mut fields) = ("", Fields::default());
                while let Some(key) = map.next_key::<&str>()? {
                    match key {
                        "type" => tag = map.next_value()?,
                        "block_hashes" => fields.hashes = map.next_value()?,
                        "parent_block_hash" => fields.parent = map.next_value()?,
                        "token_ids" => fields.tokens = map.next_value()?,
                        "block_size" => fields.block_size = map.next_value()?,
                        "medium" => fields.medium = map.next_value()?,
                        _ => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                fields.event(tag)
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Event, A::Error> {
                let tag: &str = seq.next_element()?.unwrap_or("");
                let mut fields = Fields::default();
                if tag != "AllBlocksCleared" {
                    fields.hashes = seq.next_element()?.unwrap_or_default();
                }
                if tag == "BlockStored" {
                    fields.parent = seq.next_element()?.flatten();
                    fields.tokens = seq.next_element()?.unwrap_or_default();
                    fields.block_size = seq.next_element()?.unwrap_or_default();
                    seq.next_element::<IgnoredAny>()?;
                }
                fields.medium = seq.next_element()?.flatten();
                while seq.next_element::<IgnoredAny>()?.is_some() {}
                fields.event(tag)
            }
        }
        from.deserialize_any(Tagged)
    }
}

/// What came out, in buffers that are used again.
#[derive(Default)]
pub struct Peer {
    words: Vec<u8>,
    contents: Vec<u64>,
}

impl Peer {
    /// Decodes a payload and hashes its blocks. Returns a sum that depends on all of it.
    pub fn read(&mut self, payload: &[u8]) -> u64 {
        let batch: Batch = rmp_serde::from_slice(payload).expect("a recorded payload");
        let mut sum = 0u64;
        for event in &batch.events {
            match event {
                Event::Stored { hashes, parent, tokens, block_size, medium } => {
                    self.contents.clear();
                    for block in tokens.chunks_exact((*block_size).max(1)) {
                        self.words.clear();
                        self.words.extend(block.iter().flat_map(|t| t.to_le_bytes()));
                        self.contents.push(xxh3_64_with_seed(&self.words, 1337));
                    }
                    sum = sum.wrapping_add(self.contents.iter().fold(0, |s, c| s ^ c));
                    sum = sum.wrapping_add(hashes.iter().fold(0, |s, h| s ^ h.0));
                    sum = sum.wrapping_add(parent.map_or(0, |p| p.0) ^ medium.as_ref().map_or(0, |m| m.len() as u64));
                }
                Event::Removed { hashes } => sum = sum.wrapping_add(hashes.iter().fold(0, |s, h| s ^ h.0)),
                Event::Cleared => sum = sum.wrapping_add(1),
            }
        }
        sum
    }
}
