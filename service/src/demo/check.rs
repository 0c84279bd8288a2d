//! The end of the demo: the service has to catch up, then its answers are compared with the oracle's.

use super::DemoError;
use super::client::{Client, trust_name};
use super::engine::BLOCK_SIZE;
use super::traffic::{Prompt, Traffic};
use super::worker::Worker;
use crate::wire::{self, ContentHasher, HashMode, Namespace};
use kvatlas_index::reference::Reference;
use kvatlas_index::{IndexError, RankKey, Residency, Store, StoreKind, Tier};
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// Time the service has to catch up once traffic stopped.
const CATCH_UP_MAX: Duration = Duration::from_secs(30);
/// Time between two looks at the cursors.
const LOOK_EVERY: Duration = Duration::from_millis(20);
/// Differences that are kept in words.
const DIFFERENCES_SHOWN_MAX: usize = 5;

/// Leading blocks by worker.
type Answer = BTreeMap<String, u32>;

/// What the comparison found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Prompts compared.
    pub prompts: u64,
    /// Of these, prompts whose whole answer is the oracle's.
    pub exact: u64,
    /// Prompts that somebody holds a part of.
    pub hits: u64,
    /// Lines of answers compared: a worker and its depth.
    pub lines: u64,
    /// Blocks that all workers hold, by their own tables.
    pub blocks: u64,
    /// The first differences, in words.
    pub differences: Vec<String>,
}

impl Verdict {
    /// Whether nothing differed.
    pub fn is_exact(&self) -> bool {
        self.exact == self.prompts
    }
}

/// Waits until every batch is published and every cursor is at its publisher's last one.
pub async fn quiesce(client: &mut Client, workers: &[Worker]) -> Result<(), DemoError> {
    let deadline = Instant::now() + CATCH_UP_MAX;
    loop {
        let ranks = client.ranks().await?;
        let behind = workers.iter().find(|worker| {
            let rank = ranks.get(&worker.id);
            let applied = rank.and_then(|r| r.cursor).map_or(0, |cursor| cursor + 1);
            worker.publisher.published() < worker.batches
                || applied < worker.batches
                || (worker.batches > 0 && rank.is_none_or(|r| trust_name(r) != "EXACT"))
        });
        let Some(worker) = behind else { return Ok(()) };
        if Instant::now() >= deadline {
            let rank = ranks.get(&worker.id);
            return Err(DemoError::Behind {
                worker: worker.id.clone(),
                cursor: rank.and_then(|r| r.cursor),
                trust: rank.map_or("NOT_REGISTERED", trust_name),
                published: worker.publisher.published(),
                seconds: CATCH_UP_MAX.as_secs(),
            });
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

/// Compares the answers to a sample of prompts with the oracle's. Nothing may publish meanwhile.
pub async fn compare(
    sample: u64,
    client: &mut Client,
    workers: &[Worker],
    traffic: &Mutex<Traffic>,
) -> Result<Verdict, DemoError> {
    let oracle = oracle(workers);
    let mut hasher = ContentHasher::new(HashMode::Plain, BLOCK_SIZE);
    let mut verdict = Verdict { blocks: workers.iter().map(held).sum(), ..Verdict::default() };
    for _ in 0..sample {
        let prompt = traffic.lock().expect("nothing panics with the lock").probe();
        let want = expected(&oracle, &mut hasher, workers, &prompt);
        let response = client.lookup(&prompt).await?;
        let rows = response.worker.iter().zip(&response.matched_blocks);
        let named = rows.map(|(&w, &blocks)| (response.workers.get(w as usize).cloned().unwrap_or_default(), blocks));
        let got: Answer = named.collect();
        let whole = got.len() == response.worker.len() && !response.truncated && !response.busy;
        verdict.prompts += 1;
        verdict.hits += u64::from(!want.is_empty());
        verdict.lines += want.len() as u64;
        if whole && got == want {
            verdict.exact += 1;
        } else if verdict.differences.len() < DIFFERENCES_SHOWN_MAX {
            let blocks = prompt.tokens.len() / BLOCK_SIZE;
            verdict.differences.push(format!("{blocks} blocks: the service says {got:?}, the engines {want:?}"));
        }
    }
    Ok(verdict)
}

fn expected(oracle: &Reference, hasher: &mut ContentHasher, workers: &[Worker], prompt: &Prompt) -> Answer {
    let namespace = Namespace::new(None, prompt.salt.as_deref());
    let mut contents = Vec::new();
    hasher.prompt(&wire::Prompt { tokens: &prompt.tokens, namespace, items: &[] }, &mut contents);
    let found = oracle.lookup(&contents, Residency::PerTier);
    found.into_iter().map(|held| (workers[held.rank.0 as usize].id.clone(), held.blocks)).collect()
}

/// The oracle, fed from the engines' own block tables.
fn oracle(workers: &[Worker]) -> Reference {
    let mut oracle = Reference::new(0);
    for (key, worker) in workers.iter().enumerate() {
        let key = RankKey(key as u32);
        oracle.open_rank(key);
        feed(&mut oracle, key, worker).expect("a table with parents before children has no orphan and no self-parent");
    }
    oracle
}

fn feed(oracle: &mut Reference, key: RankKey, worker: &Worker) -> Result<(), IndexError> {
    let table = worker.engine.pool().dump();
    for (node, copies) in &table {
        let parent = node.parent.map(|id| worker.engine.pool().node(id).name);
        let (names, contents) = ([node.name], [node.content]);
        let store = Store { parent, names: &names, contents: &contents, kind: StoreKind::Copy };
        for _ in 0..(*copies).max(1) {
            oracle.store(key, Tier::Device, &store)?;
        }
    }
    // Blocks that are there only because one below them is live.
    for (node, _) in table.iter().filter(|(_, copies)| *copies == 0) {
        oracle.remove(key, Tier::Device, &[node.name])?;
    }
    Ok(())
}

fn held(worker: &Worker) -> u64 {
    worker.engine.pool().dump().iter().filter(|(_, copies)| *copies > 0).count() as u64
}
