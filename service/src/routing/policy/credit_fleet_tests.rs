//! Bounded cache credit over a whole run: what it moves, and what that does to the fleet.

use super::{LeastLoad, Policy};
use crate::routing::settings::CreditMode;
use crate::routing::testing::{BLOCK, Prompt, seeded};
use crate::routing::toy::{PREFILL, Toy, ToyPrompt};
use crate::routing::trace::Trace;
use crate::routing::wait::Waits;
use rand::RngExt;
use std::time::Duration;

const WORKERS: usize = 8;
const REQUESTS: usize = 2000;
/// Heads of 4,096 tokens that requests share.
const HEADS: u32 = 40;
const HEAD_BLOCKS: u32 = 4096 / BLOCK;

/// A run's figures.
struct Run {
    requests: [u32; WORKERS],
    /// Whether the credit moved each request, or would have.
    moves: Vec<bool>,
    /// Requests for which some worker saves more than it is later than the least wait, even if the base holds nothing.
    worth: usize,
}

impl Run {
    /// 2,000 requests at 20 a second, 30% of which begin with one of the heads.
    fn new(mode: CreditMode, seed: u64) -> Self {
        // Arrivals have a generator of their own: the policy's draws do not change them.
        let (mut traffic, mut rng) = (seeded(seed), seeded(seed + 1000));
        let mut toy = Toy::new(WORKERS, HEADS as usize);
        toy.fleet.settings.credit.mode = mode;
        let (mut policy, mut waits) = (LeastLoad::default(), Waits::default());
        let mut run = Self { requests: [0; WORKERS], moves: Vec::new(), worth: 0 };
        for _ in 0..REQUESTS {
            toy.advance(Duration::from_micros(traffic.random_range(0..100_000)));
            let head = traffic.random_bool(0.3).then(|| traffic.random_range(0..HEADS));
            let tokens = if head.is_some() { 4608 } else { 1536 };
            let prompt = ToyPrompt { head, head_blocks: HEAD_BLOCKS, tokens };
            toy.look_up(prompt);
            run.worth += usize::from(is_worth(&toy, &mut waits));
            let request = Prompt { tokens: Some(tokens), ..Prompt::unknown() };
            let candidates = toy.fleet.candidates();
            let view = toy.fleet.view(&candidates);
            let pick = policy.pick(&view, &request.request(1), &mut rng, &mut Trace::off()).unwrap();
            run.moves.push(matches!(pick.detail, Some("moved" | "shadow_would_move")));
            run.requests[pick.slot as usize] += 1;
            toy.serve(pick.slot, prompt);
        }
        run
    }

    /// Requests of the worker that got most, as a multiple of the mean.
    fn imbalance(&self) -> f64 {
        let most = self.requests.iter().max().copied().unwrap_or(0);
        f64::from(most) * WORKERS as f64 / REQUESTS as f64
    }

    fn moved(&self, of_the_first: usize) -> usize {
        self.moves[..of_the_first].iter().filter(|moved| **moved).count()
    }
}

/// The net saving, by its definition.
fn is_worth(toy: &Toy, waits: &mut Waits) -> bool {
    let candidates = toy.fleet.candidates();
    waits.price(&toy.fleet.view(&candidates), &candidates);
    let least = waits.prices().iter().copied().fold(f64::INFINITY, f64::min);
    let mut workers = waits.prices().iter().zip(&toy.fleet.overlap.blocks);
    workers.any(|(wait, blocks)| f64::from(*blocks * BLOCK) / PREFILL - (wait - least) > 0.0)
}

#[test]
fn bc9_enforced_credit_does_not_dominate() {
    for seed in 0..5 {
        let (off, enforced) = (Run::new(CreditMode::Off, seed), Run::new(CreditMode::Enforce, seed));
        let moved = enforced.moved(REQUESTS);
        assert!(0 < moved && moved <= enforced.worth, "seed {seed}: {moved} moved, {} worth it", enforced.worth);
        let (is, was) = (enforced.imbalance(), off.imbalance());
        println!("seed {seed}: {moved} moved, {} worth it, max/mean {was:.3} -> {is:.3}", enforced.worth);
        assert!(is <= 1.15 * was, "seed {seed}: {is} against {was}");
    }
}

/// Over five runs together: in the first 200 requests of one there are a dozen moves, of which a tenth is one. Later the two runs have
/// other caches and differ by right.
#[test]
fn bc10_shadow_foretells_what_is_enforced() {
    let (mut foretold, mut moved) = (0, 0);
    for seed in 0..5 {
        let (shadow, enforced) = (Run::new(CreditMode::Shadow, seed), Run::new(CreditMode::Enforce, seed));
        let [s, e] = [&shadow, &enforced].map(|run| run.moved(200));
        println!(
            "seed {seed}: {s} foretold, {e} moved of 200; {} and {} of all",
            shadow.moved(REQUESTS),
            enforced.moved(REQUESTS)
        );
        foretold += s;
        moved += e;
    }
    assert!(moved > 0 && foretold.abs_diff(moved) * 10 <= moved, "{foretold} foretold, {moved} moved");
}
