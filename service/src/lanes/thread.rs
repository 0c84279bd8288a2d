//! The lane threads themselves.

use super::apply::apply;
use super::handle::{Command, LaneCounters, LaneError, LaneHandle};
use crate::ops::Op;
use crate::topology::{Spot, pin_current_thread};
use kvatlas_index::{Holder, Lane, RankSlot, Tier};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc as std_mpsc};
use std::thread::JoinHandle;
use tokio::sync::mpsc;
use tokio::sync::mpsc::error::TryRecvError;

/// Runs that an idle lane sweeps before it looks at its queue again: some microseconds.
const RUNS_SWEPT_IDLE: u32 = 256;

/// Settings of the lane threads.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LaneSettings {
    /// Messages that may wait in one lane's queue; the next sender waits.
    pub queue_batches_max: usize,
    /// Messages taken out of the queue beyond the one at work, so that the lane asks for the memory of their operations ahead of
    /// time; 0: it sees one message at a time. They count as taken: so many more senders get on.
    pub look_ahead_batches: usize,
    /// Where each lane runs, in the order of the lanes; those beyond the list run anywhere.
    pub spots: Vec<Option<Spot>>,
}

/// Starts one thread for each lane and waits until each has tried to pin itself. A thread ends when every handle of it is gone.
pub fn spawn_lanes(lanes: Vec<Lane>, settings: LaneSettings) -> io::Result<(Vec<LaneHandle>, Vec<JoinHandle<()>>)> {
    let mut handles = Vec::with_capacity(lanes.len());
    let mut threads = Vec::with_capacity(lanes.len());
    for (number, lane) in lanes.into_iter().enumerate() {
        let (sender, queue) = mpsc::channel(settings.queue_batches_max);
        let counters = Arc::new(LaneCounters::default());
        let spot = settings.spots.get(number).copied().flatten();
        let shard = lane.shard();
        let ahead = settings.look_ahead_batches;
        let state = LaneThread { lane, open: HashMap::new(), counters: counters.clone(), ahead };
        let (pinned_sender, pinned) = std_mpsc::channel();
        let thread = std::thread::Builder::new().name(format!("lane-{number}")).spawn(move || {
            // Before the first event: the first touch of memory decides its node where nothing else does.
            let _ = pinned_sender.send(pin_current_thread(spot));
            drop(pinned_sender);
            state.run(queue);
        })?;
        let pinned = pinned.recv().unwrap_or_default();
        handles.push(LaneHandle::new(number as u32, shard, pinned, sender, counters));
        threads.push(thread);
    }
    Ok((handles, threads))
}

struct LaneThread {
    lane: Lane,
    /// The slots that are open. The index uses them again.
    open: HashMap<RankSlot, OpenRank>,
    counters: Arc<LaneCounters>,
    /// Messages seen beyond the one at work.
    ahead: usize,
}

struct OpenRank {
    /// The generation under which the slot was opened: the fence.
    generation: u64,
    /// What the rank holds, for whoever asks.
    blocks: Arc<AtomicU64>,
}

/// The n-th operation of batches that wait.
fn operation(waiting: &VecDeque<Command>, mut n: usize) -> Option<(RankSlot, &Op)> {
    for command in waiting {
        if let Command::Apply { slot, batch, .. } = command {
            match batch.ops.get(n) {
                Some(op) => return Some((*slot, op)),
                None => n -= batch.ops.len(),
            }
        }
    }
    None
}

impl LaneThread {
    fn run(mut self, mut queue: mpsc::Receiver<Command>) {
        let mut waiting = VecDeque::with_capacity(self.ahead);
        while let Some(command) = waiting.pop_front().or_else(|| self.next(&mut queue)) {
            while waiting.len() < self.ahead
                && let Ok(next) = queue.try_recv()
            {
                waiting.push_back(next);
            }
            self.step(command, &waiting);
        }
    }

    /// The next command. While none waits, what cleared ranks held is swept out of memory.
    fn next(&mut self, queue: &mut mpsc::Receiver<Command>) -> Option<Command> {
        loop {
            match queue.try_recv() {
                Ok(command) => return Some(command),
                Err(TryRecvError::Disconnected) => return None,
                Err(TryRecvError::Empty) if self.lane.sweep(RUNS_SWEPT_IDLE) > 0 => {}
                Err(TryRecvError::Empty) => return queue.blocking_recv(),
            }
        }
    }

    /// Does one command; `waiting` comes next. An answer that nobody waits for any more is not an error.
    fn step(&mut self, command: Command, waiting: &VecDeque<Command>) {
        match command {
            Command::Open { key, generation, blocks, reply } => {
                let opened = self.lane.open_rank(key);
                if let Ok(slot) = opened {
                    self.open.insert(slot, OpenRank { generation, blocks });
                    if reply.send(opened).is_err() {
                        // The caller is gone, and with it the only way to ever close this rank.
                        self.forget(slot);
                    }
                } else {
                    let _ = reply.send(opened);
                }
            }
            Command::Close { slot, generation, reply } => {
                let closed = self.check(slot, generation).and_then(|()| {
                    self.open.remove(&slot);
                    self.lane.close_rank(slot).map_err(LaneError::from)
                });
                let _ = reply.send(closed);
            }
            Command::Apply { slot, generation, batch, reply } => {
                let later = (self.ahead > 0).then_some(|n| operation(waiting, n));
                if batch.ops.iter().any(Op::is_beyond_device) {
                    // The index publishes what is applied after this with a Release of its own.
                    self.counters.beyond_device.fetch_add(1, Ordering::Relaxed);
                }
                let applied = self.check(slot, generation).map(|()| apply(&mut self.lane, slot, &batch, later));
                if let Ok(applied) = &applied {
                    self.counters.batches.fetch_add(1, Ordering::Relaxed);
                    self.counters.ops.fetch_add(batch.ops.len() as u64, Ordering::Relaxed);
                    self.counters.limit_reached.fetch_add(applied.limit_reached, Ordering::Relaxed);
                    self.tell_blocks(slot);
                }
                let _ = reply.send(applied.map(|applied| (applied, batch)));
            }
            Command::Export { slot, generation, step, reply } => {
                let gone_on = self.check(slot, generation).and_then(|()| {
                    // An export neither waits nor changes anything: the rank was there, so it changed since the last step.
                    step.go_on(&self.lane, slot).map_err(|_| LaneError::Changed)
                });
                let _ = reply.send(gone_on);
            }
        }
    }

    /// Says what a rank holds now, over its tiers. Nothing else changes it but batches, and the end.
    fn tell_blocks(&self, slot: RankSlot) {
        if let Some(rank) = self.open.get(&slot) {
            let tiers = Tier::ALL.into_iter();
            let held = tiers.map(|tier| self.lane.held(Holder { rank: slot, tier })).sum();
            rank.blocks.store(held, Ordering::Relaxed);
        }
    }

    fn check(&self, slot: RankSlot, generation: u64) -> Result<(), LaneError> {
        if self.open.get(&slot).is_some_and(|rank| rank.generation == generation) {
            return Ok(());
        }
        self.counters.fenced.fetch_add(1, Ordering::Relaxed);
        Err(LaneError::Fenced { generation })
    }

    fn forget(&mut self, slot: RankSlot) {
        self.open.remove(&slot);
        if let Err(error) = self.lane.close_rank(slot) {
            tracing::error!(%error, "a rank that was just opened cannot be closed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ops::OpBatch;
    use kvatlas_index::{ContentHash, EngineHash, Index, IndexConfig, LookupOptions, RankKey, StoreKind};

    fn store(names: &[u64]) -> OpBatch {
        OpBatch {
            ops: vec![Op::Store {
                tier: Tier::Device,
                parent: None,
                names: names.iter().map(|n| EngineHash(*n)).collect(),
                contents: names.iter().map(|n| ContentHash(n + 100)).collect(),
                kind: StoreKind::Copy,
            }],
            ..OpBatch::default()
        }
    }

    fn depth(index: &Arc<Index>, query: &[u64]) -> u32 {
        let query: Vec<_> = query.iter().map(|q| ContentHash(q + 100)).collect();
        let mut out = Vec::new();
        let _ = index.reader().lookup(&query, &LookupOptions::default(), &mut out);
        out.iter().map(|h| h.blocks).max().unwrap_or(0)
    }

    #[tokio::test]
    async fn late_messages_of_a_closed_rank_do_nothing() {
        let (index, lanes) = Index::new(IndexConfig::default()).unwrap();
        let (handles, threads) =
            spawn_lanes(lanes, LaneSettings { queue_batches_max: 4, look_ahead_batches: 2, spots: Vec::new() })
                .unwrap();
        let first = handles[0].open(RankKey(0), 1).await.unwrap();
        assert_eq!(first.apply(store(&[1, 2, 3])).await.unwrap().0.stored, 3);
        assert_eq!((depth(&index, &[1, 2, 3]), first.blocks()), (3, 3));
        assert_eq!(first.close().await.unwrap().blocks, 3);
        assert_eq!(depth(&index, &[1, 2, 3]), 0);

        assert_eq!(first.apply(store(&[1])).await, Err(LaneError::Fenced { generation: 1 }));
        let second = handles[0].open(RankKey(0), 2).await.unwrap();
        assert_eq!(first.apply(store(&[1])).await, Err(LaneError::Fenced { generation: 1 }));
        assert_eq!(first.close().await, Err(LaneError::Fenced { generation: 1 }));
        assert_eq!(depth(&index, &[1]), 0);
        assert_eq!(second.apply(store(&[1])).await.unwrap().0.stored, 1);
        assert_eq!(LaneCounters::read(&handles[0].counters().fenced), 3);

        drop((first, second, handles));
        threads.into_iter().for_each(|t| t.join().unwrap());
    }

    #[tokio::test]
    async fn a_lane_that_sees_its_queue_applies_it_in_order() {
        for look_ahead_batches in [0, 2, 64] {
            let (index, lanes) = Index::new(IndexConfig::default()).unwrap();
            let settings = LaneSettings { queue_batches_max: 8, look_ahead_batches, spots: Vec::new() };
            let (handles, threads) = spawn_lanes(lanes, settings).unwrap();
            let rank = handles[0].open(RankKey(0), 1).await.unwrap();
            let remove = |name| OpBatch {
                ops: vec![Op::Remove { tier: Tier::Device, names: vec![EngineHash(name)] }],
                ..OpBatch::default()
            };
            let (a, b, c, d, e) = tokio::join!(
                rank.apply(store(&[1, 2, 3])),
                rank.apply(remove(3)),
                rank.apply(remove(3)),
                rank.apply(store(&[1, 2, 3])),
                rank.apply(remove(2)),
            );
            assert_eq!((a.unwrap().0.stored, b.unwrap().0.removed, c.unwrap().0.unknown_removals), (3, 1, 1));
            assert_eq!((d.unwrap().0.stored, e.is_ok()), (1, true));
            assert_eq!(depth(&index, &[1, 2, 3]), 3, "block 2 has a copy left");
            drop((rank, handles));
            threads.into_iter().for_each(|t| t.join().unwrap());
        }
    }

    #[tokio::test]
    async fn refused_operations_cost_only_themselves() {
        let (index, lanes) = Index::new(IndexConfig::default()).unwrap();
        // A core that is not there: the lane works unpinned, and its handle says so.
        let missing = Spot { core: 1000, node: None };
        let settings = LaneSettings { queue_batches_max: 1, look_ahead_batches: 0, spots: vec![Some(missing)] };
        let (handles, _threads) = spawn_lanes(lanes, settings).unwrap();
        assert_eq!(handles[0].pinned(), crate::topology::Pinned::Refused(missing));
        let rank = handles[0].open(RankKey(7), 1).await.unwrap();
        let mut batch = store(&[1]);
        batch.ops.push(Op::Store {
            tier: Tier::Device,
            parent: Some(EngineHash(9)),
            names: vec![EngineHash(9)],
            contents: vec![ContentHash(9)],
            kind: StoreKind::Copy,
        });
        batch.ops.push(Op::Remove { tier: Tier::Device, names: vec![EngineHash(404)] });
        batch.ops.extend(store(&[2]).ops);
        let (applied, _) = rank.apply(batch).await.unwrap();
        assert_eq!((applied.self_parent, applied.unknown_removals, applied.stored), (1, 1, 2));
        assert_eq!(depth(&index, &[2]), 1);
    }
}
