//! A toy fleet in virtual time, for rows that need one: each worker computes prompts one after the other and decodes beside that, keeps
//! the prompts that it used last, and reports its load ten times a second. No two of its prompts share anything.

use super::columns::Slot;
use super::load::RankLoad;
use super::testing::{Fleet, rank};
use std::collections::VecDeque;
use std::time::Duration;

/// Prompt tokens that a worker computes in a second.
pub(crate) const PREFILL: f64 = 8000.0;
/// Tokens that a worker decodes in a second while it runs anything.
const DECODE: f64 = 200.0;
/// Time that a request takes from its first token to its last.
const ANSWER: Duration = Duration::from_millis(320);
/// Time between two records.
const RECORD: Duration = Duration::from_millis(100);

/// A prompt of the toy's traffic.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ToyPrompt {
    /// What it begins with, if that is kept.
    pub head: Option<u32>,
    /// Blocks of the head.
    pub head_blocks: u32,
    /// Tokens in all.
    pub tokens: u64,
}

#[derive(Clone, Copy, Debug)]
struct Job {
    prompt: ToyPrompt,
    dispatched_at: Duration,
    begins: Duration,
    first_token: Duration,
    uncached: u64,
    stored: bool,
}

#[derive(Clone, Debug, Default)]
struct Engine {
    free_at: Duration,
    jobs: Vec<Job>,
    /// Heads, the last used at the end.
    kept: VecDeque<(u32, u32)>,
}

/// The fleet: what routing knows of it, and what is so.
#[derive(Clone, Debug)]
pub(crate) struct Toy {
    pub fleet: Fleet,
    engines: Vec<Engine>,
    heads_max: usize,
    recorded_at: Duration,
}

impl Toy {
    /// Idle workers, each of which keeps so many heads.
    pub fn new(workers: usize, heads_max: usize) -> Self {
        let mut fleet = Fleet::of(&vec![rank(0, 0.0); workers]);
        fleet.columns.certified.fill(true);
        let recorded_at = fleet.now;
        Self { fleet, engines: vec![Engine::default(); workers], heads_max, recorded_at }
    }

    /// Lets time pass.
    pub fn advance(&mut self, by: Duration) {
        let until = self.fleet.now + by;
        while self.recorded_at + RECORD <= until {
            self.recorded_at += RECORD;
            self.run(self.recorded_at);
            for slot in 0..self.engines.len() as Slot {
                let load = self.engines[slot as usize].load(self.recorded_at);
                self.fleet.record(slot, &[load]);
            }
        }
        self.run(until);
    }

    /// Tells routing who holds how much of a prompt.
    pub fn look_up(&mut self, prompt: ToyPrompt) {
        self.fleet.overlap.reset(self.engines.len());
        for (engine, slot) in self.engines.iter().zip(0..) {
            self.fleet.overlap.credit(slot, engine.held(prompt));
        }
    }

    /// Gives a worker a request.
    pub fn serve(&mut self, slot: Slot, prompt: ToyPrompt) {
        let (now, heads_max) = (self.fleet.now, self.heads_max);
        self.fleet.columns.dispatched(now, slot, prompt.tokens, &self.fleet.settings.load);
        let engine = &mut self.engines[slot as usize];
        let held = engine.held(prompt);
        if held > 0 {
            engine.keep(prompt, heads_max);
        }
        let uncached = prompt.tokens - u64::from(held * super::testing::BLOCK);
        let begins = engine.free_at.max(now);
        let first_token = begins + Duration::from_secs_f64(uncached as f64 / PREFILL);
        engine.free_at = first_token;
        engine.jobs.push(Job { prompt, dispatched_at: now, begins, first_token, uncached, stored: held > 0 });
    }

    /// Empties a worker's cache.
    pub fn empty(&mut self, slot: Slot) {
        self.engines[slot as usize].kept.clear();
        self.fleet.columns.blocks[slot as usize] = 0;
    }

    /// Blocks that all workers hold.
    pub fn memberships(&self) -> u64 {
        self.fleet.columns.blocks.iter().sum()
    }

    fn run(&mut self, now: Duration) {
        self.fleet.now = now;
        for (engine, slot) in self.engines.iter_mut().zip(0..) {
            for at in 0..engine.jobs.len() {
                let job = engine.jobs[at];
                if job.first_token <= now && !job.stored {
                    engine.jobs[at].stored = true;
                    engine.keep(job.prompt, self.heads_max);
                }
            }
            let columns = &mut self.fleet.columns;
            engine.jobs.retain(|job| {
                let runs = job.first_token + ANSWER > now;
                if !runs {
                    columns.ended(slot, job.dispatched_at, job.prompt.tokens);
                }
                runs
            });
            columns.blocks[slot as usize] = engine.kept.iter().map(|(_, blocks)| u64::from(*blocks)).sum();
        }
    }
}

impl Engine {
    fn held(&self, prompt: ToyPrompt) -> u32 {
        let kept = self.kept.iter().find(|(head, _)| Some(*head) == prompt.head);
        kept.map_or(0, |(_, blocks)| *blocks)
    }

    fn keep(&mut self, prompt: ToyPrompt, heads_max: usize) {
        let Some(head) = prompt.head else { return };
        self.kept.retain(|(kept, _)| *kept != head);
        self.kept.push_back((head, prompt.head_blocks));
        if self.kept.len() > heads_max {
            self.kept.pop_front();
        }
    }

    fn load(&self, now: Duration) -> RankLoad {
        let waiting = self.jobs.iter().filter(|job| job.begins > now);
        let running = self.jobs.iter().filter(|job| job.begins <= now).count() as i64;
        RankLoad {
            waiting: waiting.clone().count() as i64,
            waiting_uncached_tokens: waiting.map(|job| job.uncached as i64).sum(),
            ..rank(running, if running > 0 { DECODE } else { 0.0 })
        }
    }
}
