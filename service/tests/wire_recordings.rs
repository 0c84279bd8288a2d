//! Every payload of every recorded stream decodes without a skip, and counting its hashes gives the engine's own table.

#![allow(clippy::unwrap_used, reason = "tests, helpers among them, say with a panic what went wrong")]

mod recorded;

use kvatlas_service::wire::{
    DecodeLimits, Event, FrameLimits, ReplayReply, WireHash, decode_batch, parse_live, parse_replay,
};
use recorded::{Kind, messages, paths, sidecar};
use std::collections::{BTreeMap, HashMap};

/// Payloads by (publisher, incarnation), then by sequence: live and replayed together.
type Streams = BTreeMap<(usize, u64), BTreeMap<u64, Vec<u8>>>;

/// Reads a recording's frames. Replayed payloads must equal the live ones, and every replay must end with its marker.
fn streams(path: &std::path::Path) -> Streams {
    let limits = FrameLimits::default();
    let mut out = Streams::new();
    let mut open_replays = 0;
    for m in messages(path) {
        let stream = out.entry((m.publisher, m.incarnation)).or_default();
        let (sequence, payload) = match m.kind {
            Kind::Live => {
                let live = parse_live(&m.frames, &limits).unwrap();
                (live.sequence, live.payload)
            }
            Kind::Replay => match parse_replay(&m.frames, &limits).unwrap() {
                ReplayReply::Batch { sequence, payload } => (sequence, payload),
                ReplayReply::End => {
                    open_replays += 1;
                    continue;
                }
            },
        };
        if let Some(before) = stream.insert(sequence, payload.to_vec()) {
            assert_eq!(before, payload, "{}: sequence {sequence} differs", path.display());
        }
    }
    assert!(open_replays >= out.len(), "{}: a replay without an end", path.display());
    out
}

/// `{"GPU/0": {hash in hex: copies}}`, as sidecars write it.
type Table = HashMap<String, HashMap<String, i64>>;

fn hex(hash: WireHash<'_>) -> String {
    match hash {
        WireHash::Int(bits) => format!("{bits:016x}"),
        WireHash::Digest(bytes) => bytes.iter().map(|b| format!("{b:02x}")).collect(),
    }
}

fn apply(table: &mut Table, event: &Event<'_>) {
    let (hashes, medium, group, by) = match event {
        Event::Stored(s) => (s.hashes, s.medium, s.group, 1),
        Event::Removed(r) => (r.hashes, r.medium, r.group, -1),
        Event::Cleared(_) => return table.clear(),
    };
    let key = format!("{}/{}", medium.unwrap_or("GPU"), group.unwrap_or(0));
    let tier = table.entry(key).or_default();
    for hash in hashes.wire().map(hex) {
        let copies = tier.entry(hash.clone()).or_default();
        *copies += by;
        if *copies <= 0 {
            tier.remove(&hash);
        }
    }
}

fn truth(checkpoint: &serde_json::Value) -> Table {
    let live: Table = serde_json::from_value(checkpoint["live"].clone()).unwrap();
    live.into_iter().filter(|(_, hashes)| !hashes.is_empty()).collect()
}

#[test]
fn every_recorded_payload_decodes_to_the_engines_own_table() {
    let (mut payloads, mut events, mut checkpoints, mut equal) = (0, 0, 0, 0);
    for path in paths() {
        let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let streams = streams(&path);
        let side = sidecar(&path);
        for life in side["incarnations"].as_array().unwrap() {
            for (publisher, rank) in life["ranks"].as_array().unwrap().iter().enumerate() {
                let stream = &streams[&(publisher, life["incarnation"].as_u64().unwrap())];
                let mut table = Table::new();
                let mut next = 0;
                for checkpoint in rank["checkpoints"].as_array().unwrap() {
                    let published = checkpoint["published"].as_u64().unwrap();
                    for sequence in next..published {
                        let batch = decode_batch(&stream[&sequence], &DecodeLimits::default()).unwrap();
                        assert_eq!(batch.skipped, [], "{name} sequence {sequence}");
                        assert_eq!(batch.rank, Some(publisher as u32), "{name} sequence {sequence}");
                        assert!(batch.timestamp.is_some_and(|t| t > 1e9), "{name} sequence {sequence}");
                        batch.events.iter().for_each(|e| apply(&mut table, e));
                        payloads += 1;
                        events += batch.events.len();
                    }
                    next = published;
                    checkpoints += 1;
                    table.retain(|_, hashes| !hashes.is_empty());
                    // Two cases that the wire cannot know: a clear not yet published, and re-announced blocks.
                    let unpublished = checkpoint["unpublished_events"].as_u64().unwrap_or(0) > 0;
                    let reannounced = name == "vllm-full-report";
                    if truth(checkpoint) == table {
                        equal += 1;
                    } else {
                        assert!(unpublished || reannounced, "{name} checkpoint at {next}: tables differ");
                    }
                }
            }
        }
    }
    println!("{payloads} payloads, {events} events, tables equal at {equal} of {checkpoints} checkpoints");
    assert!(payloads >= 2041 && events >= 10_471, "{payloads} payloads, {events} events");
    // 31 of the stream in report mode `full`, 3 with an unpublished clear.
    assert!(checkpoints - equal <= 34, "equal at {equal} of {checkpoints}");
}

#[test]
fn batches_beyond_the_last_checkpoint_decode_too() {
    let mut count = 0;
    for path in paths() {
        for payload in streams(&path).values().flat_map(BTreeMap::values) {
            let batch = decode_batch(payload, &DecodeLimits::default()).unwrap();
            assert_eq!(batch.skipped_count(), 0);
            count += batch.events.len();
        }
    }
    assert!(count >= 10_471, "{count} events");
}
