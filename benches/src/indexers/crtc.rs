//! dynamo-kv-router 1.6.1: its concurrent compressed radix tree (CRTC).
//!
//! The state that an event needs lives inside the tree's own event loop, `SyncIndexer::worker`, and nowhere else: so a thread of
//! ours runs that loop, as its thread pool does, without an async runtime. Events are built ahead of time and queued while the
//! loop is held back; then it runs alone, and the wake-up of each acknowledgement takes the time on the loop's own thread. What
//! a queue hop and an acknowledgement cost is measured with empty tasks and taken off. What stays charged: freeing the owned event.
//! Lookups call `find_matches` on the caller's thread, which allocates its answer. It keeps sets: copies are not counted.

use super::{Searcher, Writer};
use crate::clock::thread_cpu_ns;
use crate::laps::Laps;
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
    cpu_ns: u64,
    refused: u64,
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
        let mut crtc =
            Self { tree, tasks, thread, events: Vec::new(), event_id: 0, hop_ns: 0.0, cpu_ns: 0, refused: 0 };
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
        let refused = |answer: &mut Pin<Box<oneshot::Receiver<bool>>>| answer.try_recv() == Ok(false);
        self.refused += events.iter_mut().map(|answer| u64::from(refused(answer))).sum::<u64>();
        self.cpu_ns = stamps.cpu_ns();
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
        let Some(event) = self.events[operation].take() else { return };
        let (resp, answer) = memory::charge(0, oneshot::channel);
        memory::charge(0, || self.send(WorkerTask::EventWithAck { event, resp }));
        // One hop there and one back, and nothing else: what a single event can cost at least.
        self.refused += u64::from(answer.blocking_recv() == Ok(false));
    }

    fn play(&mut self, _batch: &Batch, events: &[usize], laps: &mut Laps) {
        let tasks = memory::charge(0, || events.iter().map(|&event| self.events[event].take()).collect());
        laps.ns.extend(self.run(tasks));
    }

    fn overhead_ns(&self) -> f64 {
        self.hop_ns
    }

    fn play_cpu_ns(&self) -> Option<u64> {
        Some(self.cpu_ns)
    }

    fn refused(&self) -> u64 {
        self.refused
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
    /// Processor time of the loop's thread when the first task begins and when the last one has ended.
    cpu_ns: [AtomicU64; 2],
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
            cpu_ns: [const { AtomicU64::new(0) }; 2],
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

    /// Processor time of all tasks together, in nanoseconds.
    fn cpu_ns(&self) -> u64 {
        // Relaxed: the lock of `done` was passed since the last stamp.
        let [begin, end] = self.cpu_ns.each_ref().map(|ns| ns.load(Ordering::Relaxed));
        end.saturating_sub(begin)
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
            self.cpu_ns[1].store(thread_cpu_ns(), Ordering::Relaxed);
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
            stamps.cpu_ns[0].store(thread_cpu_ns(), Ordering::Relaxed);
            stamps.begin_ns.store(stamps.now(), Ordering::Relaxed);
        }
    }
}

/// Where it differs from the oracle by its own design (the README of its module): not by how it is called here.
#[cfg(test)]
mod tests {
    use super::super::Oracle;
    use super::*;
    use kvatlas_index::{ContentHash, EngineHash};

    type Block = (EngineHash, ContentHash);
    /// Pairs of worker and blocks.
    type Answer = Vec<(u32, u32)>;

    fn blocks(worker: u64, places: std::ops::Range<u64>) -> impl Iterator<Item = Block> + Clone {
        places.map(move |place| (EngineHash(worker * 1000 + place), ContentHash(7000 + place)))
    }

    fn name(worker: u64, place: u64) -> EngineHash {
        EngineHash(worker * 1000 + place)
    }

    /// CRTC's answer and the oracle's for contents of four places, after these events; and how many stores CRTC refused.
    fn answers(fill: impl FnOnce(&mut Batch)) -> (Answer, Answer, u64) {
        let mut batch = Batch::default();
        fill(&mut batch);
        let lookup = batch.operations.len();
        batch.push_lookup(0, blocks(0, 0..4).map(|block| block.1));
        let (mut crtc, mut oracle) = (Crtc::new(0), Oracle::new(2));
        let each: [&mut dyn Writer; 2] = [&mut crtc, &mut oracle];
        let [found, truth] = each.map(|writer| {
            writer.prepare(&batch);
            writer.play(&batch, &(0..lookup).collect::<Vec<_>>(), &mut Laps::default());
            let mut searcher = writer.searcher();
            searcher.prepare(&batch);
            searcher.answer(&batch, lookup)
        });
        (found, truth, crtc.refused())
    }

    #[test]
    fn with_equal_names_and_tail_first_removals_it_is_exact() {
        let (found, truth, refused) = answers(|batch| {
            batch.push_store(0, None, blocks(0, 0..2));
            batch.push_store(0, Some(name(0, 1)), blocks(0, 2..4));
            batch.push_store(1, None, blocks(0, 0..3));
            batch.push_remove(0, [name(0, 3)]);
        });
        assert_eq!((found, refused), (vec![(0, 3), (1, 3)], 0));
        assert_eq!(truth, [(0, 3), (1, 3)]);
    }

    #[test]
    fn names_of_the_first_worker_stand_for_all() {
        // An edge keeps one name a block. What another worker calls the same content is found neither as a parent, so its store
        // is refused, nor by a removal, which is passed over.
        let (found, truth, refused) = answers(|batch| {
            batch.push_store(0, None, blocks(0, 0..2));
            batch.push_store(1, None, blocks(1, 0..2));
            batch.push_store(1, Some(name(1, 1)), blocks(1, 2..4));
            batch.push_remove(1, [name(1, 3), name(1, 2), name(1, 1)]);
        });
        assert_eq!((found, refused), (vec![(0, 2), (1, 2)], 1));
        assert_eq!(truth, [(0, 2), (1, 1)]);
    }

    #[test]
    fn a_hole_ends_what_a_worker_holds_of_an_edge() {
        // A worker's part of an edge is a length: a removal in the middle forgets what follows, and it does not come back with the block.
        let (found, truth, _) = answers(|batch| {
            batch.push_store(0, None, blocks(0, 0..4));
            batch.push_remove(0, [name(0, 1)]);
            batch.push_store(0, Some(name(0, 0)), blocks(0, 1..2));
        });
        assert_eq!(found, [(0, 2)]);
        assert_eq!(truth, [(0, 4)]);
    }
}
