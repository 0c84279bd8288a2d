//! A recorded publisher's batches, life by life, and what a clean reading of them gives.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use crate::engine::{World, spec};
use crate::recorded;
use bytes::Bytes;
use kvatlas_index::{EngineHash, Tier};
use kvatlas_service::ingest::{Engine, Trust, WorkerSpec};
use std::collections::BTreeMap;
use std::path::Path;

pub const TIERS: [Tier; 4] = [Tier::Device, Tier::Host, Tier::Disk, Tier::External];

/// What the holders of a rank have: names with their copies, by tier.
pub type Holdings = Vec<Vec<(EngineHash, u64)>>;

/// One publisher's batches, life by life.
pub struct Stream {
    pub spec: WorkerSpec,
    pub lives: Vec<Vec<Bytes>>,
}

impl Stream {
    /// The first publisher of a recording. What it sent before anybody listened is in the recorded replays.
    pub fn read(path: &Path) -> Self {
        let sidecar = recorded::sidecar(path);
        let meta = &sidecar["incarnations"][0]["ranks"][0]["meta"];
        let engine = if meta["engine"] == "vllm" { Engine::Vllm } else { Engine::Sglang };
        let spec = WorkerSpec { engine, ..spec(meta["block_size"].as_u64().unwrap() as u32) };
        let mut lives: BTreeMap<u64, BTreeMap<u64, Bytes>> = BTreeMap::new();
        for message in recorded::messages(path).into_iter().filter(|m| m.publisher == 0) {
            let [.., sequence, payload] = &message.frames[..] else { continue };
            let Ok(sequence) = sequence[..].try_into().map(u64::from_be_bytes) else { continue };
            if sequence != u64::MAX {
                lives.entry(message.incarnation).or_default().insert(sequence, payload.clone().into());
            }
        }
        let lives = lives.into_values().map(|life| {
            assert!(life.keys().copied().eq(0..life.len() as u64), "{}: whole", path.display());
            life.into_values().collect()
        });
        Self { spec, lives: lives.collect() }
    }

    /// What a clean reading of the last life gives.
    pub fn truth(&self) -> Holdings {
        let mut world = World::new(std::slice::from_ref(&self.spec));
        for (sequence, payload) in (0..).zip(self.lives.last().unwrap()) {
            world.live_payload(0, sequence, payload.clone());
        }
        assert_eq!(world.status(0).trust, Trust::Exact);
        TIERS.map(|tier| sorted(world.names(0, tier))).to_vec()
    }
}

pub fn sorted(mut names: Vec<(EngineHash, u64)>) -> Vec<(EngineHash, u64)> {
    names.sort_unstable();
    names
}
