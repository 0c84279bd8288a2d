//! Recorded payloads, damaged in every way that a seeded generator thinks of, never panic and never lose their bounds.

#![allow(clippy::unwrap_used, reason = "tests, helpers among them, say with a panic what went wrong")]

mod exercise;
mod recorded;

use recorded::{Kind, messages, paths};

const SEED: u64 = 0x0005_eed0_fa11_b17e;
const MUTATIONS: usize = 60_000;

/// SplitMix64: small, seeded, good enough to damage bytes.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }
}

/// Payloads of at most 4 KiB, some of each recording, so that every encoding and version is among them.
fn seeds() -> Vec<Vec<u8>> {
    let mut out = Vec::new();
    for path in paths() {
        let payloads: Vec<Vec<u8>> = messages(&path)
            .into_iter()
            .filter(|m| m.kind == Kind::Live && m.frames[2].len() <= 4096)
            .map(|mut m| m.frames.swap_remove(2))
            .collect();
        out.extend(payloads.iter().step_by((payloads.len() / 12).max(1)).cloned());
    }
    assert!(out.len() > 200, "{} seeds", out.len());
    out
}

/// Markers that begin long or nested values, and the edges of small ones.
const MARKERS: [u8; 20] = [
    0x00, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0, 0xbf, 0xc0, 0xc1, 0xc4, 0xc6, 0xc9, 0xcb, 0xcf, 0xd3, 0xdb, 0xdd, 0xdf,
    0xff,
];

fn mutate(bytes: &mut Vec<u8>, other: &[u8], random: &mut Random) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        let len = random.below(24).min(bytes.len() - at);
        match random.below(8) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => bytes[at] = MARKERS[random.below(MARKERS.len())],
            3 => bytes.truncate(at),
            4 => drop(bytes.drain(at..at + len)),
            5 => {
                let copy = bytes[at..at + len].to_vec();
                let to = random.below(bytes.len());
                bytes.splice(to..to, copy);
            }
            6 => bytes.insert(at, MARKERS[random.below(MARKERS.len())]),
            _ => {
                let from = random.below(other.len());
                let piece = &other[from..(from + 64).min(other.len())];
                bytes.splice(at..at + len, piece.iter().copied());
            }
        }
    }
}

#[test]
fn damaged_payloads_keep_every_promise() {
    println!("seed {SEED:#x}, {MUTATIONS} mutations");
    let seeds = seeds();
    let mut random = Random(SEED);
    let (mut readable, mut events) = (0, 0);
    for round in 0..MUTATIONS {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        let other = &seeds[random.below(seeds.len())];
        mutate(&mut bytes, other, &mut random);
        let read = std::panic::catch_unwind(|| exercise::any_bytes(&bytes));
        let read = read.unwrap_or_else(|_| panic!("round {round}: {bytes:02x?}"));
        readable += usize::from(read > 0);
        events += read;
    }
    println!("{readable} still readable, {events} events");
    // A generator whose output is all refused at the door would test nothing behind it.
    assert!(readable > MUTATIONS / 10, "{readable} of {MUTATIONS} readable");
}

#[test]
fn undamaged_payloads_keep_every_promise() {
    assert!(seeds().iter().map(|s| exercise::any_bytes(s)).sum::<usize>() > 200);
}
