//! `kvatlas demo`: mock engines on real wires, the service that follows them, and a client, in one process.
//!
//! ```text
//! traffic -> mock engines -> vLLM / SGLang messages over ZeroMQ -> service (subscriber, cursor, lanes, index)
//!                 |                                                        ^ gRPC
//!                 +------> oracle  <- compared at the end ->  client: live lookups, then a sample
//! ```
//!
//! Real here: both engines' event encodings and block hashes, the sockets with sequences and replay, everything of the
//! service, and gRPC between the client and it. Mocked: the engines behind the events (module `engine` says what is left
//! out) and the requests. The client uses only what any router could use.
//!
//! At the end traffic stops, every rank's cursor has to reach its publisher's last batch, and every answer of a sample of
//! prompts has to be the oracle's, which was fed from the engines' own block tables and never saw a message.

mod check;
mod client;
mod encode;
mod engine;
mod load;
mod names;
mod pool;
mod publisher;
mod random;
mod screen;
mod traffic;
mod worker;

use crate::config::{ConfigError, Raw, Resolved};
use crate::serve::{self, StartError};
use client::Client;
use load::Load;
use random::Random;
use screen::Screen;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::{Instant, MissedTickBehavior};
use traffic::Traffic;
use worker::Worker;

/// The model that the mock workers serve.
const MODEL: &str = "demo";
/// How often a request may be due; several share a tick.
const TICK: Duration = Duration::from_millis(5);

/// What to show.
#[derive(Clone, Debug, PartialEq, Eq, clap::Args)]
pub struct DemoArgs {
    /// Mock workers: vLLM (maps), SGLang, vLLM 0.23 (arrays), in turn.
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u16).range(1..=512))]
    pub workers: u16,
    /// Seconds of traffic.
    #[arg(long, default_value_t = 30, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    pub seconds: u64,
    /// Seed of the traffic and of the sample that is checked.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Requests a second, over all workers.
    #[arg(long, default_value_t = 400, value_parser = clap::value_parser!(u64).range(1..=100_000))]
    pub requests: u64,
    /// Blocks of a worker's cache. A small one evicts more.
    #[arg(long, default_value_t = 4096, value_parser = clap::value_parser!(u64).range(512..=4_194_304))]
    pub blocks: u64,
    /// Clients that look up, one lookup after the other.
    #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u16).range(0..=256))]
    pub lookups: u16,
    /// Prompts whose answers are compared at the end.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    pub sample: u64,
}

/// Why the demo could not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum DemoError {
    /// The settings were refused.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The service did not start.
    #[error("the service did not start: {0}")]
    Start(#[from] StartError),
    /// A publisher did not start.
    #[error("a mock publisher did not start: {0}")]
    Publisher(#[from] zeromq::ZmqError),
    /// The client could not connect.
    #[error("no connection to the service: {0}")]
    Connect(#[from] tonic::transport::Error),
    /// The service refused a call.
    #[error("the service refused {call}: {status}")]
    Call {
        /// The call.
        call: &'static str,
        /// Why.
        status: Box<tonic::Status>,
    },
    /// The service did not catch up with the publishers.
    #[error(
        "{worker} is at batch {cursor:?} and {trust}, its publisher at {published}, after {seconds} s without traffic"
    )]
    Behind {
        /// The worker.
        worker: String,
        /// Where the service is.
        cursor: Option<u64>,
        /// How far the service believes its state.
        trust: &'static str,
        /// Batches that were published.
        published: u64,
        /// Time waited.
        seconds: u64,
    },
    /// Output could not be written.
    #[error("output: {0}")]
    Output(#[from] std::io::Error),
}

/// Runs the demo and prints what it sees. Returns whether every answer of the sample was the oracle's.
pub async fn run(args: DemoArgs) -> Result<bool, DemoError> {
    let mut stage = Stage::start(&args).await?;
    let mut screen = Screen::new(&args, stage.service.grpc_addr());
    screen.title()?;
    let load = Load::start(args.lookups, &stage.client, &stage.traffic);
    let drive = drive(&args, &mut stage, &load, &mut screen).await;
    let failed = load.stop().await;
    drive?;
    check::quiesce(&mut stage.client, &stage.workers).await?;
    let verdict = check::compare(args.sample, &mut stage.client, &stage.workers, &stage.traffic).await?;
    screen.verdict(&verdict, failed)?;
    stage.end().await;
    Ok(verdict.is_exact() && failed == 0)
}

/// Everything that runs.
struct Stage {
    traffic: Arc<Mutex<Traffic>>,
    workers: Vec<Worker>,
    service: serve::Running,
    client: Client,
}

impl Stage {
    /// Starts the service and the workers. The workers publish before the service listens, as engines do.
    async fn start(args: &DemoArgs) -> Result<Self, DemoError> {
        let mut random = Random::new(args.seed);
        let traffic = Arc::new(Mutex::new(Traffic::new(random.fork(1), args.workers.into())));
        let mut raw = Raw::default();
        raw.grpc.listen = "127.0.0.1:0".into();
        raw.admin.listen = String::new();
        let service = serve::start(Resolved::new(&raw)?).await?;
        let mut client = Client::connect(service.grpc_addr()).await?;
        let mut workers = Vec::new();
        for number in 0..args.workers {
            let worker = Worker::start(number, args.blocks as usize, &mut random).await?;
            client.register(&worker).await?;
            workers.push(worker);
        }
        Ok(Self { traffic, workers, service, client })
    }

    /// Serves the next request.
    async fn serve_one(&mut self) {
        let turn = self.traffic.lock().expect("nothing panics with the lock").next_turn();
        self.workers[turn.worker].serve(&turn).await;
    }

    /// The service goes first, so that it does not see its workers vanish.
    async fn end(self) {
        self.service.shutdown().await;
        drop(self.workers);
    }
}

/// Serves requests at their rate and shows the state each second, until the time is over or the user has seen enough.
async fn drive(args: &DemoArgs, stage: &mut Stage, load: &Load, screen: &mut Screen) -> Result<(), DemoError> {
    let start = Instant::now();
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Skip);
    let mut show = tokio::time::interval_at(start + Duration::from_secs(1), Duration::from_secs(1));
    // One future for the whole time, so that no signal falls between two of them.
    let mut interrupted = pin!(tokio::signal::ctrl_c());
    let mut served = 0;
    loop {
        tokio::select! {
            _ = &mut interrupted => return Ok(()),
            _ = show.tick() => {
                let view = stage.client.view().await?;
                screen.show(start.elapsed(), &view, &stage.workers, load.take())?;
                if start.elapsed() >= Duration::from_secs(args.seconds) {
                    return Ok(());
                }
            }
            _ = tick.tick() => {
                // Requests come at their times, also after a tick that was late.
                let due = start.elapsed().as_micros() as u64 * args.requests / 1_000_000;
                while served < due {
                    stage.serve_one().await;
                    served += 1;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small caches, so that there is eviction.
    const ARGS: DemoArgs =
        DemoArgs { workers: 4, seconds: 2, seed: 7, requests: 100, blocks: 512, lookups: 1, sample: 300 };

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_short_demo_is_exact() {
        assert!(run(ARGS).await.unwrap());
    }

    /// A comparison that cannot fail shows nothing: an engine that changes without saying so is found.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn an_engine_that_keeps_something_to_itself_is_found() {
        let mut stage = Stage::start(&ARGS).await.unwrap();
        for _ in 0..200 {
            stage.serve_one().await;
        }
        check::quiesce(&mut stage.client, &stage.workers).await.unwrap();
        let before = check::compare(200, &mut stage.client, &stage.workers, &stage.traffic).await.unwrap();
        assert!(before.is_exact() && before.hits > 50, "{before:?}");
        for _ in 0..20 {
            let turn = stage.traffic.lock().unwrap().next_turn();
            stage.workers[turn.worker].engine.step(&turn);
        }
        let after = check::compare(200, &mut stage.client, &stage.workers, &stage.traffic).await.unwrap();
        assert!(!after.is_exact() && !after.differences.is_empty(), "{after:?}");
        stage.end().await;
    }
}
