//! A mock worker: an engine and its publisher.

use super::DemoError;
use super::encode::payload;
use super::engine::{Event, MockEngine};
use super::names::{Dialect, Namer};
use super::publisher::Publisher;
use super::random::Random;
use super::traffic::Turn;
use std::time::{SystemTime, UNIX_EPOCH};

/// One worker.
pub struct Worker {
    /// Its name.
    pub id: String,
    /// Its engine.
    pub engine: MockEngine,
    /// Where it publishes.
    pub publisher: Publisher,
    /// Batches handed to the publisher.
    pub batches: u64,
    /// Events in them.
    pub events: u64,
}

impl Worker {
    /// Starts worker `number` with a cache of so many blocks. Its kind follows from the number: of four, one speaks SGLang's
    /// wire, one vLLM's older one, two vLLM's present one; half of the vLLM engines have a random hash seed.
    pub async fn start(number: u16, blocks: usize, random: &mut Random) -> Result<Self, DemoError> {
        let (dialect, random_seed) = match number % 4 {
            0 => (Dialect::VllmMaps, false),
            1 => (Dialect::SglangMaps, false),
            2 => (Dialect::VllmArrays, true),
            _ => (Dialect::VllmMaps, true),
        };
        let namer = Namer::new(dialect, random_seed.then(|| random.next()));
        let engine = MockEngine::new(namer, blocks);
        let publisher = Publisher::bind(dialect).await?;
        let mut worker = Self { id: format!("{}-{number}", dialect.name()), engine, publisher, batches: 0, events: 0 };
        if let Some(batch) = worker.engine.start() {
            worker.publish(&batch).await;
        }
        Ok(worker)
    }

    /// Serves one request and publishes what comes of it.
    pub async fn serve(&mut self, turn: &Turn) {
        for batch in self.engine.step(turn) {
            self.publish(&batch).await;
        }
    }

    async fn publish(&mut self, batch: &[Event]) {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.batches += 1;
        self.events += batch.len() as u64;
        self.publisher.publish(payload(self.engine.dialect(), now.as_secs_f64(), batch)).await;
    }
}
