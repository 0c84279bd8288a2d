//! The cursor of a rank whose events are pushed over gRPC. Pure: a batch's header in, a verdict out.
//!
//! | header | state | verdict |
//! |---|---|---|
//! | `reset` | any | apply after a clear; a new incarnation, exact |
//! | first batch, sequence 0 | nothing seen | apply, exact |
//! | first batch, later sequence | nothing seen | apply, partial (degraded with `lost_before`) |
//! | sequence ≤ cursor | | duplicate |
//! | sequence = cursor + 1 | | apply, trust as it was |
//! | sequence > cursor + 1, `lost_before` | | apply, degraded |
//! | sequence > cursor + 1 | | gap: nothing is done until the expected one arrives, degraded until the cursor is there |

use crate::ingest::Trust;

/// What the cursor looks at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PushHeader {
    /// The batch's sequence.
    pub sequence: u64,
    /// The publisher starts over here.
    pub reset: bool,
    /// What is missing before it is lost for good.
    pub lost_before: bool,
}

/// What to do with a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PushVerdict {
    /// Apply it.
    Apply {
        /// Drop everything of the rank first.
        clear_first: bool,
    },
    /// It was applied before.
    Duplicate,
    /// Batches before it are missing.
    Gap,
}

/// The cursor and what follows from its history.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(super) struct PushCursor {
    pub(super) cursor: Option<u64>,
    /// What is known about everything up to the cursor.
    standing: Trust,
    pub(super) incarnation: u64,
    /// Highest sequence that was refused for what is missing before it.
    ahead: Option<u64>,
}

impl PushCursor {
    /// How far the rank can be believed: a batch that is known to exist but cannot be applied yet makes it degraded.
    pub(super) fn trust(&self) -> Trust {
        if self.standing == Trust::Exact && self.waits() { Trust::Degraded } else { self.standing }
    }

    /// Whether batches are missing that may still come.
    pub(super) fn waits(&self) -> bool {
        self.ahead > self.cursor
    }

    /// A batch was refused with [`PushVerdict::Gap`].
    pub(super) fn refused(&mut self, header: PushHeader) {
        self.ahead = self.ahead.max(Some(header.sequence));
    }

    /// The sequence that the cursor waits for.
    pub(super) fn expected(&self) -> u64 {
        self.cursor.map_or(0, |c| c.saturating_add(1))
    }

    /// What to do with a batch. Changes nothing: [`Self::applied`] does, once the index has it.
    pub(super) fn judge(&self, header: PushHeader) -> PushVerdict {
        match self.cursor {
            _ if header.reset => PushVerdict::Apply { clear_first: true },
            None => PushVerdict::Apply { clear_first: false },
            Some(cursor) if header.sequence <= cursor => PushVerdict::Duplicate,
            Some(cursor) if header.sequence == cursor + 1 || header.lost_before => {
                PushVerdict::Apply { clear_first: false }
            }
            Some(_) => PushVerdict::Gap,
        }
    }

    /// A batch was applied. `cleared_all`: it contains a clear of all tiers, so nothing from before matters any more.
    /// `lost`: the index had no room for all of it.
    pub(super) fn applied(&mut self, header: PushHeader, cleared_all: bool, lost: bool) {
        let contiguous = header.sequence == self.expected();
        self.standing = match (self.cursor, contiguous) {
            _ if lost => Trust::Degraded,
            _ if header.reset || cleared_all => Trust::Exact,
            (None, true) => Trust::Exact,
            (None, false) if !header.lost_before => Trust::Partial,
            (Some(_), true) => self.standing,
            (_, false) => Trust::Degraded,
        };
        if header.reset || self.cursor.is_none() {
            self.incarnation += 1;
            self.ahead = None;
        }
        self.cursor = Some(header.sequence);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLAIN: PushHeader = PushHeader { sequence: 0, reset: false, lost_before: false };

    fn at(sequence: u64) -> PushHeader {
        PushHeader { sequence, ..PLAIN }
    }

    fn feed(cursor: &mut PushCursor, header: PushHeader) -> PushVerdict {
        let verdict = cursor.judge(header);
        match verdict {
            PushVerdict::Apply { .. } => cursor.applied(header, false, false),
            PushVerdict::Gap => cursor.refused(header),
            PushVerdict::Duplicate => {}
        }
        verdict
    }

    const APPLY: PushVerdict = PushVerdict::Apply { clear_first: false };

    #[test]
    fn contiguous_batches_are_exact_and_duplicates_do_nothing() {
        let mut cursor = PushCursor::default();
        let verdicts = [0, 1, 1, 0, 2].map(|s| feed(&mut cursor, at(s)));
        assert_eq!(verdicts, [APPLY, APPLY, PushVerdict::Duplicate, PushVerdict::Duplicate, APPLY]);
        assert_eq!((cursor.cursor, cursor.trust(), cursor.incarnation), (Some(2), Trust::Exact, 1));
    }

    #[test]
    fn a_gap_waits_until_it_is_filled_or_given_up() {
        let mut cursor = PushCursor::default();
        let verdicts = [0, 2, 3, 1, 2].map(|s| (feed(&mut cursor, at(s)), cursor.trust()));
        let (exact, degraded) = (Trust::Exact, Trust::Degraded);
        let gap = PushVerdict::Gap;
        assert_eq!(
            verdicts,
            [(APPLY, exact), (gap, degraded), (gap, degraded), (APPLY, degraded), (APPLY, degraded)],
            "batch 3 is known to exist"
        );
        assert_eq!((feed(&mut cursor, at(3)), cursor.trust(), cursor.expected()), (APPLY, exact, 4));
        assert_eq!(feed(&mut cursor, PushHeader { lost_before: true, ..at(9) }), APPLY);
        assert_eq!((cursor.trust(), cursor.expected()), (Trust::Degraded, 10));
        assert_eq!(feed(&mut cursor, at(10)), APPLY);
        assert_eq!(cursor.trust(), Trust::Degraded);
        cursor.applied(at(11), true, false);
        assert_eq!(cursor.trust(), Trust::Exact);
    }

    #[test]
    fn a_late_start_is_partial_and_a_reset_is_a_new_life() {
        let mut cursor = PushCursor::default();
        assert_eq!(feed(&mut cursor, at(500)), APPLY);
        assert_eq!((cursor.trust(), cursor.incarnation), (Trust::Partial, 1));
        let reset = PushHeader { reset: true, ..at(0) };
        assert_eq!(feed(&mut cursor, reset), PushVerdict::Apply { clear_first: true });
        assert_eq!((cursor.cursor, cursor.trust(), cursor.incarnation), (Some(0), Trust::Exact, 2));
        cursor.applied(at(1), true, true);
        assert_eq!(cursor.trust(), Trust::Degraded);
    }

    #[test]
    fn the_largest_sequence_does_not_overflow() {
        let mut cursor = PushCursor::default();
        assert_eq!(feed(&mut cursor, at(u64::MAX)), APPLY);
        assert_eq!(feed(&mut cursor, at(u64::MAX)), PushVerdict::Duplicate);
        assert_eq!(cursor.expected(), u64::MAX);
    }
}
