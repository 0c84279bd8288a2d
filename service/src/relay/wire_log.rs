//! One rank's payloads for consumers of the engines' own wire: written by the rank's relay, read at any speed.

use super::limits::RelayShared;
use super::payloads::{Payloads, Read, Span};
use bytes::Bytes;
use std::net::SocketAddr;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use tokio::sync::watch;

/// The sequence that marks the end of a replay; no batch has it.
const END_SEQUENCE: u64 = u64::MAX;

/// Where a rank is republished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireAddresses {
    /// The live stream.
    pub events: SocketAddr,
    /// Replays.
    pub replay: SocketAddr,
}

/// What happened to consumers, by reason.
#[derive(Debug, Default)]
pub struct WireCounters {
    /// Batches that were sent to consumers, one for each of them.
    pub sent: AtomicU64,
    /// Batches that went out before a slow consumer read them.
    pub missed: AtomicU64,
    /// Replays that were asked for.
    pub replays: AtomicU64,
    /// Batches that were sent in replays.
    pub replayed: AtomicU64,
    /// Requests and subscriptions that are none.
    pub garbage: AtomicU64,
    /// Connections beyond `relay.wire_consumers_max`.
    pub refused: AtomicU64,
    /// Peers that are no consumers of this wire.
    pub bad_handshakes: AtomicU64,
    /// Consumers that took nothing for `relay.wire_stall_max_ms`.
    pub stalled: AtomicU64,
    /// Batches that this wire has no words for.
    pub unencodable: AtomicU64,
    /// Batches that were sent to gateways of `SubscribeKvEvents`.
    pub streamed: AtomicU64,
    /// Batches that were left out there, since that protocol has no words for them.
    pub unsayable: AtomicU64,
    /// Attempts to bind that the system refused.
    pub bind_failures: AtomicU64,
}

impl WireCounters {
    /// Adds to a count.
    pub fn add(count: &AtomicU64, by: u64) {
        count.fetch_add(by, Ordering::Relaxed);
    }

    /// Every count with its reason.
    pub fn all(&self) -> [(&'static str, u64); 12] {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        [
            ("sent", read(&self.sent)),
            ("missed", read(&self.missed)),
            ("replays", read(&self.replays)),
            ("replayed", read(&self.replayed)),
            ("garbage", read(&self.garbage)),
            ("refused", read(&self.refused)),
            ("bad_handshakes", read(&self.bad_handshakes)),
            ("stalled", read(&self.stalled)),
            ("unencodable", read(&self.unencodable)),
            ("streamed", read(&self.streamed)),
            ("unsayable", read(&self.unsayable)),
            ("bind_failures", read(&self.bind_failures)),
        ]
    }
}

/// The payloads of one rank, and who reads them. Any thread may call it; nothing here blocks for longer than a few copies.
#[derive(Debug)]
pub struct WireLog {
    payloads: Mutex<Payloads>,
    changed: watch::Sender<()>,
    shared: Arc<RelayShared>,
    counters: WireCounters,
    consumers: AtomicU64,
    addresses: OnceLock<WireAddresses>,
}

impl WireLog {
    /// An empty log within the relay's limits: as many batches and bytes as a rank's history may keep beside it.
    pub fn new(shared: Arc<RelayShared>) -> Self {
        let limits = shared.limits();
        Self {
            payloads: Mutex::new(Payloads::new(limits.history_batches_max, limits.history_bytes_max)),
            changed: watch::Sender::new(()),
            shared,
            counters: WireCounters::default(),
            consumers: AtomicU64::new(0),
            addresses: OnceLock::new(),
        }
    }

    /// Takes a batch that was applied. Without a sequence, or without a payload at a sequence that was there already, another life
    /// begins; without a payload else, the sequence stays out and consumers see a gap.
    pub(super) fn admit(&self, sequence: Option<u64>, payload: Option<&Bytes>) {
        let mut payloads = self.payloads();
        let before = payloads.bytes();
        match (sequence, payload) {
            (Some(sequence), Some(payload)) if sequence != END_SEQUENCE => payloads.push(sequence, payload),
            (Some(sequence), _) => {
                WireCounters::add(&self.counters.unencodable, 1);
                if !payloads.is_empty() && payloads.from_sequence(sequence).start < payloads.end() {
                    payloads.restart();
                }
            }
            (None, _) => payloads.restart(),
        }
        self.shared.add_bytes(payloads.bytes());
        self.shared.take_bytes(before);
        while self.shared.is_over() {
            let before = payloads.bytes();
            if !payloads.shed() {
                break;
            }
            self.shared.take_bytes(before - payloads.bytes());
        }
        drop(payloads);
        self.changed.send_replace(());
    }

    /// Another life begins.
    pub(super) fn restart(&self) {
        let mut payloads = self.payloads();
        self.shared.take_bytes(payloads.bytes());
        payloads.restart();
        drop(payloads);
        self.changed.send_replace(());
    }

    /// Number of the next batch.
    pub fn end(&self) -> u64 {
        self.payloads().end()
    }

    /// Numbers of the batches from a sequence of this life on.
    pub fn from_sequence(&self, sequence: u64) -> Range<u64> {
        self.payloads().from_sequence(sequence)
    }

    /// What is kept now.
    pub fn span(&self) -> Span {
        self.payloads().span()
    }

    /// Batches from a number on, up to `to`, of about `bytes_max` together.
    pub fn read(&self, from: u64, to: u64, bytes_max: usize, out: &mut Vec<(u64, Bytes)>) -> Read {
        self.payloads().read(from, to, bytes_max, out)
    }

    /// Wakes whoever waits at it for more.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// What happened to consumers.
    pub fn counters(&self) -> &WireCounters {
        &self.counters
    }

    /// Batches and bytes that are kept now.
    pub fn kept(&self) -> (usize, u64) {
        let payloads = self.payloads();
        (payloads.len(), payloads.bytes())
    }

    /// Connections now.
    pub fn consumers(&self) -> u64 {
        self.consumers.load(Ordering::Relaxed)
    }

    /// A connection that counts until it is dropped.
    pub fn consumer(self: &Arc<Self>) -> Consumer {
        self.consumers.fetch_add(1, Ordering::Relaxed);
        Consumer(self.clone())
    }

    /// Where it is served; `None` before both sockets are bound.
    pub fn addresses(&self) -> Option<WireAddresses> {
        self.addresses.get().copied()
    }

    /// Says where it is served, once.
    pub fn serve_at(&self, addresses: WireAddresses) {
        // It was said before only by whom a bug called twice; the first word holds.
        let _ = self.addresses.set(addresses);
    }

    fn payloads(&self) -> MutexGuard<'_, Payloads> {
        // Whoever panicked with it in hand left whole numbers behind.
        self.payloads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for WireLog {
    fn drop(&mut self) {
        let bytes = self.payloads().bytes();
        self.shared.take_bytes(bytes);
    }
}

/// One connection.
#[derive(Debug)]
pub struct Consumer(Arc<WireLog>);

impl Drop for Consumer {
    fn drop(&mut self) {
        self.0.consumers.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::relay::RelayLimits;

    fn log(limits: RelayLimits) -> (WireLog, Arc<RelayShared>) {
        let shared = Arc::new(RelayShared::new(limits, 7));
        (WireLog::new(shared.clone()), shared)
    }

    fn sequences(log: &WireLog) -> Vec<u64> {
        let mut out = Vec::new();
        log.read(0, u64::MAX, usize::MAX, &mut out);
        out.into_iter().map(|(sequence, _)| sequence).collect()
    }

    #[test]
    fn what_the_wire_cannot_say_is_a_gap_and_what_ends_a_life_ends_it() {
        let (log, shared) = log(RelayLimits::default());
        let payload = Bytes::from_static(b"abc");
        for sequence in [0, 1, 2] {
            log.admit(Some(sequence), Some(&payload));
        }
        log.admit(Some(3), None);
        log.admit(Some(4), Some(&payload));
        assert_eq!(sequences(&log), [0, 1, 2, 4]);
        log.admit(Some(END_SEQUENCE), Some(&payload));
        assert_eq!((sequences(&log).len(), log.counters().unencodable.load(Ordering::Relaxed)), (4, 2));
        log.admit(Some(4), None);
        assert!(sequences(&log).is_empty(), "the publisher went back");
        log.admit(Some(5), Some(&payload));
        log.admit(None, None);
        assert!(sequences(&log).is_empty());
        assert_eq!((shared.bytes(), log.end()), (0, 5));
        log.admit(Some(7), Some(&payload));
        assert!(shared.bytes() > 3);
        drop(log);
        assert_eq!(shared.bytes(), 0);
    }

    #[test]
    fn payloads_count_in_the_bytes_of_all_ranks() {
        let limits = RelayLimits { bytes_max: 1000, ..RelayLimits::default() };
        let (log, shared) = log(limits);
        for sequence in 0..100 {
            log.admit(Some(sequence), Some(&Bytes::from(vec![0; 100])));
            assert!(shared.bytes() <= 1000);
        }
        assert!(sequences(&log).len() > 3);
        shared.add_bytes(1000);
        log.admit(Some(100), Some(&Bytes::from_static(b"x")));
        assert!(sequences(&log).is_empty(), "others have used the room up");
        shared.take_bytes(1000);
    }
}
