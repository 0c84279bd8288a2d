//! The product, the oracle and nothing at all, as the ladder drives them.

use super::positional::Positional;
use super::{Choice, EventLane, Indexer, IndexerError, Needs, QueryLane};
use crate::ladder::tape::Step;
use kvatlas_benches::tending::Tending;
use kvatlas_index::reference::Reference;
use kvatlas_index::{
    ContentHash, EngineHash, Holder, HolderDepth, HugePages, Index, IndexConfig, Lane, Levels, LookupOptions, RankKey,
    RankSlot, Reader, Residency, Store, StoreKind, Tier, Upcoming,
};
use std::collections::BTreeMap;
use std::hint::black_box;
use std::sync::{Arc, PoisonError, RwLock};

impl Indexer {
    /// Makes an indexer with all its lanes and readers.
    pub fn build(choice: Choice, needs: &Needs) -> Result<Indexer, IndexerError> {
        match choice {
            Choice::Kvatlas => kvatlas(needs),
            Choice::Positional => Ok(positional(needs)),
            Choice::Reference => Ok(reference(needs)),
            Choice::Null => Ok(null(needs)),
            #[cfg(feature = "peers")]
            peer => super::peers::build(peer, needs),
        }
    }
}

struct KvatlasLane {
    lane: Lane,
    look_ahead: bool,
    ranks: Vec<Option<RankSlot>>,
}

impl KvatlasLane {
    fn holder(&self, worker: u32) -> Holder {
        let rank = self.ranks[worker as usize].expect("events of a worker go to its lane");
        Holder { rank, tier: Tier::Device }
    }
}

impl EventLane for KvatlasLane {
    fn store(&mut self, worker: u32, parent: Option<EngineHash>, names: &[EngineHash], contents: &[ContentHash]) {
        let store = Store { parent, names, contents, kind: StoreKind::Copy };
        let _ = black_box(self.lane.store(self.holder(worker), &store));
    }
    fn remove(&mut self, worker: u32, names: &[EngineHash]) {
        let _ = black_box(self.lane.remove(self.holder(worker), names));
    }
    fn clear(&mut self, worker: u32) {
        let _ = black_box(self.lane.clear(self.holder(worker).rank, None));
    }
    fn looks_ahead(&self) -> bool {
        self.look_ahead
    }
    fn look_ahead<'a>(&mut self, event: &dyn Fn(usize) -> Option<(u32, Step<'a>)>) {
        self.lane.look_ahead(|n| {
            let (worker, step) = event(n)?;
            match step {
                Step::Store { parent, names, contents } => {
                    let store = Store { parent, names, contents, kind: StoreKind::Copy };
                    Some(Upcoming::Store(self.holder(worker), store))
                }
                Step::Remove(names) => Some(Upcoming::Remove(self.holder(worker), names)),
                Step::Lookup(_) | Step::Clear => None,
            }
        });
    }
}

struct KvatlasReader {
    reader: Reader,
    levels: Levels,
    pairs: bool,
}

impl QueryLane for KvatlasReader {
    fn lookup(&mut self, query: &[ContentHash], out: &mut Vec<HolderDepth>) {
        let _ = self.reader.lookup(query, &LookupOptions::default(), out);
    }
    fn serve(&mut self, query: &[ContentHash], out: &mut Vec<HolderDepth>) {
        if self.pairs {
            return self.lookup(query, out);
        }
        let _ = black_box(self.reader.lookup_levels(query, &LookupOptions::default(), &mut self.levels));
        black_box(&self.levels);
    }
    fn counters(&self) -> Vec<(&'static str, u64)> {
        let c = self.reader.counters();
        vec![
            ("lookups", c.lookups),
            ("lookups started again", c.restarts),
            ("lookups given up", c.busy),
            ("lookups that asked each name", c.names_asked),
        ]
    }
}

fn kvatlas(needs: &Needs) -> Result<Indexer, IndexerError> {
    let config = IndexConfig {
        lanes_per_shard: needs.event_lanes as u32,
        ranks_max: (needs.workers + 16 * needs.event_lanes as u32).max(64),
        huge_pages: if needs.form.small_pages { HugePages::Off } else { HugePages::Collapse },
        ..IndexConfig::default()
    };
    let (index, lanes) = Index::new(config)?;
    let tending = Tending::of(&index).map_err(IndexerError::Thread)?;
    let mut events: Vec<Box<dyn EventLane>> = Vec::new();
    for (number, mut lane) in lanes.into_iter().enumerate() {
        let mut ranks = vec![None; needs.workers as usize];
        for worker in (number..needs.workers as usize).step_by(needs.event_lanes) {
            ranks[worker] = Some(lane.open_rank(RankKey(worker as u32))?);
        }
        events.push(Box::new(KvatlasLane { lane, look_ahead: needs.form.look_ahead, ranks }));
    }
    let reader = |_| {
        let (reader, levels, pairs) = (index.reader(), Levels::new(), needs.form.pairs);
        Box::new(KvatlasReader { reader, levels, pairs }) as Box<dyn QueryLane>
    };
    let queries = (0..needs.query_lanes).map(reader).collect();
    let figures = move || {
        // Whoever has the figures keeps the thread that makes huge pages.
        let _ = &tending;
        let s = index.stats();
        let huge = index.page_figures().map(|pages| pages.huge).sum();
        [
            ("memberships", s.held),
            ("distinct blocks", s.blocks),
            ("runs", s.runs),
            ("splits", s.splits),
            ("merges", s.merges),
            ("lock waits", s.lock_waits),
            ("locks taken", s.locks),
            ("runs opened", s.opened),
            ("shared lines written", s.shared_lines_written()),
            ("blocks written", s.written),
            ("bytes in use", s.bytes_live),
            ("bytes on free lists", s.bytes_free),
            ("huge pages", huge),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    };
    Ok(Indexer { events, queries, figures: Box::new(figures), exact: true, hop_ns: 0, maps_memory: true })
}

fn positional(needs: &Needs) -> Indexer {
    let shared = Positional::new(needs.workers);
    Indexer {
        events: (0..needs.event_lanes).map(|_| Box::new(shared.lane()) as _).collect(),
        queries: (0..needs.query_lanes).map(|_| Box::new(shared.reader()) as _).collect(),
        figures: Box::new(move || {
            BTreeMap::from([("memberships".to_owned(), shared.held()), ("orphans".to_owned(), shared.orphans())])
        }),
        exact: true,
        hop_ns: 0,
        maps_memory: false,
    }
}

#[derive(Clone)]
struct Locked(Arc<RwLock<Reference>>);

impl Locked {
    fn change<R>(&self, change: impl FnOnce(&mut Reference) -> R) -> R {
        change(&mut self.0.write().unwrap_or_else(PoisonError::into_inner))
    }
}

impl EventLane for Locked {
    fn store(&mut self, worker: u32, parent: Option<EngineHash>, names: &[EngineHash], contents: &[ContentHash]) {
        let store = Store { parent, names, contents, kind: StoreKind::Copy };
        let _ = self.change(|r| r.store(RankKey(worker), Tier::Device, &store));
    }
    fn remove(&mut self, worker: u32, names: &[EngineHash]) {
        let _ = self.change(|r| r.remove(RankKey(worker), Tier::Device, names));
    }
    fn clear(&mut self, worker: u32) {
        let _ = self.change(|r| r.clear(RankKey(worker), None));
    }
}

impl QueryLane for Locked {
    fn lookup(&mut self, query: &[ContentHash], out: &mut Vec<HolderDepth>) {
        let reference = self.0.read().unwrap_or_else(PoisonError::into_inner);
        out.extend(reference.lookup(query, Residency::PerTier));
    }
}

fn reference(needs: &Needs) -> Indexer {
    let mut reference = Reference::new(0);
    (0..needs.workers).for_each(|worker| reference.open_rank(RankKey(worker)));
    let shared = Locked(Arc::new(RwLock::new(reference)));
    Indexer {
        events: (0..needs.event_lanes).map(|_| Box::new(shared.clone()) as _).collect(),
        queries: (0..needs.query_lanes).map(|_| Box::new(shared.clone()) as _).collect(),
        figures: Box::new(BTreeMap::new),
        exact: true,
        hop_ns: 0,
        maps_memory: false,
    }
}

/// Reads what it is given, since every indexer has to, and forgets it.
struct Nothing;

impl EventLane for Nothing {
    fn store(&mut self, _: u32, parent: Option<EngineHash>, names: &[EngineHash], contents: &[ContentHash]) {
        black_box((parent, names.iter().fold(0, |x, n| x ^ n.0), contents.iter().fold(0, |x, c| x ^ c.0)));
    }
    fn remove(&mut self, _: u32, names: &[EngineHash]) {
        black_box(names.iter().fold(0, |x, n| x ^ n.0));
    }
    fn clear(&mut self, _: u32) {}
}

impl QueryLane for Nothing {
    fn lookup(&mut self, query: &[ContentHash], _: &mut Vec<HolderDepth>) {
        black_box(query.iter().fold(0, |x, c| x ^ c.0));
    }
}

fn null(needs: &Needs) -> Indexer {
    Indexer {
        events: (0..needs.event_lanes).map(|_| Box::new(Nothing) as _).collect(),
        queries: (0..needs.query_lanes).map(|_| Box::new(Nothing) as _).collect(),
        figures: Box::new(BTreeMap::new),
        exact: false,
        hop_ns: 0,
        maps_memory: false,
    }
}
