//! Survivors where a tier counts together with all nearer ones of its rank: each rank has four ways of being there, and a
//! farther tier is named only where it reaches further than the nearer ones.

use crate::layout::{rank_of, slot_of, tier_of};
use crate::read::found::Found;
use crate::read::walk::{Stretch, Survivors};
use crate::types::Tier;

const TIERS: usize = Tier::COUNT;

/// The survivors of a walk. Its memory grows with the holders of the first run.
#[derive(Default)]
pub(crate) struct Cumulative {
    /// By rank: how deep each tier with its nearer ones reaches in the run at hand; valid where `touched` names the rank.
    cuts: Vec<[u32; TIERS]>,
    touched: Vec<u32>,
    /// (rank, tiers that have everything so far, as bits), in no order.
    alive: Vec<(u32, u8)>,
    /// (depth, rank, tier) of whoever ended.
    ended: Vec<(u32, u32, u8)>,
}

impl Cumulative {
    /// Sizes the table for so many words of 64 ranks. Allocates when that is more than ever before.
    pub fn fit(&mut self, rank_words: usize) {
        if self.cuts.len() < rank_words * 64 {
            self.cuts.resize(rank_words * 64, [0; TIERS]);
        }
    }

    /// Reads how far each tier reaches, each tier with its nearer ones.
    fn read(&mut self, s: &Stretch<'_>) {
        for rank in self.touched.drain(..) {
            self.cuts[rank as usize] = [0; TIERS];
        }
        let Self { cuts, touched, .. } = self;
        s.shard.each_holder(s.header, s.fields, |entry| {
            let (rank, tier) = (rank_of(entry.slot), tier_of(entry.slot) as usize % TIERS);
            // A rank beyond the table is a rumour, or came after this lookup began.
            let Some(of) = cuts.get_mut(rank as usize) else { return };
            if *of == [0; TIERS] {
                touched.push(rank);
            }
            of[tier..].iter_mut().for_each(|cut| *cut = (*cut).max(entry.cut));
        });
    }
}

impl Survivors for Cumulative {
    fn begin(&mut self) {
        self.alive.clear();
        self.ended.clear();
    }

    fn enter(&mut self, s: &Stretch<'_>, _found: &mut Found) -> bool {
        self.read(s);
        if s.depth == 0 {
            self.alive.extend(self.touched.iter().map(|&rank| (rank, (1 << TIERS) - 1)));
        }
        let Self { cuts, alive, ended, .. } = self;
        alive.retain_mut(|(rank, tiers)| {
            for (tier, &cut) in cuts[*rank as usize].iter().enumerate() {
                if *tiers >> tier & 1 == 1 && cut < s.matched {
                    *tiers &= !(1 << tier);
                    ended.push((s.depth + cut, *rank, tier as u8));
                }
            }
            *tiers != 0
        });
        !alive.is_empty()
    }

    fn finish(&mut self, depth: u32, _found: &mut Found) {
        for &(rank, tiers) in &self.alive {
            self.ended.extend((0..TIERS as u8).filter(|t| tiers >> t & 1 == 1).map(|t| (depth, rank, t)));
        }
        self.alive.clear();
    }

    fn ended(&self, _found: &Found) -> usize {
        self.ended.len()
    }

    fn cut_off(&mut self, ended: usize, depth: u32, _found: &mut Found) {
        self.ended[ended..].iter_mut().for_each(|e| e.0 = depth);
    }
}

impl Cumulative {
    /// Works out the levels after a walk.
    pub fn arrange(&mut self, found: &mut Found) {
        let ended = &mut self.ended;
        found.clear();
        // By rank, nearest tier first: only a tier that reaches further than the one before is named.
        ended.sort_unstable_by_key(|&(_, rank, tier)| (rank, tier));
        let (mut of, mut deepest) = (u32::MAX, 0);
        ended.retain(|&(depth, rank, _)| {
            if rank != of {
                (of, deepest) = (rank, 0);
            }
            let further = depth > deepest;
            deepest = deepest.max(depth);
            further
        });
        ended.sort_unstable();
        for &(depth, rank, tier) in ended.iter() {
            if let Some(tier) = Tier::from_index(tier as usize) {
                found.push(depth, slot_of(rank, tier));
            }
        }
    }
}
