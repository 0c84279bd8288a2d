//! Exact heads of prompts and who was sent them: the memory of hash mode, for fleets without events.
//!
//! A head ends at a configured boundary and is known by the hash of its token ids (XXH3-64 over little-endian `u32`s, as contents
//! are hashed). A holder is remembered for a while after the last dispatch; few holders a head, and a bounded number of heads.

use super::columns::Slot;
use super::lives::Lives;
use super::recent::Recent;
use super::settings::HashModeSettings;
use smallvec::SmallVec;
use std::time::Duration;
use xxhash_rust::xxh3::Xxh3;

/// Token ids that are turned into bytes at once.
const CHUNK: usize = 256;

/// Heads out of date that one dispatch drops beside its own work.
const DROPPED_AT_ONCE: usize = 8;

/// A head: where it ends, and the hash of its token ids.
type Head = (u32, u64);

/// Somebody who was sent a head.
#[derive(Clone, Copy, Debug)]
struct HeadHolder {
    slot: Slot,
    /// The slot's life then.
    life: u32,
    at: Duration,
}

/// The heads.
#[derive(Default)]
pub(super) struct HashHeads {
    heads: Recent<Head, SmallVec<[HeadHolder; 3]>>,
    lives: Lives,
    /// The settings' boundaries as they stand there, and as they are used: rising, each once, none 0.
    configured: Vec<u32>,
    boundaries: Vec<u32>,
    /// The heads of one prompt, shortest first.
    scratch: Vec<Head>,
    hasher: Xxh3,
}

impl HashHeads {
    #[cfg(test)]
    /// Heads that are remembered, those out of date that nobody came across among them.
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Finds who was sent the longest head of a prompt that one of `candidates` (by rising slot) was sent, and where it ends. They
    /// replace what is in `out`. Holders out of date are forgotten on the way. Allocates nothing once its buffers have grown.
    pub fn probe(
        &mut self,
        now: Duration,
        tokens: &[u32],
        settings: &HashModeSettings,
        candidates: &[Slot],
        out: &mut Vec<Slot>,
    ) -> Option<u32> {
        out.clear();
        self.heads_of(tokens, settings);
        for at in (0..self.scratch.len()).rev() {
            let head = self.scratch[at];
            let Some(holders) = self.heads.get_mut(&head) else { continue };
            holders.retain(|holder| is_live(holder, now, settings, &self.lives));
            if holders.is_empty() {
                self.heads.remove(&head);
                continue;
            }
            out.extend(holders.iter().map(|holder| holder.slot).filter(|slot| candidates.binary_search(slot).is_ok()));
            if !out.is_empty() {
                return Some(head.0);
            }
        }
        None
    }

    /// Remembers that a worker was sent a prompt, at every boundary inside of it.
    pub fn record(&mut self, now: Duration, tokens: &[u32], slot: Slot, settings: &HashModeSettings) {
        self.heads_of(tokens, settings);
        let Self { heads, lives, scratch, .. } = self;
        let new = HeadHolder { slot, life: lives.of(slot), at: now };
        for head in scratch.iter() {
            let holders = heads.touch(*head, settings.heads_max);
            holders.retain(|holder| holder.slot != slot && is_live(holder, now, settings, lives));
            holders.push(new);
            // In the order of their last dispatch: the first is the stalest.
            let beyond = holders.len().saturating_sub(settings.holders_max.max(1));
            holders.drain(..beyond);
        }
        for _ in 0..DROPPED_AT_ONCE {
            let Some((_, holders)) = heads.oldest() else { break };
            if holders.iter().any(|holder| is_live(holder, now, settings, lives)) {
                break;
            }
            heads.pop_oldest();
        }
    }

    /// Forgets a worker: it is gone, or its cache is empty.
    pub fn forget(&mut self, slot: Slot) {
        self.lives.end(slot);
    }

    /// Fills the scratch memory with the heads of a prompt. Each token is hashed once, whatever the number of boundaries.
    fn heads_of(&mut self, tokens: &[u32], settings: &HashModeSettings) {
        if self.configured != settings.boundaries {
            self.configured.clone_from(&settings.boundaries);
            self.boundaries.clone_from(&settings.boundaries);
            self.boundaries.sort_unstable();
            self.boundaries.dedup();
            self.boundaries.retain(|boundary| *boundary > 0);
        }
        self.scratch.clear();
        self.hasher.reset();
        let mut hashed = 0;
        for boundary in self.boundaries.iter().copied() {
            let Some(more) = tokens.get(hashed..boundary as usize) else { break };
            more.chunks(CHUNK).for_each(|chunk| update(&mut self.hasher, chunk));
            hashed = boundary as usize;
            self.scratch.push((boundary, self.hasher.digest()));
        }
    }
}

fn is_live(holder: &HeadHolder, now: Duration, settings: &HashModeSettings, lives: &Lives) -> bool {
    holder.life == lives.of(holder.slot) && now < holder.at.saturating_add(settings.ttl)
}

fn update(hasher: &mut Xxh3, tokens: &[u32]) {
    let mut bytes = [0; CHUNK * 4];
    let (used, _) = bytes.split_at_mut(tokens.len() * 4);
    for (bytes, token) in used.chunks_exact_mut(4).zip(tokens) {
        bytes.copy_from_slice(&token.to_le_bytes());
    }
    hasher.update(used);
}

#[cfg(test)]
#[path = "hash_heads_tests.rs"]
mod tests;
