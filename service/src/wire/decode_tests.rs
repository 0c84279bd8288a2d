//! Every layout that the engines are known to write, and what is wrong with events that are left out.

use super::event::{Batch, Event, Removed, SkipReason, Stored};
use super::testing::{Value, batch, stored_map, without};
use super::{DecodeError, DecodeLimits, HashMode, decode_batch};
use kvatlas_index::EngineHash;

fn decode(payload: &[u8]) -> Batch<'_> {
    decode_batch(payload, &DecodeLimits::default()).unwrap()
}

fn only_stored(payload: &[u8]) -> Stored<'_> {
    match decode(payload) {
        Batch { events, skipped, .. } if skipped.is_empty() && events.len() == 1 => match events.into_iter().next() {
            Some(Event::Stored(s)) => s,
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    }
}

fn only_removed(payload: &[u8]) -> Removed<'_> {
    match decode(payload).events.into_iter().next() {
        Some(Event::Removed(r)) => r,
        other => panic!("{other:?}"),
    }
}

/// Reason label, field, count.
fn skips(payload: &[u8]) -> Vec<(&'static str, &'static str, u64)> {
    decode(payload).skipped.iter().map(|s| (s.reason.label(), s.field, s.count)).collect()
}

/// `BlockStored` as an array with the first `len` items of the newest vLLM layout.
fn stored_array(len: usize) -> Value {
    let items: [Value; 16] = [
        "BlockStored".into(),
        [10, 11].into(),
        9.into(),
        [1, 2, 3, 4].into(),
        2.into(),
        7.into(),
        "CPU".into(),
        "sql".into(),
        Value::Array(vec![Value::Nil, Value::Nil]),
        3.into(),
        "sliding_window".into(),
        96.into(),
        "REMOTE".into(),
        "fs".into(),
        "s-1".into(),
        Value::Array(vec![[5].into(), [6].into()]),
    ];
    Value::Array(items[..len].to_vec())
}

#[test]
fn stored_arrays_of_every_version_length() {
    for len in [6, 7, 8, 9, 10, 12, 13, 14, 15, 16] {
        let bytes = batch(vec![stored_array(len)]);
        let s = only_stored(&bytes);
        assert_eq!(s.hashes.to_vec(), [EngineHash(10), EngineHash(11)]);
        assert_eq!((s.parent, s.tokens.to_vec(), s.block_size), (Some(EngineHash(9)), vec![1, 2, 3, 4], 2));
        assert_eq!(s.lora_id, Some(7));
        assert_eq!(s.medium, (len > 6).then_some("CPU"), "{len}");
        assert_eq!(s.lora_name, (len > 7).then_some("sql"), "{len}");
        assert_eq!(s.extra_keys.len(), if len > 8 { 2 } else { 0 }, "{len}");
        assert_eq!(s.group, (len > 9).then_some(3), "{len}");
        assert_eq!(s.kind, (len > 10).then_some("sliding_window"), "{len}");
        assert_eq!(s.sliding_window, (len > 11).then_some(96), "{len}");
        assert_eq!(s.locality, (len > 12).then_some("REMOTE"), "{len}");
        assert_eq!(s.ownership, (len > 13).then_some("fs"), "{len}");
        assert_eq!(s.session_id, (len > 14).then_some("s-1"), "{len}");
        assert_eq!(s.has_lookahead, len > 15, "{len}");
    }
}

#[test]
fn items_beyond_the_newest_layout_are_stepped_over() {
    let Value::Array(mut items) = stored_array(16) else { panic!() };
    items.push(Value::Map(vec![("deep", [[1]].into())]));
    let bytes = batch(vec![Value::Array(items), Value::Array(vec!["AllBlocksCleared".into(), 1.into()])]);
    let b = decode(&bytes);
    assert_eq!((b.events.len(), b.skipped_count()), (2, 0));
}

#[test]
fn sglang_puts_its_salt_into_the_lora_slot() {
    let Value::Array(mut items) = stored_array(7) else { panic!() };
    items.push(Value::Map(vec![("cache_salt", "t1".into())]));
    let bytes = batch(vec![Value::Array(items)]);
    let s = only_stored(&bytes);
    assert_eq!((s.cache_salt, s.lora_name), (Some("t1"), None));
}

#[test]
fn removed_arrays_of_every_version_length() {
    let items: [Value; 6] = ["BlockRemoved".into(), [-1].into(), "GPU".into(), 1.into(), "LOCAL".into(), "fs".into()];
    for len in 2..=6 {
        let bytes = batch(vec![Value::Array(items[..len].to_vec())]);
        let r = only_removed(&bytes);
        assert_eq!(r.hashes.to_vec(), [EngineHash(u64::MAX)]);
        assert_eq!(r.medium, (len > 2).then_some("GPU"));
        assert_eq!(r.group, (len > 3).then_some(1));
        assert_eq!(r.locality, (len > 4).then_some("LOCAL"));
        assert_eq!(r.ownership, (len > 5).then_some("fs"));
    }
}

#[test]
fn maps_take_keys_in_any_order_and_step_over_unknown_ones() {
    let Value::Map(mut pairs) = stored_map(vec![
        ("cache_salt", "s".into()),
        ("lora_name", "l".into()),
        ("origin", "REUSED".into()),
        ("group_idx", 2.into()),
        ("new_in_2027", Value::Map(vec![("a", [1, 2].into())])),
    ]) else {
        panic!()
    };
    pairs.reverse();
    let bytes = batch(vec![Value::Map(pairs)]);
    let s = only_stored(&bytes);
    assert_eq!(
        (s.cache_salt, s.lora_name, s.origin, s.group, s.parent),
        (Some("s"), Some("l"), Some("REUSED"), Some(2), None)
    );
}

#[test]
fn a_key_that_is_no_text_is_stepped_over() {
    // {7: [1], "type": "AllBlocksCleared"}
    let mut event = vec![0x82, 7, 0x91, 1, 0xa4];
    event.extend(b"type\xb0AllBlocksCleared");
    let bytes = [&[0x92, 0][..], &[0x91], &event].concat();
    assert_eq!(decode(&bytes).events.len(), 1);
}

#[test]
fn clears_with_and_without_a_tier() {
    let bytes = batch(vec![
        Value::Map(vec![("type", "AllBlocksCleared".into())]),
        Value::Map(vec![("type", "TierBlocksCleared".into()), ("medium", "GPU".into())]),
        Value::Array(vec!["TierBlocksCleared".into(), "CPU".into()]),
        Value::Array(vec!["TierBlocksCleared".into()]),
    ]);
    let b = decode(&bytes);
    let media: Vec<_> = b.events.iter().map(|e| if let Event::Cleared(c) = e { c.medium } else { panic!() }).collect();
    assert_eq!(media, [None, Some("GPU"), Some("CPU")]);
    assert_eq!(skips(&bytes), [("missing_field", "medium", 1)]);
}

#[test]
fn copy_counts_must_match_their_hashes() {
    let removed = |counts: Value| {
        Value::Map(vec![
            ("type", "BlockRemoved".into()),
            ("block_hashes", [1, 2].into()),
            ("remaining_copy_counts", counts),
        ])
    };
    let bytes = batch(vec![removed([0, 300].into())]);
    assert_eq!(only_removed(&bytes).remaining_copy_counts, Some(vec![0, 300]));
    let bytes = batch(vec![removed([0].into()), removed([0, -1].into())]);
    assert_eq!(skips(&bytes), [("bad_field", "remaining_copy_counts", 2)]);
}

#[test]
fn each_unreadable_event_is_counted_and_the_rest_is_read() {
    let bytes = batch(vec![
        Value::Nil,
        Value::Array(vec![]),
        Value::Array(vec![5.into()]),
        ["BlockPinned", "x"].into(),
        Value::Map(vec![("block_hashes", [1].into())]),
        without(stored_map(vec![]), "token_ids"),
        without(stored_map(vec![]), "parent_block_hash"),
        stored_map(vec![("block_hashes", "x".into())]),
        stored_map(vec![("block_size", Value::Nil)]),
        stored_map(vec![("medium", 7.into())]),
        stored_map(vec![("token_ids", [1, 2, -3].into())]),
        stored_map(vec![("token_ids", [1_i128 << 32].into())]),
        stored_map(vec![("token_ids", [[1, 2], [3, 4]].into())]),
        stored_map(vec![("token_ids", [["a"]].into())]),
        stored_map(vec![("extra_keys", Value::Array(vec![Value::Nil, Value::Nil]))]),
        stored_map(vec![("extra_keys", ["sql"].into())]),
        stored_array(4),
        stored_map(vec![("block_hashes", [77].into())]),
    ]);
    let b = decode(&bytes);
    assert_eq!(b.events.len(), 1);
    assert_eq!(b.rank, Some(0));
    let want = [
        ("not_an_event", "", 3),
        ("unknown_tag", "type", 1),
        ("missing_field", "type", 1),
        ("missing_field", "token_ids", 1),
        ("missing_field", "parent_block_hash", 1),
        ("bad_field", "block_hashes", 1),
        ("bad_field", "block_size", 1),
        ("bad_field", "medium", 1),
        ("token_out_of_range", "token_ids", 2),
        ("broken_bigrams", "token_ids", 1),
        ("bad_field", "token_ids", 1),
        ("bad_field", "extra_keys", 2),
        ("missing_field", "block_size", 1),
    ];
    assert_eq!(skips(&bytes), want);
    assert_eq!(b.skipped_count(), 17);
}

#[test]
fn attribution_that_cannot_be_read_costs_nothing() {
    let bytes = batch(vec![stored_map(vec![("session_id", [1, 2].into()), ("lora_id", "seven".into())])]);
    let s = only_stored(&bytes);
    assert_eq!((s.session_id, s.lora_id), (None, None));
}

#[test]
fn the_envelope_may_be_short_long_or_odd() {
    let events = Value::Array(vec![Value::Array(vec!["AllBlocksCleared".into()])]);
    let envelope = |ts: Value, tail: Vec<Value>| Value::Array([vec![ts, events.clone()], tail].concat()).encode();
    let read = |bytes: &[u8]| {
        let b = decode(bytes);
        assert_eq!(b.events.len(), 1);
        (b.timestamp, b.rank)
    };
    assert_eq!(read(&envelope(Value::Float(2.5), vec![])), (Some(2.5), None));
    assert_eq!(read(&envelope(3.into(), vec![Value::Nil])), (Some(3.0), None));
    assert_eq!(read(&envelope(Value::Nil, vec![4.into(), "more".into()])), (None, Some(4)));
    assert_eq!(read(&envelope(Value::Float(f64::NAN), vec![(1_i128 << 32).into()])), (None, None));
}

#[test]
fn what_is_no_batch_is_an_error() {
    let refuse = |bytes: &[u8]| decode_batch(bytes, &DecodeLimits::default()).unwrap_err();
    assert_eq!(refuse(b""), DecodeError::Broken { at: 0 });
    assert_eq!(refuse(&[0x91, 0xc0]), DecodeError::NotABatch);
    assert_eq!(refuse(&[0x80]), DecodeError::NotABatch);
    assert_eq!(refuse(&[0x92, 1, 2]), DecodeError::NotABatch);
    let whole = batch(vec![stored_map(vec![])]);
    for cut in 1..whole.len() {
        assert!(matches!(refuse(&whole[..cut]), DecodeError::Broken { .. }), "cut at {cut}");
    }
}

#[test]
fn limits_of_the_batch_and_of_one_event() {
    let limits = DecodeLimits {
        payload_bytes_max: 1000,
        events_max: 4,
        hashes_per_event_max: 2,
        hashes_per_batch_max: 100,
        tokens_per_event_max: 5,
        text_bytes_max: 6,
    };
    let over = vec![
        stored_map(vec![("block_hashes", [1, 2, 3].into())]),
        stored_map(vec![("token_ids", [0; 6].into())]),
        stored_map(vec![("lora_name", "seven77".into())]),
        stored_map(vec![]),
    ];
    let bytes = batch(over.clone());
    let b = decode_batch(&bytes, &limits).unwrap();
    assert_eq!(b.events.len(), 1);
    assert!(b.skipped.iter().all(|s| s.reason == SkipReason::OverLimit && s.count == 1), "{:?}", b.skipped);
    let bytes = batch([over, vec![Value::Nil]].concat());
    assert_eq!(decode_batch(&bytes, &limits), Err(DecodeError::TooManyEvents { events: 5, max: 4 }));
    let long = vec![0; 1001];
    assert_eq!(decode_batch(&long, &limits), Err(DecodeError::TooLong { bytes: 1001, max: 1000 }));
}

/// Small events, each within its limit, are no way around it.
#[test]
fn the_hashes_of_a_batch_are_bounded_together() {
    let limits = DecodeLimits { hashes_per_batch_max: 5, ..DecodeLimits::default() };
    let two = || stored_map(vec![("block_hashes", [1, 2].into()), ("extra_keys", Value::Nil)]);
    let one = || stored_map(vec![("block_hashes", [3].into()), ("extra_keys", Value::Nil)]);
    let bytes = batch(vec![two(), two(), two(), one(), one()]);
    let b = decode_batch(&bytes, &limits).unwrap();
    assert_eq!(b.events.len(), 3, "{b:?}");
    assert_eq!(b.skipped.iter().map(|s| (s.reason, s.count)).collect::<Vec<_>>(), [(SkipReason::OverLimit, 2)]);
}

/// Input 9 of the adversarial set: drift and poison in one batch.
#[test]
fn wire_drift_beside_readable_events() {
    let mut digest = vec![0xee; 32];
    digest[24..].copy_from_slice(&0x0b_u64.to_be_bytes());
    let events = |a: Value, b: Value| {
        vec![
            stored_map(vec![("block_hashes", [-1].into()), ("token_ids", a.clone())]),
            Value::Array(vec!["BlockPinned".into(), 1.into()]),
            without(stored_map(vec![]), "token_ids"),
            Value::Array(vec![
                "BlockStored".into(),
                Value::Array(vec![Value::Bytes(digest.clone())]),
                (-1).into(),
                b,
                4.into(),
                Value::Nil,
            ]),
            Value::Map(vec![("type", "BlockRemoved".into()), ("block_hashes", [404].into()), ("medium", "GPU".into())]),
        ]
    };
    let plain = batch(events([1, 2, 3, 4].into(), [5, 6, 7, 8].into()));
    let pairs = batch(events([[1, 2], [2, 3], [3, 4], [4, 5]].into(), [[5, 6], [6, 7], [7, 8], [8, 9]].into()));
    for (payload, mode) in [(plain, HashMode::Plain), (pairs, HashMode::Bigram)] {
        assert_eq!(skips(&payload), [("unknown_tag", "type", 1), ("missing_field", "token_ids", 1)]);
        let b = decode(&payload);
        let [Event::Stored(a), Event::Stored(b), Event::Removed(r)] = &b.events[..] else { panic!("{b:?}") };
        assert_eq!(a.hashes.to_vec(), [EngineHash(u64::MAX)]);
        assert_eq!(b.parent, Some(EngineHash(u64::MAX)));
        assert_eq!(b.hashes.to_vec(), [EngineHash(0x0b)]);
        assert_eq!(r.hashes.to_vec(), [EngineHash(404)]);
        assert_eq!(a.tokens.is_bigram(), mode == HashMode::Bigram);
        assert_eq!(b.tokens.len(), mode.block_tokens(4));
    }
}
