//! The few operations that events come down to, between the normalizer and a lane.

use kvatlas_index::{ContentHash, EngineHash, StoreKind, Tier};

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

/// The operations of one admitted batch, applied in order and as one unit of a rank's cursor.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct OpBatch {
    /// The batch's sequence; `None` for operations that no batch carried (a clear after a restart).
    pub sequence: Option<u64>,
    /// The operations, in order.
    pub ops: Vec<Op>,
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
