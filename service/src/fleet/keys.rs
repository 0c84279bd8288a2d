//! Dense numbers for ranks, as the index and its filters want them.

use kvatlas_index::RankKey;
use std::collections::VecDeque;

/// Gives out numbers below a limit. A freed number is the last to be given again.
#[derive(Debug)]
pub(super) struct RankKeys {
    next: u32,
    limit: u32,
    free: VecDeque<u32>,
}

impl RankKeys {
    pub(super) fn new(limit: u32) -> Self {
        Self { next: 0, limit, free: VecDeque::new() }
    }

    /// Numbers that can still be taken.
    pub(super) fn left(&self) -> usize {
        (self.limit - self.next) as usize + self.free.len()
    }

    /// A number that is not in use; `None` at the limit.
    pub(super) fn take(&mut self) -> Option<RankKey> {
        if self.next < self.limit {
            self.next += 1;
            return Some(RankKey(self.next - 1));
        }
        self.free.pop_front().map(RankKey)
    }

    /// Gives a number back.
    pub(super) fn give(&mut self, key: RankKey) {
        debug_assert!(key.0 < self.next && !self.free.contains(&key.0), "a number is given back once");
        self.free.push_back(key.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_used_again_only_when_all_were_used() {
        let mut keys = RankKeys::new(3);
        let first = keys.take().unwrap();
        keys.give(first);
        assert_eq!(keys.left(), 3);
        let rest: Vec<_> = std::iter::from_fn(|| keys.take()).map(|k| k.0).collect();
        assert_eq!(rest, [1, 2, 0]);
        assert_eq!(keys.left(), 0);
    }
}
