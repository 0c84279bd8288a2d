//! What must hold for any bytes at all: the mutation test and the fuzz target both call this.

use kvatlas_service::wire::{
    Batch, ContentHasher, DecodeLimits, Event, FrameLimits, HashMode, Namespace, Prompt, Stored, TokenRoom,
    decode_batch, decode_batch_in, parse_live, parse_replay, store_namespace,
};

/// Reads `bytes` as a payload and as frames, and everything that was read as content. Panics where a promise is broken.
/// Returns how many events were read.
pub fn any_bytes(bytes: &[u8]) -> usize {
    frames(bytes);
    let tight =
        DecodeLimits { events_max: 8, hashes_per_event_max: 8, tokens_per_event_max: 64, ..DecodeLimits::default() };
    if let Ok(batch) = decode_batch(bytes, &tight) {
        bounded(bytes, &batch);
        assert!(batch.events.len() <= 8);
    }
    // With room for tokens a message says the same.
    let mut room = TokenRoom::default();
    let with_room = decode_batch_in(bytes, &DecodeLimits::default(), &mut room);
    let without = decode_batch(bytes, &DecodeLimits::default());
    assert_eq!(with_room, without);
    let Ok(batch) = with_room else { return 0 };
    bounded(bytes, &batch);
    let events = batch.events.iter().chain(without.iter().flat_map(|batch| &batch.events));
    events.for_each(|event| {
        if let Event::Stored(stored) = event {
            contents(stored)
        }
    });
    batch.events.len()
}

/// What comes out is bounded by what went in.
fn bounded(bytes: &[u8], batch: &Batch<'_>) {
    assert!(batch.events.len() as u64 + batch.skipped_count() <= bytes.len() as u64);
    assert!(batch.skipped.len() <= 7 * 20);
    let mut values = 0;
    for event in &batch.events {
        match event {
            Event::Stored(s) => {
                assert_eq!(s.hashes.iter().count(), s.hashes.len());
                assert_eq!(s.hashes.iter().len(), s.hashes.len());
                assert_eq!(s.tokens.iter().count(), s.tokens.len());
                assert_eq!(s.tokens.len(), s.tokens.units() + usize::from(s.tokens.is_bigram()));
                assert_eq!(s.extra_keys.iter().count(), s.extra_keys.len());
                values += s.hashes.len() + s.tokens.units() + s.extra_keys.len();
                for entry in s.extra_keys.iter() {
                    values += entry.items(s.lora_name.unwrap_or(""), true).count();
                }
            }
            Event::Removed(r) => {
                assert_eq!(r.hashes.iter().count(), r.hashes.len());
                values += r.hashes.len() + r.remaining_copy_counts.as_ref().map_or(0, Vec::len);
            }
            Event::Cleared(_) => {}
        }
    }
    assert!(values <= bytes.len(), "{values} values from {} bytes", bytes.len());
}

/// A store's contents are those of a prompt with the same tokens, whatever the cut into blocks.
fn contents(stored: &Stored<'_>) {
    let namespace = if stored.parent.is_none() { store_namespace(stored) } else { Namespace::NONE };
    let tokens = stored.tokens.to_vec();
    for mode in [HashMode::Plain, HashMode::Bigram] {
        for block_size in [1, 4, usize::try_from(stored.block_size).unwrap_or(1).clamp(1, 1 << 16)] {
            let mut hasher = ContentHasher::new(mode, block_size);
            let mut from_store = Vec::new();
            let Ok(read) = hasher.store(stored, &mut from_store) else {
                assert!(from_store.is_empty());
                continue;
            };
            assert_eq!(read.blocks, from_store.len());
            assert_eq!(read.blocks + usize::from(read.partial_tail), stored.hashes.len());
            if stored.extra_keys.all_nil() {
                let mut from_prompt = Vec::new();
                hasher.prompt(&Prompt { tokens: &tokens, namespace, items: &[] }, &mut from_prompt);
                assert_eq!(from_store, from_prompt);
            }
        }
    }
}

/// Cuts the bytes into frames: the first byte says how many, the next ones how long each is.
fn frames(bytes: &[u8]) {
    let limits = FrameLimits::default();
    let [count, rest @ ..] = bytes else { return };
    let (mut frames, mut rest) = (Vec::new(), rest);
    for _ in 0..count % 6 {
        let [len, tail @ ..] = rest else { break };
        let (frame, tail) = tail.split_at(usize::from(*len).min(tail.len()));
        frames.push(frame);
        rest = tail;
    }
    if let Ok(live) = parse_live(&frames, &limits) {
        assert_eq!(frames.len(), 3);
        assert_eq!(live.payload, frames[2]);
    }
    if parse_replay(&frames, &limits).is_ok() {
        assert!(matches!(frames.len(), 3 | 4));
    }
}
