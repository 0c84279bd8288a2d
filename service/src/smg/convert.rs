//! Batches of `smg.grpc.common` into payloads of the engines' wire, and back. Pure.
//!
//! The protocol says less than the wire: one full-attention group, device or host, plain tokens, no namespace but an adapter's
//! number. What it cannot say of a payload is [`Unsayable`] for the batch as a whole: its sequence is left out, and the other side
//! sees a gap. A batch half told would be believed.

use super::proto::common;
use crate::ingest::normalize::is_full_kind;
use crate::wire::{Batch, DecodeError, Event, Msgpack, Removed, Stored};
use bytes::Bytes;
use common::kv_cache_event::Data;
use kvatlas_index::EngineHash;

/// Why a payload cannot be said in this protocol.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Unsayable {
    /// It cannot be read, or an event of it cannot.
    #[error("an event cannot be read")]
    Unreadable,
    /// A LoRA adapter, a salt, multimodal items: without them its blocks would be taken for others.
    #[error("blocks of a namespace")]
    Namespace,
    /// A window group, or another one than the first.
    #[error("blocks of another KV-cache group")]
    Group,
    /// Names without tokens, or fewer than blocks times their size, or pairs.
    #[error("blocks without plain tokens of their own")]
    Tokens,
    /// A tier that has no level, or a clear of one tier.
    #[error("a tier that the protocol does not know")]
    Tier,
    /// Copies that are left, blocks that are announced again.
    #[error("counts of copies")]
    Copies,
}

/// Media by level.
const MEDIA: [&str; 2] = ["GPU", "CPU"];

impl From<DecodeError> for Unsayable {
    fn from(_: DecodeError) -> Self {
        Self::Unreadable
    }
}

/// A payload's batch as this protocol says it.
pub fn said(batch: &Batch<'_>, sequence: u64, rank: u32) -> Result<common::KvEventBatch, Unsayable> {
    if batch.skipped_count() > 0 {
        return Err(Unsayable::Unreadable);
    }
    let mut events = Vec::with_capacity(batch.events.len());
    for event in &batch.events {
        let data = match event {
            Event::Stored(stored) => said_store(stored)?.map(Data::Stored),
            Event::Removed(removed) => said_removal(removed)?.map(Data::Removed),
            Event::Cleared(cleared) if cleared.medium.is_none() => Some(Data::Cleared(common::KvCacheCleared {})),
            Event::Cleared(_) => return Err(Unsayable::Tier),
        };
        // Unique within a stream for as long as anybody looks.
        let event_id = (sequence << 32) | events.len() as u64;
        events.extend(data.map(|data| common::KvCacheEvent { event_id, data: Some(data) }));
    }
    let (timestamp, dp_rank) = (batch.timestamp.unwrap_or(0.0), i32::try_from(rank).ok());
    Ok(common::KvEventBatch { sequence_number: sequence, timestamp, events, dp_rank })
}

/// `None`: not about this engine's own memory.
fn said_store(stored: &Stored<'_>) -> Result<Option<common::KvBlocksStored>, Unsayable> {
    if !is_own(stored.locality, stored.ownership) {
        return Ok(None);
    }
    if stored.group.is_some_and(|group| group != 0) || stored.kind.is_some_and(|kind| !is_full_kind(kind)) {
        return Err(Unsayable::Group);
    }
    let named = [stored.lora_name, stored.cache_salt].into_iter().flatten().any(|text| !text.is_empty());
    if named || stored.lora_id.is_some() || !stored.extra_keys.all_nil() {
        return Err(Unsayable::Namespace);
    }
    if stored.origin.is_some_and(|origin| origin.eq_ignore_ascii_case("REUSED")) {
        return Err(Unsayable::Copies);
    }
    let cache_level = Some(level(stored.medium)?);
    let (size, tokens) = (usize::try_from(stored.block_size).unwrap_or(0), stored.tokens.to_vec());
    let names = stored.hashes.to_vec();
    if size == 0 || stored.tokens.is_bigram() || names.len().checked_mul(size) != Some(tokens.len()) {
        return Err(Unsayable::Tokens);
    }
    let block_size = i32::try_from(size).map_err(|_| Unsayable::Tokens)?;
    let blocks = names.iter().zip(tokens.chunks_exact(size)).map(|(name, tokens)| common::KvBlock {
        block_hash: name.0.cast_signed(),
        token_ids: tokens.to_vec(),
        block_size,
        lora_id: None,
        cache_level,
    });
    let parent_block_hash = stored.parent.map(|name| name.0.cast_signed());
    Ok(Some(common::KvBlocksStored { blocks: blocks.collect(), parent_block_hash }))
}

fn said_removal(removed: &Removed<'_>) -> Result<Option<common::KvBlocksRemoved>, Unsayable> {
    if !is_own(removed.locality, removed.ownership) {
        return Ok(None);
    }
    if removed.group.is_some_and(|group| group != 0) {
        return Err(Unsayable::Group);
    }
    if removed.remaining_copy_counts.is_some() {
        return Err(Unsayable::Copies);
    }
    let block_hashes = removed.hashes.iter().map(|name| name.0.cast_signed()).collect();
    Ok(Some(common::KvBlocksRemoved { block_hashes, cache_level: Some(level(removed.medium)?) }))
}

fn is_own(locality: Option<&str>, ownership: Option<&str>) -> bool {
    locality.is_none_or(|locality| locality.eq_ignore_ascii_case("LOCAL")) && ownership.is_none()
}

fn level(medium: Option<&str>) -> Result<i32, Unsayable> {
    match medium {
        None | Some("GPU") => Ok(0),
        Some("CPU" | "CPU_PINNED") => Ok(1),
        Some(_) => Err(Unsayable::Tier),
    }
}

/// A batch as an engine's payload, for a rank. What in it makes no sense becomes an event that no decoder reads, so that it counts
/// as lost and not as nothing.
pub fn payload(batch: &common::KvEventBatch, rank: u32) -> Bytes {
    let mut events = Msgpack::default();
    let mut count = 0;
    for event in &batch.events {
        count += match &event.data {
            Some(Data::Stored(stored)) => store(&mut events, stored),
            Some(Data::Removed(removed)) => removal(&mut events, removed),
            Some(Data::Cleared(_)) => {
                events.map(1);
                events.entry("type", |o| o.text("AllBlocksCleared"));
                1
            }
            None => unreadable(&mut events),
        };
    }
    let mut out = Msgpack::default();
    out.array(3);
    out.float(if batch.timestamp.is_finite() { batch.timestamp } else { 0.0 });
    out.array(count);
    out.bytes.append(&mut events.bytes);
    out.uint(rank.into());
    out.bytes.into()
}

/// Appends a store, as one event for each run of blocks that agree on size, level and adapter.
fn store(out: &mut Msgpack, stored: &common::KvBlocksStored) -> usize {
    let alike = |a: &common::KvBlock, b: &common::KvBlock| {
        (a.block_size, a.cache_level, a.lora_id) == (b.block_size, b.cache_level, b.lora_id)
    };
    let mut parent = stored.parent_block_hash;
    let mut count = 0;
    for blocks in stored.blocks.chunk_by(alike) {
        let first = &blocks[0];
        let size = usize::try_from(first.block_size).unwrap_or(0);
        let whole = size > 0 && blocks.iter().all(|block| block.token_ids.len() == size);
        count += match medium(first.cache_level) {
            Some(medium) if whole => run(out, parent, blocks, medium),
            _ => unreadable(out),
        };
        parent = blocks.last().map(|block| block.block_hash);
    }
    count
}

fn run(out: &mut Msgpack, parent: Option<i64>, blocks: &[common::KvBlock], medium: &str) -> usize {
    let first = &blocks[0];
    let names: Vec<_> = blocks.iter().map(|block| name(block.block_hash)).collect();
    out.map(8);
    out.entry("type", |o| o.text("BlockStored"));
    out.entry("block_hashes", |o| o.names(&names, Msgpack::unsigned));
    out.entry("parent_block_hash", |o| o.optional(parent.map(name), Msgpack::unsigned));
    out.entry("token_ids", |o| {
        o.array(blocks.iter().map(|block| block.token_ids.len()).sum());
        blocks.iter().flat_map(|block| &block.token_ids).for_each(|token| o.uint((*token).into()));
    });
    out.entry("block_size", |o| o.int(first.block_size.into()));
    out.entry("lora_id", Msgpack::nil);
    out.entry("medium", |o| o.text(medium));
    // The number of an adapter is all that is known of it: its blocks are nobody else's.
    out.entry("lora_name", |o| match first.lora_id {
        Some(number) => o.text(&format!("lora_id:{number}")),
        None => o.nil(),
    });
    1
}

fn removal(out: &mut Msgpack, removed: &common::KvBlocksRemoved) -> usize {
    let Some(medium) = medium(removed.cache_level) else { return unreadable(out) };
    let names: Vec<_> = removed.block_hashes.iter().map(|hash| name(*hash)).collect();
    out.map(3);
    out.entry("type", |o| o.text("BlockRemoved"));
    out.entry("block_hashes", |o| o.names(&names, Msgpack::unsigned));
    out.entry("medium", |o| o.text(medium));
    1
}

/// A store without its fields.
fn unreadable(out: &mut Msgpack) -> usize {
    out.array(1);
    out.text("BlockStored");
    1
}

/// No level is the device: servicers had one before they named it.
fn medium(level: Option<i32>) -> Option<&'static str> {
    MEDIA.get(usize::try_from(level.unwrap_or(0)).ok()?).copied()
}

fn name(hash: i64) -> EngineHash {
    EngineHash(hash.cast_unsigned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::{DecodeLimits, SkipReason, decode_batch};

    fn block(hash: i64, size: i32) -> common::KvBlock {
        let token_ids = (0..size as u32).map(|t| t + (hash as u32).wrapping_mul(100)).collect();
        common::KvBlock { block_hash: hash, token_ids, block_size: size, lora_id: None, cache_level: Some(0) }
    }

    fn batch(data: Vec<Data>) -> common::KvEventBatch {
        let events = (0..).zip(data);
        let events = events.map(|(id, data)| common::KvCacheEvent { event_id: id, data: Some(data) }).collect();
        common::KvEventBatch { sequence_number: 7, timestamp: 1.5, events, dp_rank: Some(2) }
    }

    #[test]
    fn what_can_be_said_comes_back_as_it_was() {
        let host = common::KvBlock { cache_level: Some(1), ..block(-3, 4) };
        let stored = |blocks, parent| Data::Stored(common::KvBlocksStored { blocks, parent_block_hash: parent });
        let all = batch(vec![
            Data::Cleared(common::KvCacheCleared {}),
            stored(vec![block(1, 4), block(2, 4)], None),
            stored(vec![host], Some(i64::MIN)),
            Data::Removed(common::KvBlocksRemoved { block_hashes: vec![1, -1], cache_level: Some(0) }),
        ]);
        let bytes = payload(&all, 2);
        let read = decode_batch(&bytes, &DecodeLimits::default()).unwrap();
        let mut again = said(&read, 7, 2).unwrap();
        for (event, was) in again.events.iter_mut().zip(&all.events) {
            assert_eq!(event.event_id & 0xffff_ffff, was.event_id);
            event.event_id = was.event_id;
        }
        assert_eq!(again, all);
    }

    #[test]
    fn what_makes_no_sense_is_lost_content_and_runs_end_where_blocks_differ() {
        let stored = |blocks| Data::Stored(common::KvBlocksStored { blocks, parent_block_hash: None });
        let read = |data: Vec<Data>| {
            let bytes = payload(&batch(data), 0);
            let read = decode_batch(&bytes, &DecodeLimits::default()).unwrap();
            (read.events.len(), read.skipped.iter().filter(|s| s.reason == SkipReason::MissingField).count())
        };
        let other_level = common::KvBlock { cache_level: Some(9), ..block(1, 4) };
        let short = common::KvBlock { block_size: 5, ..block(1, 4) };
        let negative = common::KvBlock { block_size: -4, ..block(1, 4) };
        let empty = common::KvBlock { token_ids: vec![], ..block(1, 0) };
        for bad in [other_level, short, negative, empty] {
            assert_eq!(read(vec![stored(vec![bad])]), (0, 1));
        }
        let removed = common::KvBlocksRemoved { block_hashes: vec![1], cache_level: Some(-1) };
        assert_eq!(read(vec![Data::Removed(removed)]), (0, 1));
        let lora = common::KvBlock { lora_id: Some(3), ..block(2, 4) };
        let bytes = payload(&batch(vec![stored(vec![block(1, 4), lora, block(3, 2)])]), 0);
        let read = decode_batch(&bytes, &DecodeLimits::default()).unwrap();
        let parents = read.events.iter().map(|event| match event {
            Event::Stored(stored) => (stored.parent.map(|p| p.0), stored.lora_name, stored.block_size),
            other => panic!("{other:?}"),
        });
        assert_eq!(parents.collect::<Vec<_>>(), [(None, None, 4), (Some(1), Some("lora_id:3"), 4), (Some(2), None, 2)]);
    }

    #[test]
    fn what_cannot_be_said_is_named() {
        let stored = Stored { tokens: Default::default(), block_size: 4, medium: Some("GPU"), ..Stored::default() };
        let of = |stored: Stored<'static>| {
            let batch = Batch { events: vec![Event::Stored(stored)], ..Batch::default() };
            said(&batch, 0, 0).map(|batch| batch.events.len())
        };
        assert_eq!(of(stored.clone()), Ok(1), "no blocks are no tokens");
        assert_eq!(of(Stored { locality: Some("REMOTE"), ..stored.clone() }), Ok(0));
        assert_eq!(of(Stored { lora_name: Some("a"), ..stored.clone() }), Err(Unsayable::Namespace));
        assert_eq!(of(Stored { cache_salt: Some("a"), ..stored.clone() }), Err(Unsayable::Namespace));
        assert_eq!(of(Stored { lora_id: Some(1), ..stored.clone() }), Err(Unsayable::Namespace));
        assert_eq!(of(Stored { group: Some(1), ..stored.clone() }), Err(Unsayable::Group));
        assert_eq!(of(Stored { kind: Some("mamba"), ..stored.clone() }), Err(Unsayable::Group));
        assert_eq!(of(Stored { medium: Some("DISK"), ..stored.clone() }), Err(Unsayable::Tier));
        assert_eq!(of(Stored { origin: Some("REUSED"), ..stored.clone() }), Err(Unsayable::Copies));
        assert_eq!(of(Stored { block_size: 0, ..stored }), Err(Unsayable::Tokens));
    }
}
