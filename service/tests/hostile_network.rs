//! Every recorded stream, published again on real sockets, through a network that drops, repeats, swaps and delays messages and cuts
//! connections, live stream and replay alike, by a seed: in the end the rank holds what a clean reading of the stream gives (which
//! `kvatlas-harness verify` compares with the engines' own tables), or says that it does not.
//!
//! Seed `n` plays recording `n` modulo their number. With an even seed the publisher keeps everything, so the rank has to become
//! exact when the network is calm; with an odd one it keeps the newest batches only. `KVATLAS_SEEDS` asks for so many seeds from
//! `KVATLAS_SEED` on.
#![allow(clippy::unwrap_used, reason = "test code")]

mod engine;
mod proxy;
mod publisher;
mod recorded;
mod stream;

use engine::apply;
use kvatlas_index::{Holder, Index, IndexConfig, Lane, RankKey, RankSlot};
use kvatlas_service::ingest::{
    IngestLimits, RankEndpoint, RankSink, RankStatus, SinkClosed, Trust, WorkerSpec, follow_rank,
};
use kvatlas_service::ops::{Applied, OpBatch};
use proxy::{Harm, Proxy, Random};
use publisher::Publisher;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use stream::{Holdings, Stream, TIERS, sorted};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// Seeds that are played by default: each recording twice, once with all batches kept.
const SEEDS: u64 = 52;
/// Played at once.
const AT_ONCE: usize = 4;
const DEADLINE: Duration = Duration::from_secs(30);
/// A rank whose publisher does not have everything, and that is not exact when the network was calm for so long, has said so.
const LAST_WORD: Duration = Duration::from_millis(700);
/// Batches that a publisher with a short memory keeps.
const SHORT_RING: usize = 40;

type SharedLane = Arc<Mutex<(Lane, RankSlot)>>;

struct IndexSink {
    lane: SharedLane,
    status: watch::Sender<RankStatus>,
}

impl RankSink for IndexSink {
    async fn apply(&mut self, batch: OpBatch) -> Result<Applied, SinkClosed> {
        let (lane, slot) = &mut *self.lane.lock().unwrap();
        Ok(apply(lane, *slot, &batch))
    }

    fn publish(&mut self, status: RankStatus) {
        self.status.send_replace(status);
    }
}

fn holdings(lane: &SharedLane) -> Holdings {
    let (lane, slot) = &*lane.lock().unwrap();
    TIERS.map(|tier| sorted(lane.names(Holder { rank: *slot, tier }))).to_vec()
}

fn limits() -> IngestLimits {
    IngestLimits {
        reconnect_min: Duration::from_millis(2),
        reconnect_max: Duration::from_millis(20),
        replay_silence_max: Duration::from_millis(100),
        idle_probe: Duration::from_millis(30),
        handshake_max: Duration::from_secs(2),
        recovery_attempts_max: 1_000_000,
        recovery_backoff_min: Duration::from_millis(2),
        recovery_backoff_max: Duration::from_millis(50),
        ..IngestLimits::default()
    }
}

/// Whether the rank was exact in the end.
async fn play(path: PathBuf, seed: u64, harm: Arc<Harm>) -> bool {
    let stream = Stream::read(&path);
    let (name, truth, whole) =
        (path.file_stem().unwrap().to_string_lossy().into_owned(), stream.truth(), seed.is_multiple_of(2));
    let mut random = Random(seed);
    let mut publisher = Publisher::start().await;
    let every = 3 + random.next() % 30;
    let events = Proxy::start(&publisher.events, random.next(), every, harm.clone()).await;
    let replay = Proxy::start(&publisher.replay, random.next(), 4 * every, harm).await;

    let (_, mut lanes) = Index::new(IndexConfig::default()).unwrap();
    let mut lane = lanes.remove(0);
    let slot = lane.open_rank(RankKey(0)).unwrap();
    let lane: SharedLane = Arc::new(Mutex::new((lane, slot)));
    let (sender, mut status) = watch::channel(RankStatus::default());
    let sink = IndexSink { lane: lane.clone(), status: sender };
    let endpoint = RankEndpoint { rank: 0, events: events.at.clone(), replay: Some(replay.at.clone()) };
    let spec = WorkerSpec { ranks: vec![endpoint.clone()], ..stream.spec.clone() };
    let stop = CancellationToken::new();
    let stopped = stop.clone();
    let task = tokio::spawn(async move { follow_rank(&spec, &endpoint, &limits(), sink, stopped).await.unwrap() });

    for (number, life) in stream.lives.iter().enumerate() {
        if number > 0 {
            let (at, replay_at) = (publisher.events.clone(), publisher.replay.clone());
            drop(publisher);
            publisher = Publisher::start_at(&at, &replay_at).await;
        }
        // Most lives begin with somebody listening, as engines' do that take a while to start.
        if !random.one_in(4) {
            let _ = tokio::time::timeout(LAST_WORD, status.wait_for(|s| s.connected)).await;
        }
        for payload in life {
            publisher.publish(payload.clone()).await;
            if !whole {
                let mut ring = publisher.ring.lock().unwrap();
                ring.oldest = ring.batches.len().saturating_sub(SHORT_RING);
            }
            if random.one_in(16) {
                tokio::time::sleep(Duration::from_micros(random.next() % 2_000)).await;
            }
        }
    }
    events.calm();
    replay.calm();
    let newest = stream.lives.last().unwrap().len() as u64 - 1;
    let exact = settled(&mut status, newest, whole).await;
    let last = status.borrow().clone();
    assert!(exact || !whole, "{name}, seed {seed}: the publisher has everything, and the rank is not exact: {last:?}");
    stop.cancel();
    tokio::time::timeout(DEADLINE, task).await.expect("stops at once").unwrap();
    if exact {
        let held = holdings(&lane);
        let counts = |holdings: &Holdings| holdings.iter().map(Vec::len).collect::<Vec<_>>();
        assert!(
            held == truth,
            "{name}, seed {seed}: exact and wrong, {:?} of {:?} names: {last:?}",
            counts(&held),
            counts(&truth)
        );
    } else {
        assert_ne!(last.trust, Trust::Exact, "{name}, seed {seed}: exact and behind: {last:?}");
    }
    exact
}

/// Waits until the rank is exact at the newest batch, or has said that it is not, for good.
async fn settled(status: &mut watch::Receiver<RankStatus>, newest: u64, whole: bool) -> bool {
    let there = |s: &RankStatus| s.trust == Trust::Exact && s.cursor == Some(newest);
    let wait = async {
        let calm_since = Instant::now();
        loop {
            if there(&status.borrow_and_update()) {
                return true;
            }
            let changed = tokio::time::timeout(LAST_WORD, status.changed()).await;
            let said = changed.is_err() || calm_since.elapsed() > LAST_WORD;
            if said && !whole && status.borrow().trust != Trust::Exact {
                return false;
            }
        }
    };
    tokio::time::timeout(DEADLINE, wait).await.unwrap_or(false)
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse().ok())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_rank_behind_a_hostile_network_is_exact_and_right_or_says_that_it_is_not() {
    let (first, seeds) = (number("KVATLAS_SEED").unwrap_or(0), number("KVATLAS_SEEDS").unwrap_or(SEEDS));
    println!("seeds {first} to {}", first + seeds);
    let (paths, harm) = (recorded::paths(), Arc::<Harm>::default());
    let mut running = tokio::task::JoinSet::new();
    let (mut exact, mut said) = (0, 0);
    let mut count = |outcome: Result<bool, tokio::task::JoinError>| match outcome {
        Ok(true) => exact += 1,
        Ok(false) => said += 1,
        Err(error) => std::panic::resume_unwind(error.into_panic()),
    };
    for seed in first..first + seeds {
        if running.len() == AT_ONCE {
            count(running.join_next().await.expect("some run"));
        }
        // Each recording with even seeds and with odd ones.
        let recording = (seed / 2) as usize % paths.len();
        running.spawn(play(paths[recording].clone(), seed, harm.clone()));
    }
    while let Some(outcome) = running.join_next().await {
        count(outcome);
    }
    let harm =
        [&harm.dropped, &harm.repeated, &harm.swapped, &harm.delayed, &harm.cut].map(|n| n.load(Ordering::Relaxed));
    println!("{exact} exact, {said} said that they are not; dropped, repeated, swapped, delayed, cut: {harm:?}");
    assert!(harm.iter().all(|count| *count > 0), "{harm:?}");
    assert!(exact >= seeds.div_ceil(2));
}
