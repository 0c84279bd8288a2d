//! `RoutingService.Bookings`, both sides: ours told to whoever listens, and the peers' followed.

use super::admission::Admission;
use super::error::ServiceError;
use super::proto;
use super::proto::booking_change::Change;
use super::proto::routing_service_client::RoutingServiceClient;
use crate::desks::{BookingsListener, Router};
use crate::replica::ReplicaSettings;
use crate::routing::{BookingChange, Dispatch, Piece};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tonic::{Status, Streaming};

/// Bookings or changes in one message.
const PIECE_MAX: usize = 1024;

/// Tells a listener until it goes, is too slow, or the service ends.
pub(super) async fn tell(
    router: Arc<Router>,
    mut listener: BookingsListener,
    admission: Admission,
    to: mpsc::Sender<Result<proto::BookingsBatch, Status>>,
) {
    loop {
        let next = tokio::select! {
            next = listener.next(PIECE_MAX) => next.map_err(|behind| ServiceError::from(behind).into()),
            () = admission.closing().cancelled() => Err(ServiceError::Draining.into()),
            () = to.closed() => return,
        };
        let failed = next.is_err();
        let message = next.map(|piece| batch(listener.epoch(), router.now(), piece));
        if to.send(message).await.is_err() || failed {
            return;
        }
    }
}

/// Follows every peer until `closing` is cancelled. `message_bytes_max`: bytes of one message.
pub async fn follow_bookings(
    router: Arc<Router>,
    settings: ReplicaSettings,
    message_bytes_max: usize,
    closing: CancellationToken,
) {
    let mut peers = JoinSet::new();
    for (number, address) in settings.peers.iter().enumerate() {
        let peer = Peer { router: router.clone(), number, address: address.clone(), message_bytes_max };
        peers.spawn(peer.follow(settings.clone()));
    }
    // Dropping the set ends them.
    closing.cancelled().await;
}

/// A peer that is followed.
struct Peer {
    router: Arc<Router>,
    number: usize,
    address: String,
    message_bytes_max: usize,
}

impl Peer {
    async fn follow(self, settings: ReplicaSettings) {
        let (mut pause, mut is_lost) = (Duration::ZERO, false);
        let forget = sleep(Duration::ZERO);
        tokio::pin!(forget);
        loop {
            let wait = pause;
            let attempt = async {
                sleep(wait).await;
                self.listen(&settings).await
            };
            tokio::pin!(attempt);
            let listened = loop {
                tokio::select! {
                    listened = &mut attempt => break listened,
                    () = &mut forget, if is_lost => {
                        is_lost = false;
                        self.router.forget_lost();
                    }
                }
            };
            if listened {
                pause = settings.pause_min;
                is_lost = true;
                forget.as_mut().reset(Instant::now() + self.router.peer_lost(self.number));
            } else {
                pause = pause.saturating_mul(2).clamp(settings.pause_min, settings.pause_max);
            }
        }
    }

    /// Listens until the connection breaks; whether there was one.
    async fn listen(&self, settings: &ReplicaSettings) -> bool {
        let Ok(mut stream) = self.connect(settings).await.inspect_err(|error| self.note(error)) else { return false };
        self.router.peer_connected(self.number);
        loop {
            match stream.message().await {
                Ok(Some(batch)) => self.take(batch),
                Ok(None) => return true,
                Err(status) => {
                    self.note(&status);
                    return true;
                }
            }
        }
    }

    async fn connect(&self, settings: &ReplicaSettings) -> Result<Streaming<proto::BookingsBatch>, Status> {
        let unreachable = |error: &dyn std::fmt::Display| Status::unavailable(error.to_string());
        // A peer may have nothing to say for long; that its machine is gone shows all the same.
        let endpoint = Endpoint::from_shared(self.address.clone())
            .map_err(|error| unreachable(&error))?
            .connect_timeout(settings.connect_max)
            .http2_keep_alive_interval(settings.silence_max)
            .keep_alive_timeout(settings.silence_max)
            .keep_alive_while_idle(true);
        let begin = async {
            let channel = endpoint.connect().await.map_err(|error| unreachable(&error))?;
            let client = RoutingServiceClient::new(channel);
            let mut client = client.max_decoding_message_size(self.message_bytes_max);
            client.bookings(proto::BookingsRequest::default()).await
        };
        let begun = timeout(settings.connect_max, begin).await;
        Ok(begun.map_err(|_| Status::deadline_exceeded("no answer"))??.into_inner())
    }

    fn take(&self, batch: proto::BookingsBatch) {
        let now = self.router.now();
        let changes =
            batch.changes.into_iter().filter_map(|change| Some((change.reservation, heard(now, change.change?))));
        self.router.peer_told(self.number, batch.epoch, changes.collect(), batch.open_complete);
    }

    fn note(&self, status: &Status) {
        tracing::debug!(peer = %self.address, code = ?status.code(), message = status.message(), "bookings are not heard");
    }
}

fn batch(epoch: u64, now: Duration, piece: Piece) -> proto::BookingsBatch {
    let changes = piece.changes.into_iter().map(|(reservation, change)| {
        let change = Some(told(now, change));
        proto::BookingChange { reservation, change }
    });
    proto::BookingsBatch { epoch, changes: changes.collect(), open_complete: piece.is_open_complete }
}

/// A change, with the age of a dispatch: clocks of different machines cannot be compared.
fn told(now: Duration, change: BookingChange) -> Change {
    match change {
        BookingChange::Dispatched(dispatch) => {
            let age = now.saturating_sub(dispatch.dispatched_at).as_millis();
            Change::Dispatched(proto::BookingDispatched {
                model: dispatch.model.to_string(),
                routing_group: dispatch.routing_group.to_string(),
                worker: dispatch.worker.to_string(),
                tokens: dispatch.tokens,
                cached_tokens: dispatch.cached_tokens,
                age_ms: u64::try_from(age).unwrap_or(u64::MAX),
            })
        }
        BookingChange::FirstToken => Change::FirstToken(proto::BookingFirstToken {}),
        BookingChange::Ended => Change::Ended(proto::BookingEnded {}),
    }
}

fn heard(now: Duration, change: Change) -> BookingChange {
    match change {
        Change::Dispatched(dispatched) => BookingChange::Dispatched(Dispatch {
            model: dispatched.model.into(),
            routing_group: dispatched.routing_group.into(),
            worker: dispatched.worker.into(),
            tokens: dispatched.tokens,
            cached_tokens: dispatched.cached_tokens,
            dispatched_at: now.saturating_sub(Duration::from_millis(dispatched.age_ms)),
        }),
        Change::FirstToken(_) => BookingChange::FirstToken,
        Change::Ended(_) => BookingChange::Ended,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_comes_over_as_it_was_but_for_the_clock() {
        let ms = Duration::from_millis;
        let dispatch = |at| {
            BookingChange::Dispatched(Dispatch {
                model: "m".into(),
                routing_group: "g".into(),
                worker: "w".into(),
                tokens: Some(7),
                cached_tokens: 3,
                dispatched_at: at,
            })
        };
        assert_eq!(heard(ms(5000), told(ms(120), dispatch(ms(20)))), dispatch(ms(4900)));
        assert_eq!(heard(ms(5), told(ms(120), dispatch(ms(20)))), dispatch(ms(0)), "older than this clock");
        for change in [BookingChange::FirstToken, BookingChange::Ended] {
            assert_eq!(heard(ms(0), told(ms(0), change.clone())), change);
        }
    }
}
