//! Exports: what a rank holds and has parked, told as operations that make the same rank elsewhere.
//!
//! Applied in order to a freshly opened rank (of the oracle, of this index or of another one) an export gives a rank that no
//! later operation and no lookup can tell from the original. Parents come before children. Where the rank does not hold a
//! block's ancestor (a hole), the ancestor's content still stands in the arena: it is stored under a *synthetic* name, one
//! that the rank neither holds nor has parked, and removed again when everything below it is told.
//!
//! An export goes in stages, each of which can stop and go on later: look at every run of the shard for the rank's part
//! (found.rs), collect the places of its private names, hang the parts under each other down from the root (segments.rs),
//! tell them depth first (tell.rs), tell what is parked (parked.rs). Between two steps other ranks and other lanes go on:
//! positions never move, and what the rank holds or lies above it stays. Only the rank itself must stand still, which is
//! checked.

mod found;
mod parked;
mod segments;
mod synthetic;
mod tell;

use crate::error::IndexError;
use crate::lane::export::found::{Finding, Granules};
use crate::lane::export::segments::Segments;
use crate::lane::export::synthetic::Synthetic;
use crate::lane::export::tell::Walk;
use crate::lane::work::resolve_in;
use crate::lane::{Lane, Rank};
use crate::layout::slot_of;
use crate::types::{EngineHash, Holder, RankSlot, Store, Tier};

/// One operation of an export.
#[derive(Clone, Copy, Debug)]
pub enum Exported<'a> {
    /// Consecutive blocks, at most a run of them (512); of parked ones as many as came in one store.
    Store {
        /// Where they live.
        tier: Tier,
        /// The blocks. Of parked ones with the kind of their own store, of held ones `Announce`.
        store: Store<'a>,
    },
    /// A name told before has more than one copy.
    Copies {
        /// Where it lives.
        tier: Tier,
        /// The name.
        name: EngineHash,
        /// Its copies, as [`Lane::set_copies`] takes them.
        left: u64,
    },
    /// Names told before that the rank does not have: what stood in for holes goes again.
    Remove {
        /// Where they were stored.
        tier: Tier,
        /// The names, at most a run of them.
        names: &'a [EngineHash],
    },
}

/// Why an export cannot go on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExportError {
    /// The rank is not open on this lane.
    #[error("no open rank at slot {slot} of this lane")]
    UnknownRank {
        /// The slot.
        slot: u32,
    },
    /// An operation of the rank was applied since the export began: what it told so far is of no use.
    #[error("the rank at slot {slot} changed during its export")]
    Changed {
        /// The slot.
        slot: u32,
    },
    /// Other lanes kept splitting runs of the rank for as many rounds as are allowed: begin again.
    #[error("{missing} blocks of the rank were not found, since other lanes kept moving them")]
    Unsettled {
        /// Blocks not found.
        missing: u64,
    },
}

/// How far an export has come.
enum Stage {
    /// Looking at the shard's runs.
    Runs(Finding),
    /// Looking at the lane's private names, this granule next.
    Names(u32),
    /// Hanging segments under each other, this one next.
    Above(u32),
    /// Telling what is held.
    Held(Walk),
    /// Telling what is parked, this ticket of the list next.
    Parked(usize),
    Done,
}

/// An export at work, as [`Lane::export`] begins it. Plain data of its own: about sixty bytes for each run in which the rank
/// holds something or that lies above one, one byte for each private name, eight for each parked block.
pub struct Export {
    rank: RankSlot,
    changed: u64,
    stage: Stage,
    segments: Segments,
    granules: [Granules; Tier::COUNT],
    synthetic: Synthetic,
    /// Parked blocks in the order in which they came.
    tickets: Vec<u64>,
    buffers: tell::Buffers,
}

impl Export {
    /// The rank.
    pub fn rank(&self) -> RankSlot {
        self.rank
    }
}

impl Lane {
    /// Begins an export of a rank. Reads nothing yet.
    pub fn export(&self, rank: RankSlot) -> Result<Export, ExportError> {
        let of = self.open(rank).map_err(|_| ExportError::UnknownRank { slot: rank.0 })?;
        Ok(Export {
            rank,
            changed: of.changed,
            stage: Stage::Runs(Finding::new(of)),
            segments: Segments::new(&[], self.shard_ref().key),
            granules: Default::default(),
            synthetic: Synthetic::new(self.shard_ref().key),
            tickets: Vec::new(),
            buffers: tell::Buffers::default(),
        })
    }

    /// Goes on with an export by about `units` (runs or granules looked at, blocks told: some nanoseconds to some tens of
    /// nanoseconds each) and calls `see` with what comes next; whether that was all. Between two calls other ranks of the
    /// lane may change, this one not: then the answer is [`ExportError::Changed`], and what was told is to be thrown away.
    ///
    /// Runs on the lane's thread. Waits for no reader, and for another lane only while that is moving words of a run that is
    /// just looked at. Allocates what [`Export`] says. One step can take longer than its units where the last run was looked
    /// at: the runs found are sorted at once (about a millisecond for 100,000 runs), and so are the parked blocks.
    pub fn export_some(
        &self,
        export: &mut Export,
        units: u32,
        see: &mut dyn FnMut(Exported<'_>),
    ) -> Result<bool, ExportError> {
        let slot = export.rank.0;
        let rank = self.open(export.rank).map_err(|_| ExportError::UnknownRank { slot })?;
        if rank.changed != export.changed {
            return Err(ExportError::Changed { slot });
        }
        let mut left = i64::from(units.max(1));
        while left > 0 && !matches!(export.stage, Stage::Done) {
            export.go_on(Source { lane: self, rank }, &mut left, see)?;
        }
        Ok(matches!(export.stage, Stage::Done))
    }

    /// Applies one operation of an export to a rank, which was freshly opened before the first. As with any store, a `*Full`
    /// error leaves the rank with a part: clear it. Until the last operation of the export, answers about the rank are not
    /// the original's: blocks that stand in for holes are held meanwhile.
    pub fn import(&mut self, rank: RankSlot, told: &Exported<'_>) -> Result<(), IndexError> {
        match *told {
            Exported::Store { tier, ref store } => self.store(Holder { rank, tier }, store).map(drop),
            Exported::Copies { tier, name, left } => self.set_copies(Holder { rank, tier }, name, left).map(drop),
            Exported::Remove { tier, names } => self.remove(Holder { rank, tier }, names).map(drop),
        }
    }
}

impl Export {
    /// Works on the present stage until its end or until the units are used up.
    fn go_on(
        &mut self,
        from: Source<'_>,
        left: &mut i64,
        see: &mut dyn FnMut(Exported<'_>),
    ) -> Result<(), ExportError> {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Done) {
            Stage::Runs(mut finding) => match finding.look(from, left)? {
                None => Stage::Runs(finding),
                Some(found) => {
                    self.segments = Segments::new(&found, from.shard().key);
                    Stage::Names(1)
                }
            },
            Stage::Names(granule) => match found::private_names(from, granule, &mut self.granules, left) {
                Some(next) => Stage::Names(next),
                None => Stage::Above(0),
            },
            Stage::Above(next) => match self.segments.hang(from.shard(), next, left) {
                Some(next) => Stage::Above(next),
                None => Stage::Held(Walk::from(&self.segments)),
            },
            Stage::Held(mut walk) => {
                if self.tell_held(from, &mut walk, left, see) {
                    self.tickets = from.rank.parking.tickets();
                    Stage::Parked(0)
                } else {
                    Stage::Held(walk)
                }
            }
            Stage::Parked(next) => match self.tell_parked(from, next, left, see) {
                Some(next) => Stage::Parked(next),
                None => Stage::Done,
            },
            Stage::Done => Stage::Done,
        };
        Ok(())
    }
}

/// The rank that is exported, on its lane.
#[derive(Clone, Copy)]
struct Source<'a> {
    lane: &'a Lane,
    rank: &'a Rank,
}

impl<'a> Source<'a> {
    fn shard(self) -> &'a crate::shard::Shard {
        self.lane.shard_ref()
    }

    fn slot(self, tier: Tier) -> u32 {
        slot_of(self.rank.slot, tier)
    }

    /// Where a tier of the rank has a name.
    fn position(self, tier: Tier, name: u64) -> Option<u32> {
        let names = &self.rank.holders[tier.index()];
        resolve_in(self.shard(), self.lane.lane_names(), names, self.slot(tier), name).map(|at| at.position)
    }

    /// Whether the rank has a name anywhere, parked ones and those that are waited for included.
    fn knows(self, name: u64) -> bool {
        self.holds(name) || self.rank.parking.mentions(name)
    }

    /// Whether any tier of the rank has a name.
    fn holds(self, name: u64) -> bool {
        Tier::ALL.into_iter().any(|tier| self.position(tier, name).is_some())
    }

    /// Whether a store into `tier` behind this name would go on behind this position: the tier's own name counts first, then
    /// the nearest other tier's.
    fn leads_to(self, tier: Tier, name: u64, position: u32) -> bool {
        let own = self.position(tier, name);
        own.or_else(|| Tier::ALL.into_iter().find_map(|t| self.position(t, name))) == Some(position)
    }
}
