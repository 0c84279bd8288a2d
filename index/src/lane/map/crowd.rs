//! The side map: entries that found no room within reach of their home. Empty but for crowds of equal hashes, such as many
//! holders with the same private names, and for very few strays of a full map.
//!
//! Ordered by the hash, so that it tells whether a home has any entry here: a home is marked if and only if it has. Entries
//! stand in chunks of bounded length, and a sorted list of the chunks' first entries leads to them. Neighbours that would fit
//! three quarters of a chunk are joined, so the chunks are never many more than the entries need; the memory of chunks that
//! went is kept for the next ones up to a bound, so that a crowd which comes and goes asks the heap for nothing.

use std::ops::RangeInclusive;

/// Entries of a chunk (4 KiB).
const CHUNK: usize = 256;
/// Two neighbours with so few entries become one.
const JOINED: usize = CHUNK / 4 * 3;
/// Empty chunks that are kept (1 MiB).
const SPARE_MAX: usize = 256;

/// Hash of the name, owner and slot, the hash in the highest bits.
type Entry = u128;

fn entry(hash: u64, owner: u32, slot: u32) -> Entry {
    u128::from(hash) << 64 | u128::from(owner) << 32 | u128::from(slot)
}

fn parts(entry: Entry) -> (u64, u32, u32) {
    ((entry >> 64) as u64, (entry >> 32) as u32, entry as u32)
}

/// The entries: (hash of the name, owner, slot).
pub(crate) struct Crowd {
    /// First entry of each chunk, ascending.
    firsts: Vec<Entry>,
    /// None is empty.
    chunks: Vec<Vec<Entry>>,
    /// Empty chunks.
    spare: Vec<Vec<Entry>>,
    len: usize,
}

impl Crowd {
    pub const fn new() -> Self {
        Self { firsts: Vec::new(), chunks: Vec::new(), spare: Vec::new(), len: 0 }
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// Bytes of the chunks, of the spare ones, too.
    pub fn bytes(&self) -> u64 {
        ((self.chunks.len() + self.spare.len()) * CHUNK * size_of::<Entry>()) as u64
    }

    /// The chunk in which an entry stands, or would; 0 where there is none.
    fn chunk_of(&self, entry: Entry) -> usize {
        self.firsts.partition_point(|&first| first <= entry).saturating_sub(1)
    }

    /// The entries of a range, ascending.
    fn range(&self, entries: RangeInclusive<Entry>) -> impl Iterator<Item = Entry> {
        let (low, high) = entries.into_inner();
        let i = self.chunk_of(low);
        let begin = self.chunks.get(i).map_or(0, |chunk| chunk.partition_point(|&e| e < low));
        let rest = self.chunks[i..].iter().flatten().skip(begin);
        rest.copied().take_while(move |&e| e <= high)
    }

    /// The slot of an owner's name with this hash of which `is` says that it is the one.
    #[cold]
    pub fn get(&self, hash: u64, owner: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        let entries = entry(hash, owner, 0)..=entry(hash, owner, u32::MAX);
        self.range(entries).map(|e| parts(e).2).find(|&slot| is(slot))
    }

    #[cold]
    pub fn insert(&mut self, hash: u64, owner: u32, slot: u32) {
        let new = entry(hash, owner, slot);
        let mut i = self.chunk_of(new);
        if self.chunks.is_empty() {
            self.add_chunk(0, new);
        } else if self.chunks[i].len() == CHUNK {
            // In two halves; an entry behind the last one begins a chunk instead, so that ascending entries fill theirs.
            if i + 1 == self.chunks.len() && self.chunks[i][CHUNK - 1] < new {
                i += 1;
                self.add_chunk(i, new);
            } else {
                let middle = self.chunks[i][CHUNK / 2];
                self.add_chunk(i + 1, middle);
                let (left, right) = self.chunks.split_at_mut(i + 1);
                right[0].extend_from_slice(&left[i][CHUNK / 2..]);
                left[i].truncate(CHUNK / 2);
                i += usize::from(middle <= new);
            }
        }
        let chunk = &mut self.chunks[i];
        let at = chunk.partition_point(|&e| e < new);
        debug_assert!(chunk.get(at) != Some(&new), "slot {slot:x} stands here once");
        chunk.insert(at, new);
        self.firsts[i] = chunk[0];
        self.len += 1;
    }

    /// An empty chunk at a place in the list, whose first entry will be this one.
    fn add_chunk(&mut self, i: usize, first: Entry) {
        let chunk = self.spare.pop().unwrap_or_else(|| Vec::with_capacity(CHUNK));
        self.chunks.insert(i, chunk);
        self.firsts.insert(i, first);
    }

    /// Takes a chunk out of the list.
    fn drop_chunk(&mut self, i: usize) {
        self.firsts.remove(i);
        let mut chunk = self.chunks.remove(i);
        if self.spare.len() < SPARE_MAX {
            chunk.clear();
            self.spare.push(chunk);
        }
    }

    /// Takes an entry out; whether it was there.
    #[cold]
    pub fn remove(&mut self, hash: u64, owner: u32, slot: u32) -> bool {
        let old = entry(hash, owner, slot);
        let i = self.chunk_of(old);
        let Some(chunk) = self.chunks.get_mut(i) else { return false };
        let Ok(at) = chunk.binary_search(&old) else { return false };
        chunk.remove(at);
        self.len -= 1;
        match chunk.first() {
            None => self.drop_chunk(i),
            Some(&first) => {
                self.firsts[i] = first;
                if !self.join(i) && i > 0 {
                    self.join(i - 1);
                }
            }
        }
        if self.len == 0 {
            // The list of many chunks went with them.
            self.firsts.shrink_to(SPARE_MAX);
            self.chunks.shrink_to(SPARE_MAX);
        }
        true
    }

    /// Joins a chunk with the one behind it, where both are small; whether it did.
    fn join(&mut self, i: usize) -> bool {
        let (left, right) = self.chunks.split_at_mut(i + 1);
        let Some(right) = right.first() else { return false };
        if left[i].len() + right.len() > JOINED {
            return false;
        }
        left[i].extend_from_slice(right);
        self.drop_chunk(i + 1);
        true
    }

    /// Whether any entry has a hash of this range.
    #[cold]
    pub fn any(&self, hashes: RangeInclusive<u64>) -> bool {
        self.first(hashes).is_some()
    }

    /// The first entry of a range of hashes.
    #[cold]
    pub fn first(&self, hashes: RangeInclusive<u64>) -> Option<(u64, u32, u32)> {
        let (low, high) = hashes.into_inner();
        self.range(entry(low, 0, 0)..=entry(high, u32::MAX, u32::MAX)).next().map(parts)
    }

    /// Every entry: hash, owner, slot.
    pub fn iter(&self) -> impl Iterator<Item = (u64, u32, u32)> {
        self.chunks.iter().flatten().copied().map(parts)
    }

    /// Chunks are in order, begin where the list says, and no two neighbours should be one.
    pub fn check(&self) -> Result<(), String> {
        let sorted = self.chunks.iter().flatten().is_sorted_by(|a, b| a < b);
        let begin = self.firsts.iter().eq(self.chunks.iter().map(|chunk| chunk.first().unwrap_or(&Entry::MAX)));
        let counted = self.chunks.iter().map(Vec::len).sum::<usize>() == self.len;
        let roomy = self.chunks.iter().all(|chunk| (1..=CHUNK).contains(&chunk.len()));
        if sorted && begin && counted && roomy {
            return Ok(());
        }
        Err(format!("the side map: sorted {sorted}, list {begin}, counted {counted}, lengths {roomy}"))
    }
}

#[cfg(test)]
mod tests {
    use super::{CHUNK, Crowd, JOINED, SPARE_MAX};
    use std::collections::BTreeSet;

    /// Grows and shrinks, with hashes all over and with very few; then ascending, then to nothing.
    #[test]
    fn equals_a_sorted_set() {
        let (mut crowd, mut set) = (Crowd::new(), BTreeSet::new());
        let mut x = 3u64;
        for step in 0..200_000u32 {
            x = x.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            let hash = if step / 25_000 % 2 == 0 { x >> 50 << 50 } else { x >> 62 << 62 };
            let (owner, slot) = ((x >> 40) as u32 % 3, (x >> 20) as u32 % 64);
            if (x >> 8) % 16 < if step / 50_000 % 2 == 0 { 11 } else { 3 } {
                if set.insert((hash, owner, slot)) {
                    crowd.insert(hash, owner, slot);
                }
            } else {
                let gone = if x >> 4 & 1 == 0 { set.range((hash, owner, slot)..).next().copied() } else { None };
                let (hash, owner, slot) = gone.unwrap_or((hash, owner, slot));
                assert_eq!(crowd.remove(hash, owner, slot), set.remove(&(hash, owner, slot)), "step {step}");
            }
            let (low, high) = (hash, hash.saturating_add(1 << 51));
            let wanted = set.range((low, 0, 0)..=(high, u32::MAX, u32::MAX)).next().copied();
            assert_eq!(crowd.first(low..=high), wanted, "step {step}");
            let wanted = set.range((hash, owner, slot)..=(hash, owner, u32::MAX)).next().map(|e| e.2);
            assert_eq!(crowd.get(hash, owner, |there| there >= slot), wanted, "step {step}");
            if step % 1_009 == 0 {
                crowd.check().unwrap();
                assert!(crowd.iter().eq(set.iter().copied()) && crowd.len() == set.len());
                let sparse = crowd.chunks.windows(2).find(|w| w[0].len() + w[1].len() <= JOINED);
                assert!(sparse.is_none(), "neighbours that should be one");
            }
        }
        assert!(set.len() > 10 * CHUNK, "{} entries", set.len());
        (0..40_000).for_each(|slot| crowd.insert(u64::MAX, 7, slot));
        assert!(crowd.chunks.len() < 2 * set.len() / CHUNK * 2 + 40_000 / CHUNK + 2, "ascending entries fill chunks");
        (0..40_000).for_each(|slot| assert!(crowd.remove(u64::MAX, 7, slot)));
        set.iter().for_each(|&(hash, owner, slot)| assert!(crowd.remove(hash, owner, slot)));
        assert!(crowd.len() == 0 && crowd.chunks.is_empty() && crowd.spare.len() <= SPARE_MAX);
    }
}
