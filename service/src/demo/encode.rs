//! A mock engine's events as the bytes that the real engine would publish. Pure.
//!
//! Payload: msgpack `[timestamp, [event, ...], rank]`. vLLM 0.32 and SGLang 0.5.23 write an event as a map with `type` first,
//! vLLM 0.23 as an array with the tag first. vLLM's names are unsigned, SGLang's the same 64 bits as a signed integer.

use super::engine::{BLOCK_SIZE, Event};
use super::names::Dialect;
use crate::wire::Msgpack;
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
            out.entry("extra_keys", |o| extra_keys(o, parent.is_none(), names.len(), salt.as_ref()));
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
            extra_keys(out, parent.is_none(), names.len(), salt.as_ref());
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

/// vLLM says the salt with the first block of a chain only.
fn extra_keys(out: &mut Msgpack, from_the_start: bool, blocks: usize, salt: Option<&Arc<str>>) {
    out.array(blocks);
    for block in 0..blocks {
        match salt {
            Some(salt) if from_the_start && block == 0 => {
                out.array(1);
                out.text(salt);
            }
            _ => out.nil(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{self, DecodeLimits, decode_batch};
    use kvatlas_index::EngineHash;

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
}
