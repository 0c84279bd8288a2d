//! A bounded memory of whole block digests by their 64-bit names.

use super::engine::Digest;
use kvatlas_index::EngineHash;
use std::collections::HashMap;

/// Remembers the digests used last. Two generations of half the limit each: a full young generation becomes the old one,
/// and what is used again moves back to the young. So at least the last `max / 2` digests used are there, at most `max`,
/// and each costs two hash map operations, without a list of uses.
#[derive(Debug)]
pub(super) struct RememberedDigests {
    young: HashMap<EngineHash, Digest>,
    old: HashMap<EngineHash, Digest>,
    young_max: usize,
}

impl RememberedDigests {
    /// Remembers at most `max` digests; of one or none, only the last.
    pub(super) fn new(max: usize) -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), young_max: (max / 2).max(1) }
    }

    pub(super) fn contains(&self, name: EngineHash) -> bool {
        self.young.contains_key(&name) || self.old.contains_key(&name)
    }

    pub(super) fn get(&mut self, name: EngineHash) -> Option<Digest> {
        if let Some(digest) = self.young.get(&name) {
            return Some(*digest);
        }
        let digest = self.old.remove(&name)?;
        self.put(name, digest);
        Some(digest)
    }

    pub(super) fn put(&mut self, name: EngineHash, digest: Digest) {
        if self.young.len() >= self.young_max && !self.young.contains_key(&name) {
            core::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(name, digest);
    }

    pub(super) fn clear(&mut self) {
        self.young.clear();
        self.old.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_is_used_and_stays_bounded() {
        let mut memory = RememberedDigests::new(8);
        let digest = |n: u64| Digest::sha256([n as u8; 32]);
        for n in 0..100 {
            memory.put(EngineHash(n), digest(n));
            assert!(memory.young.len() + memory.old.len() <= 8);
            // Name 0 is used all the time.
            assert_eq!(memory.get(EngineHash(0)), Some(digest(0)), "after {n}");
            assert_eq!(memory.get(EngineHash(n)), Some(digest(n)));
        }
        assert!(!memory.contains(EngineHash(50)));
        memory.clear();
        assert_eq!(memory.get(EngineHash(0)), None);
    }
}
