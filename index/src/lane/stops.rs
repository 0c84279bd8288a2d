//! A run where many holders stop at one block is cut there.
//!
//! The head of a prompt that a whole fleet shares often begins as a part of somebody's longer run. Whoever joins it stops at
//! the same block, a key each, in order of cutoff; cut there, all of them hold the first part to its end, a bit each, and a
//! lookup takes them as a set. Holders that stop all over a run (one chain, many depths) stay keys: no cut would help them.

use crate::cover::tree;
use crate::lane::work::{HeldRun, Work};
use crate::layout::CROWD;

/// So many holders that stop at one block are worth a cut. Below nine the holders of a run are entries of its header.
const STOPS_MIN: usize = 8;

impl<'a> Work<'a> {
    /// Cuts the run at `cut`, where this operation's holder stops, if many others stop there, too. A run whose keys are too
    /// many for one block is left alone: it was looked at while they came. Without room for another run nothing happens.
    pub fn cut_at_stop(&mut self, held: HeldRun<'a>, cut: u32) {
        if cut >= held.f.len || !held.f.set_form() || held.f.flags & CROWD != 0 {
            return;
        }
        let beyond = tree::leaf(&self.shard.arena, held.f.ext).rev().take_while(|entry| entry.cut >= cut);
        if beyond.filter(|entry| entry.cut == cut).count() >= STOPS_MIN {
            let _ = self.split(held, cut);
        }
    }
}
