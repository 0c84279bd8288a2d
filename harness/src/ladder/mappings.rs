//! Resident pages of anonymous mappings that appeared since a moment: the arena of an index, which no allocator sees.

use std::fs;
use std::io;
use std::ops::Range;

/// The mappings of this process at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mappings {
    all: Vec<Mapping>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Mapping {
    range: Range<u64>,
    /// Without a file or a name behind it.
    anonymous: bool,
    resident: u64,
}

impl Mappings {
    /// Those of now.
    pub fn now() -> io::Result<Self> {
        Ok(Self::parse(&fs::read_to_string("/proc/self/smaps")?))
    }

    fn parse(text: &str) -> Self {
        let mut all: Vec<Mapping> = Vec::new();
        for line in text.lines() {
            if let Some(mapping) = Mapping::head(line) {
                all.push(mapping);
            } else if let (Some(last), Some(kib)) = (all.last_mut(), line.strip_prefix("Rss:").and_then(kib)) {
                last.resident = kib * 1024;
            }
        }
        Self { all }
    }

    /// Resident bytes in anonymous mappings.
    pub fn resident(&self) -> u64 {
        self.all.iter().filter(|m| m.anonymous).map(|m| m.resident).sum()
    }

    /// Resident bytes of mappings that are not in `before`. A mapping that grew out of an old one (the kernel joins
    /// neighbours) counts by what is resident beyond the old one's.
    pub fn resident_since(&self, before: &Mappings) -> u64 {
        let overlap = |m: &Mapping| -> u64 {
            let inside = |old: &&Mapping| old.range.start < m.range.end && m.range.start < old.range.end;
            before.all.iter().filter(inside).map(|old| old.resident).sum()
        };
        let same = |m: &Mapping| before.all.iter().any(|old| old.range == m.range);
        self.all.iter().filter(|m| m.anonymous && !same(m)).map(|m| m.resident.saturating_sub(overlap(m))).sum()
    }
}

impl Mapping {
    /// A mapping's first line: `7f00-7f10 rw-p 00000000 00:00 0 [name or path]`.
    fn head(line: &str) -> Option<Self> {
        let mut words = line.split_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let range = u64::from_str_radix(from, 16).ok()?..u64::from_str_radix(to, 16).ok()?;
        words.nth(3)?;
        Some(Self { range, anonymous: words.next().is_none(), resident: 0 })
    }
}

fn kib(text: &str) -> Option<u64> {
    text.trim().strip_suffix("kB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str =
        "1000-3000 rw-p 00000000 00:00 0 \nSize: 8 kB\nRss: 8 kB\n5000-6000 r--p 00000000 08:01 7 /lib/x\nRss: 4 kB\n";
    const AFTER: &str = "1000-3000 rw-p 00000000 00:00 0\nRss: 12 kB\n3000-5000 rw-p 00000000 00:00 0\nRss: 4 kB\n5000-6000 r--p 0 08:01 7 /lib/x\nRss: 4 kB\nanything else: 3 kB\n";

    #[test]
    fn new_anonymous_mappings_count_and_old_ones_do_not() {
        let (before, after) = (Mappings::parse(BEFORE), Mappings::parse(AFTER));
        assert_eq!(before.resident(), 8192);
        assert_eq!(after.resident_since(&before), 4096);
    }

    #[test]
    fn a_mapping_that_was_joined_with_an_old_one_counts_by_its_growth() {
        let joined = Mappings::parse("1000-4000 rw-p 00000000 00:00 0\nRss: 20 kB\n");
        assert_eq!(joined.resident_since(&Mappings::parse(BEFORE)), 12 * 1024);
    }

    #[test]
    fn memory_of_this_process_is_seen() {
        let mappings = Mappings::now().unwrap();
        assert!(mappings.resident() > 0);
        assert_eq!(mappings.resident_since(&mappings), 0);
    }
}
