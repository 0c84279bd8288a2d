//! Two halves of a run made one again.
//!
//! A run that was cut stays cut while somebody needs the seam: who has a hole there, who has names of another kind behind it,
//! or many who stop at it. Each event knows whether it changed how its holder stands to a seam; then the counts of both
//! coverages say, in a few lines, whether the halves can be told apart at all, and only where they cannot both are read whole.
//! Positions, contents, names, maps and children stay where they are; the second half's header goes.

use crate::alloc::GRANULE;
use crate::cover::image::Drafts;
use crate::cover::tree;
use crate::fault::{Fault, injected};
use crate::lane::work::{Counts, HeldRun, Scratch, Work};
use crate::layout::{CROWD, Entry, Fields, HEADER_SLOTS, Header};
use crate::shard::{Shard, Sight};
use crate::sync::Ordering;

/// So many holders may stop where two runs become one. A cut takes far more (stops.rs), so that a run does not come and go with
/// every holder.
const STOPS_KEPT: u32 = 2;

/// Runs that may be one with the run before them from now on, as one holder no longer stands there as it did; 0 for none.
#[derive(Clone, Copy, Default)]
pub(crate) struct Seams {
    /// The run itself.
    pub own: u32,
    /// The one behind it.
    pub behind: u32,
}

impl Seams {
    /// Of a run in which one holder's part goes from `before` to `after` blocks.
    #[inline]
    pub fn touched(held: &HeldRun<'_>, before: u32, after: u32) -> Self {
        let f = &held.f;
        let own = (before == 0) != (after == 0) && f.base == f.parent + 1;
        let behind = (before == f.len) != (after == f.len);
        Self { own: if own { held.run } else { 0 }, behind: if behind { f.next } else { 0 } }
    }

    /// Both ends of a run, where any number of holders left.
    #[inline]
    pub fn of(held: &HeldRun<'_>) -> Self {
        let f = &held.f;
        Self { own: if f.base == f.parent + 1 { held.run } else { 0 }, behind: f.next }
    }
}

impl<'a> Work<'a> {
    /// Merges at these seams where nothing stands against it. No LOCK is held.
    #[inline]
    pub fn merge_at(&mut self, seams: Seams) {
        if seams.behind != 0 {
            self.merge(seams.behind);
        }
        if seams.own != 0 {
            self.merge(seams.own);
        }
    }

    /// The same after a holder came to the end of a run: nothing is new behind it where the holder has nothing.
    #[inline]
    pub fn merge_joined(&mut self, mut seams: Seams) {
        if seams.behind != 0 {
            // A rumour of what only this lane changes.
            let behind = self.shard.header(seams.behind);
            if self.shard.cut(behind, &behind.load(), self.slot()).0 == 0 {
                seams.behind = 0;
            }
        }
        self.merge_at(seams);
    }

    /// Makes a run and the one before it one, if it is a physical successor and nobody needs the seam.
    #[cold]
    fn merge(&mut self, run: u32) {
        if let Some(second) = self.shard.merge(run, self.scratch, self.counts) {
            self.give_back(second);
            self.counts.merges += 1;
        }
    }
}

impl Shard {
    /// Makes a run and the one before it one: then the run, dead, to be given back. Another lane in the way is not waited for:
    /// what stays cut is right, too.
    pub(crate) fn merge(&self, run: u32, scratch: &mut Scratch, counts: &mut Counts) -> Option<HeldRun<'_>> {
        let (first, second) = self.halves(run).filter(|(first, second)| self.may_be_one(first, second))?;
        let Scratch { halves: [whole, rest], drafts, .. } = scratch;
        let early = injected(Fault::HalvesBeforeLock);
        if early {
            self.holders_into(self.header(first.run), &first.fields, whole);
            self.holders_into(self.header(run), &second.fields, rest);
        }
        // Child before parent (rule R5), each as it was seen (R3).
        let mut second = self.lock_at(&second, counts)?;
        let mut first = self.lock_at(&first, counts)?;
        if !early {
            self.holders_into(first.header, &first.f, whole);
            self.holders_into(second.header, &second.f, rest);
        }
        let one = self.one_coverage(&first, &second, whole, rest) && self.unite(drafts, &mut first, &mut second, whole);
        one.then_some(second)
    }

    /// A physical successor and the run before it, each at some version.
    fn halves(&self, run: u32) -> Option<(Sight, Sight)> {
        let second = self.sight(run, 0).ok()?;
        let parent = second.fields.parent;
        if second.fields.base != parent + 1 {
            return None;
        }
        let (first, _) = self.locate_once(parent)?;
        (first.fields.next == run).then_some((first, second))
    }

    /// Whether nothing that a few lines tell keeps two halves apart: as many hold the first to its end as hold anything of the
    /// second, but for a few who stop there.
    fn may_be_one(&self, first: &Sight, second: &Sight) -> bool {
        let (a, b) = (&first.fields, &second.fields);
        // Appends stay out of the set form: a tail that may grow is not drawn into it.
        let tail = b.next == 0 && !b.set_form();
        if a.len + b.len > self.run_blocks_max || a.set_form() && tail {
            return false;
        }
        let behind = self.count_holders(self.header(second.run), b);
        let most = behind + STOPS_KEPT;
        let through = self.count_full(self.header(first.run), a, most + 1);
        (behind..=most).contains(&through)
    }

    /// All holders of a run, in order of slot.
    fn holders_into(&self, header: Header<'_>, f: &Fields, into: &mut Vec<Entry>) {
        into.clear();
        self.each_holder(header, f, |entry| into.push(entry));
        into.sort_unstable_by_key(|entry| entry.slot);
    }

    /// The holders of a first half and of the rest as those of one run, if they can be that: who has any of the second has all of the first, under
    /// names of the same kind.
    fn one_coverage(&self, first: &HeldRun<'_>, second: &HeldRun<'_>, whole: &mut [Entry], rest: &[Entry]) -> bool {
        let (a, b) = (&first.f, &second.f);
        let len = a.len + b.len;
        // A tail grows without a new version.
        if len > self.run_blocks_max || b.base != a.end() || a.next != second.run {
            return false;
        }
        let (mut rest, mut stops, mut keys) = (rest.iter().peekable(), 0, 0);
        for entry in whole.iter_mut() {
            if let Some(more) = rest.next_if(|more| more.slot == entry.slot) {
                if entry.cut != a.len || entry.private != more.private {
                    return false;
                }
                entry.cut += more.cut;
            } else {
                stops += u32::from(entry.cut == a.len);
            }
            keys += usize::from(entry.cut < len || entry.private || entry.slot >= HEADER_SLOTS);
        }
        // Two lists of keys that fit a block each are read faster than a crowd's tree.
        let crowd = (a.flags | b.flags) & CROWD != 0;
        rest.next().is_none() && stops <= STOPS_KEPT && (crowd || keys <= tree::KEYS)
    }

    /// Makes two halves one: the first becomes the whole run, the second dies. Both are locked. Nothing has changed where there
    /// is no holder block for the whole. A lane that was on its way to the second half finds it dead, or the version moved
    /// (R3), and looks again; a reader there has read what is right, or fails to confirm.
    fn unite(&self, drafts: &mut Drafts, first: &mut HeldRun<'_>, second: &mut HeldRun<'_>, whole: &[Entry]) -> bool {
        let (a, b) = (first.f, second.f);
        let after = Fields { len: a.len + b.len, cap: a.len + b.cap, next: b.next, ..a };
        if self.replace(drafts, &mut first.lock, first.header, &mut first.f, after, whole).is_err() {
            return false;
        }
        self.kids.remove(&self.arena, b.parent);
        // Before the second half dies, so that there is a way to its positions all the time.
        self.own(first.run, b.base, b.cap);
        if !injected(Fault::SuccessorLeftAlive) {
            second.lock.kill();
        }
        true
    }

    /// Makes a run the owner of the granules that begin in `cap` positions from `base` on.
    pub(super) fn own(&self, run: u32, base: u32, cap: u32) {
        for granule in base.div_ceil(GRANULE)..=(base + cap - 1) / GRANULE {
            // Release: pairs with the Acquire in `locate`.
            self.arena.owner(granule).store(run, Ordering::Release);
        }
    }
}
