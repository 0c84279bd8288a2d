//! A hot head replicates as far as loads want it to, and no further: a toy fleet in virtual time.

use super::tests::{Mode, Routed};
use super::*;
use crate::routing::load::RankLoad;
use crate::routing::testing::{BLOCK, Fleet, Prompt, seeded};
use kvatlas_index::ContentHash;
use rand::RngExt;
use std::collections::VecDeque;

const WORKERS: usize = 8;
const REQUESTS: u32 = 1_000;
const LASTS: Duration = Duration::from_secs(60);
/// Time that a request takes. A hot worker then has half of 267 requests, where the mean is 33 and the gate closes at 65: three
/// holders are below it.
const SERVED_IN: Duration = Duration::from_secs(16);
const HEAD_BLOCKS: usize = 32;

/// A prompt of 40 blocks, of which the hot ones share 32.
fn prompt(number: u32, hot: bool) -> Prompt {
    let mut prompt = Prompt::new(number + 10, 40 * u64::from(BLOCK));
    if hot {
        let head = Prompt::new(1, HEAD_BLOCKS as u64 * u64::from(BLOCK));
        prompt.contents.splice(..HEAD_BLOCKS, head.contents);
        prompt.token_ids.splice(..HEAD_BLOCKS * BLOCK as usize, head.token_ids);
    }
    prompt
}

/// Plays the traffic: how many requests each worker got, and who holds the head in the end.
fn play(mode: Mode, seed: u64) -> (Vec<u32>, Vec<Slot>) {
    let mut rng = seeded(seed);
    let mut routed = Routed::new(mode, Fleet::of(&[RankLoad::default(); WORKERS]));
    routed.fleet.settings.hash_mode.boundaries.iter_mut().for_each(|b| *b = HEAD_BLOCKS as u32 * BLOCK);
    let (start, mut reported) = (routed.fleet.now, Duration::ZERO);
    let (mut counts, mut running) = (vec![0; WORKERS], VecDeque::new());
    for number in 0..REQUESTS {
        routed.fleet.now = start + LASTS * number / REQUESTS;
        while let Some((at, slot)) = running.front().copied().filter(|(at, _)| *at + SERVED_IN <= routed.fleet.now) {
            routed.fleet.columns.ended(slot, at, u64::from(40 * BLOCK));
            running.pop_front();
        }
        if routed.fleet.now >= reported + Duration::from_secs(1) {
            reported = routed.fleet.now;
            for slot in 0..WORKERS as Slot {
                let requests = routed.fleet.columns.in_flight[slot as usize].into();
                let load =
                    RankLoad { running: requests, gen_throughput: 30.0 * requests as f64, ..RankLoad::default() };
                routed.fleet.record(slot, &[load]);
            }
        }
        let slot = routed.dispatch(&prompt(number, rng.random_bool(0.5)), &mut rng).slot;
        running.push_back((routed.fleet.now, slot));
        counts[slot as usize] += 1;
    }
    (counts, routed.holders(&prompt(REQUESTS, true)))
}

#[test]
fn ca11_replication_bound() {
    for mode in [Mode::Guesses, Mode::Heads] {
        for seed in 0..5 {
            let (counts, holders) = play(mode, seed);
            assert!((3..=4).contains(&holders.len()), "{mode:?}: {holders:?}, {counts:?}");
            let hottest = counts.iter().copied().max().unwrap_or(0);
            assert!(hottest * 100 <= 35 * REQUESTS, "{mode:?}: {counts:?}");
        }
    }
}

#[test]
fn hot_prompts_share_the_head_and_nothing_else() {
    let [one, two, cold] = [prompt(1, true), prompt(2, true), prompt(3, false)];
    let common = |a: &[ContentHash], b: &[ContentHash]| a.iter().zip(b).take_while(|(a, b)| a == b).count();
    assert_eq!((common(&one.contents, &two.contents), common(&one.contents, &cold.contents)), (HEAD_BLOCKS, 0));
    assert_eq!(one.token_ids[..512], two.token_ids[..512]);
    assert_ne!(one.token_ids[512..], two.token_ids[512..]);
}
