//! Seeds: the state of a rank, told outside of the index, from which another process goes on.
//!
//! A seed is what a rank held after one batch of its publisher, and what proves that a publisher is still in the life which that
//! batch belongs to: the hashes of its last payloads. Nothing else on the wire tells two lives apart. Seeds come from a state file
//! of this service's last run or from another replica; where they come from makes no difference to how far they are believed.
//!
//! | a seed | then |
//! |---|---|
//! | is of another registration, of answers that are upper bounds, or has no proof | it is refused before anything is asked ([`Seed::check`]) |
//! | waits, and the publisher returns the batch at its cursor with the same payload | it is loaded, and what follows the cursor is applied |
//! | waits, and a live batch at or before its cursor has the payload that it remembers | the same |
//! | waits, and anything else happens | it is dropped, counted by reason, and the rank is filled as if there had been none |
//!
//! Not here: the judgement itself, which is the cursor's (`ingest/cursor/seeded.rs`).

mod desk;
mod file;
mod identity;
mod stock;

pub use desk::{NoSeed, SeedCall, SeedDesk};
pub use file::{SavedRank, StateError, StateFile, StateWriter, VERSION, Written};
pub use identity::Identity;
pub use stock::SeedStock;

use crate::ingest::Trust;
use crate::ops::Op;

/// Batches whose payload hashes travel with a seed, at most. One, that of the batch at the cursor, is what a replay is asked for;
/// the others are for live batches that were on their way while a replica cut the seed.
pub const PROOFS_MAX: usize = 8;

/// The sequence and the XXH3-64 of the payload of a batch that was applied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Proof {
    /// Its sequence.
    pub sequence: u64,
    /// Hash of its payload.
    pub payload_hash: u64,
}

/// Where in its publisher's stream a state was cut.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Cut {
    /// Sequence of the last batch that is in the state.
    pub cursor: u64,
    /// Lives of the publisher that were seen.
    pub incarnation: u64,
    /// What is known about everything up to the cursor: [`Trust::Exact`], [`Trust::Degraded`] or [`Trust::Partial`].
    pub trust: Trust,
    /// Newest batches in rising order, the one at the cursor last; at most [`PROOFS_MAX`].
    pub proofs: Vec<Proof>,
}

/// What was learned of the publisher's events beside its blocks.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Learned {
    /// The KV-cache group that is read, where the engine said kinds of groups.
    pub main_group: Option<u64>,
    /// A block of the registered size was seen.
    pub size_agrees: bool,
    /// Answers about the rank may be too high.
    pub upper_bound: bool,
}

/// The state of one rank.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Seed {
    /// Whose it is.
    pub identity: Identity,
    /// Where it was cut.
    pub cut: Cut,
    /// What goes with it.
    pub learned: Learned,
    /// What the rank held.
    pub stores: Stores,
}

/// Why a seed is refused unasked.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SeedRefusal {
    /// The rank is registered differently by now.
    #[error("the seed was made for another registration: {field} differs")]
    OtherRegistration {
        /// The first field that differs.
        field: &'static str,
    },
    /// Answers about the rank may be too high.
    #[error("answers of the seed are upper bounds")]
    UpperBound,
    /// The rank was never filled, or does not fit its registration.
    #[error("the seed is {}", .trust.name())]
    NoState {
        /// What it was.
        trust: Trust,
    },
    /// Nothing proves which life it belongs to.
    #[error("the seed does not remember the payload of the batch at its cursor")]
    NoProof,
}

impl SeedRefusal {
    /// The reason in the counters.
    pub const fn label(self) -> &'static str {
        match self {
            SeedRefusal::OtherRegistration { .. } => "seed_refused_registration",
            SeedRefusal::UpperBound => "seed_refused_upper_bound",
            SeedRefusal::NoState { .. } => "seed_refused_no_state",
            SeedRefusal::NoProof => "seed_refused_no_proof",
        }
    }
}

impl Cut {
    /// The payload hash that is remembered for a sequence.
    pub fn payload_hash(&self, sequence: u64) -> Option<u64> {
        self.proofs.iter().find(|proof| proof.sequence == sequence).map(|proof| proof.payload_hash)
    }

    fn check(&self) -> Result<(), SeedRefusal> {
        if !matches!(self.trust, Trust::Exact | Trust::Degraded | Trust::Partial) {
            return Err(SeedRefusal::NoState { trust: self.trust });
        }
        let rising = self.proofs.windows(2).all(|pair| pair[0].sequence < pair[1].sequence);
        let last = self.proofs.last().map(|proof| proof.sequence);
        if !rising || self.proofs.len() > PROOFS_MAX || last != Some(self.cursor) {
            return Err(SeedRefusal::NoProof);
        }
        Ok(())
    }
}

impl Seed {
    /// Whether the seed may be of use to a rank of this identity. A pass proves nothing about the publisher.
    pub fn check(&self, identity: &Identity) -> Result<(), SeedRefusal> {
        if let Some(field) = self.identity.difference(identity) {
            return Err(SeedRefusal::OtherRegistration { field });
        }
        if self.learned.upper_bound {
            return Err(SeedRefusal::UpperBound);
        }
        self.cut.check()
    }
}

/// What a rank held, as operations that make it on an empty rank, in parts.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Stores(Vec<Vec<Op>>);

impl Stores {
    /// Parts in memory.
    pub fn new(parts: Vec<Vec<Op>>) -> Self {
        Self(parts)
    }

    /// The parts, in order.
    pub fn into_parts(self) -> Vec<Vec<Op>> {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ingest::{Engine, HashChoice, WorkerSpec};

    fn spec() -> WorkerSpec {
        WorkerSpec {
            id: "w".into(),
            model: "m".into(),
            routing_group: String::new(),
            block_size: 16,
            engine: Engine::Auto,
            ranks: Vec::new(),
            topic: String::new(),
            report_mode_full: false,
            bigram: false,
            hash_check_every: 0,
            hash_seed: None,
            hash_scheme: HashChoice::default(),
            snapshots: None,
        }
    }

    fn seed() -> Seed {
        let proof = |sequence| Proof { sequence, payload_hash: sequence * 7 };
        Seed {
            identity: Identity::of(&spec(), 3),
            cut: Cut { cursor: 9, incarnation: 1, trust: Trust::Exact, proofs: vec![proof(8), proof(9)] },
            learned: Learned::default(),
            stores: Stores::new(Vec::new()),
        }
    }

    #[test]
    fn a_seed_is_for_its_own_registration_only() {
        let seed = seed();
        assert_eq!(seed.check(&Identity::of(&spec(), 3)), Ok(()));
        // Where a worker is, how it is followed and what it is checked by changes nothing that it holds.
        let same = WorkerSpec { routing_group: "g".into(), hash_check_every: 5, topic: "kv".into(), ..spec() };
        assert_eq!(seed.check(&Identity::of(&same, 3)), Ok(()));
        let others = [
            (WorkerSpec { id: "x".into(), ..spec() }, "worker"),
            (WorkerSpec { model: "x".into(), ..spec() }, "model"),
            (WorkerSpec { block_size: 8, ..spec() }, "block_size"),
            (WorkerSpec { engine: Engine::Vllm, ..spec() }, "engine"),
            (WorkerSpec { bigram: true, ..spec() }, "bigram"),
            (WorkerSpec { report_mode_full: true, ..spec() }, "report_mode_full"),
            (WorkerSpec { hash_seed: Some("1".into()), ..spec() }, "hash_seed"),
            (WorkerSpec { hash_scheme: "vllm:sha256".parse().unwrap(), ..spec() }, "hash_scheme"),
        ];
        for (other, field) in others {
            let refused = Err(SeedRefusal::OtherRegistration { field });
            assert_eq!(seed.check(&Identity::of(&other, 3)), refused);
        }
        assert_eq!(seed.check(&Identity::of(&spec(), 4)), Err(SeedRefusal::OtherRegistration { field: "rank" }));
    }

    #[test]
    fn what_proves_nothing_is_refused() {
        type Change = fn(&mut Seed);
        let cases: [(Change, SeedRefusal); 7] = [
            (|s| s.learned.upper_bound = true, SeedRefusal::UpperBound),
            (|s| s.cut.trust = Trust::Bootstrapping, SeedRefusal::NoState { trust: Trust::Bootstrapping }),
            (|s| s.cut.trust = Trust::Misconfigured, SeedRefusal::NoState { trust: Trust::Misconfigured }),
            (|s| s.cut.proofs.clear(), SeedRefusal::NoProof),
            (|s| s.cut.cursor = 10, SeedRefusal::NoProof),
            (|s| s.cut.proofs.swap(0, 1), SeedRefusal::NoProof),
            (
                |s| s.cut.proofs = (0..10).map(|sequence| Proof { sequence, payload_hash: 0 }).collect(),
                SeedRefusal::NoProof,
            ),
        ];
        for (change, refusal) in cases {
            let mut seed = seed();
            change(&mut seed);
            assert_eq!(seed.check(&Identity::of(&spec(), 3)), Err(refusal), "{}", refusal.label());
        }
        assert_eq!((seed().cut.payload_hash(8), seed().cut.payload_hash(7)), (Some(56), None));
    }
}
