//! Prefixes that have owners on their way, or got one lately.
//!
//! A provisional owner is forgotten when its events show the prefix (then they speak for it, and for its end), after a while, and when
//! its cache is gone. A clean end of the request that it was made for proves that it has the prefix: it is an owner as any other, and
//! its events have as long again to show it.

use crate::routing::columns::Slot;
use crate::routing::lives::Lives;
use crate::routing::prefix::PrefixKey;
use crate::routing::recent::Recent;
use crate::routing::settings::OwnerPressureSettings;
use crate::routing::view::View;
use kvatlas_index::ContentHash;
use smallvec::SmallVec;
use std::time::Duration;

/// Prefixes out of date that one new owner drops beside its own work.
const DROPPED_AT_ONCE: usize = 8;

/// The name of a prefix.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(super) struct Prefix {
    blocks: u32,
    name: u64,
}

impl Prefix {
    /// The prefix of these blocks.
    pub fn of(key: PrefixKey, contents: &[ContentHash]) -> Self {
        Self { blocks: contents.len() as u32, name: key.name(contents) }
    }

    /// Whether a prompt begins with it.
    pub fn is_of(self, key: PrefixKey, contents: &[ContentHash]) -> bool {
        contents.get(..self.blocks as usize).is_some_and(|contents| Self::of(key, contents) == self)
    }

    /// Its length.
    pub fn blocks(self) -> u32 {
        self.blocks
    }
}

/// An owner whose events do not show the prefix yet.
#[derive(Clone, Copy, Debug)]
struct Owner {
    slot: Slot,
    /// The slot's life then.
    life: u32,
    since: Duration,
    /// The booking of the request that it was made for.
    booking: u64,
    /// Whether that request ended cleanly.
    proven: bool,
}

/// What is remembered of a prefix.
#[derive(Debug, Default)]
struct Known {
    owners: SmallVec<[Owner; 2]>,
    expanded_at: Option<Duration>,
}

/// The prefixes.
#[derive(Default)]
pub(super) struct Prefixes {
    known: Recent<Prefix, Known>,
    /// By booking, the prefix that got an owner with it.
    made_by: Recent<u64, Prefix>,
    lives: Lives,
}

impl Prefixes {
    /// Puts the candidates in `provisional` and `proven` that own a prefix without having shown it. Those that have `shown` it, are
    /// out of date or lost their cache are forgotten.
    pub fn owners(
        &mut self,
        view: &View<'_>,
        prefix: Prefix,
        shown: impl Fn(Slot) -> bool,
        provisional: &mut Vec<Slot>,
        proven: &mut Vec<Slot>,
    ) {
        provisional.clear();
        proven.clear();
        let Some(known) = self.known.get_mut(&prefix) else { return };
        let settings = &view.settings.owner_pressure;
        known.owners.retain(|owner| is_live(owner, view.now, settings, &self.lives) && !shown(owner.slot));
        for owner in known.owners.iter().filter(|owner| view.candidates.binary_search(&owner.slot).is_ok()) {
            if owner.proven { proven.push(owner.slot) } else { provisional.push(owner.slot) }
        }
    }

    /// Whether a prefix got its last owner too recently for another one.
    pub fn is_cooling(&self, now: Duration, prefix: Prefix, settings: &OwnerPressureSettings) -> bool {
        self.known.get(&prefix).is_some_and(|known| is_cooling(known, now, settings))
    }

    /// A prefix has a new owner. `expands`: beside others.
    pub fn add(
        &mut self,
        now: Duration,
        prefix: Prefix,
        slot: Slot,
        booking: u64,
        expands: bool,
        settings: &OwnerPressureSettings,
    ) {
        let owner = Owner { slot, life: self.lives.of(slot), since: now, booking, proven: false };
        let known = self.known.touch(prefix, settings.prefixes_max);
        known.owners.retain(|owner| owner.slot != slot);
        known.owners.push(owner);
        if expands {
            known.expanded_at = Some(now);
        }
        *self.made_by.touch(booking, settings.prefixes_max) = prefix;
        for _ in 0..DROPPED_AT_ONCE {
            let Some((_, known)) = self.known.oldest() else { break };
            let has_owner = known.owners.iter().any(|owner| is_live(owner, now, settings, &self.lives));
            if has_owner || is_cooling(known, now, settings) {
                break;
            }
            self.known.pop_oldest();
        }
    }

    /// A request ended.
    pub fn ended(&mut self, now: Duration, booking: u64, clean: bool) {
        let Some(prefix) = self.made_by.remove(&booking) else { return };
        let Some(known) = self.known.get_mut(&prefix).filter(|_| clean) else { return };
        for owner in known.owners.iter_mut().filter(|owner| owner.booking == booking) {
            (owner.since, owner.proven) = (now, true);
        }
    }

    /// A worker is gone, or its cache is empty.
    pub fn forget(&mut self, slot: Slot) {
        self.lives.end(slot);
    }

    /// Prefixes that are remembered, and bookings.
    #[cfg(test)]
    pub fn sizes(&self) -> (usize, usize) {
        (self.known.len(), self.made_by.len())
    }
}

fn is_live(owner: &Owner, now: Duration, settings: &OwnerPressureSettings, lives: &Lives) -> bool {
    owner.life == lives.of(owner.slot) && now < owner.since.saturating_add(settings.provisional)
}

fn is_cooling(known: &Known, now: Duration, settings: &OwnerPressureSettings) -> bool {
    known.expanded_at.is_some_and(|at| now < at.saturating_add(settings.cooldown))
}
