//! One consumer of a rank's replays: requests in, batches and the end marker out.

use super::listen::Rank;
use super::rules::ReplayLayout;
use super::{BURST_BYTES, write};
use crate::ingest::socket::{Incoming, Incomings, SocketError, append_message, pong};
use crate::relay::WireCounters;
use bytes::Bytes;
use std::time::Duration;
use tokio::net::tcp::OwnedWriteHalf;

/// Sequence of the end marker.
const END: [u8; 8] = [0xff; 8];

/// Answers a DEALER or REQ socket until its connection ends; says how it did. What is no request is counted and not answered, as
/// the engines do.
pub(super) async fn answer(
    mut from: Incomings,
    mut to: OwnedWriteHalf,
    rank: &Rank,
    stall_max: Duration,
) -> SocketError {
    let counters = rank.log.counters();
    loop {
        let done = match from.next().await {
            Ok(Incoming::Message(frames)) => match first_sequence(&frames) {
                Some(first) => replay(&mut to, rank, first, stall_max).await,
                None => {
                    WireCounters::add(&counters.garbage, 1);
                    Ok(())
                }
            },
            Ok(Incoming::Command(body)) => match pong(&body) {
                Some(pong) => write(&mut to, &pong, stall_max, counters).await,
                None => Ok(()),
            },
            Err(error) => return error,
        };
        if let Err(error) = done {
            return error.into();
        }
    }
}

/// The sequence that a request asks from; the identity that a ROUTER adds is not on the wire.
fn first_sequence(frames: &[Bytes]) -> Option<u64> {
    let [delimiter, first] = frames else { return None };
    let first = first[..].try_into().ok()?;
    delimiter.is_empty().then(|| u64::from_be_bytes(first))
}

/// Sends what there is now from a sequence on: what comes later, comes live.
async fn replay(to: &mut OwnedWriteHalf, rank: &Rank, first: u64, stall_max: Duration) -> std::io::Result<()> {
    let counters = rank.log.counters();
    WireCounters::add(&counters.replays, 1);
    let range = rank.log.from_sequence(first);
    let (mut next, mut batches, mut bytes) = (range.start, Vec::new(), Vec::new());
    while next < range.end {
        batches.clear();
        bytes.clear();
        // What went out meanwhile is missing, and the requester counts: as it is with the engines.
        next = rank.log.read(next, range.end, BURST_BYTES, &mut batches).next;
        for (sequence, payload) in &batches {
            reply(rank.layout, rank.topic.as_bytes(), &sequence.to_be_bytes(), payload, &mut bytes);
        }
        write(to, &bytes, stall_max, counters).await?;
        WireCounters::add(&counters.replayed, batches.len() as u64);
    }
    bytes.clear();
    reply(rank.layout, b"", &END, b"", &mut bytes);
    write(to, &bytes, stall_max, counters).await
}

fn reply(layout: ReplayLayout, topic: &[u8], sequence: &[u8], payload: &[u8], out: &mut Vec<u8>) {
    match layout {
        ReplayLayout::WithTopic => append_message(&[b"", topic, sequence, payload], out),
        ReplayLayout::WithoutTopic => append_message(&[b"", sequence, payload], out),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_a_delimiter_and_eight_bytes_and_nothing_else() {
        let frames = |frames: &[&'static [u8]]| frames.iter().map(|f| Bytes::from_static(f)).collect::<Vec<_>>();
        let seven: &[u8] = &[0, 0, 0, 0, 0, 0, 0, 7];
        assert_eq!(first_sequence(&frames(&[b"", seven])), Some(7));
        assert_eq!(first_sequence(&frames(&[b"x", seven])), None);
        assert_eq!(first_sequence(&frames(&[seven])), None);
        assert_eq!(first_sequence(&frames(&[b"", b"", seven])), None);
        assert_eq!(first_sequence(&frames(&[b"", &[7; 7]])), None);
        assert_eq!(first_sequence(&[]), None);
    }

    #[test]
    fn replies_of_both_layouts_are_what_the_subscriber_reads() {
        use crate::wire::{FrameLimits, ReplayReply, parse_replay};
        for layout in [ReplayLayout::WithTopic, ReplayLayout::WithoutTopic] {
            let mut bytes = Vec::new();
            reply(layout, b"kv", &7_u64.to_be_bytes(), b"p", &mut bytes);
            // Short frames: a flag byte, a length, the body.
            let (mut frames, mut rest) = (Vec::new(), &bytes[..]);
            while let [_, len, tail @ ..] = rest {
                let (frame, tail) = tail.split_at(usize::from(*len));
                frames.push(frame);
                rest = tail;
            }
            assert_eq!(frames.len(), if layout == ReplayLayout::WithTopic { 4 } else { 3 });
            let read = parse_replay(&frames, &FrameLimits::default());
            assert_eq!(read, Ok(ReplayReply::Batch { sequence: 7, payload: b"p" }));
        }
    }
}
