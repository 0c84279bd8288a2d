//! dynamo-kv-router 1.6.1: its concurrent compressed radix tree (CRTC).
//!
//! The state that an event needs lives inside the tree's own event loop, `SyncIndexer::worker`, and nowhere else: so a thread of
//! ours runs that loop, as its thread pool does, without an async runtime. Events are built ahead of time and queued while the
//! loop is held back; then it runs alone, and the wake-up of each acknowledgement takes the time on the loop's own thread. What
//! a queue hop and an acknowledgement cost is measured with empty tasks and taken off. What stays charged: freeing the owned event.
//! Lookups call `find_matches` on the caller's thread, which allocates its answer. It keeps sets: copies are not counted.

use super::{Searcher, Writer};
use crate::memory;
use dynamo_kv_router::indexer::WorkerTask;
use dynamo_kv_router::protocols::{
    ExternalSequenceBlockHash, KvCacheEvent, KvCacheEventData, KvCacheRemoveData, KvCacheStoreData,
    KvCacheStoredBlockData,
};
use dynamo_kv_router::{ConcurrentRadixTreeCompressed, LocalBlockHash, RouterEvent, SyncIndexer};
use kvatlas_corpora::{Batch, OperationKind};
use std::future::Future;
use std::hint::black_box;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};
use std::thread::JoinHandle;
use std::time::Instant;
use tokio::sync::oneshot;

/// Empty tasks by which the hop is measured.
const EMPTY_TASKS: usize = 4096;

/// The tree, with the thread that runs its event loop.
pub struct Crtc {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    tasks: flume::Sender<WorkerTask>,
    thread: Option<JoinHandle<()>>,
    events: Vec<Option<RouterEvent>>,
    event_id: u64,
    hop_ns: f64,
}

impl Crtc {
    /// A tree whose heap use belongs to an account of [`memory`].
    pub fn new(account: usize) -> Self {
        let tree = Arc::new(memory::charge(account, ConcurrentRadixTreeCompressed::new));
        let (tasks, queue) = flume::unbounded();
        let inside = tree.clone();
        let run = move || {
            memory::charge(account, || {
                let ended = inside.worker(queue, None);
                debug_assert!(ended.is_ok(), "the event loop ends on request only");
            });
        };
        let thread = Some(std::thread::spawn(run));
        let mut crtc = Self { tree, tasks, thread, events: Vec::new(), event_id: 0, hop_ns: 0.0 };
        let mut times = crtc.run((0..EMPTY_TASKS).map(|_| None).collect());
        crtc.hop_ns = crate::sampling::quantile(&mut times, 0.5);
        crtc
    }

    /// Runs tasks on the loop's thread without a break between them; nanoseconds of each. `None` is an empty task. The queue and the
    /// acknowledgements are no memory of the tree.
    fn run(&mut self, tasks: Vec<Option<RouterEvent>>) -> Vec<f64> {
        memory::charge(0, || self.run_uncharged(tasks))
    }

    fn run_uncharged(&mut self, tasks: Vec<Option<RouterEvent>>) -> Vec<f64> {
        let stamps = Arc::new(Stamps::new(tasks.len()));
        let gate = Arc::new(Gate::default());
        let hold = self.flush(&Waker::from(gate.clone()));
        let waker = Waker::from(stamps.clone());
        let mut events = Vec::with_capacity(tasks.len());
        let mut empties = Vec::new();
        for task in tasks {
            let Some(event) = task else {
                empties.push(self.flush(&waker));
                continue;
            };
            let (resp, answer) = oneshot::channel();
            events.push(wait_by(answer, &waker));
            self.send(WorkerTask::EventWithAck { event, resp });
        }
        gate.open(&stamps);
        stamps.wait();
        drop((hold, events, empties));
        stamps.times()
    }

    fn flush(&self, waker: &Waker) -> Pin<Box<oneshot::Receiver<()>>> {
        let (resp, answer) = oneshot::channel();
        let answer = wait_by(answer, waker);
        self.send(WorkerTask::Flush(resp));
        answer
    }

    fn send(&self, task: WorkerTask) {
        let sent = self.tasks.send(task);
        debug_assert!(sent.is_ok(), "the loop runs as long as the tree");
    }
}

/// Registers who is woken by an answer.
fn wait_by<T>(answer: oneshot::Receiver<T>, waker: &Waker) -> Pin<Box<oneshot::Receiver<T>>> {
    let mut answer = Box::pin(answer);
    let ready = answer.as_mut().poll(&mut Context::from_waker(waker));
    debug_assert!(ready.is_pending(), "the task was not sent yet");
    answer
}

impl Drop for Crtc {
    fn drop(&mut self) {
        self.send(WorkerTask::Terminate);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Writer for Crtc {
    fn name(&self) -> &'static str {
        "crtc"
    }

    fn prepare(&mut self, batch: &Batch) {
        self.events.clear();
        memory::charge(0, || self.events.reserve(batch.operations.len()));
        for operation in &batch.operations {
            self.event_id += 1;
            let names = batch.names(operation).iter().map(|name| ExternalSequenceBlockHash(name.0));
            let data = match operation.kind {
                OperationKind::Lookup => {
                    self.events.push(None);
                    continue;
                }
                OperationKind::Store { parent, .. } => {
                    let contents = batch.contents(operation).iter().map(|content| LocalBlockHash(content.0));
                    let block = |(block_hash, tokens_hash)| KvCacheStoredBlockData {
                        block_hash,
                        tokens_hash,
                        mm_extra_info: None,
                    };
                    KvCacheEventData::Stored(KvCacheStoreData {
                        parent_hash: parent.map(|name| ExternalSequenceBlockHash(name.0)),
                        start_position: None,
                        blocks: names.zip(contents).map(block).collect(),
                    })
                }
                OperationKind::Remove => KvCacheEventData::Removed(KvCacheRemoveData { block_hashes: names.collect() }),
            };
            let event = KvCacheEvent { event_id: self.event_id, data, dp_rank: 0 };
            self.events.push(Some(RouterEvent::new(u64::from(operation.worker), event)));
        }
    }

    fn apply(&mut self, _batch: &Batch, operation: usize) {
        if let Some(event) = self.events[operation].take() {
            self.run(vec![Some(event)]);
        }
    }

    fn play(&mut self, _batch: &Batch, events: &[usize], times: &mut Vec<f64>) {
        let tasks = memory::charge(0, || events.iter().map(|&event| self.events[event].take()).collect());
        times.extend(self.run(tasks));
    }

    fn overhead_ns(&self) -> f64 {
        self.hop_ns
    }

    fn searcher(&self) -> Box<dyn Searcher> {
        Box::new(Search { tree: self.tree.clone(), contents: Vec::new() })
    }

    fn tidy(&mut self) {
        if self.tree.try_schedule_cleanup() {
            self.send(WorkerTask::CleanupStaleChildren);
            self.run(vec![None]);
        }
    }
}

struct Search {
    tree: Arc<ConcurrentRadixTreeCompressed>,
    contents: Vec<LocalBlockHash>,
}

impl Searcher for Search {
    fn prepare(&mut self, batch: &Batch) {
        self.contents.clear();
        self.contents.extend(batch.all_contents().iter().map(|content| LocalBlockHash(content.0)));
    }

    #[inline]
    fn lookup(&mut self, batch: &Batch, operation: usize) {
        let range = batch.contents_range(&batch.operations[operation]);
        black_box(self.tree.find_matches(&self.contents[range], false));
    }

    fn answer(&mut self, batch: &Batch, operation: usize) -> Vec<(u32, u32)> {
        let range = batch.contents_range(&batch.operations[operation]);
        let found = self.tree.find_matches(&self.contents[range], false);
        let mut pairs: Vec<_> =
            found.scores.iter().map(|(worker, &blocks)| (worker.worker_id as u32, blocks)).collect();
        pairs.sort_unstable();
        pairs
    }
}

/// Times of acknowledgements, taken where they are given.
struct Stamps {
    epoch: Instant,
    begin_ns: AtomicU64,
    ns: Box<[AtomicU64]>,
    next: AtomicUsize,
    done: Mutex<bool>,
    changed: Condvar,
}

impl Stamps {
    fn new(count: usize) -> Self {
        Self {
            epoch: Instant::now(),
            begin_ns: AtomicU64::new(0),
            ns: (0..count).map(|_| AtomicU64::new(0)).collect(),
            next: AtomicUsize::new(0),
            done: Mutex::new(count == 0),
            changed: Condvar::new(),
        }
    }

    fn now(&self) -> u64 {
        self.epoch.elapsed().as_nanos() as u64
    }

    fn wait(&self) {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        drop(self.changed.wait_while(done, |done| !*done).unwrap_or_else(PoisonError::into_inner));
    }

    /// Nanoseconds between one acknowledgement and the next.
    fn times(&self) -> Vec<f64> {
        // Relaxed: the lock of `done` was passed since the last stamp.
        let mut before = self.begin_ns.load(Ordering::Relaxed);
        let between = |stamp: &AtomicU64| {
            let now = stamp.load(Ordering::Relaxed);
            let ns = now.saturating_sub(before) as f64;
            before = now;
            ns
        };
        self.ns.iter().map(between).collect()
    }
}

impl Wake for Stamps {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }
    fn wake_by_ref(self: &Arc<Self>) {
        let now = self.now();
        // Relaxed: one thread stamps; the reader passes the lock of `done`.
        let place = self.next.fetch_add(1, Ordering::Relaxed);
        self.ns[place].store(now, Ordering::Relaxed);
        if place + 1 == self.ns.len() {
            *self.done.lock().unwrap_or_else(PoisonError::into_inner) = true;
            self.changed.notify_all();
        }
    }
}

/// Holds the loop back inside a wake-up until everything is queued.
#[derive(Default)]
struct Gate {
    stamps: Mutex<Option<Arc<Stamps>>>,
    changed: Condvar,
}

impl Gate {
    fn open(&self, stamps: &Arc<Stamps>) {
        *self.stamps.lock().unwrap_or_else(PoisonError::into_inner) = Some(stamps.clone());
        self.changed.notify_all();
    }
}

impl Wake for Gate {
    fn wake(self: Arc<Self>) {
        let stamps = self.stamps.lock().unwrap_or_else(PoisonError::into_inner);
        let stamps = self.changed.wait_while(stamps, |stamps| stamps.is_none()).unwrap_or_else(PoisonError::into_inner);
        if let Some(stamps) = &*stamps {
            stamps.begin_ns.store(stamps.now(), Ordering::Relaxed);
        }
    }
}
