//! One consumer of a rank's live stream: a place in the rank's payloads, from its subscription on.

use super::listen::Rank;
use super::{BURST_BYTES, write};
use crate::ingest::socket::{Incoming, Incomings, SocketError, append_message, pong};
use crate::relay::{WireCounters, WireLog};
use bytes::Bytes;
use std::time::Duration;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::{mpsc, watch};

/// Serves a SUB socket that came when the next batch was number `joined`, until its connection ends; says how it did. Its first
/// subscription counts from then: so nothing falls between what it asks the ROUTER for and what comes live.
pub(super) async fn publish(
    from: Incomings,
    to: OwnedWriteHalf,
    rank: &Rank,
    joined: u64,
    stall_max: Duration,
) -> SocketError {
    // Where the consumer's stream begins; `None` while it does not subscribe to our topic.
    let (place, wanted) = watch::channel(None);
    let (pings, pongs) = mpsc::channel(1);
    tokio::select! {
        ended = follow_wishes(from, rank, joined, place, pings) => ended,
        ended = send(to, rank, wanted, pongs, stall_max) => ended,
    }
}

/// Reads subscriptions. A consumer may subscribe to any number of topics: it is remembered how many of them are ours.
async fn follow_wishes(
    mut from: Incomings,
    rank: &Rank,
    joined: u64,
    place: watch::Sender<Option<u64>>,
    pings: mpsc::Sender<Vec<u8>>,
) -> SocketError {
    let mut subscriptions = 0_u64;
    let mut joined = Some(joined);
    loop {
        let wish = match from.next().await {
            Ok(Incoming::Message(frames)) => wish(&frames),
            Ok(Incoming::Command(body)) => {
                if let Some(pong) = pong(&body) {
                    // One that does not fit is answered by what is being sent.
                    let _busy = pings.try_send(pong);
                    continue;
                }
                command_wish(&body)
            }
            Err(error) => return error,
        };
        let Some((subscribe, topic)) = wish else {
            WireCounters::add(&rank.log.counters().garbage, 1);
            continue;
        };
        if !rank.topic.as_bytes().starts_with(&topic) {
            continue;
        }
        let before = subscriptions;
        subscriptions = if subscribe { before.saturating_add(1) } else { before.saturating_sub(1) };
        if (before == 0) != (subscriptions == 0) {
            place.send_replace((subscriptions > 0).then(|| joined.take().unwrap_or_else(|| rank.log.end())));
        }
    }
}

/// Whether a message subscribes or cancels, and to which topic.
fn wish(frames: &[Bytes]) -> Option<(bool, Bytes)> {
    let [frame] = frames else { return None };
    match frame.first()? {
        1 => Some((true, frame.slice(1..))),
        0 => Some((false, frame.slice(1..))),
        _ => None,
    }
}

/// The same as commands, which later versions of the protocol have.
fn command_wish(body: &[u8]) -> Option<(bool, Bytes)> {
    if let Some(topic) = body.strip_prefix(b"\x09SUBSCRIBE") {
        return Some((true, Bytes::copy_from_slice(topic)));
    }
    body.strip_prefix(b"\x06CANCEL").map(|topic| (false, Bytes::copy_from_slice(topic)))
}

async fn send(
    mut to: OwnedWriteHalf,
    rank: &Rank,
    mut wanted: watch::Receiver<Option<u64>>,
    mut pongs: mpsc::Receiver<Vec<u8>>,
    stall_max: Duration,
) -> SocketError {
    let counters = rank.log.counters();
    let mut changes = rank.log.changes();
    let mut burst = Burst::default();
    let mut next: Option<u64> = None;
    loop {
        if wanted.has_changed().unwrap_or(false) {
            next = *wanted.borrow_and_update();
        }
        // Before the look: a change after it is not missed.
        changes.borrow_and_update();
        if let Some(at) = next {
            next = Some(burst.fill(&rank.log, at, rank.topic.as_bytes()));
            if !burst.bytes.is_empty() {
                if let Err(error) = write(&mut to, &burst.bytes, stall_max, counters).await {
                    return error.into();
                }
                WireCounters::add(&counters.sent, burst.batches.len() as u64);
                continue;
            }
        }
        let pong = tokio::select! {
            changed = changes.changed() => changed.map(|()| None),
            changed = wanted.changed() => {
                wanted.mark_changed();
                changed.map(|()| None)
            }
            Some(pong) = pongs.recv() => Ok(Some(pong)),
        };
        match pong {
            Ok(None) => {}
            Ok(Some(pong)) => {
                if let Err(error) = write(&mut to, &pong, stall_max, counters).await {
                    return error.into();
                }
            }
            // Neither end goes while this runs.
            Err(_gone) => return SocketError::HungUp,
        }
    }
}

/// Messages on their way.
#[derive(Default)]
struct Burst {
    batches: Vec<(u64, Bytes)>,
    bytes: Vec<u8>,
}

impl Burst {
    /// Takes what follows a place; says where to go on.
    fn fill(&mut self, log: &WireLog, from: u64, topic: &[u8]) -> u64 {
        self.batches.clear();
        self.bytes.clear();
        let read = log.read(from, u64::MAX, BURST_BYTES, &mut self.batches);
        WireCounters::add(&log.counters().missed, read.missed);
        for (sequence, payload) in &self.batches {
            append_message(&[topic, &sequence.to_be_bytes(), payload], &mut self.bytes);
        }
        read.next
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wishes_come_as_messages_or_as_commands() {
        let one = |bytes: &'static [u8]| wish(&[Bytes::from_static(bytes)]);
        assert_eq!(one(b"\x01kv"), Some((true, Bytes::from_static(b"kv"))));
        assert_eq!(one(b"\x00"), Some((false, Bytes::new())));
        assert_eq!(one(b"\x02kv"), None);
        assert_eq!(one(b""), None);
        assert_eq!(wish(&[]), None);
        assert_eq!(wish(&[Bytes::from_static(b"\x01"), Bytes::new()]), None);
        assert_eq!(command_wish(b"\x09SUBSCRIBEkv"), Some((true, Bytes::from_static(b"kv"))));
        assert_eq!(command_wish(b"\x06CANCEL"), Some((false, Bytes::new())));
        assert_eq!(command_wish(b"\x05READY"), None);
    }
}
