//! Compares one publisher's part of the index with the engine's truth, checkpoint by checkpoint.

use super::fold::Fold;
use super::report::{Report, Rule};
use super::residency::{Position, Residency, window_blocks};
use super::sglang_names;
use crate::sidecar::{Checkpoint, Engine, LiveSets, Probe, RankTruth};
use kvatlas_index::Tier;
use kvatlas_service::wire::Namespace;
use std::collections::{BTreeMap, BTreeSet};

/// What the index says about one rank. The player implements it on the real index.
pub trait Indexed {
    /// The names of a tier with their copies, sorted.
    fn names(&self, tier: Tier) -> Vec<(u64, u64)>;
    /// Leading blocks of a prompt on the device, and on the device or the host.
    fn depths(&mut self, tokens: &[u32], namespace: Namespace) -> [u64; 2];
}

/// The comparison of one life of one publisher.
pub struct Checker<'a> {
    truth: &'a RankTruth,
    /// Checkpoints that were compared.
    done: usize,
}

impl<'a> Checker<'a> {
    /// Nothing compared yet.
    pub fn new(truth: &'a RankTruth) -> Self {
        Self { truth, done: 0 }
    }

    /// The next checkpoint whose state is reached when `next` is the first batch not applied yet.
    pub fn due(&mut self, next: u64) -> Option<&'a Checkpoint> {
        let checkpoint = self.truth.checkpoints.get(self.done).filter(|c| c.published <= next)?;
        self.done += 1;
        Some(checkpoint)
    }

    /// Checkpoints that were not reached.
    pub fn left(&self) -> u64 {
        (self.truth.checkpoints.len() - self.done) as u64
    }

    /// Compares live sets and probes. `clear_next`: the next batch begins with a clear.
    pub fn compare(
        &self,
        checkpoint: &Checkpoint,
        fold: &Fold,
        clear_next: bool,
        index: &mut dyn Indexed,
        report: &mut Report,
    ) {
        report.checkpoints += 1;
        let before = report.differences_count;
        let wave = checkpoint.wave;
        let truth = match checkpoint.unpublished_events {
            0 => &checkpoint.live,
            _ => {
                report.rule(Rule::ClearUnpublished, 1);
                if !(clear_next && checkpoint.live.is_empty()) {
                    report.difference(|| format!("wave {wave}: unpublished events that are not a clear"));
                }
                fold.live()
            }
        };
        if truth != fold.live() {
            report.difference(|| format!("wave {wave}: side fold: {}", unlike(truth, fold.live())));
        }
        let windows = truth.keys().filter(|(_, group)| !fold.is_full(*group)).count();
        report.rule(Rule::WindowGroup, windows as u64);
        let (want, got) = (by_tier(truth, fold), self.indexed(index));
        if want != got {
            report.difference(|| format!("wave {wave}: index: {}", unlike(&want, &got)));
        }
        report.checkpoints_equal += u64::from(report.differences_count == before);
        for row in &checkpoint.probes {
            self.probe(checkpoint, row, truth, fold, index, report);
        }
    }

    fn indexed(&self, index: &dyn Indexed) -> BTreeMap<Tier, BTreeMap<u64, u64>> {
        let tiers = Tier::ALL.into_iter().map(|tier| (tier, index.names(tier).into_iter().collect::<BTreeMap<_, _>>()));
        tiers.filter(|(_, names)| !names.is_empty()).collect()
    }

    fn probe(
        &self,
        checkpoint: &Checkpoint,
        row: &[u64],
        truth: &LiveSets,
        fold: &Fold,
        index: &mut dyn Indexed,
        report: &mut Report,
    ) {
        report.probes += 1;
        let wave = checkpoint.wave;
        let Some((probe, engine)) = row.split_first().and_then(|(id, engine)| Some((self.find(*id)?, engine))) else {
            return report.difference(|| format!("wave {wave}: a row without a probe: {row:?}"));
        };
        let namespace = Namespace::new(probe.lora.as_deref(), probe.salt.as_deref());
        let resident = self.resident(probe, namespace, truth, fold);
        let depths = index.depths(&probe.tokens, namespace);
        let want = [resident.device(), resident.device_or_host()];
        if depths != want {
            return report.difference(|| {
                format!("wave {wave} probe {} ({}): index {depths:?} blocks, resident {want:?}", probe.id, probe.kind)
            });
        }
        let mut without_windows = resident.clone();
        without_windows.window_blocks.clear();
        let answer = self.rules(&without_windows, probe);
        let explained = match self.rules(&resident, probe) {
            _ if answer == engine => None,
            // The engine also looks at its windows, and they give exactly its number.
            by_windows if by_windows == engine => Some(Rule::WindowUpperBound),
            _ if self.other_namespaces(probe, &resident, truth, engine) => Some(Rule::ExtraKey),
            _ => {
                return self.unexplained(wave, probe, &answer, engine, report);
            }
        };
        let under = answer.iter().zip(engine).any(|(a, e)| a < e);
        report.probes_under += u64::from(under);
        report.probes_over += u64::from(!under && explained.is_some());
        if under {
            return self.unexplained(wave, probe, &answer, engine, report);
        }
        explained.into_iter().for_each(|rule| report.rule(rule, 1));
        report.probes_equal += 1;
    }

    fn unexplained(&self, wave: u64, probe: &Probe, answer: &[u64], engine: &[u64], report: &mut Report) {
        report.difference(|| {
            format!("wave {wave} probe {} ({}): {answer:?} tokens, the engine says {engine:?}", probe.id, probe.kind)
        });
    }

    /// Whether what the index has beyond the engine's answer belongs to requests with an `extra_key`. In format `dynamo` their
    /// blocks have names of their own: what is resident by the probe's own names must be exactly the engine's answer. In the
    /// default format they have the same names; that there are such requests shows in names with several copies, of which a
    /// tree has one a namespace.
    fn other_namespaces(&self, probe: &Probe, resident: &Residency, truth: &LiveSets, engine: &[u64]) -> bool {
        let meta = &self.truth.meta;
        if meta.engine != Engine::Sglang {
            return false;
        }
        if meta.format.as_deref() != Some("dynamo") {
            let mut copies = self.truth.checkpoints.iter().flat_map(|c| c.live.values()).flat_map(|set| set.values());
            return copies.any(|&copies| copies > 1);
        }
        let live = truth.get(&("GPU".to_owned(), 0));
        let own = sglang_names::names(&probe.tokens, meta.block_size as usize, probe.salt.as_deref(), true);
        let positions = own
            .iter()
            .map(|name| Position { device: live.is_some_and(|set| set.contains_key(name)), ..Position::default() });
        let own = Residency { positions: positions.collect(), ..resident.clone() };
        self.rules(&own, probe) == engine
    }

    fn find(&self, id: u64) -> Option<&'a Probe> {
        self.truth.probes.iter().find(|p| p.id == id)
    }

    fn rules(&self, residency: &Residency, probe: &Probe) -> Vec<u64> {
        let tokens = probe.tokens.len() as u64;
        match self.truth.meta.engine {
            Engine::Vllm => residency.vllm(tokens).to_vec(),
            Engine::Sglang => residency.sglang(tokens).to_vec(),
        }
    }

    /// Where the blocks of a probe are, by the engine's own table of live blocks.
    fn resident(&self, probe: &Probe, namespace: Namespace, truth: &LiveSets, fold: &Fold) -> Residency {
        let block_size = self.truth.meta.block_size;
        let live = |names: &BTreeSet<u64>, medium: &str, group: Option<u32>| {
            let sets =
                truth.iter().filter(|((m, g), _)| m == medium && group.map_or(fold.is_full(*g), |only| only == *g));
            sets.into_iter().any(|(_, set)| names.iter().any(|n| set.contains_key(n)))
        };
        let windows: Vec<_> =
            self.truth.meta.groups.iter().filter_map(|g| Some((g.group, g.sliding_window?))).collect();
        let position = |names: &BTreeSet<u64>| Position {
            device: live(names, "GPU", None),
            host: live(names, "CPU_PINNED", None),
            windows: windows.iter().map(|(group, _)| live(names, "GPU", Some(*group))).collect(),
        };
        let path = fold.path(&probe.tokens, namespace, block_size as usize);
        Residency {
            block_size: block_size.into(),
            window_blocks: windows.iter().map(|(_, w)| window_blocks((*w).into(), block_size.into())).collect(),
            positions: path.iter().map(position).collect(),
        }
    }
}

/// The index's part of the truth: full groups, by tier.
fn by_tier(truth: &LiveSets, fold: &Fold) -> BTreeMap<Tier, BTreeMap<u64, u64>> {
    let mut tiers: BTreeMap<Tier, BTreeMap<u64, u64>> = BTreeMap::new();
    for ((medium, _), names) in truth.iter().filter(|((_, group), _)| fold.is_full(*group)) {
        let tier = if medium == "GPU" { Tier::Device } else { Tier::Host };
        for (name, copies) in names {
            *tiers.entry(tier).or_default().entry(*name).or_insert(0) += copies;
        }
    }
    tiers
}

/// What distinguishes two tables, in words.
fn unlike<K: Ord + std::fmt::Debug>(
    want: &BTreeMap<K, BTreeMap<u64, u64>>,
    got: &BTreeMap<K, BTreeMap<u64, u64>>,
) -> String {
    let none = BTreeMap::new();
    let keys: BTreeSet<&K> = want.keys().chain(got.keys()).collect();
    let parts = keys.into_iter().filter_map(|key| {
        let (want, got) = (want.get(key).unwrap_or(&none), got.get(key).unwrap_or(&none));
        let missing = want.keys().filter(|n| !got.contains_key(n)).count();
        let extra = got.keys().filter(|n| !want.contains_key(n)).count();
        let copies = want.iter().filter(|(n, c)| got.get(n).is_some_and(|g| g != *c)).count();
        let differs = missing + extra + copies > 0;
        differs.then(|| format!("{key:?} {missing} missing, {extra} too many, {copies} with other copies"))
    });
    parts.collect::<Vec<_>>().join("; ")
}
