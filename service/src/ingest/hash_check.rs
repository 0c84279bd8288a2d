//! Recomputes a sample of the admitted stores the engine's own way.
//!
//! A registration with a wrong seed, algorithm or page size shows as a rate of mismatches instead of as silent zero hits.
//! Whole chains are sampled: one in so many stores without a parent, and whatever continues one that was checked.

use super::counters::Counters;
use super::hash_choice::scheme;
use super::spec::WorkerSpec;
use crate::wire::{Stored, Verdict, Verifier};

/// Digests remembered for one rank, about 50 bytes each.
const DIGESTS_MAX: usize = 16_384;

/// Checks one rank's stores.
pub(super) struct HashCheck {
    verifier: Verifier,
    every: u32,
    roots: u32,
}

impl HashCheck {
    /// None if the registration asks for no check, or says neither which engine nor which scheme it is.
    pub(super) fn new(spec: &WorkerSpec) -> Option<Self> {
        let scheme = scheme(spec)?;
        Some(Self { verifier: Verifier::new(scheme, DIGESTS_MAX), every: spec.hash_check_every, roots: 0 })
    }

    /// Checks a store if it is in the sample, and counts what was found.
    pub(super) fn see(&mut self, stored: &Stored<'_>, counters: &mut Counters) {
        let sampled = match stored.parent {
            Some(_) => self.verifier.knows_parent(stored),
            None => {
                self.roots = (self.roots + 1) % self.every;
                self.roots == 1 % self.every
            }
        };
        if sampled {
            counters.bump(match self.verifier.check(stored) {
                Verdict::Match => "hash_match",
                Verdict::Mismatch { .. } => "hash_mismatch",
                Verdict::Unverifiable(_) => "hash_unverifiable",
            });
        }
    }

    /// The publisher's next life may have another seed.
    pub(super) fn reset(&mut self) {
        self.verifier.forget();
    }
}
