//! The whole service on a made-up machine with two memory nodes, one of which no real machine has: two shards, lanes and
//! lookup threads pinned on both nodes, the second node's memory refused. It has to answer exactly, and to say what was refused.

#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::*;
use kvatlas_service::config::{Raw, RawHugePages, RawNuma, Resolved};
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::Granted;
use kvatlas_service::serve::{runtime, start, start_on};
use kvatlas_service::topology::{Machine, Sysfs};
use std::collections::{BTreeMap, BTreeSet};

/// Nodes are numbered from 0, and nobody has so many.
const MISSING_NODE: u32 = 61;
const WORKERS: [&str; 5] = ["w0", "w1", "w2", "w3", "w4"];
const SEED: u64 = 0x6b76_6174_6c61_7331;

/// Node 0 with the first core that this process may use, and a node that is not there with the last one.
fn two_nodes() -> Machine {
    let cores = Machine::this().cores;
    let root = tempfile::tempdir().unwrap();
    for (node, core) in [(0, cores[0]), (MISSING_NODE, cores[cores.len() - 1])] {
        let folder = root.path().join(format!("node{node}"));
        std::fs::create_dir(&folder).unwrap();
        std::fs::write(folder.join("cpulist"), format!("{core}\n")).unwrap();
    }
    Machine::from_source(&Sysfs::at(root.path().into()), cores)
}

fn placed() -> Raw {
    let mut raw = small();
    raw.index.lanes_per_shard = 1;
    raw.index.numa = RawNuma::Auto;
    raw
}

/// What the workers hold, literally: copies of each prefix (a list of block labels).
#[derive(Default)]
struct Model(BTreeMap<(usize, Vec<u32>), u32>);

impl Model {
    fn depth(&self, worker: usize, prompt: &[u32]) -> u32 {
        let held = |n: &usize| self.0.get(&(worker, prompt[..*n].to_vec())).is_some_and(|copies| *copies > 0);
        (1..=prompt.len()).take_while(held).count() as u32
    }
}

/// The engine's name of a prefix.
fn name(prefix: &[u32]) -> u64 {
    prefix.iter().fold(SEED, |hash, label| (hash ^ u64::from(*label)).wrapping_mul(0x0100_0000_01b3).rotate_left(29))
}

fn ids(prompt: &[u32]) -> Vec<u32> {
    prompt.iter().flat_map(|label| [*label; BLOCK_SIZE as usize]).collect()
}

fn store(prompt: &[u32]) -> proto::Event {
    let mut event = stored(None, 0, ids(prompt));
    if let Some(proto::event::Event::Stored(stored)) = &mut event.event {
        stored.engine_hashes = (1..=prompt.len()).map(|n| name(&prompt[..n])).collect();
    }
    event
}

/// Prompts of a small tree, so that many share their beginnings.
fn prompt(random: &mut impl FnMut(u64) -> u64) -> Vec<u32> {
    (0..1 + random(6)).map(|depth| (depth * 10 + random(2)) as u32).collect()
}

async fn random_history(clients: &mut Clients) -> Model {
    let mut state = SEED;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let mut model = Model::default();
    let mut sequences = [0; WORKERS.len()];
    let mut batches = Vec::new();
    for _ in 0..400 {
        let worker = random(WORKERS.len() as u64) as usize;
        let prompt = prompt(&mut random);
        let event = if random(3) > 0 {
            (1..=prompt.len()).for_each(|n| *model.0.entry((worker, prompt[..n].to_vec())).or_default() += 1);
            store(&prompt)
        } else {
            let copies = model.0.entry((worker, prompt.clone())).or_default();
            *copies = copies.saturating_sub(1);
            removed(&[name(&prompt)])
        };
        batches.push(batch(WORKERS[worker], sequences[worker], vec![event]));
        sequences[worker] += 1;
    }
    let acks = clients.apply(batches).await.unwrap();
    assert!(acks.iter().all(|a| a.status() == proto::apply_ack::Status::Applied), "seed {SEED:#x}");
    model
}

/// Every prompt of the tree, against the model.
async fn check_every_prompt(clients: &mut Clients, model: &Model) {
    let mut prompts: Vec<Vec<u32>> = vec![Vec::new()];
    for depth in 0..6 {
        let longer = prompts.iter().filter(|p| p.len() == depth);
        let longer: Vec<_> =
            longer.flat_map(|p| (0..2).map(move |l| [p.as_slice(), &[depth as u32 * 10 + l]].concat())).collect();
        prompts.extend(longer);
    }
    for prompt in prompts.iter().filter(|p| !p.is_empty()) {
        let answer = clients.lookup(ask(ids(prompt))).await.unwrap();
        let found: BTreeSet<_> = rows(&answer).into_iter().map(|(w, _, blocks)| (w.to_owned(), blocks)).collect();
        let held = WORKERS.iter().enumerate().map(|(i, w)| ((*w).to_owned(), model.depth(i, prompt)));
        let expected: BTreeSet<_> = held.filter(|(_, blocks)| *blocks > 0).collect();
        assert_eq!(found, expected, "{prompt:?}, seed {SEED:#x}");
    }
}

#[test]
fn two_shards_answer_as_one_and_the_refused_memory_is_shown() {
    let resolved = Resolved::on(&placed(), two_nodes()).unwrap();
    assert_eq!(resolved.index.memory_nodes, [Some(0), Some(MISSING_NODE)]);
    let (runtime, pins) = runtime(&resolved).unwrap();
    runtime.block_on(async {
        let running = start_on(resolved, pins).await.unwrap();
        let mut clients = clients(&running).await;
        for worker in WORKERS {
            clients.register(spec(worker)).await.unwrap();
        }
        let model = random_history(&mut clients).await;
        check_every_prompt(&mut clients, &model).await;

        let status = clients.index.get_status(proto::GetStatusRequest {}).await.unwrap().into_inner();
        let nodes: Vec<_> = status.shards.iter().map(|s| s.memory_node).collect();
        assert_eq!((nodes, status.memory_nodes), (vec![Some(0), Some(MISSING_NODE)], 2));
        assert_eq!(status.shards[1].memory(), Granted::Refused, "{status:?}");
        assert!(status.shards[1].detail.contains("refused"), "{status:?}");
        assert!(status.shards[1].detail.contains("made"), "{status:?}");
        let lanes: Vec<_> = status.lane_threads.iter().map(|l| (l.shard, l.ranks)).collect();
        assert_eq!(lanes, [(0, 3), (1, 2)], "ranks on both shards");
        let places: Vec<_> = status.lane_threads.iter().map(|l| l.place.unwrap()).collect();
        assert!(places.iter().all(|p| p.pinned() == Granted::Yes && p.core.is_some()), "{places:?}");
        assert!(!status.lookup_threads.is_empty());
        assert!(status.lookup_threads.iter().all(|p| p.pinned() == Granted::Yes), "{status:?}");

        let (code, metrics) = get(running.admin_addr().unwrap(), "/metrics").await;
        assert_eq!(code, 200);
        assert!(metrics.contains("kvatlas_shard_memory_node{shard=\"1\"} 61"), "{metrics}");
        assert!(metrics.contains("kvatlas_threads_not_pinned{thread=\"lane\"} 0"), "{metrics}");
        let refused = metrics.lines().find(|l| l.starts_with("kvatlas_shard_memory_refused_regions{shard=\"1\"}"));
        assert!(refused.is_some_and(|line| !line.ends_with(" 0")), "{metrics}");
        assert!(metrics.contains("kvatlas_lane_ranks{lane=\"0\",shard=\"0\"} 3"), "{metrics}");
        let busiest = metrics.lines().find_map(|l| l.strip_prefix("kvatlas_lane_busiest_percent "));
        assert!(busiest.is_some_and(|percent| percent.parse::<u64>().unwrap() >= 100), "{metrics}");
        let address = format!("http://{}", running.grpc_addr());
        let shown = tokio::task::spawn_blocking(move || shown_status(&address)).await.unwrap();
        assert!(shown.contains("!! memory refused") && shown.contains("REFUSED"), "{shown}");
        running.shutdown().await;
    });
}

/// What `kvatlas status` prints.
fn shown_status(endpoint: &str) -> String {
    let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kvatlas"));
    let output = command.args(["status", "--endpoint", endpoint]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[tokio::test]
async fn what_nobody_asked_for_is_not_asked_for() {
    let mut raw = small();
    raw.index.numa = RawNuma::Off;
    let running = start(Resolved::on(&raw, two_nodes()).unwrap()).await.unwrap();
    let mut clients = clients(&running).await;
    let status = clients.index.get_status(proto::GetStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(
        (status.shards.len(), status.shards[0].memory(), status.shards[0].memory_node),
        (1, Granted::NotAsked, None)
    );
    assert!(status.lane_threads.iter().all(|l| l.place.unwrap().pinned() == Granted::NotAsked));
    running.shutdown().await;
}

#[tokio::test]
async fn huge_pages_that_are_refused_are_shown_and_the_service_works() {
    let mut raw = small();
    // More than any pool of huge pages has.
    raw.index.blocks_max = 1 << 29;
    raw.index.huge_pages = RawHugePages::Explicit;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    let status = clients.index.get_status(proto::GetStatusRequest {}).await.unwrap().into_inner();
    assert_eq!(status.shards[0].huge_pages(), Granted::Refused, "{status:?}");
    clients.register(spec("w")).await.unwrap();
    clients.apply(vec![batch("w", 0, vec![stored(None, 1, tokens(3))])]).await.unwrap();
    let answer = clients.lookup(ask(tokens(3))).await.unwrap();
    assert_eq!(rows(&answer), [("w", 0, 3)]);
    running.shutdown().await;
}
