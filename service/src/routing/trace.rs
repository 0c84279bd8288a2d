//! What a decision looked at, kept only when somebody asked.

use super::columns::Slot;

/// One figure of one candidate.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct TraceRow {
    /// The candidate.
    pub slot: Slot,
    /// What it is: `wait`, `gated`, `score`, `net_saving`, ...
    pub what: &'static str,
    /// Its value; 1 and 0 for yes and no. Seconds, blocks or tokens as the name says.
    pub value: f64,
}

/// Evidence of a decision: off, it costs a branch.
#[derive(Clone, Debug, Default)]
pub struct Trace {
    on: bool,
    rows: Vec<TraceRow>,
}

impl Trace {
    /// Keeps nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Keeps everything.
    pub fn on() -> Self {
        Self { on: true, rows: Vec::new() }
    }

    /// Whether anything is kept.
    pub fn is_on(&self) -> bool {
        self.on
    }

    /// Notes a figure.
    #[inline]
    pub fn note(&mut self, slot: Slot, what: &'static str, value: f64) {
        if self.on {
            self.rows.push(TraceRow { slot, what, value });
        }
    }

    /// What was noted, in order.
    pub fn rows(&self) -> &[TraceRow] {
        &self.rows
    }
}
