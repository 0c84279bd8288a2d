//! Ranks come, go and are emptied: which slots of the shard a lane has, and who sits on them.
//!
//! What a rank holds is dropped by giving the rank another slot: the old one is masked, so no answer names it any more, and
//! swept later (retired.rs). So closing or clearing a rank costs the same however much it held.

use crate::error::IndexError;
use crate::fault::{Fault, injected};
use crate::lane::names::HolderNames;
use crate::lane::parking::Parking;
use crate::lane::{Lane, Rank};
use crate::slots::WORD_RANKS;
use crate::types::{Cleared, Holder, RankKey, RankSlot, Tier};

impl Lane {
    /// Makes a rank known, holding nothing. Answers carry `key`, which the caller keeps unique among open ranks.
    pub fn open_rank(&mut self, key: RankKey) -> Result<RankSlot, IndexError> {
        self.shard_ref().slots.open_one()?;
        let Some(slot) = self.take_slot() else {
            self.shard_ref().slots.close_one();
            return Err(IndexError::RanksFull { limit: self.index.config.ranks_max });
        };
        self.operations += 1;
        let shard = self.shard_ref();
        shard.slots.give(slot, key);
        let hash_key = shard.key;
        let rank = Rank {
            key,
            slot,
            holders: std::array::from_fn(|_| HolderNames::new(hash_key)),
            parking: Parking::new(hash_key, self.index.config.orphans_max_per_rank as usize),
            changed: self.operations,
            bytes: 0,
        };
        let number = self.ranks_free.pop().unwrap_or(self.ranks.len() as u32);
        self.ranks.resize_with(self.ranks.len().max(number as usize + 1), || None);
        self.ranks[number as usize] = Some(Box::new(rank));
        Ok(RankSlot(number))
    }

    /// Forgets a rank with all it holds, in every tier. It is gone from answers at once; its memory is swept by and by
    /// ([`Lane::sweep`]), so this takes no longer for a rank that holds much.
    pub fn close_rank(&mut self, rank: RankSlot) -> Result<Cleared, IndexError> {
        self.open(rank)?;
        let mut closed = self.ranks[rank.0 as usize].take().expect("an open rank is there");
        self.ranks_free.push(rank.0);
        self.rank_map_bytes -= closed.bytes;
        let parked = closed.parking.len() as u64;
        self.parked -= parked;
        let (blocks, names) = self.forget_holders(&mut closed);
        self.shard_ref().slots.mask(closed.slot);
        self.leave_slot(closed.slot, blocks, names);
        self.shard_ref().slots.close_one();
        self.publish();
        Ok(Cleared { blocks, parked })
    }

    /// Drops everything in one tier of a rank, or in all. Never needs memory. It is gone from answers at once and swept by
    /// and by ([`Lane::sweep`]); only for a tier of a rank that holds something in another one too, this takes as long as a
    /// walk over the shard's runs.
    pub fn clear(&mut self, rank: RankSlot, tier: Option<Tier>) -> Result<Cleared, IndexError> {
        let holders = &self.open(rank)?.holders;
        let cleared = |t: Tier| tier.is_none_or(|only| only == t);
        let (mut goes, mut stays) = (0, 0);
        for t in Tier::ALL {
            *(if cleared(t) { &mut goes } else { &mut stays }) += holders[t.index()].held;
        }
        let mut did = Cleared::default();
        if goes > 0 && stays == 0 {
            did.blocks = self.change_slot(rank);
        }
        for t in Tier::ALL.into_iter().filter(|&t| cleared(t)) {
            let this = self.open(rank)?;
            if this.holders[t.index()].held == 0 && this.parking.is_empty() {
                continue;
            }
            self.work(Holder { rank, tier: t }, |work, parking| {
                did.blocks += work.clear();
                did.parked += parking.clear(t, &mut work.scratch.arrived);
                Ok(())
            })?;
        }
        Ok(did)
    }

    /// Gives a rank another slot, on which it holds nothing; how many blocks it held. None, if there is no other slot.
    fn change_slot(&mut self, rank: RankSlot) -> u64 {
        let Some(slot) = self.take_slot() else { return 0 };
        let mut this = self.ranks[rank.0 as usize].take().expect("an open rank is there");
        self.operations += 1;
        this.changed = self.operations;
        let (blocks, names) = self.forget_holders(&mut this);
        let bytes = this.map_bytes();
        self.rank_map_bytes = self.rank_map_bytes + bytes - this.bytes;
        this.bytes = bytes;
        self.shard_ref().slots.mask(this.slot);
        self.shard_ref().slots.give(slot, this.key);
        let old = std::mem::replace(&mut this.slot, slot);
        self.ranks[rank.0 as usize] = Some(this);
        self.leave_slot(old, blocks, names);
        self.publish();
        blocks
    }

    /// Forgets what a rank's holders are called; how many blocks they held, and how many private names stay to be swept.
    fn forget_holders(&mut self, rank: &mut Rank) -> (u64, u64) {
        let key = self.shard_ref().key;
        let blocks = rank.holders.iter().map(|h| h.held).sum();
        let names = rank.holders.iter().map(|h| h.private_len).sum();
        rank.holders.iter_mut().for_each(|h| h.forget(key));
        self.counts.held -= blocks;
        (blocks, names)
    }

    /// A slot that nobody has and no run mentions.
    fn take_slot(&mut self) -> Option<u32> {
        if self.free.is_empty() && !self.take_word() && !self.retired.is_empty() {
            // Other lanes may have every word: what waits here to be swept is not a reason to refuse.
            self.sweep_all();
            self.take_word();
        }
        self.free.pop()
    }

    fn take_word(&mut self) -> bool {
        let Some(word) = self.shard_ref().slots.take_word() else { return false };
        own(&mut self.mine, word, true);
        self.free.extend((word * WORD_RANKS..(word + 1) * WORD_RANKS).rev());
        true
    }

    /// A masked slot on which `blocks` were held, with so many private names: free, once it is swept.
    fn leave_slot(&mut self, slot: u32, blocks: u64, names: u64) {
        if blocks == 0 || injected(Fault::GivenBeforeSwept) {
            return self.free_slot(slot);
        }
        if self.retired.is_full() {
            self.sweep_all();
        }
        self.retired.add(slot, blocks, names);
    }

    /// Takes back a masked slot that no run mentions. Its word is given back when none of its slots is in use and the lane
    /// has other free ones.
    pub(super) fn free_slot(&mut self, slot: u32) {
        self.free.push(slot);
        let word = slot / WORD_RANKS;
        let of_word = |slot: u32| slot / WORD_RANKS == word;
        let free = self.free.iter().filter(|&&slot| of_word(slot)).count();
        if free < WORD_RANKS as usize || free == self.free.len() {
            return;
        }
        self.free.retain(|&slot| !of_word(slot));
        own(&mut self.mine, word, false);
        self.shard_ref().slots.give_back(word);
    }
}

/// Marks the slots of a word as the lane's or not.
fn own(mine: &mut Vec<u64>, word: u32, yes: bool) {
    let first = word * WORD_RANKS;
    let bits = ((1 << WORD_RANKS) - 1) << (first % 64);
    let at = first as usize / 64;
    mine.resize(mine.len().max(at + 1), 0);
    mine[at] = mine[at] & !bits | if yes { bits } else { 0 };
}
