//! One batch as the relay keeps it.

use crate::ops::Op;

/// One life of a rank's stream, as the relay counts them: a new one begins whenever the rank was emptied without a batch that
/// says so (its publisher restarted, too much was lost, a memory limit). No two are equal, in any process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Life(pub u64);

/// A batch that was applied.
#[derive(Clone, PartialEq, Debug)]
pub struct Relayed {
    /// Its sequence, the publisher's own.
    pub sequence: u64,
    /// The publisher's time, Unix seconds.
    pub published_at: Option<f64>,
    /// What it came down to, in order.
    pub ops: Vec<Op>,
    /// Batches between the one before and this one were lost.
    pub lost_before: bool,
}

impl Relayed {
    /// Bytes that it takes in memory, near enough for a bound.
    pub fn bytes(&self) -> u64 {
        let ops: usize = self.ops.iter().map(op_bytes).sum();
        (size_of::<Self>() + ops) as u64
    }
}

/// Bytes of one operation in memory.
fn op_bytes(op: &Op) -> usize {
    let hashes = match op {
        Op::Store { names, contents, .. } => names.capacity() + contents.capacity(),
        Op::Adopt { names, .. } | Op::Remove { names, .. } => names.capacity(),
        Op::SetCopies { .. } | Op::Clear { .. } => 0,
    };
    size_of::<Op>() + hashes * size_of::<u64>()
}
