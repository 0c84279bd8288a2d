//! Copies of ranks, made of exports: the same operations go to the original and to its copies, and everything is compared.

use super::operation::Op;
use super::pair::{Difference, Pair, same};
use super::sides::Did;
use kvatlas_index::reference::Reference;
use kvatlas_index::{ContentHash, EngineHash, Exported, Lane, RankKey, RankSlot, Residency, Store, StoreKind, Tier};

/// One operation of an export, kept.
#[derive(Clone, Debug, PartialEq)]
pub enum Told {
    Store {
        tier: Tier,
        parent: Option<EngineHash>,
        names: Vec<EngineHash>,
        contents: Vec<ContentHash>,
        kind: StoreKind,
    },
    Copies {
        tier: Tier,
        name: EngineHash,
        left: u64,
    },
    Remove {
        tier: Tier,
        names: Vec<EngineHash>,
    },
}

impl From<Exported<'_>> for Told {
    fn from(told: Exported<'_>) -> Self {
        match told {
            Exported::Store { tier, store } => Told::Store {
                tier,
                parent: store.parent,
                names: store.names.to_vec(),
                contents: store.contents.to_vec(),
                kind: store.kind,
            },
            Exported::Copies { tier, name, left } => Told::Copies { tier, name, left },
            Exported::Remove { tier, names } => Told::Remove { tier, names: names.to_vec() },
        }
    }
}

impl Told {
    /// The operation as an export tells it.
    pub fn view(&self) -> Exported<'_> {
        match self {
            Told::Store { tier, parent, names, contents, kind } => {
                Exported::Store { tier: *tier, store: Store { parent: *parent, names, contents, kind: *kind } }
            }
            Told::Copies { tier, name, left } => Exported::Copies { tier: *tier, name: *name, left: *left },
            Told::Remove { tier, names } => Exported::Remove { tier: *tier, names },
        }
    }
}

/// The whole export of a rank, at once.
pub fn export(lane: &Lane, rank: RankSlot) -> Vec<Told> {
    let (mut told, mut export) = (Vec::new(), lane.export(rank).expect("an open rank"));
    while !lane.export_some(&mut export, 1 << 20, &mut |piece| told.push(piece.into())).expect("nothing changes") {}
    told
}

/// The oracle's export of a rank.
pub fn export_of(oracle: &Reference, key: RankKey) -> Vec<Told> {
    let mut told = Vec::new();
    oracle.export(key, &mut |piece| told.push(piece.into()));
    told
}

/// Applies an export to both sides of a seat that was freshly opened; whether there was room.
pub fn import(pair: &mut Pair, rank: usize, told: &[Told]) -> Result<bool, Difference> {
    for piece in told {
        let full = pair.full_errors;
        match piece.view() {
            Exported::Store { tier, store } => drop(pair.store(rank, tier, &store)?),
            Exported::Copies { tier, name, left } => drop(pair.set_copies(rank, tier, name, left)?),
            Exported::Remove { tier, names } => drop(pair.remove(rank, tier, names)?),
        }
        if pair.full_errors > full {
            return Ok(false);
        }
    }
    pair.compare_counts(rank)?;
    pair.compare_names(rank)?;
    Ok(true)
}

/// Plays an operation on a seat and says what it answered.
pub fn play(pair: &mut Pair, rank: usize, op: &Op) -> Result<Vec<Did>, Difference> {
    let mut did = Vec::new();
    match op {
        Op::Open { .. } => pair.open(rank)?,
        Op::Close { .. } => pair.close(rank)?,
        Op::Clear { tier, .. } => did.push(Did::Cleared(Ok(pair.clear(rank, *tier)?))),
        Op::Store { tier, parent, names, contents, kind, .. } => {
            let store = Store { parent: *parent, names, contents, kind: *kind };
            did.push(Did::Stored(pair.store(rank, *tier, &store)?));
        }
        Op::Adopt { tier, names, .. } => did.push(Did::Stored(pair.adopt(rank, *tier, names)?)),
        Op::Remove { tier, names, each, .. } => {
            for event in names.chunks(if *each { 1 } else { names.len().max(1) }) {
                did.push(Did::Removed(pair.remove(rank, *tier, event)?));
            }
        }
        Op::SetCopies { tier, name, left, .. } => {
            did.push(Did::Removed(pair.set_copies(rank, *tier, *name, *left)?));
        }
    }
    pair.compare_counts(rank)?;
    Ok(did)
}

/// Names, copies, held and parked blocks of two ranks.
pub fn same_state(a: &Reference, a_key: RankKey, b: &Reference, b_key: RankKey) -> Result<(), Difference> {
    for tier in Tier::ALL {
        same("names of the copy", (tier, b.names(b_key, tier)), (tier, a.names(a_key, tier)))?;
        same("blocks of the copy", (tier, b.held(b_key, tier)), (tier, a.held(a_key, tier)))?;
    }
    same("parked blocks of the copy", b.parked(b_key), a.parked(a_key))
}

/// The lines of two ranks in the answers to a query.
pub fn same_answers(
    query: &[ContentHash],
    (a, a_key): (&Reference, RankKey),
    (b, b_key): (&Reference, RankKey),
) -> Result<(), Difference> {
    let lines = |oracle: &Reference, key: RankKey, residency| -> Vec<(Tier, u32)> {
        let answer = oracle.lookup(query, residency);
        answer.into_iter().filter(|line| line.rank == key).map(|line| (line.tier, line.blocks)).collect()
    };
    for residency in [Residency::PerTier, Residency::Cumulative] {
        same("answers about the copy", lines(b, b_key, residency), lines(a, a_key, residency))?;
    }
    Ok(())
}
