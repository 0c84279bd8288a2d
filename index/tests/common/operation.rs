//! One operation of a history, with everything in it: a list of them can be replayed, cut and printed.

use kvatlas_index::{ContentHash, EngineHash, StoreKind, Tier};
use std::sync::Arc;

/// An operation. Ranks are numbers of the history, not of the index.
#[derive(Clone, Debug)]
pub enum Op {
    /// A store event.
    Store {
        rank: usize,
        tier: Tier,
        parent: Option<EngineHash>,
        names: Vec<EngineHash>,
        contents: Vec<ContentHash>,
        kind: StoreKind,
        /// Content path on which the generator believes the parent to be; only later choices depend on it.
        above: Above,
    },
    /// A store without tokens.
    Adopt { rank: usize, tier: Tier, names: Vec<EngineHash> },
    /// A removal; `each` sends one event a name, as vLLM does.
    Remove { rank: usize, tier: Tier, names: Vec<EngineHash>, each: bool },
    /// The engine says how many copies are left.
    SetCopies { rank: usize, tier: Tier, name: EngineHash, left: u64 },
    /// A clear of one tier or of all.
    Clear { rank: usize, tier: Option<Tier> },
    /// The worker goes.
    Close { rank: usize },
    /// A worker comes to this seat.
    Open { rank: usize },
}

impl Op {
    /// The rank it is about.
    pub fn rank(&self) -> usize {
        match *self {
            Op::Store { rank, .. }
            | Op::Adopt { rank, .. }
            | Op::Remove { rank, .. }
            | Op::SetCopies { rank, .. }
            | Op::Clear { rank, .. }
            | Op::Close { rank }
            | Op::Open { rank } => rank,
        }
    }

    /// The same operation on fewer blocks: the first half, the second half, and without one at either end.
    pub fn smaller(&self) -> Vec<Op> {
        let cuts = |len: usize| match len {
            0 | 1 => Vec::new(),
            2 => vec![0..1, 1..2],
            _ => vec![0..len / 2, len / 2..len, 0..len - 1, 1..len],
        };
        match self {
            Op::Store { rank, tier, parent, names, contents, kind, above } if names.len() == contents.len() => {
                let cut = |r: std::ops::Range<usize>| Op::Store {
                    rank: *rank,
                    tier: *tier,
                    parent: if r.start == 0 { *parent } else { Some(names[r.start - 1]) },
                    names: names[r.clone()].to_vec(),
                    contents: contents[r].to_vec(),
                    kind: *kind,
                    above: above.clone(),
                };
                cuts(names.len()).into_iter().map(cut).collect()
            }
            Op::Remove { rank, tier, names, each } => {
                let cut = |r: std::ops::Range<usize>| Op::Remove {
                    rank: *rank,
                    tier: *tier,
                    names: names[r].to_vec(),
                    each: *each,
                };
                cuts(names.len()).into_iter().map(cut).collect()
            }
            Op::Adopt { rank, tier, names } => {
                let cut = |r: std::ops::Range<usize>| Op::Adopt { rank: *rank, tier: *tier, names: names[r].to_vec() };
                cuts(names.len()).into_iter().map(cut).collect()
            }
            _ => Vec::new(),
        }
    }
}

/// A content path, shared by the blocks on it and not printed: it is no part of the event.
#[derive(Clone, Default)]
pub struct Above(pub Arc<Vec<ContentHash>>);

impl std::fmt::Debug for Above {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "({} blocks above)", self.0.len())
    }
}
