//! Why the fleet refused something.

use crate::lanes::LaneError;

/// Why the fleet refused a registration, or did not find what it was asked for.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FleetError {
    /// No worker of the model is registered.
    #[error("unknown model {model:?}: no worker is registered for it")]
    UnknownModel {
        /// What was asked for.
        model: String,
    },
    /// The model is known, this routing group of it is not.
    #[error("unknown routing group {group:?} of model {model:?}: no worker is registered for it")]
    UnknownGroup {
        /// The model.
        model: String,
        /// What was asked for.
        group: String,
    },
    /// The worker is not registered (or not for this model and routing group).
    #[error("unknown worker {worker:?}")]
    UnknownWorker {
        /// What was asked for.
        worker: String,
    },
    /// The worker has no such rank.
    #[error("worker {worker:?} has no rank {rank}")]
    UnknownRank {
        /// The worker.
        worker: String,
        /// What was asked for.
        rank: u32,
    },
    /// The id is taken by a worker with another specification.
    #[error("worker {worker:?} is registered with another specification (deregister it first, or say replace)")]
    WorkerExists {
        /// The id.
        worker: String,
    },
    /// The registration that was meant is over.
    #[error("generation {asked} of worker {worker:?} is over (now {current})")]
    StaleGeneration {
        /// The worker.
        worker: String,
        /// What was asked for.
        asked: u64,
        /// What is registered.
        current: u64,
    },
    /// Another worker of the model and routing group has another block size.
    #[error("block_size {asked}: model {model:?}, routing group {group:?} has block size {registered}")]
    BlockSizeMismatch {
        /// The model.
        model: String,
        /// The routing group.
        group: String,
        /// Of the workers that are there.
        registered: u32,
        /// Of the new one.
        asked: u32,
    },
    /// Another worker of the model and routing group hashes tokens where this one hashes pairs, or the other way round.
    #[error("bigram: model {model:?}, routing group {group:?} has workers of the other kind")]
    HashModeMismatch {
        /// The model.
        model: String,
        /// The routing group.
        group: String,
    },
    /// A field is malformed.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// A limit of the fleet was reached.
    #[error("no room for more {what} (limit {setting} = {limit})")]
    Full {
        /// What there are too many of.
        what: &'static str,
        /// The setting.
        setting: &'static str,
        /// Its value.
        limit: u64,
    },
    /// The lane refused or has stopped.
    #[error(transparent)]
    Lane(#[from] LaneError),
}
