//! One number for a row of chunks, the same on both sides of a copy.

use crate::ops::Op;
use kvatlas_index::{ContentHash, EngineHash, StoreKind, Tier};
use xxhash_rust::xxh3::Xxh3;

/// Adds up chunks of operations, in order. The number depends on every field of every operation and on where chunks end.
#[derive(Clone, Default)]
pub struct ChunksSum {
    sum: Xxh3,
    words: Vec<u8>,
}

impl ChunksSum {
    /// Adds a chunk.
    pub fn add(&mut self, chunk: &[Op]) {
        self.words.clear();
        self.word(chunk.len() as u64);
        for op in chunk {
            self.op(op);
            self.sum.update(&self.words);
            self.words.clear();
        }
        self.sum.update(&self.words);
    }

    /// The number for everything added so far.
    pub fn value(&self) -> u64 {
        self.sum.digest()
    }

    fn op(&mut self, op: &Op) {
        match op {
            Op::Store { tier, parent, names, contents, kind } => {
                self.head(0, Some(*tier), names.len());
                self.word(u64::from(parent.is_some()) | u64::from(*kind == StoreKind::Announce) << 1);
                self.word(parent.map_or(0, |EngineHash(name)| name));
                self.names(names);
                contents.iter().for_each(|ContentHash(content)| self.word(*content));
            }
            Op::Adopt { tier, names } => {
                self.head(1, Some(*tier), names.len());
                self.names(names);
            }
            Op::Remove { tier, names } => {
                self.head(2, Some(*tier), names.len());
                self.names(names);
            }
            Op::SetCopies { tier, name, left } => {
                self.head(3, Some(*tier), 1);
                self.word(name.0);
                self.word(*left);
            }
            Op::Clear { tier } => self.head(4, *tier, 0),
        }
    }

    fn head(&mut self, kind: u64, tier: Option<Tier>, names: usize) {
        let tier = match tier {
            None => 0,
            Some(Tier::Device) => 1,
            Some(Tier::Host) => 2,
            Some(Tier::Disk) => 3,
            Some(Tier::External) => 4,
        };
        self.word(kind << 8 | tier);
        self.word(names as u64);
    }

    fn names(&mut self, names: &[EngineHash]) {
        names.iter().for_each(|EngineHash(name)| self.word(*name));
    }

    fn word(&mut self, word: u64) {
        self.words.extend_from_slice(&word.to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(chunks: &[Vec<Op>]) -> u64 {
        let mut sum = ChunksSum::default();
        chunks.iter().for_each(|chunk| sum.add(chunk));
        sum.value()
    }

    fn remove(tier: Tier, names: &[u64]) -> Op {
        Op::Remove { tier, names: names.iter().copied().map(EngineHash).collect() }
    }

    fn store(parent: Option<u64>, name: u64, content: u64, kind: StoreKind) -> Op {
        let (names, contents) = (vec![EngineHash(name)], vec![ContentHash(content)]);
        Op::Store { tier: Tier::Device, parent: parent.map(EngineHash), names, contents, kind }
    }

    #[test]
    fn whatever_differs_gives_another_number() {
        let (device, host) = (Tier::Device, Tier::Host);
        let different = [
            vec![],
            vec![vec![]],
            vec![vec![], vec![]],
            vec![vec![remove(device, &[1, 2])]],
            vec![vec![remove(device, &[2, 1])]],
            vec![vec![remove(host, &[1, 2])]],
            vec![vec![remove(device, &[1]), remove(device, &[2])]],
            vec![vec![remove(device, &[1])], vec![remove(device, &[2])]],
            vec![vec![Op::Adopt { tier: device, names: vec![EngineHash(1), EngineHash(2)] }]],
            vec![vec![Op::SetCopies { tier: device, name: EngineHash(1), left: 2 }]],
            vec![vec![Op::Clear { tier: None }]],
            vec![vec![Op::Clear { tier: Some(device) }]],
            vec![vec![store(None, 1, 2, StoreKind::Copy)]],
            vec![vec![store(Some(0), 1, 2, StoreKind::Copy)]],
            vec![vec![store(None, 1, 2, StoreKind::Announce)]],
            vec![vec![store(None, 2, 1, StoreKind::Copy)]],
        ];
        let mut sums: Vec<u64> = different.iter().map(|chunks| sum(chunks)).collect();
        assert!(different.iter().zip(&sums).all(|(chunks, before)| sum(chunks) == *before));
        sums.sort_unstable();
        sums.dedup();
        assert_eq!(sums.len(), different.len());
    }
}
