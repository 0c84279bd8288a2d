//! The mock fleet: plays a trace on block pools and yields the operations that an index would see, in order of time.
//!
//! A request is looked up, and then served by its conversation's workers. Such a worker keeps the part of the prompt that it
//! holds, evicts what it must, stores what it lacks in stretches, appends decode blocks while it answers, and gives everything
//! back at the end, tail first. A block that is held is never stored again: there are no second copies in a stream.

use crate::batch::{Batch, OperationKind};
use crate::parameters::{Names, Parameters, ParametersError};
use crate::pool::Pool;
use crate::random::{Random, mix};
use crate::trace::{CHUNK_TOKENS, Request, Trace};
use kvatlas_index::{ContentHash, EngineHash};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::iter;
use std::sync::Arc;

/// Set in the numbers of decode blocks; the others are a prompt's.
const DECODE: u32 = 1 << 31;
/// Copies of the trace begin within this time.
const COPY_SPREAD_NS: u64 = 1_000_000_000;
/// A block of a prompt that the worker lacks.
const LACKING: u32 = u32::MAX;

/// Why a stream cannot begin or go on.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The parameters cannot be used.
    #[error(transparent)]
    Parameters(#[from] ParametersError),
    /// Blocks of a corpus have 31-bit numbers, and all are used up.
    #[error("the corpus has more than 2^31 distinct {0} blocks")]
    Exhausted(&'static str),
}

/// Where a stream stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Requests that arrived.
    pub requests: u64,
    /// Times that a worker could not serve a request, since its pool was in use or too small.
    pub refused: u64,
    /// Blocks held, over all workers.
    pub resident: u64,
    /// Distinct blocks held.
    pub distinct: u64,
}

impl Figures {
    /// Holders of a distinct block on average.
    pub fn holders_per_block(&self) -> f64 {
        self.resident as f64 / self.distinct.max(1) as f64
    }
}

/// What happens next, and when; ties in order of scheduling.
#[derive(PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at_ns: u64,
    number: u64,
    step: Step,
}

#[derive(PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Arrive { request: u32, copy: u32 },
    Begin { request: u32, copy: u32, worker: u32 },
    Decode { flight: u32 },
}

/// A request that a worker is serving.
struct Flight {
    worker: u32,
    /// Blocks it uses, in order.
    places: Vec<u32>,
    /// Number of its last block so far; none before the first.
    last: Option<u32>,
    /// Decode blocks to come.
    left: u32,
}

/// How many workers hold each prompt block of one copy of the trace.
struct Holders {
    counts: Vec<u16>,
    live: u64,
}

/// The operations of a corpus, without end.
pub struct Stream {
    parameters: Parameters,
    requests: Arc<[Request]>,
    duration_ns: u64,
    chunks: u32,
    blocks_per_chunk: u32,
    pools: Vec<Pool>,
    name_seeds: Vec<u64>,
    holders: HashMap<u32, Holders>,
    decode_next: u32,
    flights: Vec<Option<Flight>>,
    flights_free: Vec<u32>,
    due: BinaryHeap<Reverse<Due>>,
    scheduled: u64,
    /// The request that arrives next, and how often the trace was played before.
    arrival: (u32, u32),
    random: Random,
    figures: Figures,
}

impl Stream {
    /// The stream of a trace under these parameters.
    pub fn new(trace: &Trace, parameters: Parameters) -> Result<Self, StreamError> {
        parameters.check()?;
        let blocks_per_chunk = CHUNK_TOKENS as u32 / parameters.block_tokens * parameters.length_factor;
        let seed = |worker: u32| match parameters.names {
            Names::Same => mix(parameters.seed, 0xA11),
            Names::Random => mix(parameters.seed, 0x1_0000_0000 + u64::from(worker)),
        };
        Ok(Self {
            requests: trace.requests.clone(),
            duration_ns: trace.duration_ms() * 1_000_000,
            chunks: trace.chunks(),
            blocks_per_chunk,
            pools: (0..parameters.workers).map(|_| Pool::new(parameters.blocks_per_worker)).collect(),
            name_seeds: (0..parameters.workers).map(seed).collect(),
            holders: HashMap::new(),
            decode_next: 0,
            flights: Vec::new(),
            flights_free: Vec::new(),
            due: BinaryHeap::new(),
            scheduled: 0,
            arrival: (0, 0),
            random: Random::new(parameters.seed),
            figures: Figures::default(),
            parameters,
        })
    }

    /// The parameters in force.
    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Where the stream stands.
    pub fn figures(&self) -> Figures {
        self.figures
    }

    /// Appends at least so many operations to the batch: whole steps of the fleet are played.
    pub fn extend(&mut self, batch: &mut Batch, operations: usize) -> Result<(), StreamError> {
        let wanted = batch.operations.len() + operations;
        while batch.operations.len() < wanted {
            self.step(batch)?;
        }
        Ok(())
    }

    /// Appends operations until so many more requests arrived.
    pub fn extend_requests(&mut self, batch: &mut Batch, requests: u64) -> Result<(), StreamError> {
        let wanted = self.figures.requests + requests;
        while self.figures.requests < wanted {
            self.step(batch)?;
        }
        Ok(())
    }

    fn step(&mut self, batch: &mut Batch) -> Result<(), StreamError> {
        self.let_arrive();
        let Some(Reverse(Due { at_ns, step, .. })) = self.due.pop() else { return Ok(()) };
        match step {
            Step::Arrive { request, copy } => self.arrive(batch, at_ns, request, copy),
            Step::Begin { request, copy, worker } => self.begin(batch, at_ns, (request, copy), worker),
            Step::Decode { flight } => self.decode(batch, at_ns, flight),
        }
    }

    fn schedule(&mut self, at_ns: u64, step: Step) {
        self.scheduled += 1;
        self.due.push(Reverse(Due { at_ns, number: self.scheduled, step }));
    }

    /// Schedules the arrivals that may come before what is due next.
    fn let_arrive(&mut self) {
        loop {
            let (request, played) = self.arrival;
            let at_ns = u64::from(played) * self.duration_ns + self.requests[request as usize].at_ms * 1_000_000;
            if self.due.peek().is_some_and(|next| next.0.at_ns < at_ns) {
                return;
            }
            for copy in 0..self.parameters.copies {
                let late = if copy == 0 { 0 } else { self.random.below(COPY_SPREAD_NS) };
                self.schedule(at_ns + late, Step::Arrive { request, copy: played * self.parameters.copies + copy });
            }
            let next = request + 1;
            self.arrival = if next as usize == self.requests.len() { (0, played + 1) } else { (next, played) };
        }
    }

    fn arrive(&mut self, batch: &mut Batch, at_ns: u64, request: u32, copy: u32) -> Result<(), StreamError> {
        self.figures.requests += 1;
        let blocks = self.prompt_blocks(request);
        if blocks == 0 {
            self.figures.refused += 1;
            return Ok(());
        }
        let first = self.node(request, copy, 0)?;
        self.node(request, copy, blocks - 1)?;
        self.holders.entry(copy).or_insert_with(|| Holders {
            counts: vec![0; self.chunks as usize * self.blocks_per_chunk as usize],
            live: 0,
        });
        let workers = self.route(request, mix(u64::from(first), u64::from(copy)));
        let chunks = &self.requests[request as usize].chunks;
        let contents = (0..blocks).map(|i| self.content(self.node_of(chunks, copy, i)));
        batch.push((at_ns, workers[0]), OperationKind::Lookup, iter::empty(), contents);
        for (i, &worker) in workers.iter().enumerate() {
            let spread = u64::from(self.parameters.replica_spread_ms) * 1_000_000;
            let late = if i == 0 { 0 } else { self.random.below(spread + 1) };
            self.schedule(at_ns + late, Step::Begin { request, copy, worker });
        }
        Ok(())
    }

    /// The workers that serve a request: those of its conversation, unless it wanders.
    fn route(&mut self, request: u32, salt: u64) -> Vec<u32> {
        let chunks = &self.requests[request as usize].chunks;
        let conversation = mix(salt, u64::from(chunks.get(1).copied().unwrap_or(chunks[0])));
        let count = self.parameters.workers;
        let mut workers: Vec<u32> = Vec::with_capacity(self.parameters.replicas as usize);
        for i in 0..self.parameters.replicas {
            let wanders = self.parameters.wander_per_mille > 0 && self.random.happens(self.parameters.wander_per_mille);
            let choice = if wanders { self.random.word() } else { mix(conversation, u64::from(i)) };
            let mut worker = (choice % u64::from(count)) as u32;
            while workers.contains(&worker) {
                worker = (worker + 1) % count;
            }
            workers.push(worker);
        }
        workers
    }

    fn begin(
        &mut self,
        batch: &mut Batch,
        at_ns: u64,
        (request, copy): (u32, u32),
        worker: u32,
    ) -> Result<(), StreamError> {
        let (prompt, decode) = (self.prompt_blocks(request), self.decode_blocks(request));
        let requests = self.requests.clone();
        let chunks = &requests[request as usize].chunks;
        let pool = &mut self.pools[worker as usize];
        if !pool.can_take(prompt.saturating_add(decode)) {
            self.figures.refused += 1;
            return Ok(());
        }
        let mut places = Vec::with_capacity((prompt + decode) as usize);
        for i in 0..prompt {
            let place = self.pools[worker as usize].find(self.node_of(chunks, copy, i));
            place.inspect(|&place| self.pools[worker as usize].pin(place));
            places.push(place.unwrap_or(LACKING));
        }
        let wanted = places.iter().filter(|&&place| place == LACKING).count() as u32 + decode;
        if !self.make_room(batch, at_ns, worker, wanted) {
            let pool = &mut self.pools[worker as usize];
            places.iter().rev().filter(|&&place| place != LACKING).for_each(|&place| pool.unpin(place));
            self.figures.refused += 1;
            return Ok(());
        }
        self.pools[worker as usize].reserve(wanted);
        let nodes: Vec<u32> = (0..prompt).map(|i| self.node_of(chunks, copy, i)).collect();
        self.store_lacking(batch, at_ns, worker, &nodes, &mut places);
        let flight = Flight { worker, places, last: nodes.last().copied(), left: decode };
        let flight = self.take_off(flight);
        self.schedule(at_ns + self.decode_ns(1), Step::Decode { flight });
        Ok(())
    }

    /// Evicts until so many blocks fit in; `false` when too much is in use.
    fn make_room(&mut self, batch: &mut Batch, at_ns: u64, worker: u32, wanted: u32) -> bool {
        let pool = &mut self.pools[worker as usize];
        let mut evicted = Vec::new();
        for _ in 0..pool.excess(wanted) {
            let any = self.parameters.random_evictions_per_mille;
            let random = (any > 0 && self.random.happens(any)).then_some(&mut self.random);
            let Some(node) = pool.evict(random) else { break };
            evicted.push(node);
        }
        let fits = pool.excess(wanted) == 0;
        for names in evicted.chunks(self.parameters.removal_names_max as usize) {
            let names = names.iter().map(|&node| self.name(worker, node));
            batch.push((at_ns, worker), OperationKind::Remove, names, iter::empty());
        }
        evicted.iter().for_each(|&node| self.leave(node));
        fits
    }

    /// Stores every stretch of the prompt that the worker lacks, in events of limited size.
    fn store_lacking(&mut self, batch: &mut Batch, at_ns: u64, worker: u32, nodes: &[u32], places: &mut [u32]) {
        let mut from = 0;
        while from < nodes.len() {
            let lacking = places[from..].iter().take_while(|&&place| place == LACKING).count();
            let event = lacking.min(self.parameters.store_blocks_max as usize);
            if event == 0 {
                from += 1;
                continue;
            }
            let parent = from.checked_sub(1).map(|i| nodes[i]);
            for i in from..from + event {
                places[i] = self.pools[worker as usize].fill(nodes[i]);
            }
            self.store(batch, (at_ns, worker), parent, &nodes[from..from + event], false);
            from += event;
        }
    }

    fn store(
        &mut self,
        batch: &mut Batch,
        (at_ns, worker): (u64, u32),
        parent: Option<u32>,
        nodes: &[u32],
        decode: bool,
    ) {
        let joined = nodes.iter().map(|&node| u32::from(self.join(node))).sum();
        let parent = parent.map(|node| self.name(worker, node));
        let names = nodes.iter().map(|&node| self.name(worker, node));
        let contents = nodes.iter().map(|&node| self.content(node));
        batch.push((at_ns, worker), OperationKind::Store { parent, joined, decode }, names, contents);
    }

    fn decode(&mut self, batch: &mut Batch, at_ns: u64, number: u32) -> Result<(), StreamError> {
        let Some(mut flight) = self.flights[number as usize].take() else { return Ok(()) };
        let count = flight.left.min(self.parameters.decode_blocks_max).min(self.parameters.store_blocks_max);
        if count > 0 {
            let end = self.decode_next.checked_add(count).filter(|&end| end < DECODE);
            let end = end.ok_or(StreamError::Exhausted("decode"))?;
            let nodes: Vec<u32> = (self.decode_next..end).map(|i| i | DECODE).collect();
            self.decode_next = end;
            let pool = &mut self.pools[flight.worker as usize];
            flight.places.extend(nodes.iter().map(|&node| pool.fill(node)));
            self.store(batch, (at_ns, flight.worker), flight.last, &nodes, true);
            (flight.last, flight.left) = (nodes.last().copied(), flight.left - count);
        }
        if flight.left > 0 {
            self.flights[number as usize] = Some(flight);
            self.schedule(at_ns + self.decode_ns(count), Step::Decode { flight: number });
            return Ok(());
        }
        let pool = &mut self.pools[flight.worker as usize];
        flight.places.iter().rev().for_each(|&place| pool.unpin(place));
        self.flights_free.push(number);
        Ok(())
    }

    fn take_off(&mut self, flight: Flight) -> u32 {
        let number = self.flights_free.pop().unwrap_or_else(|| {
            self.flights.push(None);
            self.flights.len() as u32 - 1
        });
        self.flights[number as usize] = Some(flight);
        number
    }

    /// Time in which blocks are decoded.
    fn decode_ns(&self, blocks: u32) -> u64 {
        let tokens = u64::from(blocks) * u64::from(self.parameters.block_tokens);
        tokens * 1_000_000_000 / u64::from(self.parameters.decode_tokens_per_s)
    }

    /// Whole blocks of a prompt.
    fn prompt_blocks(&self, request: u32) -> u32 {
        let Request { input_tokens, chunks, .. } = &self.requests[request as usize];
        let whole = input_tokens * u64::from(self.parameters.length_factor) / u64::from(self.parameters.block_tokens);
        whole.min(chunks.len() as u64 * u64::from(self.blocks_per_chunk)) as u32
    }

    /// Blocks that become whole while the answer is written.
    fn decode_blocks(&self, request: u32) -> u32 {
        let Request { input_tokens, output_tokens, .. } = self.requests[request as usize];
        let (factor, tokens) = (u64::from(self.parameters.length_factor), u64::from(self.parameters.block_tokens));
        ((input_tokens + output_tokens) * factor / tokens - input_tokens * factor / tokens) as u32
    }

    /// Number of a prompt's block; an error where the numbers end.
    fn node(&self, request: u32, copy: u32, block: u32) -> Result<u32, StreamError> {
        let chunk = self.requests[request as usize].chunks[(block / self.blocks_per_chunk) as usize];
        let chunk = u64::from(copy) * u64::from(self.chunks) + u64::from(chunk);
        let node = chunk * u64::from(self.blocks_per_chunk) + u64::from(block % self.blocks_per_chunk);
        u32::try_from(node).ok().filter(|&node| node < DECODE).ok_or(StreamError::Exhausted("prompt"))
    }

    /// As [`Stream::node`], for a request whose arrival was checked.
    #[inline]
    fn node_of(&self, chunks: &[u32], copy: u32, block: u32) -> u32 {
        let chunk = chunks[(block / self.blocks_per_chunk) as usize];
        (copy * self.chunks + chunk) * self.blocks_per_chunk + block % self.blocks_per_chunk
    }

    #[inline]
    fn content(&self, node: u32) -> ContentHash {
        ContentHash(mix(self.parameters.seed ^ 0xC0_47E4_7000, u64::from(node)))
    }

    #[inline]
    fn name(&self, worker: u32, node: u32) -> EngineHash {
        EngineHash(mix(self.name_seeds[worker as usize], u64::from(node)))
    }

    fn holders_of(&mut self, node: u32) -> Option<(&mut Holders, usize, u32)> {
        let blocks = self.chunks * self.blocks_per_chunk;
        let copy = node / blocks;
        self.holders.get_mut(&copy).map(|holders| (holders, (node % blocks) as usize, copy))
    }

    /// One more worker holds a block; whether another did before.
    fn join(&mut self, node: u32) -> bool {
        self.figures.resident += 1;
        let shared = match self.holders_of(node) {
            Some((holders, place, _)) if node < DECODE => {
                holders.live += 1;
                holders.counts[place] += 1;
                holders.counts[place] > 1
            }
            _ => false,
        };
        self.figures.distinct += u64::from(!shared);
        shared
    }

    /// One worker less holds a block.
    fn leave(&mut self, node: u32) {
        self.figures.resident -= 1;
        if node >= DECODE {
            self.figures.distinct -= 1;
            return;
        }
        let Some((holders, place, copy)) = self.holders_of(node) else { return };
        holders.live -= 1;
        holders.counts[place] -= 1;
        let (gone, empty) = (holders.counts[place] == 0, holders.live == 0);
        self.figures.distinct -= u64::from(gone);
        if empty && copy / self.parameters.copies < self.arrival.1 {
            self.holders.remove(&copy);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Class;
    use crate::parameters::Sharing;
    use crate::synthetic::Synthetic;
    use std::collections::HashSet;

    fn trace() -> Trace {
        Trace::synthetic(&Synthetic { requests: 300, user_tokens: 3000, ..Synthetic::default() })
    }

    fn small(change: impl FnOnce(&mut Parameters)) -> Parameters {
        let mut parameters = Parameters::standard(128, Sharing::Standard, Names::Random);
        (parameters.workers, parameters.blocks_per_worker, parameters.replicas) = (8, 600, 2);
        change(&mut parameters);
        parameters
    }

    /// Plays a stream and checks what every consumer relies on; returns the events of each class.
    fn play(parameters: Parameters, operations: usize) -> HashMap<Class, usize> {
        let (mut batch, mut classes) = (Batch::default(), HashMap::new());
        let mut stream = Stream::new(&trace(), parameters.clone()).unwrap();
        stream.extend(&mut batch, operations).unwrap();
        let mut held: Vec<HashSet<EngineHash>> = vec![HashSet::new(); parameters.workers as usize];
        for (operation, before) in
            batch.operations.iter().zip(iter::once(0).chain(batch.operations.iter().map(|o| o.at_ns)))
        {
            assert!(operation.at_ns >= before);
            *classes.entry(operation.class()).or_default() += 1;
            let (names, mine) = (batch.names(operation), &mut held[operation.worker as usize]);
            match operation.kind {
                OperationKind::Lookup => assert!(names.is_empty() && !batch.contents(operation).is_empty()),
                OperationKind::Store { parent, .. } => {
                    assert!(parent.is_none_or(|parent| mine.contains(&parent)), "the parent is held");
                    assert!(names.iter().all(|&name| mine.insert(name)), "nothing is stored twice");
                    assert!(names.len() <= parameters.store_blocks_max as usize);
                }
                OperationKind::Remove => {
                    assert!(names.iter().all(|name| mine.remove(name)), "what is removed was held");
                    assert!(names.len() <= parameters.removal_names_max as usize);
                }
            }
            assert!(mine.len() <= parameters.blocks_per_worker as usize);
        }
        assert_eq!(stream.figures().resident, held.iter().map(|names| names.len() as u64).sum::<u64>());
        classes
    }

    #[test]
    fn every_class_of_event_occurs_and_pools_are_respected() {
        let classes = play(small(|_| {}), 8000);
        for class in [Class::Lookup, Class::First, Class::Join, Class::Mixed, Class::Append, Class::Remove] {
            assert!(classes.get(&class).is_some_and(|&events| events > 20), "{class:?} in {classes:?}");
        }
    }

    #[test]
    fn variants_keep_the_rules() {
        play(small(|p| p.removal_names_max = 1), 8000);
        play(small(|p| p.random_evictions_per_mille = 200), 8000);
        play(small(|p| (p.names, p.copies, p.store_blocks_max) = (Names::Same, 3, 16)), 8000);
        play(small(|p| (p.block_tokens, p.blocks_per_worker, p.decode_blocks_max) = (16, 4800, u32::MAX)), 4000);
        play(small(|p| (p.length_factor, p.blocks_per_worker) = (2, 1200)), 4000);
    }

    #[test]
    fn pools_too_small_refuse_requests() {
        let mut stream = Stream::new(&trace(), small(|p| p.blocks_per_worker = 16)).unwrap();
        let mut batch = Batch::default();
        stream.extend(&mut batch, 400).unwrap();
        let figures = stream.figures();
        assert!(figures.refused > 0 && figures.resident <= 8 * 16, "{figures:?}");
    }

    #[test]
    fn numbers_end_with_an_error() {
        let mut stream = Stream::new(&trace(), small(|_| {})).unwrap();
        stream.decode_next = DECODE - 10;
        let ended = stream.extend(&mut Batch::default(), 1000);
        assert!(matches!(ended, Err(StreamError::Exhausted("decode"))), "{ended:?}");
        let mut stream = Stream::new(&trace(), small(|_| {})).unwrap();
        stream.arrival.1 = DECODE / stream.chunks;
        let ended = stream.extend(&mut Batch::default(), 1000);
        assert!(matches!(ended, Err(StreamError::Exhausted("prompt"))), "{ended:?}");
    }
}
