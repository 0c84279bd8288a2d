//! The metrics, collected at scrape.

use super::desks;
use super::load_metrics;
use crate::desks::Router;
use crate::fleet::{Fleet, FleetView, StateKeeper, Veto};
use crate::grpc::{Admission, ServiceFacts};
use crate::ingest::{Trust, now_ms};
use crate::lanes::LaneCounters;
use crate::lookup::{BUCKETS_LEN, LookupEngine, LookupTimes, TimesSum};
use crate::topology::{Pinned, shard_reports};
use kvatlas_index::Granted;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, NoLabelSet};
use prometheus_client::metrics::MetricType;
use prometheus_client::registry::Registry;
use std::fmt;
use std::sync::Arc;

/// Where the figures come from.
#[derive(Clone)]
pub struct MetricSources {
    /// Workers, ranks and lanes.
    pub fleet: Arc<Fleet>,
    /// The index.
    pub engine: Arc<LookupEngine>,
    /// Decisions and reservations.
    pub desks: Arc<Router>,
    /// Lookup latencies.
    pub times: Arc<LookupTimes>,
    /// Refused lookups.
    pub admission: Admission,
    /// The state file.
    pub keeper: Arc<StateKeeper>,
    /// Readiness.
    pub facts: Arc<dyn ServiceFacts>,
}

impl fmt::Debug for MetricSources {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MetricSources").finish_non_exhaustive()
    }
}

/// All metrics of the service.
#[derive(Debug)]
pub struct Metrics(Registry);

impl Metrics {
    /// Metrics of these sources.
    pub fn new(sources: MetricSources) -> Self {
        let mut registry = Registry::with_prefix("kvatlas");
        registry.register_collector(Box::new(sources));
        Self(registry)
    }

    /// The metrics now, in the OpenMetrics text format.
    pub fn text(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.0)?;
        Ok(text)
    }
}

impl Collector for MetricSources {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut out = Series(&mut encoder);
        self.encode_service(&mut out)?;
        self.encode_lookups(&mut out)?;
        desks::encode(&self.desks, &mut out)?;
        self.encode_index(&mut out)?;
        self.encode_lanes(&mut out)?;
        self.encode_placement(&mut out)?;
        self.encode_relay(&mut out)?;
        self.encode_wire(&mut out)?;
        self.encode_vetoes(&mut out)?;
        load_metrics::encode(&self.fleet.view(), &mut out)?;
        self.encode_log(&mut out)?;
        self.encode_leases(&mut out)?;
        self.encode_state(&mut out)?;
        encode_ranks(&self.fleet.view(), &mut out)
    }
}

impl MetricSources {
    fn encode_service(&self, out: &mut Series<'_, '_>) -> fmt::Result {
        out.gauge("ready", "Whether the service is ready", self.facts.ready().into())?;
        let waiting = self.facts.waiting_for();
        out.gauge("ready_waiting_ranks", "Ranks that readiness waits for", waiting.ranks.len() as u64)?;
        if let Some(copies) = self.facts.copies() {
            let running = u64::from(copies.outcome.is_none());
            out.gauge("copies_running", "Whether other replicas are being asked for what they hold", running)?;
            let counts = copies.counters.iter().map(|(reason, count)| ([("reason", reason)], count));
            out.counters("copies_events", "Calls to other replicas and what came of them, by reason", counts)?;
        }
        out.gauge("draining", "Whether the service is draining", self.facts.draining().into())?;
        out.gauge("uptime_seconds", "Seconds since start", self.facts.uptime_ms() / 1000)?;
        out.gauge("workers", "Registered workers", self.fleet.view().workers().len() as u64)
    }

    fn encode_lookups(&self, out: &mut Series<'_, '_>) -> fmt::Result {
        let help = "Time of a lookup inside the service, from decoded request to response";
        out.times("lookup_seconds", help, &self.times.sum())?;
        out.counter("lookups_refused", "Lookups refused because too many were worked on", self.admission.refused())
    }

    fn encode_index(&self, out: &mut Series<'_, '_>) -> fmt::Result {
        let stats = self.engine.index().stats();
        out.gauge("index_blocks_held", "Memberships: (holder, block) pairs", stats.held)?;
        out.gauge("index_blocks_distinct", "Distinct blocks", stats.blocks)?;
        out.gauge("index_blocks_parked", "Orphan blocks that wait for their parent", stats.parked)?;
        let sweeping = "Memberships of cleared ranks, in no answer and not yet swept out of memory";
        out.gauge("index_blocks_sweeping", sweeping, stats.sweeping)?;
        out.gauge("index_runs", "Runs", stats.runs)?;
        out.gauge("index_ranks", "Open ranks", stats.ranks)?;
        out.gauge("index_live_bytes", "Bytes in use", stats.bytes_live)?;
        out.gauge("index_free_bytes", "Bytes kept for reuse", stats.bytes_free)?;
        out.counter("index_splits", "Splits of runs", stats.splits)?;
        out.counter("index_merges", "Halves of runs made one again", stats.merges)?;
        out.counter("index_locks", "Locks of runs that lanes took", stats.locks)?;
        out.counter("index_runs_opened", "Runs opened by stores", stats.opened)?;
        out.counter("index_blocks_written", "Blocks written to the arena", stats.written)?;
        out.counter("index_lock_waits", "Times a writer waited for a run's lock", stats.lock_waits)
    }

    fn encode_placement(&self, out: &mut Series<'_, '_>) -> fmt::Result {
        let shards = shard_reports(self.engine.index(), self.facts.machine());
        let label = |shard: u32| [("shard", shard.to_string())];
        let nodes = shards.iter().filter_map(|s| Some((label(s.shard), u64::from(s.node?))));
        out.gauges("shard_memory_node", "Memory node that was asked for", nodes)?;
        let memory = shards.iter().map(|s| (label(s.shard), refused(s.memory)));
        out.gauges("shard_memory_refused_regions", "Regions that do not belong to the node asked for", memory)?;
        let pages = shards.iter().map(|s| (label(s.shard), refused(s.huge_pages)));
        out.gauges("shard_huge_pages_refused_regions", "Regions without the huge pages asked for", pages)?;
        let huge = shards.iter().map(|s| (label(s.shard), s.pages.huge));
        out.gauges("shard_huge_pages", "Huge pages made of memory in use", huge)?;
        let waiting = shards.iter().map(|s| (label(s.shard), s.pages.waiting));
        out.gauges("shard_huge_pages_waiting", "Huge pages that could be made, at the last scan", waiting)?;
        let collapsed = shards.iter().map(|s| (label(s.shard), s.pages.collapsed));
        out.counters("shard_huge_pages_collapsed", "Huge pages made so far", collapsed)?;
        let not_made = shards.iter().map(|s| (label(s.shard), s.pages.refused));
        out.counters("shard_huge_pages_refused", "Huge pages that the system refused so far", not_made)?;
        let lanes = self.fleet.lanes().iter().map(|l| l.pinned()).filter(|p| p.is_refused()).count() as u64;
        let lookups = self.facts.lookup_threads().into_iter().filter(|p: &Pinned| p.is_refused()).count() as u64;
        let pins = [([("thread", "lane")], lanes), ([("thread", "lookup")], lookups)];
        out.gauges("threads_not_pinned", "Threads whose pin to a core the system refused", pins.into_iter())
    }

    fn encode_relay(&self, out: &mut Series<'_, '_>) -> fmt::Result {
        let relay = self.fleet.relay();
        out.gauge("relay_bytes", "Bytes of the histories of all ranks", relay.bytes())?;
        out.gauge("relay_bytes_max", "Most bytes that they may take", relay.limits().bytes_max)?;
        out.gauge("relay_subscribers", "Open subscriptions", relay.subscribers() as u64)?;
        out.counter("relay_snapshots", "States of a rank that subscribers were given", relay.snapshots())?;
        out.counter("relay_copies", "States of a rank that peers were given", relay.copies())?;
        out.counter("relay_cut_off", "Subscriptions that the history moved past", relay.cut_off())?;
        let view = self.fleet.view();
        let ranks: Vec<_> = view
            .ranks()
            .map(|r| ([("worker", r.worker.to_string()), ("rank", r.rank.to_string())], r.relay.status()))
            .collect();
        let batches = ranks.iter().map(|(labels, status)| (labels.clone(), status.batches as u64));
        out.gauges("rank_history_batches", "Batches that the rank's history keeps", batches)?;
        let gone = ranks.iter().map(|(labels, status)| (labels.clone(), status.gone));
        out.counters("rank_history_gone", "Batches that went out of the rank's history", gone)
    }

    fn encode_wire(&self, out: &mut Series<'_, '_>) -> fmt::Result {
        let view = self.fleet.view();
        let republished: Vec<_> = view
            .ranks()
            .filter_map(|r| Some(([("worker", r.worker.to_string()), ("rank", r.rank.to_string())], r.relay.wire()?)))
            .collect();
        let bound = republished.iter().map(|(labels, wire)| (labels.clone(), wire.addresses().is_some().into()));
        out.gauges("wire_bound", "Whether the rank's sockets for consumers are bound", bound)?;
        let consumers = republished.iter().map(|(labels, wire)| (labels.clone(), wire.consumers()));
        out.gauges("wire_consumers", "Connections of consumers of the republished rank", consumers)?;
        let batches = republished.iter().map(|(labels, wire)| (labels.clone(), wire.kept().0 as u64));
        out.gauges("wire_batches", "Payloads that are kept for replays", batches)?;
        let bytes = republished.iter().map(|(labels, wire)| (labels.clone(), wire.kept().1));
        out.gauges("wire_bytes", "Bytes that they take, which count in relay_bytes", bytes)?;
        let counters = republished.iter().flat_map(|([worker, rank], wire)| {
            let labels = |reason: &str| [worker.clone(), rank.clone(), ("reason", reason.to_owned())];
            wire.counters().all().map(|(reason, count)| (labels(reason), count))
        });
        out.counters(
            "wire_events",
            "What consumers of the republished rank were sent, missed and did, by reason",
            counters,
        )
    }

    fn encode_log(&self, out: &mut Series<'_, '_>) -> fmt::Result {
        let Some(log) = self.fleet.log() else { return Ok(()) };
        let status = log.status();
        out.gauge("log_connected", "Whether the shared log's server answered last", status.connected.into())?;
        out.gauge("log_ranks_writing", "Ranks that are appended to the shared log here", status.writing)?;
        out.gauge("log_ranks_standby", "Ranks that another replica appends, or nobody can", status.standby)?;
        out.gauge("log_ranks_reading", "Ranks that are read from the shared log", status.reading)?;
        let counts = status.counters.iter().map(|(reason, count)| ([("reason", *reason)], *count));
        out.counters("log_events", "What happened with the shared log, by reason", counts)
    }

    fn encode_leases(&self, out: &mut Series<'_, '_>) -> fmt::Result {
        let status = self.facts.leases();
        let connected = u64::from(status.store.connected);
        out.gauge("lease_store_connected", "Whether the store of the seeding leases answered last", connected)?;
        out.gauge("lease_watched_partitions", "Partitions whose owners and leases are watched", status.watched)?;
        out.gauge("lease_swept_prefixes", "Prefixes whose owners are looked up from time to time", status.swept)?;
        let counts = status.counters.iter().map(|(reason, count)| ([("reason", *reason)], *count));
        out.counters(
            "lease_events",
            "Leases granted, refused, committed, aborted, expired and fenced, by reason",
            counts,
        )
    }

    fn encode_state(&self, out: &mut Series<'_, '_>) -> fmt::Result {
        let left = self.keeper.seeds_left() as u64;
        out.gauge("state_seeds_left", "States of the last run that no rank has been offered yet", left)?;
        let counts = self.keeper.counters().all().into_iter().map(|(reason, count)| ([("reason", reason)], count));
        out.counters("state_events", "State files, and ranks written to them or left out, by reason", counts)
    }

    fn encode_vetoes(&self, out: &mut Series<'_, '_>) -> fmt::Result {
        let view = self.fleet.view();
        let vetoed = view.workers().filter_map(|w| {
            let (veto, _) = w.veto.get()?;
            Some(([("worker", w.registration.worker.id.clone()), ("reason", veto.name().to_owned())], 1))
        });
        out.gauges("worker_vetoed", "1 while the worker is left out of answers, by reason", vetoed)?;
        let counts = Veto::ALL.map(|veto| ([("reason", veto.name())], self.fleet.vetoes().of(veto)));
        let set = counts.iter().map(|(label, (set, _))| (*label, *set));
        out.counters("vetoes_set", "Vetoes of workers that began", set)?;
        let cleared = counts.iter().map(|(label, (_, cleared))| (*label, *cleared));
        out.counters("vetoes_cleared", "Vetoes that ended by contact or progress, not with the registration", cleared)
    }

    fn encode_lanes(&self, out: &mut Series<'_, '_>) -> fmt::Result {
        let lanes = self.fleet.lanes();
        let label = |number: u32| [("lane", number.to_string())];
        let queue = lanes.iter().map(|l| (label(l.number()), l.queue_len() as u64));
        out.gauges("lane_queue_batches", "Batches that wait for the lane", queue)?;
        let mut ranks = vec![0_u64; lanes.len()];
        self.fleet.view().ranks().for_each(|r| ranks[r.lane.lane().number() as usize] += 1);
        let of_lane = lanes.iter().map(|l| {
            let label = [("lane", l.number().to_string()), ("shard", l.shard().to_string())];
            (label, ranks[l.number() as usize])
        });
        out.gauges("lane_ranks", "Ranks that belong to the lane", of_lane)?;
        let balance = self.fleet.balance();
        let busiest = balance.busiest_percent;
        out.gauge(
            "lane_busiest_percent",
            "Stored blocks of the busiest lane, in percent of its shard's mean",
            busiest,
        )?;
        let moves = balance.moves_wanted as u64;
        out.gauge("lane_moves_wanted", "Ranks on another lane would even the lanes out", moves)?;
        type Pick = fn(&LaneCounters) -> u64;
        let counters: [(&str, &str, Pick); 4] = [
            ("lane_batches", "Batches applied", |c| LaneCounters::read(&c.batches)),
            ("lane_ops", "Operations applied", |c| LaneCounters::read(&c.ops)),
            ("lane_fenced", "Late messages of removed workers", |c| LaneCounters::read(&c.fenced)),
            ("lane_limit_reached", "Operations that met a memory limit", |c| LaneCounters::read(&c.limit_reached)),
        ];
        for (name, help, pick) in counters {
            out.counters(name, help, lanes.iter().map(|l| (label(l.number()), pick(l.counters()))))?;
        }
        Ok(())
    }
}

/// Regions that a wish was refused for; a wish that the system ignores as a whole counts as one.
fn refused(granted: Granted) -> u64 {
    match granted {
        Granted::Refused { regions, .. } => u64::from(regions.max(1)),
        Granted::NotAsked | Granted::Yes => 0,
    }
}

fn encode_ranks(view: &FleetView, out: &mut Series<'_, '_>) -> fmt::Result {
    let now = now_ms();
    let ranks: Vec<_> = view
        .ranks()
        .map(|r| ([("worker", r.worker.to_string()), ("rank", r.rank.to_string())], r.status.full()))
        .collect();
    let trust = ranks
        .iter()
        .map(|([worker, rank], status)| ([worker.clone(), rank.clone(), ("trust", status.trust.name().to_owned())], 1));
    out.gauges("rank_trust", "1 at the trust that the rank has", trust)?;
    let exact = ranks.iter().map(|(labels, status)| (labels.clone(), u64::from(status.trust == Trust::Exact)));
    out.gauges("rank_exact", "Whether every event of the rank was applied", exact)?;
    let connected = ranks.iter().map(|(labels, status)| (labels.clone(), u64::from(status.connected)));
    out.gauges("rank_connected", "Whether the event socket is connected", connected)?;
    let cursor = ranks.iter().filter_map(|(labels, status)| Some((labels.clone(), status.cursor?)));
    out.gauges("rank_cursor", "Last sequence applied", cursor)?;
    let lives = ranks.iter().map(|(labels, status)| (labels.clone(), status.incarnation));
    out.gauges("rank_incarnation", "Lives of the publisher seen", lives)?;
    let age = ranks.iter().filter_map(|(labels, s)| Some((labels.clone(), now.saturating_sub(s.last_event_ms?))));
    out.gauges("rank_last_event_age_milliseconds", "Time since the newest event was applied", age)?;
    let counters = ranks.iter().flat_map(|([worker, rank], status)| {
        let labels = |reason: &str| [worker.clone(), rank.clone(), ("reason", reason.to_owned())];
        status.counters.iter().map(move |(reason, count)| (labels(reason), *count)).collect::<Vec<_>>()
    });
    out.counters("rank_events", "Events and losses of the rank, by reason", counters)
}

/// Writes series of one kind and name.
pub(super) struct Series<'a, 'b>(&'a mut DescriptorEncoder<'b>);

impl Series<'_, '_> {
    /// A histogram of times.
    pub(super) fn times(&mut self, name: &str, help: &str, sum: &TimesSum) -> fmt::Result {
        let bound = |i: usize| if i == BUCKETS_LEN - 1 { f64::INFINITY } else { (1_u64 << i) as f64 / 1e6 };
        let buckets: Vec<_> = sum.buckets.iter().enumerate().map(|(i, count)| (bound(i), *count)).collect();
        self.histogram(name, help, sum.nanos as f64 / 1e9, &buckets)
    }

    /// A histogram of counts by upper bound, not cumulated.
    pub(super) fn histogram(&mut self, name: &str, help: &str, sum: f64, buckets: &[(f64, u64)]) -> fmt::Result {
        let count = buckets.iter().map(|(_, count)| count).sum();
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        metric.encode_histogram::<NoLabelSet>(sum, count, buckets, None)
    }

    pub(super) fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.0.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&value)
    }

    pub(super) fn counter(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        metric.encode_counter::<NoLabelSet, _, f64>(&value, None)
    }

    pub(super) fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        all: impl Iterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        all.into_iter().try_for_each(|(labels, value)| metric.encode_family(&labels)?.encode_gauge(&value))
    }

    pub(super) fn ratios<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        all: impl Iterator<Item = (L, f64)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Gauge)?;
        all.into_iter().try_for_each(|(labels, value)| metric.encode_family(&labels)?.encode_gauge(&value))
    }

    pub(super) fn counters<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        all: impl Iterator<Item = (L, u64)>,
    ) -> fmt::Result {
        let mut metric = self.0.encode_descriptor(name, help, None, MetricType::Counter)?;
        all.into_iter().try_for_each(|(labels, value)| {
            metric.encode_family(&labels)?.encode_counter::<NoLabelSet, _, f64>(&value, None)
        })
    }
}
