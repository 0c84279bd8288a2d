//! What is parked, in the order in which it came.
//!
//! Blocks whose parent the rank does not have are parked again by a store behind that parent, and blocks that follow each
//! other by one store. A block can also wait for a parent that the rank has: it came in one store with a parked block of that
//! name. Where that block is still before it, both are told in one store. Where it was taken out since, a block of that name
//! is told with it, behind a name that leads nowhere, and removed again: a removal takes the latest parked block of a name.
//! However full the place is there is room for that one, since there was when they came.

use crate::lane::export::{Export, Exported, Source};
use crate::lane::parking::Parked;
use crate::types::{ContentHash, EngineHash, Store};

/// Blocks of one store, if it may end there.
const STORE_MAX: usize = 512;

impl Export {
    /// Tells what is parked from this place of the list on; the place to go on with, or `None` at the end.
    pub(super) fn tell_parked(
        &mut self,
        from: Source<'_>,
        mut next: usize,
        left: &mut i64,
        see: &mut dyn FnMut(Exported<'_>),
    ) -> Option<usize> {
        while let Some(&ticket) = self.tickets.get(next) {
            if *left <= 0 {
                return Some(next);
            }
            let Some(first) = from.rank.parking.get(ticket) else { break };
            let behind_held = from.holds(first.parent);
            let told = self.collect_orphans(from, first, next, behind_held);
            if behind_held {
                self.tell_behind_held(from, first, see);
            } else {
                let (names, contents) = (&self.buffers.names[..], &self.buffers.contents[..]);
                let store = Store { parent: Some(EngineHash(first.parent)), names, contents, kind: first.kind };
                see(Exported::Store { tier: first.tier, store });
            }
            next += told;
            *left -= told as i64;
        }
        None
    }

    /// Collects a block and those after it that follow each other; how many. Behind a held name only such blocks follow as
    /// wait for held names, too: whether they came in one store or not, there was room for one more. Otherwise a store ends
    /// where it is long, but not before a block that waits for a held name.
    fn collect_orphans(&mut self, from: Source<'_>, first: Parked, at: usize, behind_held: bool) -> usize {
        let (names, contents) = (&mut self.buffers.names, &mut self.buffers.contents);
        names.clear();
        contents.clear();
        if behind_held {
            names.push(EngineHash(first.parent));
            contents.push(ContentHash(0));
        }
        let (mut before, mut count) = (first.parent, 0);
        for &ticket in &self.tickets[at..] {
            let Some(block) = from.rank.parking.get(ticket) else { break };
            if block.parent != before || block.tier != first.tier || block.kind != first.kind {
                break;
            }
            let may_end = count > 0 && (behind_held || count >= STORE_MAX);
            // A second block of the name that is removed again would be the one that goes.
            if may_end && !from.holds(block.parent) || behind_held && block.name == first.parent {
                break;
            }
            names.push(EngineHash(block.name));
            contents.push(ContentHash(block.content));
            before = block.name;
            count += 1;
        }
        count
    }

    /// Tells the blocks collected, the first of which stands in for one that the rank holds.
    fn tell_behind_held(&mut self, from: Source<'_>, first: Parked, see: &mut dyn FnMut(Exported<'_>)) {
        let number = self.synthetic.take(from, 1);
        let parent = Some(self.synthetic.name(number));
        let (names, contents) = (&self.buffers.names[..], &self.buffers.contents[..]);
        see(Exported::Store { tier: first.tier, store: Store { parent, names, contents, kind: first.kind } });
        see(Exported::Remove { tier: first.tier, names: &names[..1] });
    }
}
