//! The state of a rank, cut into chunks of operations.
//!
//! Promise: the operations of all chunks in order, applied to a freshly opened rank, make a rank that answers and goes on as
//! the exported one. A chunk has at most as many blocks and bytes as the limits say, but for one operation that is larger by
//! itself: those are never cut, since where a parked store ends has a meaning. Stores that go on behind each other become one
//! operation.
//!
//! Pure: what the index tells comes in, chunks go out. Not here: when a snapshot is taken, and what it is cut against.

use crate::ops::Op;
use kvatlas_index::{Exported, StoreKind};

/// Bytes of a block in a chunk: its name and its content.
const BLOCK_BYTES: usize = 16;
/// Bytes that an operation takes beside its blocks, about.
const OP_BYTES: usize = 32;

/// Settings of snapshots.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotLimits {
    /// `relay.snapshot_blocks_max`: names of one chunk.
    pub blocks_max: usize,
    /// `relay.snapshot_bytes_max`: bytes of one chunk, 16 for a block and 8 for a name alone.
    pub bytes_max: usize,
}

impl Default for SnapshotLimits {
    fn default() -> Self {
        Self { blocks_max: 4096, bytes_max: 1 << 20 }
    }
}

/// Chunks being filled.
#[derive(Debug)]
pub struct Chunks {
    limits: SnapshotLimits,
    ops: Vec<Op>,
    blocks: usize,
    bytes: usize,
    full: Vec<Vec<Op>>,
}

impl Chunks {
    /// No chunk yet.
    pub fn new(limits: SnapshotLimits) -> Self {
        Self { limits, ops: Vec::new(), blocks: 0, bytes: 0, full: Vec::new() }
    }

    /// Takes in what an export tells.
    pub fn push(&mut self, told: Exported<'_>) {
        let (blocks, bytes) = match told {
            Exported::Store { store, .. } => (store.names.len(), store.names.len() * BLOCK_BYTES + OP_BYTES),
            Exported::Copies { .. } => (1, OP_BYTES),
            Exported::Remove { names: [], .. } => return,
            Exported::Remove { names, .. } => (names.len(), names.len() * BLOCK_BYTES / 2 + OP_BYTES),
        };
        let full = self.blocks + blocks > self.limits.blocks_max || self.bytes + bytes > self.limits.bytes_max;
        if full && !self.ops.is_empty() {
            self.close();
        }
        self.blocks += blocks;
        self.bytes += bytes;
        if !self.ops.last_mut().is_some_and(|last| goes_on(last, &told)) {
            self.ops.push(op(told));
        }
    }

    /// Chunks that are full.
    pub fn take_full(&mut self) -> Vec<Vec<Op>> {
        std::mem::take(&mut self.full)
    }

    /// The last chunk with those that are full; at least one, if an empty one.
    pub fn finish(&mut self) -> Vec<Vec<Op>> {
        self.close();
        self.take_full()
    }

    fn close(&mut self) {
        self.full.push(std::mem::take(&mut self.ops));
        (self.blocks, self.bytes) = (0, 0);
    }
}

/// Adds to an operation what goes on behind it; whether it does.
fn goes_on(last: &mut Op, told: &Exported<'_>) -> bool {
    match (last, told) {
        (Op::Store { tier, names, contents, kind, .. }, Exported::Store { tier: of, store }) => {
            let follows = store.parent.is_some() && store.parent == names.last().copied();
            // Of parked stores nothing is known to be one: they stay as they were told.
            let held = *kind == StoreKind::Announce && store.kind == StoreKind::Announce;
            if !follows || !held || tier != of || names.last() == store.names.first() {
                return false;
            }
            names.extend_from_slice(store.names);
            contents.extend_from_slice(store.contents);
            true
        }
        (Op::Remove { tier, names }, Exported::Remove { tier: of, names: more }) if tier == of => {
            names.extend_from_slice(more);
            true
        }
        _ => false,
    }
}

fn op(told: Exported<'_>) -> Op {
    match told {
        Exported::Store { tier, store } => Op::Store {
            tier,
            parent: store.parent,
            names: store.names.to_vec(),
            contents: store.contents.to_vec(),
            kind: store.kind,
        },
        Exported::Copies { tier, name, left } => Op::SetCopies { tier, name, left },
        Exported::Remove { tier, names } => Op::Remove { tier, names: names.to_vec() },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kvatlas_index::{ContentHash, EngineHash, Store, Tier};

    fn push(chunks: &mut Chunks, parent: Option<u64>, names: std::ops::Range<u64>) {
        let contents: Vec<_> = names.clone().map(ContentHash).collect();
        let (parent, names): (_, Vec<_>) = (parent.map(EngineHash), names.map(EngineHash).collect());
        let store = Store { parent, names: &names, contents: &contents, kind: StoreKind::Announce };
        chunks.push(Exported::Store { tier: Tier::Device, store });
    }

    fn sizes(chunks: &[Vec<Op>]) -> Vec<Vec<usize>> {
        let size = |op: &Op| match op {
            Op::Store { names, .. } | Op::Remove { names, .. } => names.len(),
            _ => 0,
        };
        chunks.iter().map(|ops| ops.iter().map(size).collect()).collect()
    }

    #[test]
    fn chunks_end_at_their_limits_and_chains_become_one_store() {
        let mut chunks = Chunks::new(SnapshotLimits { blocks_max: 10, bytes_max: 1 << 20 });
        push(&mut chunks, None, 0..4);
        push(&mut chunks, Some(3), 4..8);
        push(&mut chunks, Some(5), 20..22);
        assert!(chunks.take_full().is_empty());
        push(&mut chunks, Some(21), 22..25);
        assert_eq!(sizes(&chunks.take_full()), [vec![8, 2]]);
        push(&mut chunks, None, 100..120);
        chunks.push(Exported::Remove { tier: Tier::Device, names: &[] });
        assert_eq!(sizes(&chunks.finish()), [vec![3], vec![20]]);
        assert_eq!(sizes(&chunks.finish()), [Vec::<usize>::new()]);

        let mut chunks = Chunks::new(SnapshotLimits { blocks_max: 1000, bytes_max: 3 * (2 * BLOCK_BYTES + OP_BYTES) });
        (0..7).for_each(|i| push(&mut chunks, None, i * 2..i * 2 + 2));
        assert_eq!(sizes(&chunks.finish()), [vec![2; 3], vec![2; 3], vec![2]]);
    }
}
