//! Limits of the log.

use std::time::Duration;

/// Bounds and deadlines of the log, for both of its sides. Reaching one is counted by reason, and shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogLimits {
    /// Entries of a stream after a state; then another state is appended and everything before it trimmed.
    pub entries_max: u64,
    /// Bytes of a stream after a state; likewise.
    pub bytes_max: u64,
    /// Bytes of one entry, appended or read. A batch that would be larger becomes part of a new state.
    pub entry_bytes_max: usize,
    /// Entries that wait for the server; then the rank's relay keeps what comes, within its own bounds.
    pub queue_entries_max: usize,
    /// Bytes that wait for the server.
    pub queue_bytes_max: usize,
    /// Time for which a writer has a stream without saying so again, and after which readers call it gone.
    pub lease: Duration,
    /// Time after which a stream that nobody writes is gone from the server.
    pub retention: Duration,
    /// Time that the server may take for an answer, and for a connection.
    pub response_max: Duration,
    /// First pause before something that failed is tried again; doubles up to [`Self::retry_max`].
    pub retry_min: Duration,
    /// Longest pause.
    pub retry_max: Duration,
    /// Time that a read waits for entries.
    pub block: Duration,
    /// Entries of a stream that one read takes.
    pub read_entries_max: usize,
    /// Streams whose past is read at once; the others wait for their turn.
    pub catching_up_max: usize,
    /// Bytes of a state, as entries, that a reader takes.
    pub state_bytes_max: usize,
}

impl Default for LogLimits {
    fn default() -> Self {
        Self {
            entries_max: 10_000,
            bytes_max: 64 << 20,
            entry_bytes_max: 64 << 20,
            queue_entries_max: 256,
            queue_bytes_max: 8 << 20,
            lease: Duration::from_secs(3),
            retention: Duration::from_secs(3600),
            response_max: Duration::from_secs(1),
            retry_min: Duration::from_millis(100),
            retry_max: Duration::from_secs(5),
            block: Duration::from_millis(100),
            read_entries_max: 64,
            catching_up_max: 4,
            state_bytes_max: 256 << 20,
        }
    }
}

impl LogLimits {
    /// How often a writer says that it is there, and a reader looks.
    pub fn renewal(&self) -> Duration {
        self.lease / 3
    }
}
