//! The events task: connects, reads, connects again. Does nothing else, so that the socket is drained at the speed of the wire.

use super::pulse::Pulse;
use super::queue::Sender;
use super::socket_limits;
use crate::ingest::rank::RankInput;
use crate::ingest::socket::{Connection, Endpoint, Role, SocketError};
use crate::ingest::spec::IngestLimits;
use std::sync::Arc;
use tokio::time::sleep;

/// Reads a publisher for ever; ends by being dropped.
pub(super) async fn read_events(
    endpoint: Endpoint,
    topic: String,
    limits: IngestLimits,
    to: Sender,
    pulse: Arc<Pulse>,
) {
    let mut pause = limits.reconnect_min;
    loop {
        match open(&endpoint, &topic, &limits).await {
            Ok(mut connection) => {
                pulse.set_connected(true);
                to.tell(RankInput::Connected).await;
                let mut received = 0_u64;
                let ended = drain(&mut connection, &to, &pulse, &mut received).await;
                pulse.set_connected(false);
                if ended.refused_a_message() {
                    to.tell(RankInput::Unreadable).await;
                }
                to.tell(RankInput::Disconnected).await;
                to.count(ended.label(), 1).ok();
                // A peer that says nothing before it hangs up is tried less and less often.
                if received > 0 {
                    pause = limits.reconnect_min;
                }
            }
            Err(error) => {
                pulse.failed();
                to.count("connect_failures", 1).ok();
                to.count(error.label(), 1).ok();
            }
        }
        sleep(pause).await;
        pause = (pause * 2).min(limits.reconnect_max);
    }
}

async fn open(endpoint: &Endpoint, topic: &str, limits: &IngestLimits) -> Result<Connection, SocketError> {
    let mut connection = Connection::open(endpoint, Role::Sub, socket_limits(limits)).await?;
    connection.subscribe(topic).await?;
    Ok(connection)
}

/// Reads until the connection ends; what finds no room is dropped.
async fn drain(connection: &mut Connection, to: &Sender, pulse: &Pulse, received: &mut u64) -> SocketError {
    let mut dropped = 0;
    let mut hung_up = std::pin::pin!(pulse.hung_up());
    loop {
        let message = tokio::select! {
            biased;
            message = connection.receive() => message,
            () = &mut hung_up => Err(SocketError::HungUp),
        };
        match message {
            Ok(frames) => {
                pulse.contact();
                *received += 1;
                if to.offer(frames).is_err() {
                    dropped += 1;
                } else if dropped > 0 && to.count("queue_overflows", dropped).is_ok() {
                    dropped = 0;
                }
            }
            Err(error) => {
                to.count("queue_overflows", dropped).ok();
                return error;
            }
        }
    }
}
