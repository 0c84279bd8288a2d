use super::*;
use crate::ingest::HashChoice;
use crate::ingest::spec::{Engine, RankEndpoint};
use crate::wire::{DecodeLimits, decode_batch};

/// Events as JSON, written as msgpack.
fn encode(value: &serde_json::Value, out: &mut Vec<u8>) {
    use serde_json::Value;
    match value {
        Value::Null => out.push(0xc0),
        Value::Bool(b) => out.push(0xc2 + u8::from(*b)),
        Value::Number(n) => {
            out.push(if n.is_u64() { 0xcf } else { 0xd3 });
            let bits = n.as_u64().unwrap_or_else(|| n.as_i64().unwrap().cast_unsigned());
            out.extend(bits.to_be_bytes());
        }
        Value::String(s) => {
            out.extend([0xd9, s.len() as u8]);
            out.extend(s.as_bytes());
        }
        Value::Array(items) => {
            out.push(0xdd);
            out.extend((items.len() as u32).to_be_bytes());
            items.iter().for_each(|item| encode(item, out));
        }
        Value::Object(fields) => {
            out.push(0xdf);
            out.extend((fields.len() as u32).to_be_bytes());
            for (key, item) in fields {
                encode(&Value::String(key.clone()), out);
                encode(item, out);
            }
        }
    }
}

struct Rig {
    normalizer: Normalizer,
    effect: Effect,
}

impl Rig {
    fn new(change: impl FnOnce(&mut WorkerSpec)) -> Self {
        let mut spec = WorkerSpec {
            id: "w".into(),
            model: "m".into(),
            routing_group: String::new(),
            block_size: 2,
            engine: Engine::Auto,
            ranks: vec![RankEndpoint { rank: 0, events: String::new(), replay: None }],
            topic: String::new(),
            report_mode_full: false,
            bigram: false,
            hash_check_every: 0,
            hash_seed: None,
            hash_scheme: HashChoice::default(),
            snapshots: None,
        };
        change(&mut spec);
        Self { normalizer: Normalizer::new(&spec, &IngestLimits::default()), effect: Effect::default() }
    }

    /// The operations of a batch, in short notation.
    fn events(&mut self, events: serde_json::Value) -> Vec<String> {
        let mut payload = Vec::new();
        encode(&serde_json::json!([0, events, 0]), &mut payload);
        let batch = decode_batch(&payload, &DecodeLimits::default()).unwrap();
        let mut ops = Vec::new();
        self.effect = self.normalizer.normalize(&batch, &mut ops);
        ops.iter().map(short).collect()
    }

    fn count(&self, reason: &str) -> u64 {
        self.normalizer.counters().get(reason)
    }
}

fn short(op: &Op) -> String {
    let list = |names: &[EngineHash]| names.iter().map(|n| n.0.to_string()).collect::<Vec<_>>().join(" ");
    match op {
        Op::Store { tier, parent, names, contents, kind } => {
            assert_eq!(names.len(), contents.len());
            let parent = parent.map_or("-".to_string(), |p| p.0.to_string());
            let verb = if *kind == StoreKind::Copy { "store" } else { "announce" };
            format!("{verb} {tier:?} {parent}: {}", list(names))
        }
        Op::Adopt { tier, names } => format!("adopt {tier:?}: {}", list(names)),
        Op::Remove { tier, names } => format!("remove {tier:?}: {}", list(names)),
        Op::SetCopies { tier, name, left } => format!("left {tier:?} {}: {left}", name.0),
        Op::Clear { tier } => format!("clear {tier:?}"),
    }
}

/// A store of blocks of 2 tokens; `more` adds or replaces fields.
fn store(parent: Option<u64>, hashes: &[u64], more: serde_json::Value) -> serde_json::Value {
    let tokens: Vec<u64> = hashes.iter().flat_map(|h| [*h, h + 100]).collect();
    let mut event = serde_json::json!({
        "type": "BlockStored", "block_hashes": hashes, "parent_block_hash": parent, "token_ids": tokens, "block_size": 2,
        "medium": "GPU",
    });
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event
}

fn remove(hashes: &[u64], more: serde_json::Value) -> serde_json::Value {
    let mut event = serde_json::json!({"type": "BlockRemoved", "block_hashes": hashes, "medium": "GPU"});
    event.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    event
}

macro_rules! json {
    ($($t:tt)*) => { serde_json::json!($($t)*) };
}

#[test]
fn window_groups_beside_a_full_group_are_left_out_with_their_removals() {
    let mut rig = Rig::new(|_| {});
    let window = json!({"group_idx": 0, "kv_cache_spec_kind": "sliding_window"});
    let full = json!({"group_idx": 1, "kv_cache_spec_kind": "full_attention"});
    let did = rig.events(json!([store(None, &[1, 2], window), store(None, &[1, 2], full)]));
    assert_eq!(did, ["clear None", "store Device -: 1 2"]);
    let did = rig.events(json!([
        remove(&[1], json!({"group_idx": 0})),
        remove(&[2], json!({"group_idx": 1})),
        remove(&[2], json!({"group_idx": 9})),
    ]));
    assert_eq!(did, ["remove Device: 2"]);
    assert_eq!(rig.normalizer.upper_bound(), Some("window groups beside the full group are left out"));
    assert_eq!((rig.count("other_group"), rig.count("unlearned_group")), (2, 1));
}

#[test]
fn a_model_with_window_groups_only_is_read_from_the_tail() {
    let mut rig = Rig::new(|_| {});
    let kind = |hashes: &[u64]| json!({"group_idx": 0, "kv_cache_spec_kind": "sliding_window", "block_hashes": hashes});
    let dense = rig.events(json!([store(None, &[1, 2, 3], kind(&[1, 2, 3]))]));
    assert_eq!(dense, ["store Device -: 1 2 3"]);
    // Blocks 1 and 2 were skipped: holes of the right content, so that 3 stands where it belongs.
    let skipped = rig.events(json!([store(None, &[1, 2, 3], kind(&[3]))]));
    assert_eq!(skipped.len(), 2);
    assert!(skipped[0].starts_with("store Device -: ") && skipped[0].ends_with(" 3"), "{skipped:?}");
    let holes = skipped[0].strip_prefix("store Device -: ").unwrap().strip_suffix(" 3").unwrap();
    assert_eq!(skipped[1], format!("remove Device: {holes}"));
    assert!(rig.events(json!([store(None, &[1, 2], kind(&[]))])).is_empty());
    assert!(rig.normalizer.upper_bound().is_some());
    assert_eq!(rig.effect.lost, None);
}

#[test]
fn what_is_not_the_engines_own_is_left_out() {
    let mut rig = Rig::new(|_| {});
    let did = rig.events(json!([
        store(None, &[1], json!({"locality": "REMOTE"})),
        store(None, &[2], json!({"locality": "LOCAL"})),
        store(None, &[3], json!({"ownership": "tier2"})),
        remove(&[1], json!({"locality": "REMOTE"})),
        remove(&[3], json!({"ownership": "tier2"})),
        store(None, &[4], json!({"medium": "HBM3X"})),
    ]));
    assert_eq!(did, ["store Device -: 2"]);
    assert_eq!((rig.count("not_local"), rig.count("not_engine_owned"), rig.count("unknown_medium")), (2, 2, 1));
    assert_eq!(rig.effect, Effect::default());
}

#[test]
fn placeholders_are_adopted_in_their_tier() {
    let mut rig = Rig::new(|_| {});
    let did = rig.events(json!([
        store(None, &[7], json!({"medium": "CPU", "token_ids": [], "block_size": 0})),
        store(None, &[], json!({"medium": "CPU", "token_ids": [], "block_size": 0})),
    ]));
    assert_eq!(did, ["adopt Host: 7"]);
}

#[test]
fn copies_are_announced_where_the_engine_says_so() {
    let mut rig = Rig::new(|_| {});
    let did = rig.events(json!([
        store(None, &[1], json!({"origin": "REUSED"})),
        remove(&[1, 2], json!({"remaining_copy_counts": [1, 0]})),
        remove(&[1, 2], json!({"remaining_copy_counts": [1]})),
    ]));
    assert_eq!(did, ["announce Device -: 1", "left Device 1: 1", "left Device 2: 0"]);
    assert_eq!(rig.count("decode_skipped_bad_field"), 1, "counts that do not match the names");
}

#[test]
fn in_report_mode_full_a_store_without_a_parent_announces() {
    let mut rig = Rig::new(|spec| spec.report_mode_full = true);
    let did = rig.events(json!([store(None, &[1, 2], json!({})), store(Some(2), &[3], json!({}))]));
    assert_eq!(did, ["announce Device -: 1 2", "store Device 2: 3"]);
    assert!(rig.normalizer.upper_bound().is_some());
}

#[test]
fn another_block_size_empties_the_rank_until_the_next_life() {
    let mut rig = Rig::new(|spec| spec.block_size = 4);
    assert_eq!(rig.events(json!([store(None, &[1, 2], json!({}))])), ["clear None"]);
    assert_eq!(rig.normalizer.misconfigured(), Some("its blocks have 2 tokens, the registration says 4"));
    let right = json!({"block_size": 4, "block_hashes": [1]});
    assert!(rig.events(json!([store(None, &[1, 2], right.clone()), remove(&[1], json!({}))])).is_empty());
    rig.normalizer.reset();
    assert_eq!(rig.events(json!([store(None, &[1, 2], right)])), ["store Device -: 1"]);
    assert_eq!(rig.normalizer.misconfigured(), None);
}

#[test]
fn a_partly_filled_block_is_no_misconfiguration() {
    let mut rig = Rig::new(|spec| spec.block_size = 4);
    let whole = json!({"block_size": 4, "block_hashes": [1]});
    rig.events(json!([store(None, &[1, 2], whole.clone())]));
    assert!(rig.events(json!([store(Some(1), &[9], json!({}))])).is_empty());
    assert_eq!((rig.normalizer.misconfigured(), rig.count("partial_blocks")), (None, 1));
    // The other way round it cannot be known at first; a whole block settles it.
    let mut rig = Rig::new(|spec| spec.block_size = 4);
    rig.events(json!([store(Some(1), &[9], json!({}))]));
    assert!(rig.normalizer.misconfigured().is_some());
    assert_eq!(rig.events(json!([store(None, &[1, 2], whole)])), ["store Device -: 1"]);
    assert_eq!(rig.normalizer.misconfigured(), None);
    assert!(rig.effect.lost.is_some());
}

#[test]
fn pages_of_pairs_need_a_registration_that_says_so() {
    let pairs = json!({"token_ids": [[1, 2], [2, 3]]});
    let mut rig = Rig::new(|_| {});
    assert_eq!(rig.events(json!([store(None, &[1], pairs.clone())])), ["clear None"]);
    assert!(rig.normalizer.misconfigured().is_some());
    let mut rig = Rig::new(|spec| spec.bigram = true);
    assert_eq!(rig.events(json!([store(None, &[1], pairs)])), ["store Device -: 1"]);
}

#[test]
fn clears_and_losses_count_in_their_order() {
    let clear = json!({"type": "AllBlocksCleared"});
    let unreadable = json!({"type": "BlockStored", "block_hashes": "x"});
    let mut rig = Rig::new(|_| {});
    assert_eq!(rig.events(json!([clear])), ["clear None"]);
    assert_eq!(rig.effect, Effect { cleared: true, lost: None });
    rig.events(json!([unreadable]));
    assert!(!rig.effect.cleared && rig.effect.lost.is_some());
    // A tier's clear mends nothing.
    assert_eq!(rig.events(json!([{"type": "TierBlocksCleared", "medium": "CPU"}])), ["clear Some(Host)"]);
    assert_eq!(rig.effect, Effect::default());
    rig.events(json!([["BlockPinned", 1]]));
    assert_eq!((rig.effect, rig.count("decode_skipped_unknown_tag")), (Effect::default(), 1));
    // Names that do not fit the tokens of a dense group.
    rig.events(json!([store(None, &[1, 2], json!({"block_hashes": [1]}))]));
    assert!(rig.effect.lost.is_some());
}

#[test]
fn removals_in_a_row_are_one_operation_a_tier() {
    let mut rig = Rig::new(|_| {});
    let host = json!({"medium": "CPU"});
    let did = rig.events(json!([
        remove(&[1], json!({})),
        remove(&[2, 2], json!({})),
        remove(&[3], host.clone()),
        store(None, &[7], json!({})),
        remove(&[4], host.clone()),
        remove(&[5], json!({"remaining_copy_counts": [0]})),
        remove(&[6], host),
    ]));
    let want = ["remove Device: 1 2 2", "remove Host: 3", "store Device -: 7", "remove Host: 4", "left Device 5: 0"];
    assert_eq!(did[..5], want);
    assert_eq!(did[5..], ["remove Host: 6"]);
}

/// Random events with copies, blocks without a known parent, names removed twice and names that nobody has: in batches, and
/// event by event, so that no removal joins another. The index does and counts the same.
#[test]
fn removals_in_one_operation_do_what_each_would_do() {
    use crate::ops::Applied;
    use kvatlas_index::{Holder, Index, IndexConfig, RankKey};
    let mut totals = [0; 4];
    for seed in 0..150u64 {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let mut pick = move |below: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 11) % below
        };
        let config = || IndexConfig { hash_key: Some([seed, 13]), ..IndexConfig::default() };
        let (mut sides, mut lanes) = (Vec::new(), Vec::new());
        for _ in 0..2 {
            let (index, mut own) = Index::new(config()).unwrap();
            let mut lane = own.pop().unwrap();
            let slot = lane.open_rank(RankKey(1)).unwrap();
            sides.push((index, slot, Rig::new(|_| {}).normalizer, Applied::default()));
            lanes.push(lane);
        }
        for _ in 0..40 {
            let events: Vec<serde_json::Value> = (0..1 + pick(12))
                .map(|_| {
                    let tier = json!({"medium": if pick(4) == 0 { "CPU" } else { "GPU" }});
                    let first = 1 + pick(24);
                    if pick(3) == 0 {
                        let names: Vec<u64> = (first..=first + pick(6)).collect();
                        store((first > 1).then(|| first - 1), &names, tier)
                    } else {
                        let names: Vec<u64> = (0..1 + pick(8).saturating_sub(5)).map(|n| first.abs_diff(n)).collect();
                        remove(&names, tier)
                    }
                })
                .collect();
            let alone: Vec<serde_json::Value> = events.iter().map(|event| json!([event])).collect();
            for (side, batches) in [vec![json!(events)], alone].iter().enumerate() {
                let (_, slot, normalizer, applied) = &mut sides[side];
                for events in batches {
                    let mut payload = Vec::new();
                    encode(&json!([0, events, 0]), &mut payload);
                    let mut ops = Vec::new();
                    normalizer.normalize(&decode_batch(&payload, &DecodeLimits::default()).unwrap(), &mut ops);
                    ops.iter().for_each(|op| op.apply(&mut lanes[side], *slot, applied).unwrap());
                }
            }
            assert_eq!(sides[0].3, sides[1].3, "seed {seed}");
            for tier in [Tier::Device, Tier::Host] {
                let held = [0, 1].map(|side| lanes[side].names(Holder { rank: sides[side].1, tier }));
                assert_eq!(held[0], held[1], "seed {seed}");
            }
        }
        let did = sides[0].3;
        let counts = [did.removed, did.copies_removed, did.unknown_removals, did.orphans];
        totals.iter_mut().zip(counts).for_each(|(total, count)| *total += count);
    }
    assert!(totals.iter().all(|&total| total > 100), "every kind of removal was met: {totals:?}");
}
