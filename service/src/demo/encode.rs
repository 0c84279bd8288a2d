//! A mock engine's events as the bytes that the real engine would publish. Pure.
//!
//! Payload: msgpack `[timestamp, [event, ...], rank]`. vLLM 0.32 and SGLang 0.5.23 write an event as a map with `type` first,
//! vLLM 0.23 as an array with the tag first. vLLM's names are unsigned, SGLang's the same 64 bits as a signed integer.

use super::engine::{BLOCK_SIZE, Event};
use super::names::Dialect;
use kvatlas_index::EngineHash;
use std::sync::Arc;

/// Writes one batch.
pub fn payload(dialect: Dialect, timestamp: f64, events: &[Event]) -> Vec<u8> {
    let mut out = Msgpack::default();
    out.array(3);
    out.float(timestamp);
    out.array(events.len());
    for event in events {
        match dialect {
            Dialect::VllmMaps => vllm_map(&mut out, event),
            Dialect::VllmArrays => vllm_array(&mut out, event),
            Dialect::SglangMaps => sglang_map(&mut out, event),
        }
    }
    out.uint(0);
    out.bytes
}

fn vllm_map(out: &mut Msgpack, event: &Event) {
    match event {
        Event::Stored { parent, names, tokens, salt } => {
            out.map(11);
            out.entry("type", |o| o.text("BlockStored"));
            out.entry("block_hashes", |o| o.names(names, Msgpack::unsigned));
            out.entry("parent_block_hash", |o| o.optional(*parent, Msgpack::unsigned));
            out.entry("token_ids", |o| o.tokens(tokens));
            out.entry("block_size", |o| o.uint(BLOCK_SIZE as u64));
            out.entry("lora_id", Msgpack::nil);
            out.entry("medium", |o| o.text("GPU"));
            out.entry("lora_name", Msgpack::nil);
            out.entry("extra_keys", |o| o.extra_keys(parent.is_none(), names.len(), salt.as_ref()));
            out.entry("group_idx", |o| o.uint(0));
            out.entry("kv_cache_spec_kind", |o| o.text("full_attention"));
        }
        Event::Removed { names } => {
            out.map(4);
            out.entry("type", |o| o.text("BlockRemoved"));
            out.entry("block_hashes", |o| o.names(names, Msgpack::unsigned));
            out.entry("medium", |o| o.text("GPU"));
            out.entry("group_idx", |o| o.uint(0));
        }
        Event::Cleared => {
            out.map(1);
            out.entry("type", |o| o.text("AllBlocksCleared"));
        }
    }
}

fn vllm_array(out: &mut Msgpack, event: &Event) {
    match event {
        Event::Stored { parent, names, tokens, salt } => {
            out.array(12);
            out.text("BlockStored");
            out.names(names, Msgpack::unsigned);
            out.optional(*parent, Msgpack::unsigned);
            out.tokens(tokens);
            out.uint(BLOCK_SIZE as u64);
            out.nil();
            out.text("GPU");
            out.nil();
            out.extra_keys(parent.is_none(), names.len(), salt.as_ref());
            out.uint(0);
            out.text("full_attention");
            out.nil();
        }
        Event::Removed { names } => {
            out.array(4);
            out.text("BlockRemoved");
            out.names(names, Msgpack::unsigned);
            out.text("GPU");
            out.uint(0);
        }
        Event::Cleared => {
            out.array(1);
            out.text("AllBlocksCleared");
        }
    }
}

fn sglang_map(out: &mut Msgpack, event: &Event) {
    match event {
        Event::Stored { parent, names, tokens, salt } => {
            out.map(7 + usize::from(salt.is_some()));
            out.entry("type", |o| o.text("BlockStored"));
            out.entry("block_hashes", |o| o.names(names, Msgpack::signed));
            out.entry("parent_block_hash", |o| o.optional(*parent, Msgpack::signed));
            out.entry("token_ids", |o| o.tokens(tokens));
            out.entry("block_size", |o| o.uint(BLOCK_SIZE as u64));
            out.entry("lora_id", Msgpack::nil);
            out.entry("medium", |o| o.text("GPU"));
            if let Some(salt) = salt {
                out.entry("cache_salt", |o| o.text(salt));
            }
        }
        Event::Removed { names } => {
            out.map(3);
            out.entry("type", |o| o.text("BlockRemoved"));
            out.entry("block_hashes", |o| o.names(names, Msgpack::signed));
            out.entry("medium", |o| o.text("GPU"));
        }
        Event::Cleared => {
            out.map(1);
            out.entry("type", |o| o.text("AllBlocksCleared"));
        }
    }
}

/// The few msgpack forms that engines write, each in its shortest encoding, as theirs are.
#[derive(Default)]
struct Msgpack {
    bytes: Vec<u8>,
}

impl Msgpack {
    fn nil(&mut self) {
        self.bytes.push(0xc0);
    }

    fn float(&mut self, value: f64) {
        self.bytes.push(0xcb);
        self.bytes.extend(value.to_be_bytes());
    }

    fn uint(&mut self, value: u64) {
        match value {
            0..=0x7f => self.bytes.push(value as u8),
            0x80..=0xff => self.bytes.extend([0xcc, value as u8]),
            0x100..=0xffff => self.wide(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.wide(0xce, &(value as u32).to_be_bytes()),
            _ => self.wide(0xcf, &value.to_be_bytes()),
        }
    }

    fn int(&mut self, value: i64) {
        match value {
            0.. => self.uint(value as u64),
            -32..0 => self.bytes.push(value as u8),
            -0x80..-32 => self.wide(0xd0, &(value as i8).to_be_bytes()),
            -0x8000..-0x80 => self.wide(0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000..-0x8000 => self.wide(0xd2, &(value as i32).to_be_bytes()),
            _ => self.wide(0xd3, &value.to_be_bytes()),
        }
    }

    fn wide(&mut self, head: u8, value: &[u8]) {
        self.bytes.push(head);
        self.bytes.extend(value);
    }

    fn text(&mut self, text: &str) {
        match text.len() {
            len @ 0..=31 => self.bytes.push(0xa0 | len as u8),
            len @ 32..=255 => self.bytes.extend([0xd9, len as u8]),
            len => self.wide(0xdb, &(len as u32).to_be_bytes()),
        }
        self.bytes.extend(text.as_bytes());
    }

    fn array(&mut self, len: usize) {
        match len {
            0..=15 => self.bytes.push(0x90 | len as u8),
            16..=0xffff => self.wide(0xdc, &(len as u16).to_be_bytes()),
            _ => self.wide(0xdd, &(len as u32).to_be_bytes()),
        }
    }

    /// A map of at most 15 entries.
    fn map(&mut self, len: usize) {
        debug_assert!(len < 16, "an event has few fields");
        self.bytes.push(0x80 | len as u8);
    }

    fn entry(&mut self, key: &str, value: impl FnOnce(&mut Self)) {
        self.text(key);
        value(self);
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        tokens.iter().for_each(|&t| self.uint(t.into()));
    }

    fn unsigned(&mut self, name: EngineHash) {
        self.uint(name.0);
    }

    fn signed(&mut self, name: EngineHash) {
        self.int(name.0 as i64);
    }

    fn names(&mut self, names: &[EngineHash], one: fn(&mut Self, EngineHash)) {
        self.array(names.len());
        names.iter().for_each(|&name| one(self, name));
    }

    fn optional(&mut self, name: Option<EngineHash>, one: fn(&mut Self, EngineHash)) {
        match name {
            Some(name) => one(self, name),
            None => self.nil(),
        }
    }

    /// vLLM says the salt with the first block of a chain only.
    fn extra_keys(&mut self, from_the_start: bool, blocks: usize, salt: Option<&Arc<str>>) {
        self.array(blocks);
        for block in 0..blocks {
            match salt {
                Some(salt) if from_the_start && block == 0 => {
                    self.array(1);
                    self.text(salt);
                }
                _ => self.nil(),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{self, DecodeLimits, decode_batch};

    const DIALECTS: [Dialect; 3] = [Dialect::VllmMaps, Dialect::VllmArrays, Dialect::SglangMaps];

    #[test]
    fn the_decoder_reads_back_what_was_written() {
        let names = vec![EngineHash(3), EngineHash(u64::MAX), EngineHash(1 << 63)];
        let tokens: Vec<u32> = (0..48).map(|t| t * 40_000).collect();
        for dialect in DIALECTS {
            for parent in [None, Some(EngineHash(0xffff_ffff_ffff_ff00))] {
                let stored =
                    Event::Stored { parent, names: names.clone(), tokens: tokens.clone(), salt: Some("s".into()) };
                let events = [Event::Cleared, Event::Removed { names: names.clone() }, stored];
                let bytes = payload(dialect, 1.5, &events);
                let batch = decode_batch(&bytes, &DecodeLimits::default()).unwrap();
                assert_eq!((batch.timestamp, batch.rank, batch.skipped_count()), (Some(1.5), Some(0), 0));
                let [wire::Event::Cleared(_), wire::Event::Removed(removed), wire::Event::Stored(stored)] =
                    &batch.events[..]
                else {
                    panic!("{:?}", batch.events)
                };
                assert_eq!(removed.hashes.iter().collect::<Vec<_>>(), names);
                assert_eq!(stored.hashes.iter().collect::<Vec<_>>(), names);
                assert_eq!((stored.parent, stored.block_size, stored.medium), (parent, 16, Some("GPU")));
                assert_eq!(stored.tokens.iter().collect::<Vec<_>>(), tokens);
                if parent.is_none() {
                    assert_eq!(wire::store_namespace(stored), wire::Namespace::new(None, Some("s")), "{dialect:?}");
                }
            }
        }
    }

    #[test]
    fn integers_take_their_shortest_form() {
        let int = |v| {
            let mut out = Msgpack::default();
            out.int(v);
            out.bytes
        };
        assert_eq!(int(-1), [0xff]);
        assert_eq!(int(-33), [0xd0, 0xdf]);
        assert_eq!(int(127), [0x7f]);
        assert_eq!(int(256), [0xcd, 1, 0]);
        assert_eq!(int(i64::MIN)[0], 0xd3);
        assert_eq!(int(i64::MAX)[0], 0xcf);
    }
}
