//! What the lease asks about workers, answered by the fleet and the index.

use super::leases::Workers;
use super::proof::IndexEvidence;
use super::record::Partition;
use super::target::Sequences;
use crate::fleet::{Fleet, RankEntry, WorkerEntry};
use crate::ingest::Trust;
use crate::lookup::{LookupEngine, Prompt, Question, RankChoice, Row, TierSet};
use kvatlas_index::Residency;
use std::sync::Arc;

/// The workers of this service. A pool is a routing group.
pub struct IndexedWorkers {
    fleet: Arc<Fleet>,
    engine: Arc<LookupEngine>,
}

impl IndexedWorkers {
    /// Answers from this fleet and its index.
    pub fn new(fleet: Arc<Fleet>, engine: Arc<LookupEngine>) -> Self {
        Self { fleet, engine }
    }

    fn worker(&self, partition: &Partition, worker: &str) -> Option<Arc<WorkerEntry>> {
        let entry = self.fleet.view().worker(worker).ok()?.clone();
        let registered = &entry.registration.worker;
        let belongs = (&registered.model, &registered.routing_group) == (&partition.model, &partition.pool);
        belongs.then_some(entry)
    }
}

impl Workers for IndexedWorkers {
    fn present(&self, partition: &Partition, worker: &str) -> Option<(u64, u64, Sequences)> {
        let entry = self.worker(partition, worker)?;
        // The first message of a rank begins no other life than the one that was there without it.
        let lives = entry.ranks.iter().map(|rank| rank.status.full().incarnation.max(1));
        let lives = lives.fold(0_u64, u64::saturating_add);
        Some((entry.generation, lives, applied(&entry)))
    }

    fn evidence(&self, partition: &Partition, worker: &str, blocks: &[u64]) -> Option<IndexEvidence> {
        let entry = self.worker(partition, worker)?;
        // Before the lookup: what it shows is at least as new.
        let sequences = applied(&entry);
        let question = Question {
            model: partition.model.clone(),
            routing_group: partition.pool.clone(),
            prompt: Prompt::ContentHashes(blocks.to_vec()),
            holders: vec![RankChoice { worker: worker.into(), rank: None }],
            tiers: TierSet::ALL,
            residency: Residency::Cumulative,
            max_holders: 0,
            include_vetoed: true,
        };
        let answer = self.engine.lookup(&question).ok()?;
        let whole = |row: &Row| row.blocks as usize >= blocks.len() && row.trust == Trust::Exact;
        let holds = !blocks.is_empty() && answer.rows.iter().any(whole);
        let exact = !answer.busy && entry.ranks.iter().all(|rank| rank.status.brief().trust == Trust::Exact);
        Some(IndexEvidence { holds, exact, sequences })
    }

    fn has_partition(&self, partition: &Partition) -> bool {
        self.fleet.view().group(&partition.model, &partition.pool).is_ok()
    }
}

/// Batches applied of each rank.
fn applied(entry: &WorkerEntry) -> Sequences {
    let cursor = |rank: &Arc<RankEntry>| rank.status.full().cursor.map_or(0, |at| at.saturating_add(1));
    Sequences(entry.ranks.iter().map(cursor).collect())
}
