//! Publishes a mock engine's batches the way the engines do: a PUB socket with topic, sequence and payload, and a ROUTER that
//! replays what is still buffered.

use super::names::Dialect;
use bytes::Bytes;
use std::collections::VecDeque;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use zeromq::{PubSocket, RouterSocket, Socket, SocketRecv, SocketSend, ZmqError, ZmqMessage};

/// Batches that a replay can still deliver, as in the engines.
const BUFFER_STEPS: usize = 10_000;
/// Batches that may wait for the socket; the engine then waits, it does not drop.
const QUEUE_BATCHES: usize = 1_024;

/// One running publisher. Dropping it stops it.
pub struct Publisher {
    /// Where events are published.
    pub events: String,
    /// Where replays are asked for.
    pub replay: String,
    queue: mpsc::Sender<Bytes>,
    published: watch::Receiver<u64>,
    task: JoinHandle<()>,
}

impl Publisher {
    /// Binds both sockets to free ports on loopback.
    pub async fn bind(dialect: Dialect) -> Result<Self, ZmqError> {
        let (mut events, mut replay) = (PubSocket::new(), RouterSocket::new());
        let events_at = events.bind("tcp://127.0.0.1:0").await?.to_string();
        let replay_at = replay.bind("tcp://127.0.0.1:0").await?.to_string();
        let (queue, batches) = mpsc::channel(QUEUE_BATCHES);
        let (count, published) = watch::channel(0);
        let buffer = Buffer { with_topic: dialect != Dialect::VllmArrays, steps: VecDeque::new(), next: 0 };
        let task = tokio::spawn(run(events, replay, batches, buffer, count));
        Ok(Self { events: events_at, replay: replay_at, queue, published, task })
    }

    /// Hands a batch over. Waits while the queue is full; batches after a socket failure are lost.
    pub async fn publish(&self, payload: Vec<u8>) {
        let _ = self.queue.send(payload.into()).await;
    }

    /// Batches that left the publisher so far: the next sequence.
    pub fn published(&self) -> u64 {
        *self.published.borrow()
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a replay can deliver.
struct Buffer {
    with_topic: bool,
    steps: VecDeque<Bytes>,
    next: u64,
}

impl Buffer {
    fn push(&mut self, payload: Bytes) -> u64 {
        if self.steps.len() == BUFFER_STEPS {
            self.steps.pop_front();
        }
        self.steps.push_back(payload);
        self.next += 1;
        self.next - 1
    }

    /// Replies to a request from `start`, without the identity, the end marker last. A start from before the buffer gets
    /// what is left, without a word about it.
    fn replies(&self, start: u64) -> Vec<Vec<Bytes>> {
        let oldest = self.next - self.steps.len() as u64;
        let from = start.max(oldest);
        let kept = self.steps.iter().enumerate().map(|(i, p)| (oldest + i as u64, p.clone()));
        kept.filter(|(sequence, _)| *sequence >= from)
            .chain(std::iter::once((u64::MAX, Bytes::new())))
            .map(|(sequence, payload)| self.frames(sequence, payload))
            .collect()
    }

    fn frames(&self, sequence: u64, payload: Bytes) -> Vec<Bytes> {
        let sequence = Bytes::copy_from_slice(&sequence.to_be_bytes());
        match self.with_topic {
            true => vec![Bytes::new(), Bytes::new(), sequence, payload],
            false => vec![Bytes::new(), sequence, payload],
        }
    }
}

/// Serves both sockets, like the engines' publishing thread: a replay is answered between batches, in one burst.
async fn run(
    mut events: PubSocket,
    mut replay: RouterSocket,
    mut batches: mpsc::Receiver<Bytes>,
    mut buffer: Buffer,
    count: watch::Sender<u64>,
) {
    loop {
        tokio::select! {
            batch = batches.recv() => {
                let Some(payload) = batch else { return };
                let sequence = buffer.push(payload.clone());
                let frames = [Bytes::new(), Bytes::copy_from_slice(&sequence.to_be_bytes()), payload];
                // Nobody may be listening, and a slow subscriber loses messages: both are how PUB works.
                let _ = events.send(message(&frames)).await;
                count.send_replace(buffer.next);
            }
            request = replay.recv() => {
                let Ok(request) = request else { return };
                answer(&mut replay, &buffer, request).await;
            }
        }
    }
}

/// Answers `[identity, "", start]`; anything else gets no answer, as in the engines.
async fn answer(replay: &mut RouterSocket, buffer: &Buffer, request: ZmqMessage) {
    let frames = request.into_vec();
    let [identity, empty, start] = &frames[..] else { return };
    let Ok(start) = start[..].try_into().map(u64::from_be_bytes) else { return };
    if !empty.is_empty() {
        return;
    }
    for reply in buffer.replies(start) {
        let frames: Vec<Bytes> = std::iter::once(identity.clone()).chain(reply).collect();
        if replay.send(message(&frames)).await.is_err() {
            return;
        }
    }
}

/// `frames` has at least one frame.
fn message(frames: &[Bytes]) -> ZmqMessage {
    let mut message = ZmqMessage::from(frames[0].clone());
    frames[1..].iter().for_each(|frame| message.push_back(frame.clone()));
    message
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;
    use zeromq::DealerSocket;

    fn sequences(replies: &[Vec<Bytes>]) -> Vec<u64> {
        replies.iter().map(|r| u64::from_be_bytes(r[r.len() - 2][..].try_into().unwrap())).collect()
    }

    #[test]
    fn a_replay_begins_at_the_oldest_batch_left_and_ends_with_the_marker() {
        let mut buffer = Buffer { with_topic: false, steps: VecDeque::new(), next: 0 };
        for n in 0..BUFFER_STEPS as u64 + 5 {
            assert_eq!(buffer.push(Bytes::from_static(b"x")), n);
        }
        let replies = buffer.replies(2);
        assert_eq!(sequences(&replies)[..2], [5, 6]);
        assert_eq!(replies.len(), BUFFER_STEPS + 1);
        assert_eq!(sequences(&buffer.replies(u64::MAX)), [u64::MAX]);
        assert!(replies.iter().all(|r| r.len() == 3));
    }

    #[tokio::test]
    async fn a_dealer_gets_the_replay_over_loopback() {
        let publisher = Publisher::bind(Dialect::VllmMaps).await.unwrap();
        for payload in [b"a", b"b", b"c"] {
            publisher.publish(payload.to_vec()).await;
        }
        let mut published = publisher.published.clone();
        tokio::time::timeout(Duration::from_secs(10), published.wait_for(|n| *n == 3)).await.unwrap().unwrap();
        let mut dealer = DealerSocket::new();
        dealer.connect(&publisher.replay).await.unwrap();
        dealer.send(message(&[Bytes::new(), Bytes::copy_from_slice(&1u64.to_be_bytes())])).await.unwrap();
        let mut got = Vec::new();
        while got.last().is_none_or(|(s, _)| *s != u64::MAX) {
            let reply = tokio::time::timeout(Duration::from_secs(10), dealer.recv()).await.unwrap().unwrap().into_vec();
            assert_eq!(reply.len(), 4);
            got.push((u64::from_be_bytes(reply[2][..].try_into().unwrap()), reply[3].to_vec()));
        }
        assert_eq!(got, [(1, b"b".to_vec()), (2, b"c".to_vec()), (u64::MAX, Vec::new())]);
    }
}
