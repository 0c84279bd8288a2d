//! The seeding lease: who may make one more worker an owner of a prefix, so that a trapped owner gets help and nothing else grows.
//!
//! [`Record`] is one partition, and its steps are pure: `acquire`, `renew`, `commit`, `abort`, and the removals that the index shows.
//! A [`LeaseStore`] makes each step one transaction, [`Leases`] carries them there and counts what became of them. On the other side,
//! [`Seeder`] is what a router does with a lease, [`may_seed`] when it may ask for one, and [`Fences`] what an engine's servicer keeps.
//!
//! Not here: gRPC, what the index says (that is [`Workers`]' to answer), and who admits requests.

mod conditions;
mod embedded;
#[cfg(feature = "etcd")]
mod etcd;
mod fences;
mod hex;
mod indexed;
mod leases;
mod owners;
mod proof;
#[cfg(test)]
mod property;
mod record;
mod router;
mod settings;
mod step;
mod store;
mod sweep;
mod target;
#[cfg(test)]
mod tests;
mod tokens;
mod watch;

pub use conditions::{Seen, Unmet, may_seed};
pub use embedded::EmbeddedStore;
#[cfg(feature = "etcd")]
pub use etcd::EtcdStore;
pub use fences::{Fenced, Fences};
pub use indexed::IndexedWorkers;
pub use leases::{Asked, Leases, LeasesStatus, WatchesFull, Workers};
pub use owners::{Owner, OwnerSet, Prefixes, Tombstone};
pub use proof::{EndProof, IndexEvidence, Proof, Rejected};
pub use record::{Ending, Grant, LeaseKey, Partition, Phase, Prefix, Record};
pub use router::{Answer, End, Heard, Outcome, Permits, Seeder, Wish};
pub use settings::{EtcdSettings, LeaseSettings, StoreSettings};
pub use step::{Acquire, Lease, Lost, NotCommitted, Reason, Refused};
pub use store::{LeaseStore, StoreStatus, Stored, Swapped, Unavailable};
pub use sweep::Swept;
pub use target::{Present, Sequences, Target};
pub use tokens::{TokenHash, Tokens};
pub use watch::{Change, Told, Watch, WatchEnd};
