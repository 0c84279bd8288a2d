//! A bounded map that knows which of its entries was touched longest ago, and drops that one when a new one needs its place.

use std::collections::HashMap;
use std::hash::Hash;

/// No node.
const NONE: u32 = u32::MAX;

struct Node<K, V> {
    key: K,
    value: V,
    /// The node touched just after this one.
    newer: u32,
    /// The node touched just before this one.
    older: u32,
}

/// The map. Memory is used as entries come, and kept for the next ones.
pub(super) struct Recent<K, V> {
    places: HashMap<K, u32>,
    nodes: Vec<Node<K, V>>,
    free: Vec<u32>,
    newest: u32,
    oldest: u32,
}

impl<K, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { places: HashMap::new(), nodes: Vec::new(), free: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl<K: Copy + Eq + Hash, V: Default> Recent<K, V> {
    /// Entries.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.places.len()
    }

    /// An entry, as old as it was.
    pub fn get(&self, key: &K) -> Option<&V> {
        self.places.get(key).map(|at| &self.nodes[*at as usize].value)
    }

    /// An entry, as old as it was.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let at = *self.places.get(key)?;
        Some(&mut self.nodes[at as usize].value)
    }

    /// An entry as the newest one, made if it is not there. Of more than `max` entries the oldest go (but never this one).
    pub fn touch(&mut self, key: K, max: usize) -> &mut V {
        let at = match self.places.get(&key) {
            Some(at) => {
                let at = *at;
                self.unlink(at);
                at
            }
            None => self.make(key),
        };
        self.link_newest(at);
        while self.places.len() > max.max(1) {
            self.pop_oldest();
        }
        &mut self.nodes[at as usize].value
    }

    /// The entry that was touched longest ago.
    pub fn oldest(&self) -> Option<(&K, &V)> {
        self.nodes.get(self.oldest as usize).map(|node| (&node.key, &node.value))
    }

    /// Takes the entry out that was touched longest ago.
    pub fn pop_oldest(&mut self) -> Option<(K, V)> {
        let key = self.nodes.get(self.oldest as usize)?.key;
        self.remove(&key).map(|value| (key, value))
    }

    /// Takes an entry out.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let at = self.places.remove(key)?;
        self.unlink(at);
        self.free.push(at);
        Some(std::mem::take(&mut self.nodes[at as usize].value))
    }

    /// A node in no list.
    fn make(&mut self, key: K) -> u32 {
        let at = match self.free.pop() {
            Some(at) => {
                self.nodes[at as usize].key = key;
                at
            }
            None => {
                self.nodes.push(Node { key, value: V::default(), newer: NONE, older: NONE });
                (self.nodes.len() - 1) as u32
            }
        };
        self.places.insert(key, at);
        at
    }

    fn link_newest(&mut self, at: u32) {
        let before = std::mem::replace(&mut self.newest, at);
        let node = &mut self.nodes[at as usize];
        (node.newer, node.older) = (NONE, before);
        match self.nodes.get_mut(before as usize) {
            Some(before) => before.newer = at,
            None => self.oldest = at,
        }
    }

    fn unlink(&mut self, at: u32) {
        let Node { newer, older, .. } = self.nodes[at as usize];
        match self.nodes.get_mut(newer as usize) {
            Some(node) => node.older = older,
            None => self.newest = older,
        }
        match self.nodes.get_mut(older as usize) {
            Some(node) => node.newer = newer,
            None => self.oldest = newer,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::rngs::StdRng;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn the_one_touched_longest_ago_makes_room() {
        let mut recent = Recent::<u8, u8>::default();
        for key in [1, 2, 3, 1] {
            *recent.touch(key, 3) += key;
        }
        *recent.touch(4, 3) = 4;
        assert_eq!([1, 2, 3, 4].map(|key| recent.get(&key).copied()), [Some(2), None, Some(3), Some(4)]);
        assert_eq!(recent.oldest(), Some((&3, &3)));
        recent.touch(5, 1);
        assert_eq!((recent.len(), recent.get(&5)), (1, Some(&0)), "a smaller bound holds at once");
    }

    #[test]
    fn it_is_a_list_by_last_touch() {
        for seed in 0..50 {
            let mut rng = StdRng::seed_from_u64(seed);
            let (mut recent, mut naive) = (Recent::<u8, u64>::default(), Vec::<(u8, u64)>::new());
            for step in 0..2_000u64 {
                let (key, max) = (rng.random_range(0..24u8), rng.random_range(1..16usize));
                match rng.random_range(0..4) {
                    0 => {
                        let there = naive.iter().position(|entry| entry.0 == key).map(|at| naive.remove(at).1);
                        assert_eq!(recent.remove(&key), there, "seed {seed} step {step}");
                    }
                    1 => {
                        let there = (!naive.is_empty()).then(|| naive.remove(0));
                        assert_eq!(recent.pop_oldest(), there, "seed {seed} step {step}");
                    }
                    _ => {
                        let there = naive.iter().position(|entry| entry.0 == key).map(|at| naive.remove(at).1);
                        naive.push((key, there.unwrap_or(0) + step));
                        naive.drain(..naive.len().saturating_sub(max));
                        *recent.touch(key, max) += step;
                    }
                }
                assert_eq!(recent.len(), naive.len(), "seed {seed} step {step}");
                assert_eq!(recent.oldest().map(|(k, v)| (*k, *v)), naive.first().copied(), "seed {seed} step {step}");
                let value = naive.iter().find(|entry| entry.0 == key).map(|entry| entry.1);
                assert_eq!(recent.get_mut(&key).copied(), value, "seed {seed} step {step}");
            }
        }
    }
}
