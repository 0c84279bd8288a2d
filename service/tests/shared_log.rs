//! The shared log on a real Redis server: one replica appends, others read, and the server is killed, emptied, stopped and filled
//! with nonsense meanwhile.
//!
//! Needs `redis-server` (Debian's package of that name), or what `KVATLAS_REDIS_SERVER` names.
#![cfg(feature = "redis")]
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::*;
use kvatlas_service::config::Raw;
use kvatlas_service::grpc::proto;
use kvatlas_service::serve::Running;
use redis::aio::MultiplexedConnection;
use std::io::ErrorKind;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

const WORKER: &str = "w";
const CHAINS: u32 = 8;
const CHAIN_BLOCKS: u32 = 12;

/// A server with a socket and files of its own. It does not outlive its test.
struct Server {
    child: Child,
    folder: TempDir,
    args: &'static [&'static str],
}

const FORGETS: &[&str] = &["--save", "", "--appendonly", "no"];
const REMEMBERS: &[&str] = &["--save", "", "--appendonly", "yes", "--appendfsync", "always"];

impl Server {
    /// `None`, and words to be seen, where there is no such program. CI installs it and does not go on without.
    async fn start(args: &'static [&'static str]) -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        match spawn(&folder, args) {
            Ok(child) => {
                let server = Self { child, folder, args };
                server.connection().await;
                Some(server)
            }
            Err(error) if error.kind() == ErrorKind::NotFound && std::env::var_os("CI").is_none() => {
                eprintln!("\n!!! SKIPPED: redis-server is not installed (apt-get install redis-server)\n");
                None
            }
            Err(error) => panic!("redis-server: {error}"),
        }
    }

    fn url(&self) -> String {
        format!("redis+unix://{}", self.folder.path().join("socket").display())
    }

    /// SIGKILL, and a new one over the same files.
    async fn restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.child = spawn(&self.folder, self.args).unwrap();
        self.connection().await;
    }

    fn signal(&self, name: &str) {
        let status = Command::new("kill").args([name, &self.child.id().to_string()]).status().unwrap();
        assert!(status.success());
    }

    /// A connection, as soon as the server answers.
    async fn connection(&self) -> MultiplexedConnection {
        let client = redis::Client::open(self.url()).unwrap();
        in_time(async {
            let mut period = tokio::time::interval(Duration::from_millis(2));
            loop {
                period.tick().await;
                let Ok(mut connection) = client.get_multiplexed_async_connection().await else { continue };
                if redis::cmd("PING").query_async::<String>(&mut connection).await.is_ok() {
                    return connection;
                }
            }
        })
        .await
    }

    async fn ask<T: redis::FromRedisValue>(&self, command: &str, args: &[&str]) -> T {
        let mut connection = self.connection().await;
        redis::cmd(command).arg(args).query_async(&mut connection).await.unwrap()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.child.kill().ok();
        self.child.wait().ok();
    }
}

fn spawn(folder: &TempDir, args: &[&str]) -> std::io::Result<Child> {
    let program = std::env::var("KVATLAS_REDIS_SERVER").unwrap_or_else(|_| "redis-server".into());
    Command::new(program)
        .args(["--port", "0", "--unixsocket", "socket", "--daemonize", "no"])
        .args(args)
        .current_dir(folder.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
}

fn stream() -> String {
    format!("kvatlas:1:stream:0:{WORKER}")
}

/// A replica with short deadlines.
fn with_log(server: &Server, append: bool) -> Raw {
    let mut raw = small();
    raw.shared_log.url = server.url();
    raw.shared_log.append = append;
    raw.shared_log.lease_ms = 600;
    raw.shared_log.response_max_ms = 400;
    raw.shared_log.retry_min_ms = 5;
    raw.shared_log.retry_max_ms = 50;
    raw.shared_log.block_ms = 20;
    raw
}

/// One who is told a rank's events over gRPC and appends them, and what the rank holds, computed otherwise: copies of each block.
struct Origin {
    running: Running,
    clients: Clients,
    next: u64,
    random: u64,
    copies: Vec<Vec<u32>>,
}

impl Origin {
    async fn start(raw: Raw) -> Self {
        let running = run(raw).await;
        let mut clients = clients(&running).await;
        clients.register(spec(WORKER)).await.unwrap();
        let copies = vec![vec![0; CHAIN_BLOCKS as usize]; CHAINS as usize];
        Self { running, clients, next: 0, random: 1, copies }
    }

    fn below(&mut self, bound: u32) -> u32 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) as u32 % bound
    }

    fn event(&mut self) -> proto::Event {
        let (chain, block) = (self.below(CHAINS), self.below(CHAIN_BLOCKS));
        let name = |block: u32| u64::from(chain * CHAIN_BLOCKS + block) + 1;
        let remove = self.below(3) == 0;
        let copies = &mut self.copies[chain as usize];
        if remove {
            let copies = &mut copies[block as usize];
            *copies = copies.saturating_sub(1);
            return removed(&[name(block)]);
        }
        // The chain up to this block, from a block that is held.
        let held = copies.iter().take_while(|copies| **copies > 0).count() as u32;
        let from = block.min(held);
        (from..=block).for_each(|block| copies[block as usize] += 1);
        let ids = chain_tokens(chain)[(from * BLOCK_SIZE) as usize..((block + 1) * BLOCK_SIZE) as usize].to_vec();
        stored(from.checked_sub(1).map(name), name(from), ids)
    }

    /// Applies so many batches.
    async fn publish(&mut self, batches: u32) {
        let mut all = Vec::new();
        for _ in 0..batches {
            let events = (0..1 + self.below(3)).map(|_| self.event()).collect();
            all.push(batch(WORKER, self.next, events));
            self.next += 1;
        }
        let acks = in_time(self.clients.apply(all)).await.unwrap();
        assert!(acks.iter().all(|ack| ack.status() == proto::apply_ack::Status::Applied), "{acks:?}");
    }

    fn depth(&self, chain: u32) -> u32 {
        self.copies[chain as usize].iter().take_while(|copies| **copies > 0).count() as u32
    }

    fn cursor(&self) -> u64 {
        self.next - 1
    }

    /// Waits until the log is as wanted.
    async fn until_log(&mut self, wanted: impl Fn(&proto::LogStatus) -> bool) {
        in_time(async {
            let mut period = tokio::time::interval(Duration::from_millis(2));
            while !wanted(&self.log().await) {
                period.tick().await;
            }
        })
        .await;
    }

    async fn log(&mut self) -> proto::LogStatus {
        log_of(&mut self.clients).await
    }
}

async fn log_of(clients: &mut Clients) -> proto::LogStatus {
    clients.index.get_status(proto::GetStatusRequest {}).await.unwrap().into_inner().log.unwrap()
}

fn chain_tokens(chain: u32) -> Vec<u32> {
    let first = 1_000 * (chain + 1);
    (first..first + CHAIN_BLOCKS * BLOCK_SIZE).collect()
}

fn read_from_the_log() -> proto::WorkerSpec {
    let rank = proto::RankSpec { events_endpoint: "log".into(), ..proto::RankSpec::default() };
    proto::WorkerSpec { ranks: vec![rank], ..spec(WORKER) }
}

/// One who reads the rank from the log.
struct Copy {
    _running: Running,
    clients: Clients,
}

impl Copy {
    async fn start(server: &Server) -> Self {
        let running = run(with_log(server, false)).await;
        let mut clients = clients(&running).await;
        clients.register(read_from_the_log()).await.unwrap();
        Self { _running: running, clients }
    }

    /// Waits until the copy is exact at the origin's last batch, and compares it with what the rank holds.
    async fn is_the_origin(&mut self, origin: &mut Origin) -> proto::RankStatus {
        let cursor = origin.cursor();
        let status =
            self.clients.until(|rank| rank.cursor == Some(cursor) && rank.trust() == proto::Trust::Exact).await;
        for chain in 0..CHAINS {
            let question = ask(chain_tokens(chain));
            let expected: Vec<_> =
                Some(origin.depth(chain)).filter(|d| *d > 0).map(|d| (WORKER, 0, d)).into_iter().collect();
            let here = self.clients.lookup(question.clone()).await.unwrap();
            assert_eq!(rows(&here), expected, "chain {chain} of the copy");
            let there = origin.clients.lookup(question).await.unwrap();
            assert_eq!(rows(&there), expected, "chain {chain} of the origin");
        }
        status
    }
}

fn count(rank: &proto::RankStatus, reason: &str) -> u64 {
    counted(&rank.counters, reason)
}

#[tokio::test]
async fn a_copy_that_reads_the_log_answers_like_the_origin() {
    let Some(server) = Server::start(FORGETS).await else { return };
    let mut raw = with_log(&server, true);
    raw.shared_log.entries_max = 40;
    let mut origin = Origin::start(raw).await;
    let mut early = Copy::start(&server).await;
    origin.publish(1).await;
    early.is_the_origin(&mut origin).await;
    for _ in 0..10 {
        origin.publish(30).await;
        early.is_the_origin(&mut origin).await;
    }
    // States came by, and the one who followed did not need them.
    let status = early.clients.rank().await;
    assert!(count(&status, "states_passed") > 2 && count(&status, "states_loaded") <= 1, "{status:?}");
    assert_eq!(count(&status, "gaps"), 0, "{status:?}");
    // The stream stays short, and whoever comes late finds a state in it.
    let entries: u64 = server.ask("XLEN", &[&stream()]).await;
    assert!(entries < 150, "{entries} entries");
    let mut late = Copy::start(&server).await;
    let status = late.is_the_origin(&mut origin).await;
    assert_eq!(count(&status, "states_loaded"), 1);
    let log = origin.log().await;
    assert!(log.connected && log.ranks_writing == 1 && counted(&log.counters, "trims") > 2, "{log:?}");
    assert_eq!(log_of(&mut late.clients).await.ranks_reading, 1);
}

/// A server that was killed three times, an origin, and a copy of it that was always as the origin again.
async fn killed_again_and_again(args: &'static [&'static str]) -> Option<(Server, Origin, Copy)> {
    let mut server = Server::start(args).await?;
    let mut origin = Origin::start(with_log(&server, true)).await;
    let mut copy = Copy::start(&server).await;
    origin.publish(50).await;
    copy.is_the_origin(&mut origin).await;
    for _ in 0..3 {
        origin.publish(20).await;
        server.restart().await;
        origin.publish(20).await;
        copy.is_the_origin(&mut origin).await;
    }
    Some((server, origin, copy))
}

#[tokio::test]
async fn a_server_that_is_killed_and_remembers_leads_on() {
    let Some((_server, _origin, mut copy)) = killed_again_and_again(REMEMBERS).await else { return };
    let status = copy.clients.rank().await;
    assert!(count(&status, "connections") > 1, "{status:?}");
}

#[tokio::test]
async fn a_server_that_is_killed_and_forgets_is_filled_again() {
    let Some((server, mut origin, _copy)) = killed_again_and_again(FORGETS).await else { return };
    let mut late = Copy::start(&server).await;
    late.is_the_origin(&mut origin).await;
}

#[tokio::test]
async fn without_a_server_or_a_writer_a_copy_is_degraded() {
    let Some(server) = Server::start(FORGETS).await else { return };
    let mut origin = Origin::start(with_log(&server, true)).await;
    let mut copy = Copy::start(&server).await;
    origin.publish(20).await;
    copy.is_the_origin(&mut origin).await;
    drop(origin.clients);
    origin.running.shutdown().await;
    let degraded = |rank: &proto::RankStatus| rank.trust() == proto::Trust::Degraded;
    let status = copy.clients.until(degraded).await;
    assert!(status.detail.contains("nobody writes"), "{status:?}");
    drop(server);
    let status = copy.clients.until(|rank| degraded(rank) && !rank.connected).await;
    assert!(status.detail.contains("no connection"), "{status:?}");
    let log = log_of(&mut copy.clients).await;
    assert!(!log.connected && !log.detail.is_empty(), "{log:?}");
}

#[tokio::test]
async fn what_was_trimmed_before_it_was_read_is_a_gap_until_the_next_state() {
    let Some(server) = Server::start(FORGETS).await else { return };
    let mut origin = Origin::start(with_log(&server, true)).await;
    origin.publish(1).await;
    origin.until_log(|log| counted(&log.counters, "states_appended") >= 1).await;
    origin.publish(30).await;
    origin.until_log(|log| counted(&log.counters, "entries_appended") >= 31).await;
    // The state at the beginning is gone: somebody else's trimming.
    let _: u64 = server.ask("XTRIM", &[&stream(), "MAXLEN", "5"]).await;
    let mut copy = Copy::start(&server).await;
    let status = copy.clients.until(|rank| count(rank, "entries_before_a_state") == 5).await;
    assert_eq!((status.trust(), status.cursor), (proto::Trust::Bootstrapping, None));
    // One who followed lacks what is taken from before it.
    let _: u64 = server.ask("DEL", &[&stream()]).await;
    copy.is_the_origin(&mut origin).await;
    let newest: redis::Value = server.ask("XINFO", &["STREAM", &stream()]).await;
    assert!(matches!(newest, redis::Value::Array(_)), "the writer saw it and began anew");
}

#[tokio::test]
async fn nonsense_in_the_stream_is_counted_and_costs_trust_until_the_next_state() {
    let Some(server) = Server::start(FORGETS).await else { return };
    let mut origin = Origin::start(with_log(&server, true)).await;
    let mut copy = Copy::start(&server).await;
    origin.publish(20).await;
    copy.is_the_origin(&mut origin).await;
    for (number, fields) in
        [["x", "y"].as_slice(), &["k", "4", "b", "\u{1}\u{2}"], &["k", "4", "b", ""]].iter().enumerate()
    {
        let entries: Vec<(String, redis::Value)> = server.ask("XREVRANGE", &[&stream(), "+", "-", "COUNT", "1"]).await;
        let (epoch, last) = entries[0].0.split_once('-').unwrap();
        let id = format!("{epoch}-{}", last.parse::<u64>().unwrap() + 1);
        let mut args = vec![stream(), id];
        args.extend(fields.iter().map(|field| (*field).to_owned()));
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let _: String = server.ask("XADD", &args).await;
        // An empty message is another life's word, which nothing led to.
        let seen = |rank: &proto::RankStatus| {
            count(rank, "entries_unreadable") + count(rank, "gaps") > number as u64
                || rank.trust() == proto::Trust::Degraded
        };
        copy.clients.until(seen).await;
        origin.publish(10).await;
        copy.is_the_origin(&mut origin).await;
    }
    assert!(counted(&origin.log().await.counters, "fenced") >= 1);
}

#[tokio::test]
async fn a_server_that_hangs_holds_up_no_events() {
    let Some(server) = Server::start(FORGETS).await else { return };
    let mut raw = with_log(&server, true);
    // Less than what comes while the server hangs.
    raw.relay.history_batches_max = 50;
    let mut origin = Origin::start(raw).await;
    let mut copy = Copy::start(&server).await;
    origin.publish(20).await;
    copy.is_the_origin(&mut origin).await;
    server.signal("-STOP");
    origin.publish(400).await;
    assert_eq!(origin.clients.rank().await.cursor, Some(origin.cursor()), "applied while the server hangs");
    copy.clients.until(|rank| rank.trust() == proto::Trust::Degraded).await;
    server.signal("-CONT");
    copy.is_the_origin(&mut origin).await;
}

#[tokio::test]
async fn of_two_writers_one_writes_and_the_other_takes_over() {
    let Some(server) = Server::start(FORGETS).await else { return };
    let mut first = Origin::start(with_log(&server, true)).await;
    first.publish(10).await;
    let mut copy = Copy::start(&server).await;
    copy.is_the_origin(&mut first).await;
    let mut second = Origin::start(with_log(&server, true)).await;
    second.publish(10).await;
    second.until_log(|log| log.ranks_standby > 0).await;
    for origin in [&mut first, &mut second] {
        origin.publish(10).await;
    }
    copy.is_the_origin(&mut first).await;
    assert_eq!(second.log().await.ranks_writing, 0);
    drop(first.clients);
    first.running.shutdown().await;
    second.publish(10).await;
    copy.is_the_origin(&mut second).await;
    assert_eq!(second.log().await.ranks_writing, 1);
}

#[tokio::test]
async fn a_log_of_another_block_size_is_not_believed() {
    let Some(server) = Server::start(FORGETS).await else { return };
    let mut origin = Origin::start(with_log(&server, true)).await;
    origin.publish(10).await;
    let running = run(with_log(&server, false)).await;
    let mut clients = clients(&running).await;
    let other = proto::WorkerSpec { block_size: BLOCK_SIZE * 2, ..read_from_the_log() };
    clients.register(other).await.unwrap();
    let mut copy = Copy { _running: running, clients };
    copy.clients.until(|rank| rank.trust() == proto::Trust::Misconfigured).await;
}

#[tokio::test]
async fn a_rank_is_not_read_from_a_log_that_is_none() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    let refused = clients.register(read_from_the_log()).await.unwrap_err();
    assert!(refused.message().contains("shared_log.url"), "{refused:?}");
}
