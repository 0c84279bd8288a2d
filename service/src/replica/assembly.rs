//! One copy's pieces, checked and put together rank by rank.
//!
//! Everything that a peer says is checked against itself: order of ranks, numbers of chunks, blocks and checksum at the end. What
//! does not fit is a [`Misfit`], and the peer is not asked again. Whether a rank that fits is the publisher's is not judged here.

use super::checksum::ChunksSum;
use crate::ingest::Trust;
use crate::ops::Op;
use crate::seed::{Cut, Identity, Learned, Seed, Stores};

/// A rank as a copy announces it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RankHead {
    /// Whose rank it is.
    pub identity: Identity,
    /// How far the peer believes it.
    pub trust: Trust,
    /// Where its state was cut; `None` where none follows.
    pub cut: Option<Cut>,
    /// What goes with the state.
    pub learned: Learned,
    /// Number of the chunk that comes first.
    pub first_chunk: u32,
}

/// A part of a copy.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Piece {
    /// A rank begins.
    Head(Box<RankHead>),
    /// A chunk of its state.
    Chunk {
        /// Its number.
        number: u32,
        /// Its operations.
        ops: Vec<Op>,
    },
    /// The rank is complete.
    End {
        /// Chunks of it.
        chunks: u32,
        /// Blocks that they store.
        blocks: u64,
        /// Their checksum.
        checksum: u64,
    },
    /// Every rank was told.
    All {
        /// How many.
        ranks: u32,
    },
}

/// How far a copy came: where another one may go on.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Resume {
    /// The worker whose rank was being told.
    pub worker: String,
    /// That rank.
    pub rank: u32,
    /// Chunks of it that are here.
    pub chunks: u32,
    /// Their checksum.
    pub checksum: u64,
}

/// What does not fit together in a copy.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Misfit {
    /// A rank begins before the one before is complete.
    #[error("a rank begins before the one before it is complete")]
    Unfinished,
    /// Ranks do not come in order, or come twice.
    #[error("ranks are out of order")]
    Order,
    /// A chunk or an end where no rank's state is being told.
    #[error("a part of no rank")]
    NoRank,
    /// A chunk has another number than the next.
    #[error("chunk {got} in the place of chunk {expected}")]
    Number {
        /// The next.
        expected: u32,
        /// What came.
        got: u32,
    },
    /// A state of a rank that is not exact.
    #[error("a state of a rank that is not exact")]
    State,
    /// The end counts otherwise.
    #[error("the end counts other chunks or blocks than came")]
    Count,
    /// The checksum is another.
    #[error("the checksum does not fit")]
    Checksum,
    /// Operations that no state consists of.
    #[error("an operation that is no part of a state")]
    Operation,
}

impl Misfit {
    /// The reason in the counters.
    pub const fn label(self) -> &'static str {
        match self {
            Misfit::Unfinished => "misfit_unfinished",
            Misfit::Order => "misfit_order",
            Misfit::NoRank => "misfit_no_rank",
            Misfit::Number { .. } => "misfit_number",
            Misfit::State => "misfit_state",
            Misfit::Count => "misfit_count",
            Misfit::Checksum => "misfit_checksum",
            Misfit::Operation => "misfit_operation",
        }
    }
}

/// What a piece led to.
#[derive(Debug)]
pub enum Put {
    /// Nothing yet.
    More,
    /// A rank is complete.
    Rank(Box<Seed>),
    /// A rank was named of which nothing is told.
    NoState,
    /// A rank was told that is not wanted, or is larger than is taken.
    LeftOut(&'static str),
    /// The copy is complete.
    All,
}

/// The rank that is being told.
struct Telling {
    head: RankHead,
    /// Why nothing of it is kept, if so.
    left_out: Option<&'static str>,
    parts: Vec<Vec<Op>>,
    next: u32,
    bytes: usize,
    blocks: u64,
    sum: ChunksSum,
}

/// Puts copies together; one after the other, of any peers.
pub struct Assembly {
    rank_bytes_max: usize,
    telling: Option<Telling>,
    /// What an earlier copy left of the rank at which it ended.
    rest: Option<Telling>,
    /// The rank that was named last in this copy.
    last: Option<(String, u32)>,
    /// Everything before this rank came already, in this copy or those before.
    from: Option<(String, u32)>,
}

impl Assembly {
    /// Nothing yet.
    pub fn new(rank_bytes_max: usize) -> Self {
        Self { rank_bytes_max, telling: None, rest: None, last: None, from: None }
    }

    /// Another copy begins, where the one before ended: what to ask it for. `None`: from the first rank.
    pub fn begin(&mut self) -> Option<Resume> {
        self.rest = self.telling.take().or(self.rest.take()).filter(|rest| rest.left_out.is_none());
        self.last = None;
        let (worker, rank) = self.from.clone()?;
        let (chunks, checksum) = match &self.rest {
            Some(rest) => (rest.next, rest.sum.value()),
            None => (0, ChunksSum::default().value()),
        };
        Some(Resume { worker, rank, chunks, checksum })
    }

    /// How far the copies came so far, as something that rises.
    pub fn reached(&self) -> Option<(String, u32, u32)> {
        let (worker, rank) = self.from.clone()?;
        let chunks = self.telling.as_ref().or(self.rest.as_ref()).map_or(0, |telling| telling.next);
        Some((worker, rank, chunks))
    }

    /// Forgets how far a copy came: the next one begins with the first rank.
    pub fn start_over(&mut self) {
        (self.telling, self.rest) = (None, None);
        (self.last, self.from) = (None, None);
    }

    /// Takes a piece. `wanted` says of a head whether the rank is worth its memory. After a misfit the copy is of no use.
    pub fn put(&mut self, piece: Piece, wanted: bool) -> Result<Put, Misfit> {
        match piece {
            Piece::Head(head) => self.head(*head, wanted),
            Piece::Chunk { number, ops } => self.chunk(number, ops),
            Piece::End { chunks, blocks, checksum } => self.end(chunks, blocks, checksum),
            Piece::All { .. } if self.telling.is_some() => Err(Misfit::Unfinished),
            Piece::All { .. } => {
                self.start_over();
                Ok(Put::All)
            }
        }
    }

    fn head(&mut self, head: RankHead, wanted: bool) -> Result<Put, Misfit> {
        if self.telling.is_some() {
            return Err(Misfit::Unfinished);
        }
        let here = (head.identity.worker.clone(), head.identity.rank);
        if self.last.as_ref().is_some_and(|last| *last >= here) {
            return Err(Misfit::Order);
        }
        self.last = Some(here.clone());
        self.from = Some(here);
        if head.cut.is_some() && head.trust != Trust::Exact {
            return Err(Misfit::State);
        }
        let rest = self.rest.take().filter(|rest| rest.head.identity == head.identity);
        if head.cut.is_none() {
            self.go_past();
            return Ok(Put::NoState);
        }
        let left_out = (!wanted).then_some("ranks_not_wanted");
        let telling = match (head.first_chunk, rest) {
            (0, _) => {
                let (parts, sum) = (Vec::new(), ChunksSum::default());
                Telling { head, left_out, parts, next: 0, bytes: 0, blocks: 0, sum }
            }
            (first, Some(rest)) if first == rest.next => Telling { head, left_out, ..rest },
            (got, rest) => return Err(Misfit::Number { expected: rest.map_or(0, |rest| rest.next), got }),
        };
        self.telling = Some(telling);
        Ok(Put::More)
    }

    fn chunk(&mut self, number: u32, ops: Vec<Op>) -> Result<Put, Misfit> {
        let Some(telling) = &mut self.telling else { return Err(Misfit::NoRank) };
        if number != telling.next {
            return Err(Misfit::Number { expected: telling.next, got: number });
        }
        // A state is made of stores, counts of copies, and removals of what stood in for holes.
        if ops.iter().any(|op| matches!(op, Op::Clear { .. } | Op::Adopt { .. })) {
            return Err(Misfit::Operation);
        }
        telling.next += 1;
        telling.sum.add(&ops);
        telling.blocks += ops.iter().map(stored).sum::<u64>();
        telling.bytes = telling.bytes.saturating_add(ops.iter().map(bytes).sum());
        if telling.bytes > self.rank_bytes_max && telling.left_out.is_none() {
            telling.left_out = Some("ranks_too_large");
            telling.parts = Vec::new();
        }
        if telling.left_out.is_none() {
            telling.parts.push(ops);
        }
        Ok(Put::More)
    }

    fn end(&mut self, chunks: u32, blocks: u64, checksum: u64) -> Result<Put, Misfit> {
        let Some(Telling { head, left_out, parts, next, blocks: came, sum, .. }) = self.telling.take() else {
            return Err(Misfit::NoRank);
        };
        if (chunks, blocks) != (next, came) {
            return Err(Misfit::Count);
        }
        if sum.value() != checksum {
            return Err(Misfit::Checksum);
        }
        self.go_past();
        let RankHead { identity, cut, learned, .. } = head;
        match (left_out, cut) {
            (Some(why), _) => Ok(Put::LeftOut(why)),
            (None, Some(cut)) => Ok(Put::Rank(Box::new(Seed { identity, cut, learned, stores: Stores::new(parts) }))),
            (None, None) => Err(Misfit::State),
        }
    }
}

impl Assembly {
    /// The rank that was named last need not be told again.
    fn go_past(&mut self) {
        if let Some((_, rank)) = &mut self.from {
            // No worker has so many ranks; should one say so, its last one is told twice.
            *rank = rank.saturating_add(1);
        }
    }
}

/// Blocks that an operation stores.
fn stored(op: &Op) -> u64 {
    if let Op::Store { names, .. } = op { names.len() as u64 } else { 0 }
}

/// Bytes that an operation takes.
fn bytes(op: &Op) -> usize {
    let hashes = match op {
        Op::Store { names, contents, .. } => names.len() + contents.len(),
        Op::Adopt { names, .. } | Op::Remove { names, .. } => names.len(),
        Op::SetCopies { .. } | Op::Clear { .. } => 0,
    };
    size_of::<Op>() + hashes * size_of::<u64>()
}

#[cfg(test)]
#[path = "assembly_tests.rs"]
pub(super) mod tests;
