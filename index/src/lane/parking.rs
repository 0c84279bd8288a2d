//! Orphans: blocks of one rank whose parent is not known yet, kept under a bound in the order they came.
//!
//! A block stands in two lists, of its parent's orphans and of its tier's blocks with its name, which go through the blocks
//! themselves: parking a block and taking one out are a few steps, however many wait for the same parent or bear one name.

use crate::hash::{HashKey, IntMap, shrink};
use crate::types::{StoreKind, Tier};
use std::collections::VecDeque;

/// Parked blocks that a rank keeps room for, once it had them (11 KiB).
const KEPT: usize = 56;

/// A parked block.
#[derive(Clone, Copy)]
pub(crate) struct Parked {
    pub tier: Tier,
    pub parent: u64,
    pub name: u64,
    pub content: u64,
    pub kind: StoreKind,
}

/// Tickets of the neighbours in a list, or of its ends; 0 is none.
#[derive(Clone, Copy, Default)]
struct Ends {
    /// The one that came before, or first.
    first: u64,
    /// The one that came after, or last.
    last: u64,
}

#[derive(Clone, Copy)]
struct Place {
    block: Parked,
    /// Among the orphans of its parent, and among the blocks of its tier with its name.
    neighbours: [Ends; 2],
}

/// The parking place of a rank. Tickets count up from 1, so the order of arrival is theirs.
pub(crate) struct Parking {
    places: IntMap<u64, Place>,
    by_parent: IntMap<u64, Ends>,
    by_name: IntMap<(u64, u32), Ends>,
    latest: u64,
    limit: usize,
}

impl Parking {
    pub fn new(key: HashKey, limit: usize) -> Self {
        let (places, by_parent) = (IntMap::with_hasher(key), IntMap::with_hasher(key));
        Self { places, by_parent, by_name: IntMap::with_hasher(key), latest: 0, limit }
    }

    pub fn is_empty(&self) -> bool {
        self.places.is_empty()
    }
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// Tickets of all blocks, in the order in which they came. Allocates them.
    pub fn tickets(&self) -> Vec<u64> {
        let mut tickets: Vec<u64> = self.places.keys().copied().collect();
        tickets.sort_unstable();
        tickets
    }

    /// The block with a ticket.
    pub fn get(&self, ticket: u64) -> Option<Parked> {
        self.places.get(&ticket).map(|place| place.block)
    }

    /// Whether a block has this name, or waits for it.
    pub fn mentions(&self, name: u64) -> bool {
        let named = |tier: Tier| self.by_name.contains_key(&(name, tier.index() as u32));
        self.by_parent.contains_key(&name) || Tier::ALL.into_iter().any(named)
    }

    /// Bytes of the maps, about: an entry and its control byte, at seven eighths of the buckets.
    pub fn bytes(&self) -> u64 {
        let places = self.places.capacity() * (size_of::<(u64, Place)>() + 1);
        let parents = self.by_parent.capacity() * (size_of::<(u64, Ends)>() + 1);
        let names = self.by_name.capacity() * (size_of::<((u64, u32), Ends)>() + 1);
        ((places + parents + names) * 8 / 7) as u64
    }

    /// Parks a block; false when the place is full.
    pub fn park(&mut self, block: Parked) -> bool {
        if self.places.len() >= self.limit {
            return false;
        }
        self.latest += 1;
        let ticket = self.latest;
        let before = [
            join(self.by_parent.entry(block.parent).or_default(), ticket),
            join(self.by_name.entry(name_key(&block)).or_default(), ticket),
        ];
        for (list, before) in before.into_iter().enumerate().filter(|&(_, before)| before != 0) {
            self.place(before).neighbours[list].last = ticket;
        }
        let neighbours = before.map(|first| Ends { first, last: 0 });
        self.places.insert(ticket, Place { block, neighbours });
        true
    }

    /// The first block that waits for `parent`, taken out.
    pub fn take_child(&mut self, parent: u64) -> Option<Parked> {
        let ticket = self.by_parent.get(&parent)?.first;
        Some(self.take(ticket))
    }

    /// The latest block with this tier and name, taken out; whether there was one.
    pub fn take_name(&mut self, tier: Tier, name: u64) -> bool {
        let Some(&Ends { last, .. }) = self.by_name.get(&(name, tier.index() as u32)) else { return false };
        self.take(last);
        true
    }

    /// Takes out every block of a tier; how many there were. Puts their tickets into `tickets` on the way.
    pub fn clear(&mut self, tier: Tier, tickets: &mut VecDeque<u64>) -> u64 {
        tickets.clear();
        tickets.extend(self.places.iter().filter(|(_, p)| p.block.tier == tier).map(|(&t, _)| t));
        tickets.iter().for_each(|&t| {
            self.take(t);
        });
        tickets.len() as u64
    }

    fn place(&mut self, ticket: u64) -> &mut Place {
        self.places.get_mut(&ticket).expect("listed tickets are parked")
    }

    fn take(&mut self, ticket: u64) -> Parked {
        let Place { block, neighbours } = self.places.remove(&ticket).expect("listed tickets are parked");
        shrink(&mut self.places, KEPT);
        for (list, Ends { first, last }) in neighbours.into_iter().enumerate() {
            if first != 0 {
                self.place(first).neighbours[list].last = last;
            }
            if last != 0 {
                self.place(last).neighbours[list].first = first;
            }
        }
        leave(&mut self.by_parent, &block.parent, neighbours[0]);
        leave(&mut self.by_name, &name_key(&block), neighbours[1]);
        block
    }
}

fn name_key(block: &Parked) -> (u64, u32) {
    (block.name, block.tier.index() as u32)
}

/// Puts a ticket at the end of a list; the one that was there before, 0 for none.
fn join(list: &mut Ends, ticket: u64) -> u64 {
    let before = list.last;
    *list = Ends { first: if before == 0 { ticket } else { list.first }, last: ticket };
    before
}

/// What a list is without a ticket that stood between these neighbours.
fn leave<K: Eq + std::hash::Hash>(lists: &mut IntMap<K, Ends>, key: &K, between: Ends) {
    let list = lists.get_mut(key).expect("a parked block is listed");
    if between.first == 0 {
        list.first = between.last;
    }
    if between.last == 0 {
        list.last = between.first;
    }
    if list.first == 0 {
        lists.remove(key);
        shrink(lists, KEPT);
    }
}

#[cfg(test)]
mod tests {
    use super::{Parked, Parking};
    use crate::hash::HashKey;
    use crate::types::{StoreKind, Tier};
    use std::collections::VecDeque;

    /// Against a plain list, with few parents and names, so that the lists are long and lose blocks everywhere.
    #[test]
    fn equals_a_plain_list() {
        let mut parking = Parking::new(HashKey::new(Some([3, 4])), 300);
        let mut model: Vec<Parked> = Vec::new();
        let mut rng = 5u64;
        let mut random = |below: u64| {
            rng = rng.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (rng >> 33) % below
        };
        let mut taken = [0; 3];
        for step in 0..30_000u64 {
            let tier = Tier::ALL[random(2) as usize];
            let key = random(4);
            match random(if step / 2_000 % 2 == 0 { 4 } else { 8 }) {
                0 => {
                    let at = model.iter().position(|p| p.parent == key);
                    let want = at.map(|at| model.remove(at).content);
                    assert_eq!(parking.take_child(key).map(|p| p.content), want);
                    taken[0] += u32::from(want.is_some());
                }
                1 => {
                    let at = model.iter().rposition(|p| p.tier == tier && p.name == key);
                    at.map(|at| model.remove(at));
                    assert_eq!(parking.take_name(tier, key), at.is_some());
                    taken[1] += u32::from(at.is_some());
                }
                2 if step % 500 == 0 => {
                    let had = model.len();
                    model.retain(|p| p.tier != tier);
                    assert_eq!(parking.clear(tier, &mut VecDeque::new()), (had - model.len()) as u64);
                    taken[2] += 1;
                }
                _ => {
                    let block = Parked { tier, parent: key, name: random(4), content: step, kind: StoreKind::Copy };
                    let room = model.len() < 300;
                    assert_eq!(parking.park(block), room);
                    model.extend(room.then_some(block));
                }
            }
            assert_eq!((parking.len(), parking.is_empty()), (model.len(), model.is_empty()));
        }
        assert!(taken.iter().all(|&t| t > 3), "{taken:?}");
        Tier::ALL.iter().for_each(|&tier| {
            parking.clear(tier, &mut VecDeque::new());
        });
        assert_eq!((parking.by_parent.len(), parking.by_name.len()), (0, 0));
    }
}
