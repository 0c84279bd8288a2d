//! An engine's publisher on real sockets: a live stream, and a replay endpoint over a ring that can be short, mute, or able to tell
//! a state.
#![allow(dead_code, reason = "each test file uses its part")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use bytes::Bytes;
use std::sync::{Arc, Mutex};
use tokio::task::JoinSet;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqMessage};

/// What the publisher keeps and how it answers.
#[derive(Default)]
pub struct Ring {
    pub batches: Vec<Bytes>,
    /// Batches before this one went out.
    pub oldest: usize,
    /// Requests are read and not answered.
    pub mute: bool,
    /// Payloads that make the state before the next batch; `None` where states are not offered.
    pub state: Option<Vec<Bytes>>,
    /// Requests for the state are read and not answered.
    pub state_stalls: bool,
}

pub struct Publisher {
    live: PubSocket,
    pub ring: Arc<Mutex<Ring>>,
    pub events: String,
    pub replay: String,
    _answers: JoinSet<()>,
}

impl Publisher {
    pub async fn start() -> Self {
        Self::start_at("tcp://127.0.0.1:0", "tcp://127.0.0.1:0").await
    }

    pub async fn start_at(events: &str, replay: &str) -> Self {
        let (live, events) = bind::<PubSocket>(events).await;
        let (router, replay) = bind::<RouterSocket>(replay).await;
        let ring = Arc::<Mutex<Ring>>::default();
        let mut answers = JoinSet::new();
        answers.spawn(answer(router, ring.clone()));
        Self { live, ring, events, replay, _answers: answers }
    }

    /// A batch that is kept, but reaches nobody.
    pub fn lose(&self, payload: Bytes) -> u64 {
        let mut ring = self.ring.lock().unwrap();
        ring.batches.push(payload);
        ring.batches.len() as u64 - 1
    }

    pub async fn publish(&mut self, payload: Bytes) {
        let sequence = self.lose(payload.clone());
        self.live.send(message([Bytes::new(), be(sequence), payload])).await.unwrap();
    }
}

/// Binds; the life before may need a moment to let go of its port.
async fn bind<S: Socket>(endpoint: &str) -> (S, String) {
    loop {
        let mut socket = S::new();
        match socket.bind(endpoint).await {
            Ok(bound) => return (socket, bound.to_string()),
            Err(_) => tokio::task::yield_now().await,
        }
    }
}

async fn answer(mut router: RouterSocket, ring: Arc<Mutex<Ring>>) {
    while let Ok(request) = router.recv().await {
        let peer = request.get(0).unwrap().clone();
        let Some(replies) = replies(&ring.lock().unwrap(), request.get(2).unwrap()) else { continue };
        for (sequence, payload) in replies {
            let reply = message([peer.clone(), Bytes::new(), Bytes::new(), be(sequence), payload]);
            // A peer that is gone is the peer's business.
            router.send(reply).await.ok();
        }
    }
}

fn replies(ring: &Ring, asked: &Bytes) -> Option<Vec<(u64, Bytes)>> {
    if ring.mute {
        return None;
    }
    let end = (u64::MAX, Bytes::new());
    let next = ring.batches.len() as u64;
    if ring.state_stalls && &asked[..] == b"snapshot" {
        return None;
    }
    if let Some(state) = ring.state.as_ref().filter(|_| &asked[..] == b"snapshot") {
        return Some(state.iter().map(|payload| (next, payload.clone())).chain([end]).collect());
    }
    let from = u64::from_be_bytes(asked[..].try_into().unwrap());
    let kept = (0..).zip(&ring.batches).skip(ring.oldest).filter(|(sequence, _)| *sequence >= from);
    Some(kept.map(|(sequence, payload)| (sequence, payload.clone())).chain([end]).collect())
}

pub fn message(frames: impl IntoIterator<Item = Bytes>) -> ZmqMessage {
    ZmqMessage::try_from(frames.into_iter().collect::<Vec<_>>()).unwrap()
}

fn be(sequence: u64) -> Bytes {
    Bytes::copy_from_slice(&sequence.to_be_bytes())
}
