//! The two sockets of a rank: bound, and a task for each connection.

use super::rules::{ReplayLayout, WireLimits};
use super::{publish, replay};
use crate::ingest::socket::{Serves, SocketLimits, accept};
use crate::relay::{WireAddresses, WireCounters, WireLog};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

/// Bytes of a request or a subscription.
const REQUEST_BYTES_MAX: usize = 4 << 10;
/// Pause after a bind that failed, doubling up to the second.
const BIND_PAUSE_MIN: Duration = Duration::from_millis(100);
const BIND_PAUSE_MAX: Duration = Duration::from_secs(30);
/// Pause after the system refused a connection (it is short of something).
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// One rank to republish.
#[derive(Clone, Debug)]
pub struct Rank {
    /// Its name in logs.
    pub name: String,
    /// Its payloads.
    pub log: Arc<WireLog>,
    /// Address and port of the live stream; port 0 for a free one.
    pub events: SocketAddr,
    /// Address and port of replays.
    pub replay: SocketAddr,
    /// The topic of every message.
    pub topic: Arc<str>,
    /// How replay replies look.
    pub layout: ReplayLayout,
}

impl Rank {
    /// A rank on these ports of a host.
    pub fn new(
        name: String,
        log: Arc<WireLog>,
        host: IpAddr,
        ports: (u16, u16),
        topic: String,
        layout: ReplayLayout,
    ) -> Self {
        let (events, replay) = (SocketAddr::new(host, ports.0), SocketAddr::new(host, ports.1));
        Self { name, log, events, replay, topic: topic.into(), layout }
    }
}

type Listeners = (TcpListener, TcpListener);

/// Serves a rank until `stop` is cancelled. When this returns, its sockets are bound; where the system refused that, it is tried
/// again with growing pauses, logged and counted.
pub async fn serve(rank: Rank, limits: WireLimits, stop: CancellationToken) {
    let bound = bind(&rank).await;
    tokio::spawn(async move {
        tokio::select! {
            () = stop.cancelled() => {}
            () = run(rank, bound, limits) => {}
        }
    });
}

async fn bind(rank: &Rank) -> Option<Listeners> {
    let both = async {
        let events = TcpListener::bind(rank.events).await.map_err(|error| (rank.events, error))?;
        let replay = TcpListener::bind(rank.replay).await.map_err(|error| (rank.replay, error))?;
        let local = |listener: &TcpListener, asked| listener.local_addr().map_err(|error: io::Error| (asked, error));
        let addresses = WireAddresses { events: local(&events, rank.events)?, replay: local(&replay, rank.replay)? };
        Ok::<_, (SocketAddr, io::Error)>(((events, replay), addresses))
    };
    match both.await {
        Ok((listeners, addresses)) => {
            tracing::info!(rank = %rank.name, events = %addresses.events, replay = %addresses.replay, "republished");
            rank.log.serve_at(addresses);
            Some(listeners)
        }
        Err((addr, error)) => {
            WireCounters::add(&rank.log.counters().bind_failures, 1);
            tracing::warn!(rank = %rank.name, %addr, %error, "not republished yet: the address cannot be bound");
            None
        }
    }
}

async fn run(rank: Rank, mut bound: Option<Listeners>, limits: WireLimits) {
    let mut pause = BIND_PAUSE_MIN;
    let (events, replay) = loop {
        match bound.take() {
            Some(listeners) => break listeners,
            None => {
                sleep(pause).await;
                pause = (pause * 2).min(BIND_PAUSE_MAX);
                bound = bind(&rank).await;
            }
        }
    };
    tokio::join!(
        accept_all(events, Serves::Pub, rank.clone(), limits),
        accept_all(replay, Serves::Router, rank, limits)
    );
}

/// Takes connections for ever; ends, and all of them with it, by being dropped.
async fn accept_all(listener: TcpListener, serves: Serves, rank: Rank, limits: WireLimits) {
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if connections.len() < limits.consumers_max => {
                    connections.spawn(connection(stream, serves, rank.clone(), limits));
                }
                // Dropped, and so closed.
                Ok(_) => WireCounters::add(&rank.log.counters().refused, 1),
                Err(error) => {
                    tracing::warn!(rank = %rank.name, %error, "a consumer could not be accepted");
                    sleep(ACCEPT_PAUSE).await;
                }
            },
            Some(_ended) = connections.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, serves: Serves, rank: Rank, limits: WireLimits) {
    let _counted = rank.log.consumer();
    // Before our greeting: whoever has seen it misses nothing from here on.
    let joined = rank.log.end();
    let socket = SocketLimits { message_bytes_max: REQUEST_BYTES_MAX, handshake_max: limits.stall_max };
    let Ok((from, to)) = accept(stream, serves, socket).await else {
        WireCounters::add(&rank.log.counters().bad_handshakes, 1);
        return;
    };
    let ended = match serves {
        Serves::Pub => publish::publish(from, to, &rank, joined, limits.stall_max).await,
        Serves::Router => replay::answer(from, to, &rank, limits.stall_max).await,
    };
    if ended.refused_a_message() {
        WireCounters::add(&rank.log.counters().garbage, 1);
    }
}
