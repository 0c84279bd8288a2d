//! A pushed batch as vLLM would have published it: for ranks that are republished on the engines' own wire.
//!
//! | pushed | on the wire |
//! |---|---|
//! | a store with token ids | `BlockStored` with LoRA name and salt, as vLLM 0.32 writes it; bigrams as SGLang does |
//! | a store of names only | `BlockStored` without tokens, one for each name: a placeholder |
//! | a removal, a clear of all tiers | `BlockRemoved`, `AllBlocksCleared` |
//! | `reset` | an `AllBlocksCleared` first |
//! | content hashes, multimodal items, `announced_again`, copies left, a clear of one tier | cannot be said there |
//!
//! A batch with anything that cannot be said is left out as a whole, and consumers see a gap: half of a batch would be a lie. What is
//! malformed is refused elsewhere, before or after.

use super::proto;
use crate::wire::{HashMode, Msgpack};
use bytes::Bytes;
use kvatlas_index::EngineHash;
use proto::blocks_stored::Content;
use proto::event::Event;

/// What the wire says about a rank with every batch.
#[derive(Clone, Copy, Debug)]
pub(super) struct Words {
    /// Data-parallel rank.
    pub(super) rank: u32,
    /// Tokens in a block.
    pub(super) block_size: u32,
    /// How tokens are cut.
    pub(super) mode: HashMode,
}

/// The payload; `None` if this wire has no words for the batch.
pub(super) fn payload(words: Words, batch: &proto::EventBatch) -> Option<Bytes> {
    let mut out = Msgpack::default();
    let mut events = 0;
    if batch.reset {
        cleared(&mut out);
        events += 1;
    }
    for event in &batch.events {
        events += match event.event.as_ref()? {
            Event::Stored(stored) => store(&mut out, words, stored)?,
            Event::Removed(removed) => remove(&mut out, removed)?,
            Event::Cleared(of) if of.tier == 0 => {
                cleared(&mut out);
                1
            }
            Event::Cleared(_) | Event::CopiesLeft(_) => return None,
        };
    }
    let mut whole = Msgpack::default();
    whole.array(3);
    whole.float(batch.published_at.filter(|at| at.is_finite()).unwrap_or(0.0));
    whole.array(events);
    whole.bytes.append(&mut out.bytes);
    whole.uint(words.rank.into());
    Some(whole.bytes.into())
}

/// Appends a store; says how many events that took.
fn store(out: &mut Msgpack, words: Words, stored: &proto::BlocksStored) -> Option<usize> {
    let medium = medium(stored.tier)?;
    let names: Vec<_> = stored.engine_hashes.iter().map(|name| EngineHash(*name)).collect();
    match &stored.content {
        _ if stored.announced_again => None,
        _ if names.is_empty() => Some(0),
        None => {
            names.iter().for_each(|name| placeholder(out, *name, medium));
            Some(names.len())
        }
        Some(Content::ContentHashes(_)) => None,
        Some(Content::TokenIds(tokens)) => {
            let namespace = stored.namespace.as_ref();
            if namespace.is_some_and(|n| !n.multimodal.is_empty()) {
                return None;
            }
            let text = |of: fn(&proto::Namespace) -> &str| namespace.map(of).filter(|text| !text.is_empty());
            let (lora, salt) = (text(|n| &n.lora_name), text(|n| &n.cache_salt));
            out.map(11);
            out.entry("type", |o| o.text("BlockStored"));
            out.entry("block_hashes", |o| o.names(&names, Msgpack::unsigned));
            out.entry("parent_block_hash", |o| o.optional(stored.parent.map(EngineHash), Msgpack::unsigned));
            out.entry("token_ids", |o| token_ids(o, words.mode, &tokens.ids));
            out.entry("block_size", |o| o.uint(words.block_size.into()));
            out.entry("lora_id", Msgpack::nil);
            out.entry("medium", |o| o.text(medium));
            out.entry("lora_name", |o| match lora {
                Some(name) => o.text(name),
                None => o.nil(),
            });
            out.entry("extra_keys", |o| extra_keys(o, names.len(), lora, salt.filter(|_| stored.parent.is_none())));
            out.entry("group_idx", |o| o.uint(0));
            out.entry("kv_cache_spec_kind", |o| o.text("full_attention"));
            Some(1)
        }
    }
}

fn placeholder(out: &mut Msgpack, name: EngineHash, medium: &str) {
    out.map(8);
    out.entry("type", |o| o.text("BlockStored"));
    out.entry("block_hashes", |o| o.names(&[name], Msgpack::unsigned));
    out.entry("parent_block_hash", Msgpack::nil);
    out.entry("token_ids", |o| o.array(0));
    out.entry("block_size", |o| o.uint(0));
    out.entry("lora_id", Msgpack::nil);
    out.entry("medium", |o| o.text(medium));
    out.entry("lora_name", Msgpack::nil);
}

fn token_ids(out: &mut Msgpack, mode: HashMode, ids: &[u32]) {
    match mode {
        HashMode::Plain => out.tokens(ids),
        HashMode::Bigram => {
            out.array(ids.len().saturating_sub(1));
            ids.windows(2).for_each(|pair| out.tokens(pair));
        }
    }
}

/// vLLM says the adapter with every block, and the salt with the first one of a chain.
fn extra_keys(out: &mut Msgpack, blocks: usize, lora: Option<&str>, salt: Option<&str>) {
    out.array(blocks);
    for block in 0..blocks {
        let keys: Vec<_> = lora.into_iter().chain(salt.filter(|_| block == 0)).collect();
        if keys.is_empty() {
            out.nil();
            continue;
        }
        out.array(keys.len());
        keys.iter().for_each(|key| out.text(key));
    }
}

fn remove(out: &mut Msgpack, removed: &proto::BlocksRemoved) -> Option<usize> {
    let medium = medium(removed.tier)?;
    let names: Vec<_> = removed.engine_hashes.iter().map(|name| EngineHash(*name)).collect();
    out.map(4);
    out.entry("type", |o| o.text("BlockRemoved"));
    out.entry("block_hashes", |o| o.names(&names, Msgpack::unsigned));
    out.entry("medium", |o| o.text(medium));
    out.entry("group_idx", |o| o.uint(0));
    Some(1)
}

fn cleared(out: &mut Msgpack) {
    out.map(1);
    out.entry("type", |o| o.text("AllBlocksCleared"));
}

/// What engines call a tier; the device where none is said.
fn medium(tier: i32) -> Option<&'static str> {
    match proto::Tier::try_from(tier).ok()? {
        proto::Tier::Unspecified | proto::Tier::Device => Some("GPU"),
        proto::Tier::Host => Some("CPU"),
        proto::Tier::Disk => Some("STORAGE"),
        proto::Tier::External => Some("EXTERNAL"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::normalize::tier_of;
    use crate::wire::{self, DecodeLimits, Namespace, decode_batch, store_namespace};
    use kvatlas_index::Tier;

    const WORDS: Words = Words { rank: 3, block_size: 4, mode: HashMode::Plain };

    fn batch(events: Vec<Event>) -> proto::EventBatch {
        let events = events.into_iter().map(|event| proto::Event { event: Some(event) }).collect();
        proto::EventBatch { events, published_at: Some(1.5), ..Default::default() }
    }

    fn store(ids: Vec<u32>) -> proto::BlocksStored {
        let content = Some(Content::TokenIds(proto::TokenIds { ids }));
        proto::BlocksStored { engine_hashes: vec![7, u64::MAX], content, ..Default::default() }
    }

    fn lora_and_salt() -> Option<proto::Namespace> {
        let (lora_name, cache_salt) = ("a".into(), "a".into());
        Some(proto::Namespace { lora_name, cache_salt, ..Default::default() })
    }

    #[test]
    fn the_decoder_reads_what_was_pushed() {
        let stored = proto::BlocksStored { namespace: lora_and_salt(), ..store((0..8).collect()) };
        let child = proto::BlocksStored { parent: Some(7), tier: proto::Tier::Disk.into(), ..store((8..16).collect()) };
        let removed = proto::BlocksRemoved { engine_hashes: vec![1 << 63], tier: proto::Tier::Host.into() };
        let events = vec![
            Event::Stored(stored),
            Event::Stored(child),
            Event::Removed(removed),
            Event::Cleared(proto::BlocksCleared::default()),
        ];
        let bytes = payload(WORDS, &proto::EventBatch { reset: true, ..batch(events) }).unwrap();
        let read = decode_batch(&bytes, &DecodeLimits::default()).unwrap();
        assert_eq!((read.timestamp, read.rank, read.skipped_count()), (Some(1.5), Some(3), 0));
        let [
            wire::Event::Cleared(first),
            wire::Event::Stored(stored),
            wire::Event::Stored(child),
            wire::Event::Removed(removed),
            wire::Event::Cleared(_),
        ] = &read.events[..]
        else {
            panic!("{:?}", read.events)
        };
        assert_eq!(first.medium, None);
        assert_eq!(stored.hashes.iter().collect::<Vec<_>>(), [EngineHash(7), EngineHash(u64::MAX)]);
        assert_eq!(stored.tokens.iter().collect::<Vec<_>>(), (0..8).collect::<Vec<u32>>());
        assert_eq!((stored.block_size, stored.group, stored.kind), (4, Some(0), Some("full_attention")));
        assert_eq!(store_namespace(stored), Namespace::new(Some("a"), Some("a")));
        assert_eq!((child.parent, tier_of(child.medium)), (Some(EngineHash(7)), Some(Tier::Disk)));
        assert_eq!(
            (removed.hashes.iter().next(), tier_of(removed.medium)),
            (Some(EngineHash(1 << 63)), Some(Tier::Host))
        );
    }

    #[test]
    fn names_alone_are_placeholders_and_bigrams_are_pairs() {
        let names = proto::BlocksStored { content: None, tier: proto::Tier::External.into(), ..store(vec![]) };
        let bytes = payload(WORDS, &batch(vec![Event::Stored(names)])).unwrap();
        let read = decode_batch(&bytes, &DecodeLimits::default()).unwrap();
        assert_eq!(read.events.len(), 2);
        for event in &read.events {
            let wire::Event::Stored(stored) = event else { panic!("{event:?}") };
            assert_eq!((stored.tokens.is_empty(), stored.block_size), (true, 0));
            assert_eq!(tier_of(stored.medium), Some(Tier::External));
        }
        let words = Words { mode: HashMode::Bigram, ..WORDS };
        let bytes = payload(words, &batch(vec![Event::Stored(store((0..9).collect()))])).unwrap();
        let read = decode_batch(&bytes, &DecodeLimits::default()).unwrap();
        let [wire::Event::Stored(stored)] = &read.events[..] else { panic!("{:?}", read.events) };
        assert!(stored.tokens.is_bigram() && read.skipped_count() == 0);
    }

    #[test]
    fn what_cannot_be_said_is_not_said_by_half() {
        let contents = Some(Content::ContentHashes(proto::ContentHashes { hashes: vec![1, 2] }));
        let items = Some(proto::Namespace { multimodal: vec![proto::MultimodalItem::default()], ..Default::default() });
        let host = proto::BlocksCleared { tier: proto::Tier::Host.into() };
        let ids = || (0..8).collect();
        for event in [
            Event::Stored(proto::BlocksStored { content: contents, ..store(ids()) }),
            Event::Stored(proto::BlocksStored { namespace: items, ..store(ids()) }),
            Event::Stored(proto::BlocksStored { announced_again: true, ..store(ids()) }),
            Event::Stored(proto::BlocksStored { tier: 99, ..store(ids()) }),
            Event::CopiesLeft(proto::CopiesLeft::default()),
            Event::Cleared(host),
        ] {
            let good = Event::Removed(proto::BlocksRemoved::default());
            assert_eq!(payload(WORDS, &batch(vec![good, event.clone()])), None, "{event:?}");
        }
        assert_eq!(
            payload(WORDS, &proto::EventBatch { events: vec![proto::Event { event: None }], ..batch(vec![]) }),
            None
        );
        assert!(payload(WORDS, &batch(vec![])).is_some());
    }
}
