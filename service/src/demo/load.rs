//! Lookups while events flow: each client asks about prompts of the running traffic, one after the other.

use super::client::Client;
use super::traffic::Traffic;
use hdrhistogram::Histogram;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Longest latency that is told apart, in nanoseconds.
const LATENCY_NS_MAX: u64 = 60_000_000_000;
/// Time a client waits after a failed call.
const PAUSE: Duration = Duration::from_millis(100);

/// Latencies of lookups in nanoseconds.
pub type Latencies = Histogram<u64>;

/// Running clients.
pub struct Load {
    latencies: Arc<Mutex<Latencies>>,
    failed: Arc<AtomicU64>,
    stop: CancellationToken,
    tasks: Vec<JoinHandle<()>>,
}

impl Load {
    /// Starts so many clients.
    pub fn start(clients: u16, client: &Client, traffic: &Arc<Mutex<Traffic>>) -> Self {
        let latencies = Arc::new(Mutex::new(fresh()));
        let (failed, stop) = (Arc::new(AtomicU64::new(0)), CancellationToken::new());
        let tasks = (0..clients)
            .map(|_| {
                let one = one(client.clone(), traffic.clone(), latencies.clone(), failed.clone());
                let stop = stop.clone();
                tokio::spawn(async move {
                    let _ = stop.run_until_cancelled(one).await;
                })
            })
            .collect();
        Self { latencies, failed, stop, tasks }
    }

    /// The latencies since the last time.
    pub fn take(&self) -> Latencies {
        std::mem::replace(&mut *self.latencies.lock().expect("nothing panics with the lock"), fresh())
    }

    /// Ends the clients and returns how many lookups failed.
    pub async fn stop(self) -> u64 {
        self.stop.cancel();
        for task in self.tasks {
            let _ = task.await;
        }
        self.failed.load(Ordering::Relaxed)
    }
}

async fn one(
    mut client: Client,
    traffic: Arc<Mutex<Traffic>>,
    latencies: Arc<Mutex<Latencies>>,
    failed: Arc<AtomicU64>,
) {
    loop {
        let prompt = traffic.lock().expect("nothing panics with the lock").probe();
        let start = Instant::now();
        match client.lookup(&prompt).await {
            Ok(_) => {
                let took = start.elapsed().as_nanos() as u64;
                latencies.lock().expect("nothing panics with the lock").saturating_record(took);
            }
            Err(error) => {
                failed.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(%error, "a lookup failed");
                tokio::time::sleep(PAUSE).await;
            }
        }
    }
}

fn fresh() -> Latencies {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, 3).expect("the bounds are in order")
}
