//! An engine whose cache fills and evicts by a rule, so that what it holds after any batch can be computed: the truth.
//!
//! Chain `c` has two blocks. It is stored with chain `c`'s turn, every seventh twice. [`HELD`] turns later one copy of its second block
//! is removed, and as many later everything that is left of it.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use super::common::BLOCK_SIZE;
use super::engine;
use super::publisher::Publisher;
use bytes::Bytes;

/// Turns for which a chain is whole.
pub const HELD: u32 = 500;
/// Turns of a batch; three events each, and one more of every seventh.
pub const TURNS: u32 = 5;
/// Batches that the publisher keeps for its replay.
pub const RING: usize = 5_000;

/// One publisher and where it is.
pub struct Traffic {
    pub publisher: Publisher,
    /// Differs between engines and between lives of one.
    pub life: u32,
    pub next: u32,
    /// Whether the replay has its first batch.
    pub whole: bool,
}

impl Traffic {
    pub async fn start(life: u32) -> Self {
        Self { publisher: Publisher::start().await, life, next: 0, whole: true }
    }

    /// The publisher's next life, at the same ports.
    pub async fn restart(self, life: u32) -> Self {
        let (events, replay) = (self.publisher.events.clone(), self.publisher.replay.clone());
        drop(self.publisher);
        Self { publisher: Publisher::start_at(&events, &replay).await, life, next: 0, whole: true }
    }

    fn payload(&mut self) -> Bytes {
        let batch = self.next;
        self.next += 1;
        let events = (batch * TURNS..(batch + 1) * TURNS).flat_map(|turn| turn_events(self.life, turn)).collect();
        engine::batch(f64::from(self.life) * 1e6 + f64::from(batch), events)
    }

    fn trim(&self) {
        let mut ring = self.publisher.ring.lock().unwrap();
        ring.oldest = ring.batches.len().saturating_sub(RING).max(usize::from(!self.whole));
    }

    pub async fn publish(&mut self) {
        let payload = self.payload();
        self.publisher.publish(payload).await;
        self.trim();
    }

    /// So many batches that are kept, but reach nobody.
    pub fn lose(&mut self, batches: u32) {
        for _ in 0..batches {
            let payload = self.payload();
            self.publisher.lose(payload);
        }
        self.trim();
    }

    /// From now on the replay does not reach back to the first batch: it alone makes nobody exact.
    pub fn forget_the_first(&mut self) {
        self.whole = false;
        self.trim();
    }

    /// Sequence of the newest batch.
    pub fn newest(&self) -> u64 {
        u64::from(self.next) - 1
    }

    /// A chain's tokens, and how many of its blocks a lookup finds after the newest batch.
    pub fn truth(&self) -> impl Iterator<Item = (Vec<u32>, u32)> + '_ {
        let turns = self.next * TURNS;
        let oldest = turns.saturating_sub(3 * HELD);
        (oldest..turns).map(move |chain| (tokens(self.life, chain), depth(chain, turns - 1 - chain)))
    }

    /// The worker as a flag.
    pub fn worker(&self, id: &str) -> String {
        let (events, replay) = (&self.publisher.events, &self.publisher.replay);
        format!("id={id},model={},block_size={BLOCK_SIZE},events={events},replay={replay}", super::common::MODEL)
    }
}

fn depth(chain: u32, age: u32) -> u32 {
    match age {
        _ if age < HELD => 2,
        _ if age >= 2 * HELD => 0,
        _ if chain.is_multiple_of(7) => 2,
        _ => 1,
    }
}

fn name(life: u32, chain: u32, block: u64) -> u64 {
    (u64::from(life) << 40) | (u64::from(chain) << 1) | block
}

fn tokens(life: u32, chain: u32) -> Vec<u32> {
    let first = life * 10_000_000 + chain * 2 * BLOCK_SIZE;
    (first..first + 2 * BLOCK_SIZE).collect()
}

fn turn_events(life: u32, turn: u32) -> Vec<engine::Value> {
    let names = |chain| [name(life, chain, 0), name(life, chain, 1)];
    let store = engine::stored(None, &names(turn), &tokens(life, turn), u64::from(BLOCK_SIZE), &[]);
    let twice = turn.is_multiple_of(7);
    let mut events = vec![store; 1 + usize::from(twice)];
    if let Some(old) = turn.checked_sub(HELD) {
        events.push(engine::removed(&[name(life, old, 1)], &[]));
    }
    if let Some(old) = turn.checked_sub(2 * HELD) {
        let [first, second] = names(old);
        let left = if old.is_multiple_of(7) { vec![first, first, second] } else { vec![first] };
        events.push(engine::removed(&left, &[]));
    }
    events
}
