//! The few operations that events come down to, between the normalizer and a lane.

use bytes::Bytes;
use kvatlas_index::{
    Cleared, ContentHash, EngineHash, Holder, IndexError, Lane, RankSlot, Removed, Store, StoreKind, Stored, Tier,
};

/// One index operation of one rank. Hashes are the engine's names; contents are computed already.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Op {
    /// Consecutive blocks after `parent`.
    Store {
        /// Where they live.
        tier: Tier,
        /// Name of the block before the first; `None` for position 0.
        parent: Option<EngineHash>,
        /// Their names.
        names: Vec<EngineHash>,
        /// Their contents, as many.
        contents: Vec<ContentHash>,
        /// Whether a name that is held already gets another copy.
        kind: StoreKind,
    },
    /// Names without tokens: held in `tier` where any tier of the rank has them.
    Adopt {
        /// Where they live.
        tier: Tier,
        /// Their names.
        names: Vec<EngineHash>,
    },
    /// One copy of each name is gone.
    Remove {
        /// Where they lived.
        tier: Tier,
        /// Their names.
        names: Vec<EngineHash>,
    },
    /// The engine says how many copies of a name are left.
    SetCopies {
        /// Where it lives.
        tier: Tier,
        /// The name.
        name: EngineHash,
        /// Copies left.
        left: u64,
    },
    /// Everything in one tier, or in all, is gone.
    Clear {
        /// The tier; `None` for all.
        tier: Option<Tier>,
    },
}

impl Op {
    /// Whether it may put blocks elsewhere than on the device.
    pub fn is_beyond_device(&self) -> bool {
        match self {
            Op::Store { tier, .. } | Op::Adopt { tier, .. } | Op::SetCopies { tier, .. } => *tier != Tier::Device,
            Op::Remove { .. } | Op::Clear { .. } => false,
        }
    }

    /// Applies the operation to a rank and adds up what it did. Runs on the lane's thread. An error is the lane's own; what it
    /// means for the rank is the caller's to decide.
    pub fn apply(&self, lane: &mut Lane, rank: RankSlot, applied: &mut Applied) -> Result<(), IndexError> {
        let at = |tier: &Tier| Holder { rank, tier: *tier };
        match self {
            Op::Store { tier, parent, names, contents, kind } => {
                let store = Store { parent: *parent, names, contents, kind: *kind };
                applied.add_stored(lane.store(at(tier), &store)?);
            }
            Op::Adopt { tier, names } => applied.add_stored(lane.adopt(at(tier), names)?),
            Op::Remove { tier, names } => applied.add_removed(lane.remove(at(tier), names)?),
            Op::SetCopies { tier, name, left } => applied.add_removed(lane.set_copies(at(tier), *name, *left)?),
            Op::Clear { tier } => applied.add_cleared(lane.clear(rank, *tier)?),
        }
        Ok(())
    }
}

/// The operations of one admitted batch, applied in order and as one unit of a rank's cursor.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct OpBatch {
    /// The batch's sequence; `None` for operations that no batch carried (a clear after a restart).
    pub sequence: Option<u64>,
    /// The publisher's time, Unix seconds; `None` where it does not say.
    pub published_at: Option<f64>,
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// Batches between the one before and this one are lost for good.
    pub lost_before: bool,
    /// The batch as the engines' wire carries it: as its engine sent it or, pushed, as an engine would have. `None` where nobody
    /// asks for that, or that wire has no words for it.
    pub payload: Option<Bytes>,
}

/// What a batch did in the index, summed over its operations.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// Names newly held.
    pub stored: u64,
    /// Further copies of held names.
    pub copies: u64,
    /// Names that moved to a later place.
    pub moved: u64,
    /// Blocks parked because their parent is unknown.
    pub orphans: u64,
    /// Orphan blocks dropped because the parking place was full.
    pub orphans_dropped: u64,
    /// Parked blocks attached.
    pub attached: u64,
    /// Names gone.
    pub removed: u64,
    /// Removals that left copies.
    pub copies_removed: u64,
    /// Removals of names that the holder does not have.
    pub unknown_removals: u64,
    /// Adoptions of names that no tier of the rank has.
    pub unknown_adoptions: u64,
    /// Stores refused because a block names itself as its parent.
    pub self_parent: u64,
    /// Operations refused because a memory limit was reached; the rank was cleared.
    pub limit_reached: u64,
    /// Blocks dropped by clears.
    pub cleared: u64,
}

impl Applied {
    fn add_stored(&mut self, did: Stored) {
        self.stored += did.stored;
        self.copies += did.copies;
        self.moved += did.moved;
        self.orphans += did.orphans;
        self.orphans_dropped += did.orphans_dropped;
        self.attached += did.attached;
        self.unknown_adoptions += did.unknown;
    }

    fn add_removed(&mut self, did: Removed) {
        // A parked block is gone as well, though it was never credited.
        self.removed += did.removed + did.parked;
        self.copies_removed += did.copies;
        self.unknown_removals += did.unknown;
    }

    /// Adds what another batch did.
    pub fn add(&mut self, other: &Applied) {
        self.stored += other.stored;
        self.copies += other.copies;
        self.moved += other.moved;
        self.orphans += other.orphans;
        self.orphans_dropped += other.orphans_dropped;
        self.attached += other.attached;
        self.removed += other.removed;
        self.copies_removed += other.copies_removed;
        self.unknown_removals += other.unknown_removals;
        self.unknown_adoptions += other.unknown_adoptions;
        self.self_parent += other.self_parent;
        self.limit_reached += other.limit_reached;
        self.cleared += other.cleared;
    }

    /// Adds what a clear dropped.
    pub fn add_cleared(&mut self, did: Cleared) {
        self.cleared += did.blocks + did.parked;
    }
}
