//! A way to a publisher's socket that loses, repeats, swaps and delays whole messages, and cuts connections, by a seed.
//!
//! It reads just enough of ZMTP 3 to know where a message ends. What the subscriber sends goes through as it is.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

const GREETING_BYTES: usize = 64;
const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// Numbers from a seed (SplitMix64).
#[derive(Clone)]
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// True once in `n` times.
    pub fn one_in(&mut self, n: u64) -> bool {
        self.next().is_multiple_of(n)
    }
}

/// What was done to messages.
#[derive(Default)]
pub struct Harm {
    pub dropped: AtomicU64,
    pub repeated: AtomicU64,
    pub swapped: AtomicU64,
    pub delayed: AtomicU64,
    pub cut: AtomicU64,
}

pub struct Proxy {
    pub at: String,
    calm: Arc<AtomicBool>,
    /// Ends the connections that are open.
    cut: Arc<Mutex<CancellationToken>>,
    _accept: JoinSet<()>,
}

impl Proxy {
    /// In front of `to`, a `tcp://` endpoint; one in `every` messages meets each kind of harm, one in `8 * every` a cut.
    pub async fn start(to: &str, seed: u64, every: u64, harm: Arc<Harm>) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = format!("tcp://{}", listener.local_addr().unwrap());
        let calm = Arc::<AtomicBool>::default();
        let (to, calmed) = (to.trim_start_matches("tcp://").to_owned(), calm.clone());
        let cut = Arc::<Mutex<CancellationToken>>::default();
        let ends = cut.clone();
        let mut accept = JoinSet::new();
        accept.spawn(async move {
            let mut connections = JoinSet::new();
            let mut random = Random(seed);
            while let Ok((near, _)) = listener.accept().await {
                let way = Way { random: Random(random.next()), every, calm: calmed.clone(), harm: harm.clone() };
                let end = ends.lock().unwrap().clone();
                connections.spawn(end.run_until_cancelled_owned(carry(near, to.clone(), way)));
                while connections.try_join_next().is_some() {}
            }
        });
        Self { at, calm, cut, _accept: accept }
    }

    /// From now on nothing happens to messages.
    pub fn calm(&self) {
        self.calm.store(true, Ordering::Relaxed);
    }

    /// The same, and the connections that are open end: whoever comes again meets a network that does nothing to messages, and
    /// may not go by what the one before made it believe.
    #[allow(dead_code, reason = "not every suite that has a proxy ends with this")]
    pub fn cut_and_calm(&self) {
        self.calm();
        std::mem::take(&mut *self.cut.lock().unwrap()).cancel();
    }
}

/// What one connection has to go through.
struct Way {
    random: Random,
    every: u64,
    calm: Arc<AtomicBool>,
    harm: Arc<Harm>,
}

async fn carry(near: TcpStream, to: String, way: Way) {
    let Ok(far) = TcpStream::connect(&to).await else { return };
    near.set_nodelay(true).unwrap();
    let ((mut near_read, near_write), (far_read, mut far_write)) = (near.into_split(), far.into_split());
    // Whichever side ends first ends the connection.
    tokio::select! {
        _ = tokio::io::copy(&mut near_read, &mut far_write) => {}
        _ = harm(far_read, near_write, way) => {}
    }
}

async fn harm(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut way: Way) -> io::Result<()> {
    let mut greeting = [0; GREETING_BYTES];
    from.read_exact(&mut greeting).await?;
    to.write_all(&greeting).await?;
    // A message that the next one goes before.
    let mut waiting: Option<Vec<u8>> = None;
    loop {
        let (message, is_command) = read_message(&mut from).await?;
        if is_command || way.calm.load(Ordering::Relaxed) {
            to.write_all(&waiting.take().unwrap_or_default()).await?;
            to.write_all(&message).await?;
            continue;
        }
        let (random, every, harm) = (&mut way.random, way.every, &way.harm);
        if random.one_in(8 * every) {
            harm.cut.fetch_add(1, Ordering::Relaxed);
            return Ok(());
        }
        if random.one_in(every) {
            harm.dropped.fetch_add(1, Ordering::Relaxed);
            continue;
        }
        if waiting.is_none() && random.one_in(every) {
            harm.swapped.fetch_add(1, Ordering::Relaxed);
            waiting = Some(message);
            continue;
        }
        if random.one_in(every) {
            harm.delayed.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_micros(random.next() % 5_000)).await;
        }
        to.write_all(&message).await?;
        if random.one_in(every) {
            harm.repeated.fetch_add(1, Ordering::Relaxed);
            to.write_all(&message).await?;
        }
        to.write_all(&waiting.take().unwrap_or_default()).await?;
    }
}

/// All frames of one message, or one command, as they were.
async fn read_message(from: &mut OwnedReadHalf) -> io::Result<(Vec<u8>, bool)> {
    let mut all = Vec::new();
    loop {
        let flags = from.read_u8().await?;
        all.push(flags);
        let len = if flags & LONG == 0 {
            let len = from.read_u8().await?;
            all.push(len);
            u64::from(len)
        } else {
            let len = from.read_u64().await?;
            all.extend(len.to_be_bytes());
            len
        };
        let start = all.len();
        all.resize(start + len as usize, 0);
        from.read_exact(&mut all[start..]).await?;
        if flags & (MORE | COMMAND) != MORE {
            return Ok((all, flags & COMMAND != 0));
        }
    }
}
