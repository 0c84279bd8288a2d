//! Ten inputs that break indexers in the field, each with its right answer, through decoder, cursor, normalizer and index.
#![allow(clippy::unwrap_used, reason = "test code")]

mod engine;

use engine::*;
use kvatlas_index::Tier;
use kvatlas_service::ingest::{RankEndpoint, Trust, WorkerSpec};
use kvatlas_service::wire::MultimodalItem;

const A: [u32; 4] = [1, 2, 3, 4];
const B: [u32; 4] = [5, 6, 7, 8];
const C: [u32; 4] = [9, 10, 11, 12];
const D: [u32; 4] = [13, 14, 15, 16];
const E: [u32; 4] = [17, 18, 19, 20];
const Q: [u32; 4] = [7; 4];
const P: [u32; 4] = [151_655; 4];

fn cat(blocks: &[[u32; 4]]) -> Vec<u32> {
    blocks.concat()
}

/// `S p=<parent> [hash:block, ...]`.
fn s(parent: Option<u64>, blocks: &[(u64, [u32; 4])]) -> Value {
    with(parent, blocks, &[])
}

fn with(parent: Option<u64>, blocks: &[(u64, [u32; 4])], more: &[(&str, Value)]) -> Value {
    let hashes: Vec<u64> = blocks.iter().map(|b| b.0).collect();
    let tokens: Vec<u32> = blocks.iter().flat_map(|b| b.1).collect();
    stored(parent, &hashes, &tokens, 4, more)
}

fn r(hashes: &[u64]) -> Value {
    removed(hashes, &[])
}

fn abc() -> Vec<u32> {
    cat(&[A, B, C])
}

#[test]
fn input_1_duplicate_physical_copies() {
    let mut w = World::one();
    w.live(0, 0, vec![s(None, &[(10, A), (11, B), (12, C)])]);
    let copy = w.live(0, 1, vec![s(Some(11), &[(12, C)])]);
    w.live(0, 2, vec![r(&[12])]);
    assert_eq!(w.lookup(&abc()), [(0, 3)]);
    w.live(0, 3, vec![r(&[12])]);
    assert_eq!(w.lookup(&abc()), [(0, 2)]);
    w.live(0, 4, vec![r(&[12])]);
    assert_eq!((w.lookup(&abc()), w.count(0, "unknown_removals")), (vec![(0, 2)], 1));
    w.live(0, 5, vec![s(Some(11), &[(12, C)])]);
    assert_eq!(w.lookup(&abc()), [(0, 3)]);
    assert_eq!(w.status(0).trust, Trust::Exact);

    // a: a batch delivered twice is no third copy.
    let mut w = World::one();
    w.live(0, 0, vec![s(None, &[(10, A), (11, B), (12, C)])]);
    w.live_payload(0, 1, copy.clone());
    w.live_payload(0, 1, copy);
    w.live(0, 2, vec![r(&[12])]);
    w.live(0, 3, vec![r(&[12])]);
    assert_eq!((w.lookup(&abc()), w.count(0, "stale")), (vec![(0, 2)], 1));

    // b: an announcement of a reused block is no copy.
    let mut w = World::one();
    w.live(0, 0, vec![s(None, &[(10, A), (11, B), (12, C)])]);
    w.live(0, 1, vec![with(Some(11), &[(12, C)], &[("origin", text("REUSED"))])]);
    w.live(0, 2, vec![r(&[12])]);
    assert_eq!(w.lookup(&abc()), [(0, 2)]);

    // c: the engine says itself that none is left.
    let mut w = World::one();
    w.live(0, 0, vec![s(None, &[(10, A), (11, B), (12, C)])]);
    w.live(0, 1, vec![s(Some(11), &[(12, C)])]);
    w.live(0, 2, vec![removed(&[12], &[("remaining_copy_counts", ints([0]))])]);
    assert_eq!(w.lookup(&abc()), [(0, 2)]);
}

#[test]
fn input_2_a_gap_beyond_the_ring() {
    let mut spec = spec(4);
    spec.ranks[0].replay = Some("tcp://127.0.0.1:2".into());
    let mut w = World::new(&[spec]);
    // The bootstrap at the first connection: nothing yet.
    w.asked.push((0, 1, 0));
    w.replay_end(0);
    w.live(0, 0, vec![s(None, &[(10, A), (11, B)])]);
    for seq in 1..=100 {
        w.live(0, seq, vec![]);
    }
    assert_eq!(w.lookup(&cat(&[A, B])), [(0, 2)]);
    w.live(0, 20_000, vec![]);
    assert_eq!(w.asked.last().map(|a| a.2), Some(100), "from the last known batch, for proof");
    for seq in 10_000..20_000_u32 {
        w.replay(0, u64::from(seq), batch(1e6 + f64::from(seq), vec![]));
    }
    w.replay_end(0);
    assert!(w.lookup(&cat(&[A, B])).is_empty());
    let status = w.status(0);
    assert_eq!((status.trust, status.cursor), (Trust::Partial, Some(20_000)));
    assert_eq!(w.count(0, "lost_batches"), 9_899);
    w.live(0, 20_001, vec![s(None, &[(10, A)])]);
    assert_eq!(w.status(0).trust, Trust::Partial, "contiguous is not exact");
    w.live(0, 20_002, vec![cleared(), s(None, &[(10, A)])]);
    assert_eq!((w.status(0).trust, w.lookup(&A)), (Trust::Exact, vec![(0, 1)]));
}

#[test]
fn input_3_late_join_and_orphan() {
    let mut w = World::one();
    let all = cat(&[A, B, C, D, E]);
    w.live(0, 500, vec![s(Some(14), &[(15, E)])]);
    assert!(w.lookup(&E).is_empty() && w.lookup(&all).is_empty());
    assert_eq!((w.count(0, "orphans"), w.status(0).trust), (1, Trust::Partial));
    w.live(0, 501, vec![s(None, &[(10, A), (11, B), (12, C), (14, D)])]);
    assert_eq!(w.lookup(&all), [(0, 5)]);
    assert!(w.lookup(&E).is_empty(), "E alone is nobody's prefix, for ever");

    let mut w = World::one();
    w.live(0, 500, vec![s(Some(14), &[(15, E)])]);
    w.live(0, 501, vec![r(&[15])]);
    w.live(0, 502, vec![s(None, &[(10, A), (11, B), (12, C), (14, D)])]);
    assert_eq!(w.lookup(&all), [(0, 4)]);
}

#[test]
fn input_4_hole_and_heal() {
    for fork in [false, true] {
        let mut w = World::new(&[spec(4), spec(4)]);
        let all = cat(&[A, B, C, D]);
        for worker in [0, 1] {
            w.live(worker, 0, vec![s(None, &[(10, A), (11, B), (12, C), (13, D)])]);
        }
        if fork {
            w.live(1, 1, vec![s(Some(12), &[(99, E)])]);
        }
        w.live(0, 1, vec![r(&[11])]);
        assert_eq!(w.lookup(&all), [(0, 1), (1, 4)]);
        w.live(0, 2, vec![s(Some(10), &[(11, B)])]);
        assert_eq!(w.lookup(&all), [(0, 4), (1, 4)]);
        w.live(0, 3, vec![r(&[11, 12])]);
        w.live(0, 4, vec![s(Some(10), &[(11, B)])]);
        assert_eq!(w.lookup(&all), [(0, 2), (1, 4)]);
        w.live(0, 5, vec![s(Some(11), &[(12, C)])]);
        assert_eq!(w.lookup(&all), [(0, 4), (1, 4)]);
    }
}

#[test]
fn input_5_namespaces() {
    let keys = |words: &[&str]| list([list(words.iter().map(|t| text(t)))]);
    let mut w = World::one();
    w.live(0, 0, vec![s(None, &[(10, A)])]);
    w.live(0, 1, vec![with(None, &[(20, A)], &[("lora_name", text("sql")), ("extra_keys", keys(&["sql"]))])]);
    w.live(0, 2, vec![with(None, &[(30, A)], &[("extra_keys", keys(&["t1"]))])]);
    w.live(0, 3, vec![with(Some(30), &[(31, B)], &[("extra_keys", list([nil()]))])]);
    let lora = |name| Ask { lora: Some(name), ..Ask::default() };
    let salt = Ask { salt: Some("t1"), ..Ask::default() };
    let both = Ask { lora: Some("sql"), salt: Some("t1"), ..Ask::default() };
    let ab = cat(&[A, B]);
    assert_eq!(w.lookup(&A), [(0, 1)]);
    assert_eq!(w.lookup_in(&A, lora("sql")), [(0, 1)]);
    assert!(w.lookup_in(&A, lora("other")).is_empty());
    assert_eq!(w.lookup_in(&A, salt), [(0, 1)]);
    assert_eq!(w.lookup_in(&ab, salt), [(0, 2)], "the child inherits the salt from its parent's place");
    assert_eq!(w.lookup(&ab), [(0, 1)]);
    assert!(w.lookup_in(&A, both).is_empty());
    w.live(0, 4, vec![r(&[10])]);
    assert!(w.lookup(&A).is_empty());
    assert_eq!(w.lookup_in(&A, lora("sql")), [(0, 1)]);
    assert_eq!(w.lookup_in(&ab, salt), [(0, 2)]);
}

#[test]
fn input_6_multimodal() {
    let mut w = World::one();
    let item = list([list([list([text("imgX"), int(0)])])]);
    w.live(0, 0, vec![with(None, &[(40, P)], &[("extra_keys", item)])]);
    w.live(0, 1, vec![with(Some(40), &[(41, A)], &[("extra_keys", list([nil()]))])]);
    let at =
        |identifier: &'static str, offset| [MultimodalItem { identifier, offset, len: 4 - offset, at_offset: true }];
    let mut ask = |tokens: &[u32], items: &[MultimodalItem<'_>]| w.lookup_in(tokens, Ask { items, ..Ask::default() });
    assert_eq!(ask(&cat(&[P, A]), &at("imgX", 0)), [(0, 2)]);
    assert!(ask(&cat(&[P, A]), &at("imgY", 0)).is_empty());
    assert!(ask(&P, &[]).is_empty());
    assert!(ask(&P, &at("imgX", 2)).is_empty());
}

#[test]
fn input_7_partial_tokenless_and_wrong_size() {
    let tokens: Vec<u32> = (0..40).collect();
    // a: two whole blocks and a partly filled one.
    let mut w = World::new(&[spec(16)]);
    w.live(0, 0, vec![stored(None, &[61, 62, 63], &tokens, 16, &[])]);
    assert_eq!((w.lookup(&tokens), w.count(0, "partial_blocks")), (vec![(0, 2)], 1));
    // b: a block behind the partly filled one, whose name was never placed.
    w.live(0, 1, vec![stored(Some(63), &[64], &tokens[..16], 16, &[])]);
    assert_eq!((w.lookup(&tokens), w.count(0, "orphans")), (vec![(0, 2)], 1));
    // d: names without tokens.
    let host = [("medium", text("CPU")), ("token_ids", list([])), ("block_size", int(0))];
    w.live(0, 2, vec![stored(None, &[61, 99], &[], 0, &host)]);
    assert_eq!(w.lookup_all(&tokens, Ask::default()).get(&(0, Tier::Host)), Some(&1));
    assert_eq!((w.count(0, "unknown_adoptions"), w.status(0).trust), (1, Trust::Exact));

    // c: another block size than registered: nothing is credited, and everybody can see why.
    let mut w = World::new(&[spec(16)]);
    w.live(0, 0, vec![stored(None, &[1], &tokens[..32], 32, &[])]);
    let status = w.status(0);
    assert_eq!((status.trust, w.lookup(&tokens)), (Trust::Misconfigured, vec![]));
    assert_eq!(status.detail.as_deref(), Some("its blocks have 32 tokens, the registration says 16"));
    assert_eq!((w.count(0, "wrong_block_size"), status.cursor), (1, Some(0)));

    // e: a query of a million tokens is answered whole.
    let long: Vec<u32> = (0..1_000_000).collect();
    let mut w = World::new(&[spec(16)]);
    let hashes: Vec<u64> = (1..=62_500).collect();
    w.live(0, 0, vec![stored(None, &hashes, &long, 16, &[])]);
    assert_eq!(w.lookup(&long), [(0, 62_500)]);
}

#[test]
fn input_8_tiers() {
    let mut w = World::one();
    let ab = cat(&[A, B]);
    let cumulative = Ask { cumulative: true, ..Ask::default() };
    // Blocks on the device, and on the device and the host together.
    let depth = |w: &mut World| {
        let found = w.lookup_all(&ab, cumulative);
        let device = found.get(&(0, Tier::Device)).copied().unwrap_or(0);
        (device, found.get(&(0, Tier::Host)).copied().unwrap_or(device))
    };
    w.live(0, 0, vec![s(None, &[(10, A), (11, B)])]);
    let pinned = [("medium", text("CPU_PINNED")), ("token_ids", list([])), ("block_size", int(0))];
    w.live(0, 1, vec![stored(None, &[10, 11], &[], 0, &pinned)]);
    w.live(0, 2, vec![r(&[11, 10])]);
    assert_eq!(depth(&mut w), (0, 2));
    w.live(0, 3, vec![s(None, &[(10, A)])]);
    assert_eq!(depth(&mut w), (1, 2));
    w.live(0, 4, vec![map(&[("type", text("TierBlocksCleared")), ("medium", text("GPU"))])]);
    assert_eq!(depth(&mut w), (0, 2));
    w.live(0, 5, vec![cleared()]);
    assert_eq!(depth(&mut w), (0, 0));
    w.live(0, 6, vec![with(None, &[(12, C)], &[("medium", text("HBM3X"))])]);
    assert!(w.lookup_all(&C, cumulative).is_empty());
    assert_eq!(w.count(0, "unknown_medium"), 1);
}

/// Input 9 with tokens written by `tokens`.
fn wire_drift(w: &mut World, tokens: impl Fn(&[u32]) -> Value, ab: &[u32], full: u32) {
    let digest = [&[0xee; 24][..], &0x0b_u64.to_be_bytes()].concat();
    let events = vec![
        stored(None, &[], &[], 4, &[("block_hashes", list([int(-1)])), ("token_ids", tokens(&ab[..5]))]),
        list([text("BlockPinned"), int(1)]),
        map(&[("type", text("BlockStored")), ("block_hashes", ints([77])), ("block_size", int(4))]),
        list([text("BlockStored"), list([bin(&digest)]), int(-1), tokens(&ab[4..]), int(4), nil(), text("GPU")]),
        r(&[404]),
    ];
    w.live(0, 7, events);
    assert_eq!(w.lookup(ab), [(0, full)]);
    assert_eq!(w.count(0, "decode_skipped_unknown_tag"), 1);
    assert_eq!(w.count(0, "decode_skipped_missing_field"), 1);
    assert_eq!(w.count(0, "unknown_removals"), 1);
    assert_eq!(w.status(0).cursor, Some(7));
    w.live(0, 8, vec![r(&[0x0b])]);
    assert_eq!(w.lookup(ab), [(0, 1)]);
    w.live(0, 9, vec![r(&[u64::MAX])]);
    assert!(w.lookup(ab).is_empty());
}

#[test]
fn input_9_wire_drift() {
    let plain = |tokens: &[u32]| ints(tokens.iter().take(4).map(|&t| u64::from(t)));
    let mut w = World::one();
    wire_drift(&mut w, plain, &cat(&[A, B]), 2);

    // Pairs: a block of 4 pairs covers 5 tokens, the last of which begins the next block.
    let pairs = |tokens: &[u32]| list(tokens.windows(2).map(|p| ints(p.iter().map(|&t| u64::from(t)))));
    let bigram = WorkerSpec { bigram: true, ..spec(4) };
    let mut w = World::new(&[bigram]);
    let nine: Vec<u32> = (1..=9).collect();
    wire_drift(&mut w, pairs, &nine, 2);
}

#[test]
fn input_10_repeated_tokens() {
    let mut w = World::one();
    w.live(0, 0, vec![s(None, &[(5, Q), (6, Q)])]);
    assert_eq!(w.lookup(&cat(&[Q, Q])), [(0, 2)]);
    assert_eq!(w.lookup(&cat(&[Q, Q, Q])), [(0, 2)]);
    w.live(0, 1, vec![s(Some(6), &[(6, Q)])]);
    assert_eq!(w.lookup(&cat(&[Q, Q, Q])), [(0, 2)]);
    assert_eq!((w.count(0, "self_parent"), w.status(0).cursor), (1, Some(1)));
}

#[test]
fn a_rank_that_was_never_heard_of_says_so() {
    let two = vec![RankEndpoint { rank: 3, events: "tcp://127.0.0.1:1".into(), replay: None }];
    let w = World::new(&[WorkerSpec { ranks: two, ..spec(4) }]);
    assert_eq!((w.status(0).trust, w.status(0).cursor), (Trust::NeverSeen, None));
}
