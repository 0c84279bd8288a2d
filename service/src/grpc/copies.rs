//! `EventService.GetSnapshot`: everything that the fleet holds, rank after rank, to a peer.
//!
//! One rank is in memory at a time, and no rank's feed waits for the reader: the state was cut before its first chunk is sent. A
//! reader that takes too long for a part is cut off, and goes on later where it was.

use super::admission::Admission;
use super::answers;
use super::error::ServiceError;
use super::proto;
use super::proto::snapshot_chunk::Part;
use super::relayed::event;
use crate::fleet::{Fleet, RankEntry, WorkerEntry};
use crate::ingest::Trust;
use crate::ops::Op;
use crate::replica::ChunksSum;
use crate::seed::Seed;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, mpsc};
use tonic::Status;

/// Parts that wait for a slow reader; each may be a chunk of `relay.snapshot_bytes_max`.
pub(super) const PARTS_READY_MAX: usize = 2;

/// What a peer asked for.
#[derive(Clone, Debug)]
pub(super) struct Wanted {
    /// Empty for all.
    model: String,
    resume: Option<proto::SnapshotResume>,
}

/// Checks a request.
pub(super) fn wanted(request: proto::GetSnapshotRequest) -> Result<Wanted, ServiceError> {
    let proto::GetSnapshotRequest { model, resume } = request;
    if resume.as_ref().is_some_and(|resume| resume.worker.is_empty()) {
        return Err(ServiceError::invalid("resume.worker", "required"));
    }
    Ok(Wanted { model, resume })
}

type Parts = mpsc::Sender<Result<proto::SnapshotChunk, Status>>;

/// Why a copy ended before its end.
enum Stop {
    /// The reader is gone.
    Gone,
    /// Something that the reader is told.
    Told(ServiceError),
}

/// Sends a copy. Ends early when the reader goes or stalls, or the service closes.
pub(super) async fn copy(
    fleet: Arc<Fleet>,
    wanted: Wanted,
    admission: Admission,
    place: OwnedSemaphorePermit,
    to: Parts,
) {
    let patience = fleet.relay().limits().snapshot_stall_max;
    let copy = Copy { fleet: &fleet, to: &to, patience };
    let stopped = tokio::select! {
        done = copy.all(&wanted) => done.err(),
        () = admission.closing().cancelled() => Some(Stop::Told(ServiceError::Draining)),
        () = to.closed() => None,
    };
    // Before the reader is told: it may never read that.
    drop(place);
    if let Some(Stop::Told(error)) = stopped {
        let _gone = to.send(Err(error.into())).await;
    }
}

struct Copy<'a> {
    fleet: &'a Fleet,
    to: &'a Parts,
    patience: Duration,
}

impl Copy<'_> {
    async fn all(&self, wanted: &Wanted) -> Result<(), Stop> {
        let view = self.fleet.view();
        let mut told = 0;
        for worker in view.workers() {
            let spec = &worker.registration.worker;
            if !wanted.model.is_empty() && spec.model != wanted.model {
                continue;
            }
            for rank in &worker.ranks {
                let here = (spec.id.as_str(), rank.rank);
                let resume = match &wanted.resume {
                    Some(resume) if here < (resume.worker.as_str(), resume.rank) => continue,
                    resume => resume.as_ref().filter(|resume| here == (resume.worker.as_str(), resume.rank)),
                };
                self.rank(worker, rank, resume).await?;
                told += 1;
            }
        }
        self.send(Part::All(proto::AllRanks { ranks: told })).await
    }

    async fn rank(
        &self,
        worker: &WorkerEntry,
        rank: &RankEntry,
        resume: Option<&proto::SnapshotResume>,
    ) -> Result<(), Stop> {
        let nothing = |trust| Part::Header(header(worker, rank, trust));
        let trust = rank.status.brief().trust;
        // What is known to be of no use is not told by its lane. Of events that are pushed no payload proves anything.
        if trust != Trust::Exact || rank.is_pushed() {
            return self.send(nothing(trust)).await;
        }
        // Held until the rank was sent: so many states are in memory at once.
        let _room = self.fleet.relay().snapshot_room().await;
        match tokio::time::timeout(self.patience, rank.seeds.tell()).await {
            Ok(Ok(seed)) if seed.cut.trust == Trust::Exact => {
                self.fleet.relay().note_copy();
                self.seed(worker, rank, seed, resume).await
            }
            Ok(Ok(seed)) => self.send(nothing(seed.cut.trust)).await,
            Ok(Err(_)) | Err(_) => self.send(nothing(rank.status.brief().trust)).await,
        }
    }

    async fn seed(
        &self,
        worker: &WorkerEntry,
        rank: &RankEntry,
        seed: Seed,
        resume: Option<&proto::SnapshotResume>,
    ) -> Result<(), Stop> {
        let cut = rank_cut(&seed);
        let chunks = seed.stores.into_parts();
        let first = resume.map_or(0, |resume| left_out(&chunks, resume));
        let whole = header(worker, rank, Trust::Exact);
        self.send(Part::Header(proto::RankHeader { cut: Some(cut), first_chunk: first as u32, ..whole })).await?;
        let (mut sum, mut blocks, count) = (ChunksSum::default(), 0, chunks.len() as u32);
        for (number, ops) in chunks.into_iter().enumerate() {
            sum.add(&ops);
            blocks += ops.iter().map(stored).sum::<u64>();
            if number >= first {
                let events = ops.iter().map(event).collect();
                self.send(Part::Chunk(proto::RankChunk { number: number as u32, events })).await?;
            }
        }
        self.send(Part::End(proto::RankEnd { chunks: count, blocks, checksum: sum.value() })).await
    }

    async fn send(&self, part: Part) -> Result<(), Stop> {
        let part = proto::SnapshotChunk { part: Some(part) };
        match tokio::time::timeout(self.patience, self.to.send(Ok(part))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_gone)) => Err(Stop::Gone),
            Err(_late) => Err(Stop::Told(ServiceError::CopyStalled { limit_ms: self.patience.as_millis() as u64 })),
        }
    }
}

/// How many of the first chunks the reader has already: all that it says, if they are still the same, or none.
fn left_out(chunks: &[Vec<Op>], resume: &proto::SnapshotResume) -> usize {
    let mut sum = ChunksSum::default();
    match chunks.get(..resume.chunks as usize) {
        Some(there) => there.iter().for_each(|chunk| sum.add(chunk)),
        None => return 0,
    }
    if sum.value() == resume.checksum { resume.chunks as usize } else { 0 }
}

fn header(worker: &WorkerEntry, rank: &RankEntry, trust: Trust) -> proto::RankHeader {
    proto::RankHeader {
        worker: Some(answers::worker_spec(&worker.registration)),
        rank: rank.rank,
        trust: answers::trust(trust).into(),
        ..proto::RankHeader::default()
    }
}

fn rank_cut(seed: &Seed) -> proto::RankCut {
    let proofs = seed.cut.proofs.iter();
    let proofs = proofs.map(|proof| proto::PayloadProof { sequence: proof.sequence, hash: proof.payload_hash });
    proto::RankCut {
        cursor: seed.cut.cursor,
        proofs: proofs.collect(),
        incarnation: seed.cut.incarnation,
        main_group: seed.learned.main_group,
        size_agrees: seed.learned.size_agrees,
        upper_bound: seed.learned.upper_bound,
    }
}

/// Blocks that an operation stores.
fn stored(op: &Op) -> u64 {
    if let Op::Store { names, .. } = op { names.len() as u64 } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvatlas_index::{EngineHash, Tier};

    fn chunk(name: u64) -> Vec<Op> {
        vec![Op::Remove { tier: Tier::Device, names: vec![EngineHash(name)] }]
    }

    #[test]
    fn a_copy_goes_on_only_behind_the_same_chunks() {
        let chunks: Vec<_> = (0..3).map(chunk).collect();
        let sum = |chunks: &[Vec<Op>]| {
            let mut sum = ChunksSum::default();
            chunks.iter().for_each(|chunk| sum.add(chunk));
            sum.value()
        };
        let resume = |chunks, checksum| proto::SnapshotResume { worker: "w".into(), rank: 0, chunks, checksum };
        assert_eq!(left_out(&chunks, &resume(0, sum(&[]))), 0);
        assert_eq!(left_out(&chunks, &resume(2, sum(&chunks[..2]))), 2);
        assert_eq!(left_out(&chunks, &resume(3, sum(&chunks))), 3);
        assert_eq!(left_out(&chunks, &resume(2, sum(&[chunk(0), chunk(9)]))), 0);
        assert_eq!(left_out(&chunks, &resume(4, sum(&chunks))), 0);
        assert_eq!(left_out(&chunks, &resume(u32::MAX, 0)), 0);
    }
}
