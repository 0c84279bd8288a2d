//! What decisions are measured on: a fleet whose caches share heads, and prompts of a chat service.
//!
//! Prompt lengths are log-normal with a median of 1,344 tokens and a 99th percentile of 8,288; prompts begin with one of a few heads
//! and go on with a text of their own, which later prompts may take up again. Everything comes from one seed.

use kvatlas_index::{ContentHash, EngineHash};
use kvatlas_service::wire::{ContentHasher, HashMode, Namespace, Prompt};
use rand::rngs::StdRng;
use rand::{Rng, RngExt, SeedableRng};
use std::collections::HashSet;

/// Median of a prompt's tokens.
const TOKENS_P50: f64 = 1344.0;
/// 99th percentile of a prompt's tokens.
const TOKENS_P99: f64 = 8288.0;
/// The 99th percentile of the standard normal distribution.
const NORMAL_P99: f64 = 2.326_347_874;
/// Shortest and longest prompt.
const TOKENS_RANGE: (f64, f64) = (64.0, 65_536.0);
/// Heads that prompts begin with, and their tokens.
const HEADS: usize = 16;
const HEAD_TOKENS: usize = 256;
/// Of ten prompts, so many go on with a text that is cached somewhere.
const KNOWN_IN_TEN: u32 = 7;

/// What the corpus is made of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CorpusSpec {
    /// Workers.
    pub workers: u32,
    /// Tokens in a block.
    pub block_size: usize,
    /// (worker, block) pairs, about.
    pub memberships: u64,
    /// Prompts to ask with.
    pub prompts: usize,
    /// Seed of everything.
    pub seed: u64,
}

/// A chain that one worker holds from its beginning.
#[derive(Clone, Debug)]
pub struct Held {
    /// The worker.
    pub worker: u32,
    /// Content hashes of its blocks.
    pub contents: Vec<ContentHash>,
    /// The engine's names of them.
    pub names: Vec<EngineHash>,
}

/// Fills caches until there are `spec.memberships` pairs, giving each chain to `hold`; returns the prompts to ask with.
pub fn build(spec: &CorpusSpec, mut hold: impl FnMut(Held)) -> Vec<Vec<u32>> {
    let mut random = StdRng::seed_from_u64(spec.seed);
    let heads: Vec<Vec<u32>> = (0..HEADS).map(|_| text(&mut random, HEAD_TOKENS)).collect();
    let mut texts = Vec::new();
    let (mut pairs, mut heads_held) = (0, HashSet::new());
    while pairs < spec.memberships {
        let head = random.random_range(0..HEADS);
        let mut tokens = heads[head].clone();
        let more = length(&mut random).saturating_sub(HEAD_TOKENS);
        tokens.extend(text(&mut random, more));
        let contents = hashes(&tokens, spec.block_size);
        let names = names(&contents);
        // One holder for most texts, some more for a few, as routing by prefix leaves them.
        let holders = 1 + u32::from(random.random_ratio(1, 4)) * random.random_range(1..4);
        let first = random.random_range(0..spec.workers);
        for worker in (0..holders.min(spec.workers)).map(|more| (first + more) % spec.workers) {
            // A head that the worker holds already is no further pair.
            let known = if heads_held.insert((worker, head)) { 0 } else { HEAD_TOKENS / spec.block_size };
            pairs += (contents.len() - known.min(contents.len())) as u64;
            hold(Held { worker, contents: contents.clone(), names: names.clone() });
        }
        texts.push(tokens);
    }
    (0..spec.prompts).map(|_| prompt(&mut random, &heads, &texts)).collect()
}

/// A text that goes on with something new, or one that is new from its head on.
fn prompt(random: &mut StdRng, heads: &[Vec<u32>], texts: &[Vec<u32>]) -> Vec<u32> {
    let wanted = length(random);
    let known = random.random_ratio(KNOWN_IN_TEN, 10);
    let source =
        if known { &texts[random.random_range(0..texts.len())] } else { &heads[random.random_range(0..HEADS)] };
    // At least a tenth of it is new.
    let kept = source.len().min(wanted - wanted / 10);
    let mut tokens = source[..kept].to_vec();
    let more = wanted - kept;
    tokens.extend(text(random, more));
    tokens
}

fn length(random: &mut StdRng) -> usize {
    let sigma = (TOKENS_P99 / TOKENS_P50).ln() / NORMAL_P99;
    let tokens = TOKENS_P50 * (sigma * normal(random)).exp();
    tokens.clamp(TOKENS_RANGE.0, TOKENS_RANGE.1) as usize
}

/// A standard normal number (Box and Muller).
fn normal(random: &mut StdRng) -> f64 {
    let (u, v): (f64, f64) = (random.random_range(f64::MIN_POSITIVE..1.0), random.random());
    (-2.0 * u.ln()).sqrt() * (std::f64::consts::TAU * v).cos()
}

fn text(random: &mut StdRng, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|_| random.next_u32() % 128_000).collect()
}

fn hashes(tokens: &[u32], block_size: usize) -> Vec<ContentHash> {
    let mut out = Vec::new();
    let prompt = Prompt { tokens, namespace: Namespace::NONE, items: &[] };
    ContentHasher::new(HashMode::Plain, block_size).prompt(&prompt, &mut out);
    out
}

/// Names as an engine gives them: each depends on all blocks before it.
fn names(contents: &[ContentHash]) -> Vec<EngineHash> {
    let chained = contents.iter().scan(0u64, |name, content| {
        *name = (*name ^ content.0).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
        Some(EngineHash(*name))
    });
    chained.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompts_have_the_lengths_of_a_chat_service_and_caches_the_wanted_size() {
        let spec = CorpusSpec { workers: 8, block_size: 16, memberships: 50_000, prompts: 20_000, seed: 7 };
        let (mut pairs, mut by_worker) = (0, [0; 8]);
        let prompts = build(&spec, |held| {
            pairs += held.contents.len() as u64;
            by_worker[held.worker as usize] += held.contents.len();
        });
        let mut lengths: Vec<usize> = prompts.iter().map(Vec::len).collect();
        lengths.sort_unstable();
        let (p50, p99) = (lengths[lengths.len() / 2] as f64, lengths[lengths.len() * 99 / 100] as f64);
        assert!((p50 / TOKENS_P50 - 1.0).abs() < 0.05, "{p50}");
        assert!((p99 / TOKENS_P99 - 1.0).abs() < 0.12, "{p99}");
        // Heads are told each time, and counted once for each worker.
        assert!((50_000..90_000).contains(&pairs), "{pairs}");
        assert!(by_worker.iter().all(|blocks| *blocks > 0), "{by_worker:?}");
    }

    #[test]
    fn one_seed_gives_one_corpus() {
        let spec = CorpusSpec { workers: 3, block_size: 16, memberships: 2_000, prompts: 5, seed: 11 };
        let mut chains = Vec::new();
        let first = build(&spec, |held| chains.push((held.worker, held.contents)));
        let mut again = Vec::new();
        assert_eq!(first, build(&spec, |held| again.push((held.worker, held.contents))));
        assert_eq!(chains, again);
    }
}
