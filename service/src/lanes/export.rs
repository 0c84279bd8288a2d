//! Exports of a rank through its lane's queue, a step at a time, so that the lane's other ranks wait for no more than one step.

use super::handle::{Command, LaneError, RankLane};
use crate::ops::{Applied, Op, OpBatch};
use crate::relay::snapshot::{Chunks, SnapshotLimits};
use kvatlas_index::{Export, ExportError, Lane, RankSlot};
use tokio::sync::oneshot;

/// Units of one step: runs looked at or blocks told. Some hundred microseconds to about two milliseconds.
const STEP_UNITS: u32 = 1 << 15;

/// An export on its way between its caller and the lane.
pub(super) struct Step {
    chunks: Chunks,
    /// `None` before the first step.
    export: Option<Export>,
    done: bool,
}

impl Step {
    /// Goes on. Runs on the lane's thread.
    pub(super) fn go_on(mut self: Box<Self>, lane: &Lane, slot: RankSlot) -> Result<Box<Self>, ExportError> {
        let mut export = match self.export.take() {
            Some(export) => export,
            None => lane.export(slot)?,
        };
        self.done = lane.export_some(&mut export, STEP_UNITS, &mut |told| self.chunks.push(told))?;
        self.export = Some(export);
        Ok(self)
    }
}

/// The chunks of one rank's state, as they come.
pub struct RankExport {
    rank: RankLane,
    /// `None` when it has ended.
    step: Option<Box<Step>>,
    ready: std::vec::IntoIter<Vec<Op>>,
}

impl RankExport {
    /// The next chunk; `None` after the last one. At least one comes, an empty one of a rank that holds nothing. Takes as many
    /// steps of the lane as it needs. After an error the chunks so far are to be thrown away, and nothing more comes.
    pub async fn next(&mut self) -> Result<Option<Vec<Op>>, LaneError> {
        loop {
            if let Some(chunk) = self.ready.next() {
                return Ok(Some(chunk));
            }
            let Some(step) = self.step.take() else { return Ok(None) };
            let mut step = self.rank.export_step(step).await?;
            if step.done {
                self.ready = step.chunks.finish().into_iter();
            } else {
                self.ready = step.chunks.take_full().into_iter();
                self.step = Some(step);
            }
        }
    }
}

impl RankLane {
    /// Begins an export of what the rank holds and has parked, cut atomically: every batch applied before the first chunk is
    /// asked for is in it. The caller applies nothing to the rank until the last chunk has come; if it does, the export ends
    /// with [`LaneError::Changed`].
    pub fn export_chunks(&self, limits: SnapshotLimits) -> RankExport {
        let step = Box::new(Step { chunks: Chunks::new(limits), export: None, done: false });
        RankExport { rank: self.clone(), step: Some(step), ready: Vec::new().into_iter() }
    }

    /// The whole state of the rank as chunks: 16 bytes a block and some more for each operation. The rule of
    /// [`RankLane::export_chunks`] holds.
    pub async fn export(&self, limits: SnapshotLimits) -> Result<Vec<Vec<Op>>, LaneError> {
        let (mut export, mut all) = (self.export_chunks(limits), Vec::new());
        while let Some(chunk) = export.next().await? {
            all.push(chunk);
        }
        Ok(all)
    }

    /// Applies a chunk of an export to a rank that was freshly opened, or cleared, before the first one. Where this reports a
    /// limit of memory (`limit_reached` above 0) the rank was cleared: the import failed and is to be given up. Until the last
    /// chunk is applied, answers about the rank are not the exported one's.
    pub async fn import(&self, chunk: Vec<Op>) -> Result<Applied, LaneError> {
        self.apply(OpBatch { ops: chunk, ..OpBatch::default() }).await.map(|(applied, _)| applied)
    }

    async fn export_step(&self, step: Box<Step>) -> Result<Box<Step>, LaneError> {
        let (reply, answer) = oneshot::channel();
        self.send_export(|slot, generation| Command::Export { slot, generation, step, reply }).await?;
        answer.await.map_err(|_| LaneError::Stopped)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lanes::{LaneSettings, spawn_lanes};
    use kvatlas_index::{ContentHash, EngineHash, Index, IndexConfig, LookupOptions, RankKey, StoreKind, Tier};

    fn chain(number: u64, blocks: u64) -> Op {
        let names: Vec<_> = (0..blocks).map(|i| EngineHash(number * 10_000 + i)).collect();
        let contents = names.iter().map(|name| ContentHash(name.0 + 7)).collect();
        Op::Store { tier: Tier::Device, parent: None, names, contents, kind: StoreKind::Copy }
    }

    #[tokio::test]
    async fn chunks_make_the_same_rank_on_another_lane() {
        let config = IndexConfig { lanes_per_shard: 2, ..IndexConfig::default() };
        let (index, lanes) = Index::new(config).unwrap();
        let settings = LaneSettings { queue_batches_max: 4, look_ahead_batches: 2, spots: Vec::new() };
        let (handles, _threads) = spawn_lanes(lanes, settings).unwrap();
        let original = handles[0].open(RankKey(1), 1).await.unwrap();
        let limits = SnapshotLimits { blocks_max: 4096, bytes_max: 1 << 20 };
        assert_eq!(original.export(limits).await.unwrap(), [vec![]]);

        // More blocks than one step tells; a hole in the first chain, and an orphan.
        let mut ops: Vec<Op> = (0..70).map(|number| chain(number, 1_000)).collect();
        ops.push(Op::Remove { tier: Tier::Device, names: vec![EngineHash(3)] });
        ops.push(Op::Store {
            tier: Tier::Host,
            parent: Some(EngineHash(999_999)),
            names: vec![EngineHash(5)],
            contents: vec![ContentHash(5)],
            kind: StoreKind::Copy,
        });
        original.import(ops).await.unwrap();

        let mut export = original.export_chunks(limits);
        let first = export.next().await.unwrap().expect("several chunks");
        original.import(Vec::new()).await.unwrap();
        let mut chunks = vec![first];
        while let Some(chunk) = export.next().await.unwrap() {
            chunks.push(chunk);
        }
        let blocks = |op: &Op| if let Op::Store { names, .. } = op { names.len() } else { 0 };
        assert!(chunks.iter().all(|ops| ops.iter().map(blocks).sum::<usize>() <= 4096));
        assert!(chunks.len() >= 18, "{} chunks", chunks.len());

        let copy = handles[1].open(RankKey(2), 1).await.unwrap();
        let (mut stored, mut orphans) = (0, 0);
        for chunk in chunks {
            let applied = copy.import(chunk).await.unwrap();
            stored += applied.stored - applied.removed;
            orphans += applied.orphans;
        }
        assert_eq!((stored, orphans), (70_000 - 1, 1));
        for number in [0, 1, 69] {
            let Op::Store { contents, .. } = chain(number, 1_000) else { unreachable!() };
            let mut answer = Vec::new();
            let _ = index.reader().lookup(&contents, &LookupOptions::default(), &mut answer);
            let depths: Vec<u32> = answer.iter().map(|holder| holder.blocks).collect();
            assert_eq!(depths, if number == 0 { [3, 3] } else { [1_000, 1_000] });
        }

        let mut late = original.export_chunks(limits);
        late.next().await.unwrap();
        original.import(vec![chain(80, 1)]).await.unwrap();
        let ended = loop {
            match late.next().await {
                Ok(Some(_)) => {}
                ended => break ended,
            }
        };
        assert_eq!(ended.map(|chunk| chunk.map(|ops| ops.len())), Err(LaneError::Changed));
        assert_eq!(late.next().await.unwrap(), None);
        original.close().await.unwrap();
        assert_eq!(original.export(limits).await, Err(LaneError::Fenced { generation: 1 }));
    }
}
