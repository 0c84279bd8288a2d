//! An index and the oracle side by side: every operation goes to both, every answer is compared.

use super::configurations::Configuration;
use super::operation::Op;
use kvatlas_index::reference::Reference;
use kvatlas_index::{
    Cleared, ContentHash, EngineHash, Holder, HolderDepth, Index, IndexError, Lane, Levels, LookupOptions, Outcome,
    RankFilter, RankKey, RankSlot, Reader, Removed, Residency, Store, StoreKind, Stored, Tier,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// What differed, for a person to read.
pub type Difference = String;

/// One rank of the history: on which lane it sits now, under which number it answers.
#[derive(Clone, Copy)]
struct Seat {
    slot: Option<RankSlot>,
    lane: usize,
    key: RankKey,
    lives: usize,
}

/// Both sides, and what was compared so far.
pub struct Pair {
    pub index: Arc<Index>,
    pub lanes: Vec<Lane>,
    pub reader: Reader,
    levels: Levels,
    pub oracle: Reference,
    seats: Vec<Seat>,
    full_is_allowed: bool,
    pub full_errors: u64,
    pub lookups: u64,
    pub seen: Seen,
}

/// How often each kind of case came up: a suite that never meets a case says nothing about it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Seen {
    pub stored: u64,
    pub copies: u64,
    pub moved: u64,
    pub orphans: u64,
    pub orphans_dropped: u64,
    pub attached: u64,
    pub adoptions_unknown: u64,
    pub removed: u64,
    pub copies_removed: u64,
    pub parked_removed: u64,
    pub removals_unknown: u64,
    pub cleared: u64,
    pub parked_cleared: u64,
    pub length_mismatches: u64,
    pub self_parents: u64,
    pub closed: u64,
    /// Answers with the same rank in several tiers.
    pub answers_tiers: u64,
    /// The most lines of one answer.
    pub answer_lines_max: u64,
    /// The deepest answer, in blocks.
    pub blocks_max: u64,
}

impl Seen {
    fn store(&mut self, did: Result<Stored, IndexError>) {
        match did {
            Ok(did) => {
                self.stored += did.stored;
                self.copies += did.copies;
                self.moved += did.moved;
                self.orphans += did.orphans;
                self.orphans_dropped += did.orphans_dropped;
                self.attached += did.attached;
                self.adoptions_unknown += did.unknown;
            }
            Err(IndexError::LengthMismatch { .. }) => self.length_mismatches += 1,
            Err(IndexError::SelfParent { .. }) => self.self_parents += 1,
            Err(_) => {}
        }
    }

    fn remove(&mut self, did: Result<Removed, IndexError>) {
        let did = did.unwrap_or_default();
        self.removed += did.removed;
        self.copies_removed += did.copies;
        self.parked_removed += did.parked;
        self.removals_unknown += did.unknown;
    }

    fn answer(&mut self, answer: &[HolderDepth]) {
        self.answers_tiers += u64::from(answer.windows(2).any(|w| w[0].rank == w[1].rank));
        self.answer_lines_max = self.answer_lines_max.max(answer.len() as u64);
        self.blocks_max = answer.iter().map(|h| h.blocks.into()).fold(self.blocks_max, u64::max);
    }
}

impl Pair {
    /// Both empty, every rank closed.
    pub fn new(configuration: &Configuration) -> Self {
        let config = configuration.index();
        let oracle = Reference::new(config.orphans_max_per_rank as usize);
        let (index, lanes) = Index::new(config).expect("a valid configuration");
        let reader = index.reader();
        let seat = Seat { slot: None, lane: 0, key: RankKey(0), lives: 0 };
        let seats = vec![seat; configuration.ranks];
        let full_is_allowed = configuration.tiny;
        let (levels, seen) = (Levels::new(), Seen::default());
        Self { index, lanes, reader, levels, oracle, seats, full_is_allowed, full_errors: 0, lookups: 0, seen }
    }

    /// The number under which a rank answers now.
    pub fn key(&self, rank: usize) -> RankKey {
        self.seats[rank].key
    }

    /// The holder of a rank's tier and its lane, if the rank is open.
    pub fn holder(&self, rank: usize, tier: Tier) -> Option<(usize, Holder)> {
        let seat = self.seats[rank];
        seat.slot.map(|slot| (seat.lane, Holder { rank: slot, tier }))
    }

    /// Applies an operation to both and compares what they say. Operations on closed ranks are skipped.
    pub fn apply(&mut self, op: &Op) -> Result<(), Difference> {
        match op {
            Op::Open { rank } => self.open(*rank),
            Op::Close { rank } => self.close(*rank),
            Op::Clear { rank, tier } => {
                let did = self.clear(*rank, *tier)?;
                self.seen.cleared += did.blocks;
                self.seen.parked_cleared += did.parked;
                Ok(())
            }
            Op::Store { rank, tier, parent, names, contents, kind, .. } => {
                let store = Store { parent: *parent, names, contents, kind: *kind };
                let did = self.store(*rank, *tier, &store)?;
                self.seen.store(did);
                Ok(())
            }
            Op::Adopt { rank, tier, names } => {
                let did = self.adopt(*rank, *tier, names)?;
                self.seen.store(did);
                Ok(())
            }
            Op::Remove { rank, tier, names, each } => {
                let event_len = if *each { 1 } else { names.len().max(1) };
                names.chunks(event_len).try_for_each(|event| {
                    let did = self.remove(*rank, *tier, event)?;
                    self.seen.remove(did);
                    Ok(())
                })
            }
            Op::SetCopies { rank, tier, name, left } => {
                let did = self.set_copies(*rank, *tier, *name, *left)?;
                self.seen.remove(did);
                Ok(())
            }
        }?;
        match self.seats[op.rank()].slot {
            Some(_) => self.compare_counts(op.rank()),
            None => Ok(()),
        }
    }

    /// A new worker takes the seat: on another lane than the last one, under another number every other time.
    pub fn open(&mut self, rank: usize) -> Result<(), Difference> {
        if self.seats[rank].slot.is_some() {
            return Ok(());
        }
        let seats = self.seats.len();
        let seat = &mut self.seats[rank];
        seat.lane = (rank + seat.lives) % self.lanes.len();
        seat.key = RankKey((rank + seats * (seat.lives / 2 % 2)) as u32);
        seat.lives += 1;
        let slot = self.lanes[seat.lane].open_rank(seat.key).map_err(|e| format!("open_rank: {e}"))?;
        seat.slot = Some(slot);
        self.oracle.open_rank(seat.key);
        Ok(())
    }

    /// The worker goes with all it holds.
    pub fn close(&mut self, rank: usize) -> Result<(), Difference> {
        let Seat { slot: Some(slot), lane, key, .. } = self.seats[rank] else { return Ok(()) };
        let got = self.lanes[lane].close_rank(slot);
        let want = self.oracle.clear(key, None);
        self.oracle.close_rank(key);
        self.seats[rank].slot = None;
        self.seen.closed += 1;
        let at = Holder { rank: slot, tier: Tier::Device };
        same("use of a closed rank", self.lanes[lane].remove(at, &[]).is_err(), true)?;
        same("close_rank", got, want)
    }

    /// A clear of one tier or all.
    pub fn clear(&mut self, rank: usize, tier: Option<Tier>) -> Result<Cleared, Difference> {
        let Seat { slot: Some(slot), lane, key, .. } = self.seats[rank] else { return Ok(Cleared::default()) };
        let got = self.lanes[lane].clear(slot, tier);
        let want = self.oracle.clear(key, tier);
        same("clear", got, want)?;
        got.map_err(|e| e.to_string())
    }

    /// A store; the refusals of both sides are compared as well.
    pub fn store(
        &mut self,
        rank: usize,
        tier: Tier,
        store: &Store<'_>,
    ) -> Result<Result<Stored, IndexError>, Difference> {
        self.both(rank, "store", |lane, at| lane.store(at, store), tier, |o, key| o.store(key, tier, store))
    }

    /// A store of names only.
    pub fn adopt(
        &mut self,
        rank: usize,
        tier: Tier,
        names: &[EngineHash],
    ) -> Result<Result<Stored, IndexError>, Difference> {
        self.both(rank, "adopt", |lane, at| lane.adopt(at, names), tier, |o, key| o.adopt(key, tier, names))
    }

    /// A removal.
    pub fn remove(
        &mut self,
        rank: usize,
        tier: Tier,
        names: &[EngineHash],
    ) -> Result<Result<Removed, IndexError>, Difference> {
        self.both(rank, "remove", |lane, at| lane.remove(at, names), tier, |o, key| o.remove(key, tier, names))
    }

    /// A count that the engine gives itself.
    pub fn set_copies(
        &mut self,
        rank: usize,
        tier: Tier,
        name: EngineHash,
        left: u64,
    ) -> Result<Result<Removed, IndexError>, Difference> {
        let index = |lane: &mut Lane, at| lane.set_copies(at, name, left);
        self.both(rank, "set_copies", index, tier, |o, key| o.set_copies(key, tier, name, left))
    }

    /// Runs one operation on both. A limit that the oracle does not have is answered as the contract says: the rank is
    /// cleared, and everything is exact again.
    fn both<T: PartialEq + std::fmt::Debug + Copy + Default>(
        &mut self,
        rank: usize,
        what: &str,
        index: impl FnOnce(&mut Lane, Holder) -> Result<T, IndexError>,
        tier: Tier,
        oracle: impl FnOnce(&mut Reference, RankKey) -> Result<T, IndexError>,
    ) -> Result<Result<T, IndexError>, Difference> {
        let Seat { slot: Some(slot), lane, key, .. } = self.seats[rank] else { return Ok(Ok(T::default())) };
        let got = index(&mut self.lanes[lane], Holder { rank: slot, tier });
        if self.full_is_allowed && got.as_ref().is_err_and(is_full) {
            self.full_errors += 1;
            self.lanes[lane].clear(slot, None).map_err(|e| format!("a clear after {got:?} failed: {e}"))?;
            self.oracle.clear(key, None).map_err(|e| e.to_string())?;
            return Ok(got);
        }
        let want = oracle(&mut self.oracle, key);
        same(what, got, want)?;
        Ok(got)
    }

    /// Held and parked blocks of one open rank.
    pub fn compare_counts(&self, rank: usize) -> Result<(), Difference> {
        let Seat { slot: Some(slot), lane, key, .. } = self.seats[rank] else { return Ok(()) };
        for tier in Tier::ALL {
            let got = self.lanes[lane].held(Holder { rank: slot, tier });
            same("held", (rank, tier, got), (rank, tier, self.oracle.held(key, tier)))?;
        }
        same("parked", (rank, self.lanes[lane].parked(slot)), (rank, self.oracle.parked(key)))
    }

    /// Every name with its copies, of one open rank.
    pub fn compare_names(&self, rank: usize) -> Result<(), Difference> {
        let Seat { slot: Some(slot), lane, key, .. } = self.seats[rank] else { return Ok(()) };
        for tier in Tier::ALL {
            let got = self.lanes[lane].names(Holder { rank: slot, tier });
            let want = self.oracle.names(key, tier);
            if got != want {
                let only = |a: &[(EngineHash, u64)], b: &[(EngineHash, u64)]| {
                    a.iter().filter(|n| !b.contains(n)).take(8).copied().collect::<Vec<_>>()
                };
                return Err(format!(
                    "names of rank {rank} {tier:?}: index alone {:?}, oracle alone {:?}",
                    only(&got, &want),
                    only(&want, &got)
                ));
            }
        }
        Ok(())
    }

    /// One query in both residencies, and once more for some ranks only.
    pub fn compare_lookup(&mut self, query: &[ContentHash], filter: &RankFilter) -> Result<(), Difference> {
        for residency in [Residency::PerTier, Residency::Cumulative] {
            self.compare_answer(query, residency, None)?;
        }
        let residency = if query.len().is_multiple_of(2) { Residency::PerTier } else { Residency::Cumulative };
        self.compare_answer(query, residency, Some(filter))
    }

    fn compare_answer(
        &mut self,
        query: &[ContentHash],
        residency: Residency,
        filter: Option<&RankFilter>,
    ) -> Result<(), Difference> {
        self.lookups += 1;
        let mut want = self.oracle.lookup(query, residency);
        want.retain(|h| filter.is_none_or(|f| f.contains(h.rank)));
        let got = self.lookup(query, residency, filter)?;
        if got != want {
            let alone = |a: &[HolderDepth], b: &[HolderDepth]| {
                a.iter().filter(|h| !b.contains(h)).take(8).copied().collect::<Vec<_>>()
            };
            return Err(format!(
                "lookup {residency:?} filter {} of {query:?}: index alone {:?}, oracle alone {:?}",
                filter.is_some(),
                alone(&got, &want),
                alone(&want, &got)
            ));
        }
        if residency == Residency::PerTier && filter.is_none() {
            self.compare_walk(query, &want)?;
        }
        self.seen.answer(&want);
        Ok(())
    }

    /// The walk of one rank, drawn by the query: its steps are contiguous, and what it holds from the front is the answer.
    fn compare_walk(&mut self, query: &[ContentHash], answer: &[HolderDepth]) -> Result<(), Difference> {
        let drawn = query.iter().fold(query.len() as u64, |a, c| a.rotate_left(5) ^ c.0);
        let seat = self.seats[drawn as usize % self.seats.len()];
        let tier = Tier::ALL[(drawn >> 32) as usize % Tier::COUNT];
        if seat.slot.is_none() {
            return Ok(());
        }
        let mut steps = Vec::new();
        same("outcome of a walk", self.reader.walk(query, seat.key, tier, &mut steps), Outcome::Exact)?;
        let (mut from, mut blocks, mut unbroken) = (0, 0, true);
        for step in &steps {
            same("where a step begins", step.from, from)?;
            same("a step's blocks", (step.matched > 0, step.held <= step.matched), (true, true))?;
            from += step.matched;
            blocks += if unbroken { step.held } else { 0 };
            unbroken &= step.held == step.matched;
        }
        let want = answer.iter().find(|h| h.rank == seat.key && h.tier == tier).map_or(0, |h| h.blocks);
        same("blocks of a walk", (seat.key, tier, blocks), (seat.key, tier, want))
    }

    /// The index's answer, sorted. What the caller had in its buffer must still be there.
    pub fn lookup(
        &mut self,
        query: &[ContentHash],
        residency: Residency,
        filter: Option<&RankFilter>,
    ) -> Result<Vec<HolderDepth>, Difference> {
        let mark = HolderDepth { rank: RankKey(u32::MAX), tier: Tier::External, blocks: 1 };
        let mut got = vec![mark];
        let outcome = self.reader.lookup(query, &LookupOptions { filter, residency }, &mut got);
        same("outcome without a writer", outcome, Outcome::Exact)?;
        same("the caller's line", got.remove(0), mark)?;
        got.sort_unstable();
        self.compare_forms(query, &LookupOptions { filter, residency }, &got)?;
        Ok(got)
    }

    /// The other forms of the same answer.
    fn compare_forms(
        &mut self,
        query: &[ContentHash],
        options: &LookupOptions<'_>,
        pairs: &[HolderDepth],
    ) -> Result<(), Difference> {
        let exact = self.reader.lookup_levels(query, options, &mut self.levels);
        same("outcome of levels", exact, Outcome::Exact)?;
        let mut got: Vec<_> = self.levels.pairs().collect();
        let blocks: Vec<_> = got.iter().map(|h| h.blocks).collect();
        same("deepest first", blocks.is_sorted_by(|a, b| a >= b), true)?;
        got.sort_unstable();
        same("levels", &got[..], pairs)?;
        let counts = (self.levels.holders(), self.levels.is_empty(), self.levels.iter().count());
        same("counts of levels", counts, (pairs.len(), pairs.is_empty(), self.levels.len()))?;
        let depths: BTreeSet<u32> = blocks.iter().copied().collect();
        same("depths", self.levels.iter().map(|l| l.0).collect::<Vec<_>>(), depths.into_iter().rev().collect())?;
        let count = query.len() % 5;
        let mut best = Vec::new();
        same("outcome of the best", self.reader.lookup_best(query, options, count, &mut best), Outcome::Exact)?;
        same("the best are holders", best.iter().all(|h| pairs.binary_search(h).is_ok()), true)?;
        let best: Vec<_> = best.iter().map(|h| h.blocks).collect();
        same("depths of the best", &best[..], &blocks[..count.min(blocks.len())])
    }

    /// The index's own invariants.
    pub fn check(&self) -> Result<(), Difference> {
        self.index.check()?;
        self.lanes.iter().try_for_each(Lane::check)
    }

    /// What cleared ranks held is swept out of memory, a few runs at a time.
    pub fn sweep(&mut self) {
        self.lanes.iter_mut().for_each(|lane| while lane.sweep(7) > 0 {});
    }

    /// Everything of every rank, then everything is taken away: nothing may be left.
    pub fn finish(&mut self) -> Result<(), Difference> {
        self.check()?;
        for rank in 0..self.seats.len() {
            self.compare_counts(rank)?;
            self.compare_names(rank)?;
        }
        for rank in 0..self.seats.len() {
            self.close(rank)?;
        }
        self.check()?;
        self.sweep();
        self.check()?;
        let left = self.index.stats();
        let left = (left.held, left.sweeping, left.blocks, left.runs, left.parked, left.ranks);
        same("held, sweeping, blocks, runs, parked, ranks in the end", left, (0, 0, 0, 0, 0, 0))
    }
}

/// Whether an error is a limit that was reached.
fn is_full(error: &IndexError) -> bool {
    matches!(
        error,
        IndexError::BlocksFull { .. }
            | IndexError::RunsFull { .. }
            | IndexError::ExtsFull { .. }
            | IndexError::NamesFull { .. }
            | IndexError::PrivateNamesFull { .. }
    )
}

/// Equal, or a difference that says what.
pub fn same<T: PartialEq + std::fmt::Debug>(what: &str, got: T, want: T) -> Result<(), Difference> {
    if got == want { Ok(()) } else { Err(format!("{what}: index {got:?}, oracle {want:?}")) }
}

/// A plain copy store.
pub fn copy<'a>(parent: Option<EngineHash>, names: &'a [EngineHash], contents: &'a [ContentHash]) -> Store<'a> {
    Store { parent, names, contents, kind: StoreKind::Copy }
}
