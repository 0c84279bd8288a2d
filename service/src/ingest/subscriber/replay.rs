//! The replay task: one request, its answers up to the end marker.

use super::pulse::{Asked, Pulse};
use super::queue::Sender;
use super::socket_limits;
use crate::ingest::rank::RankInput;
use crate::ingest::socket::{Connection, Endpoint, Role, SocketError};
use crate::ingest::spec::IngestLimits;
use crate::wire::{FrameLimits, ReplayReply, parse_replay, replay_request};
use std::sync::Arc;
use tokio::time::{Instant, sleep};

/// Asks for everything from `from` on. Ends after the end marker, or by being dropped; whether the answers come in time is
/// the cursor's to judge.
pub(super) async fn fetch(
    endpoint: Endpoint,
    request: u64,
    from: u64,
    limits: IngestLimits,
    to: Sender,
    pulse: Arc<Pulse>,
) {
    let mut asked = Asked { pulse: &pulse, replied: false };
    let Some(mut connection) = open(&endpoint, &limits).await else {
        to.count("replay_connect_failures", 1).ok();
        to.tell(RankInput::ReplayFailed { request }).await;
        return;
    };
    if connection.send(&replay_request(from)).await.is_err() {
        to.tell(RankInput::ReplayFailed { request }).await;
        return;
    }
    let frame_limits = FrameLimits { payload_bytes_max: limits.message_bytes_max, ..FrameLimits::default() };
    loop {
        match connection.receive().await {
            Ok(frames) => {
                asked.replied = true;
                pulse.contact();
                let end = matches!(parse_replay(&frames, &frame_limits), Ok(ReplayReply::End));
                to.reply(request, frames).await;
                if end {
                    return;
                }
            }
            Err(error) => {
                to.count(error.label(), 1).ok();
                if error.refused_a_message() {
                    to.tell(RankInput::Unreadable).await;
                }
                to.tell(RankInput::ReplayFailed { request }).await;
                return;
            }
        }
    }
}

/// Connects; an engine that starts binds its two sockets one after the other, so a refusal is tried again for a while.
pub(super) async fn open(endpoint: &Endpoint, limits: &IngestLimits) -> Option<Connection> {
    let deadline = Instant::now() + limits.replay_silence_max;
    loop {
        match Connection::open(endpoint, Role::Dealer, socket_limits(limits)).await {
            Ok(connection) => return Some(connection),
            Err(SocketError::Io(_)) if Instant::now() + limits.reconnect_min < deadline => {
                sleep(limits.reconnect_min).await;
            }
            Err(_) => return None,
        }
    }
}
