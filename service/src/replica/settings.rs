//! Which peers are asked at the start, and for how long.

use std::time::Duration;

/// Settings of the start from peers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ReplicaSettings {
    /// gRPC addresses of the other replicas, in the order in which they are asked. Empty: none is.
    pub peers: Vec<String>,
    /// Whether workers that a peer knows and this replica does not are registered here too: those that came by a call.
    pub register_workers: bool,
    /// Time from the start after which no peer is asked any more.
    pub deadline: Duration,
    /// Time that a connection to a peer may take.
    pub connect_max: Duration,
    /// A peer that says nothing for so long is given up.
    pub silence_max: Duration,
    /// Pause after every peer was asked in vain; doubles up to [`Self::pause_max`].
    pub pause_min: Duration,
    /// Longest such pause.
    pub pause_max: Duration,
    /// Bytes of one rank's state that are taken, 16 for a block; a larger one is left out.
    pub rank_bytes_max: usize,
}

impl Default for ReplicaSettings {
    fn default() -> Self {
        Self {
            peers: Vec::new(),
            register_workers: true,
            deadline: Duration::from_secs(30),
            connect_max: Duration::from_secs(2),
            silence_max: Duration::from_secs(5),
            pause_min: Duration::from_millis(100),
            pause_max: Duration::from_secs(2),
            rank_bytes_max: 1 << 30,
        }
    }
}
