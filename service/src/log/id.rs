//! Names of entries.

use std::fmt;
use std::num::ParseIntError;
use std::str::FromStr;

/// Name of an entry of a rank's stream: the server keeps them rising. An epoch is one writer's turn at the stream; inside it
/// numbers rise by one from 0, so that a missing entry is seen by whoever reads the next one. A writer whose turn is over cannot
/// append any more: its names are too small.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct EntryId {
    /// The writer's turn.
    pub epoch: u64,
    /// The entry, from 0.
    pub number: u64,
}

impl EntryId {
    /// Whether nothing is missing between `before` and this one.
    pub fn follows(self, before: EntryId) -> bool {
        self.epoch == before.epoch && before.number.checked_add(1) == Some(self.number)
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.epoch, self.number)
    }
}

/// The text is no name of an entry.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("not the name of an entry: {0:?}")]
pub struct NoEntryId(String);

impl FromStr for EntryId {
    type Err = NoEntryId;

    fn from_str(text: &str) -> Result<Self, NoEntryId> {
        let none = || NoEntryId(text.chars().take(64).collect());
        let (epoch, number) = text.split_once('-').ok_or_else(none)?;
        let read = |part: &str| part.parse::<u64>().map_err(|_: ParseIntError| none());
        Ok(Self { epoch: read(epoch)?, number: read(number)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(epoch: u64, number: u64) -> EntryId {
        EntryId { epoch, number }
    }

    #[test]
    fn names_are_written_as_the_server_writes_them_and_compare_as_it_compares() {
        for (text, expected) in [("0-0", id(0, 0)), ("7-12", id(7, 12)), ("18446744073709551615-1", id(u64::MAX, 1))] {
            assert_eq!(text.parse(), Ok(expected));
            assert_eq!(expected.to_string(), text);
        }
        for text in ["", "7", "7-", "-1", "a-b", "1-2-3", "18446744073709551616-0"] {
            assert!(text.parse::<EntryId>().is_err(), "{text}");
        }
        assert!(id(7, 9) < id(8, 0) && id(8, 9) < id(8, 10));
    }

    #[test]
    fn only_the_very_next_one_follows() {
        assert!(id(7, 1).follows(id(7, 0)));
        for (after, before) in
            [(id(7, 2), id(7, 0)), (id(8, 0), id(7, 0)), (id(7, 0), id(7, u64::MAX)), (id(7, 0), id(7, 0))]
        {
            assert!(!after.follows(before));
        }
    }
}
