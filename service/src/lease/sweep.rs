//! Owners that lose what they own: the blocks of owned prefixes are looked up from time to time, and workers that left or live again
//! are found. An owner whose events have not shown the prefix yet has not lost it.

use super::leases::{Leases, lock};
use super::record::{Partition, Prefix, Record};
use super::settings::LeaseSettings;
use super::store::Unavailable;
use super::target::{Present, Target};
use std::collections::BTreeMap;
use tokio_util::sync::CancellationToken;

/// The prefixes that this process knows the blocks of.
#[derive(Debug, Default)]
pub struct Swept {
    partitions: BTreeMap<Partition, BTreeMap<Prefix, Known>>,
}

#[derive(Clone, Debug)]
struct Known {
    blocks: Vec<u64>,
    /// Who was seen to hold them all, and in which life, as counted here.
    seen: Vec<(Target, Target)>,
}

impl Swept {
    /// Remembers a prefix's blocks; whether there was room.
    pub(super) fn remember(
        &mut self,
        partition: &Partition,
        prefix: &Prefix,
        blocks: Vec<u64>,
        settings: &LeaseSettings,
    ) -> bool {
        let known = self.partitions.get(partition).is_some_and(|all| all.contains_key(prefix));
        let place = self.partitions.contains_key(partition) || self.partitions.len() < settings.partitions_max;
        let fits = known || (place && self.len() < settings.swept_prefixes_max);
        if !fits {
            return false;
        }
        let all = self.partitions.entry(partition.clone()).or_default();
        match all.get_mut(prefix) {
            Some(known) if known.blocks == blocks => {}
            _ => drop(all.insert(prefix.clone(), Known { blocks, seen: Vec::new() })),
        }
        true
    }

    /// Prefixes known.
    pub(super) fn len(&self) -> usize {
        self.partitions.values().map(BTreeMap::len).sum()
    }

    fn seen(&mut self, partition: &Partition, prefix: &Prefix, seen: Vec<(Target, Target)>) {
        if let Some(known) = self.partitions.get_mut(partition).and_then(|all| all.get_mut(prefix)) {
            known.seen = seen;
        }
    }

    /// Forgets prefixes without owners or lease.
    fn forget(&mut self, partition: &Partition, record: &Record) {
        let Some(all) = self.partitions.get_mut(partition) else { return };
        all.retain(|prefix, _| {
            let owned = record.prefixes.get(prefix).is_some_and(|set| !set.owners.is_empty());
            owned || record.grant().is_some_and(|grant| grant.prefix == *prefix)
        });
        if all.is_empty() {
            self.partitions.remove(partition);
        }
    }
}

/// What one look at a prefix found.
struct Found {
    seen: Vec<(Target, Target)>,
    /// Blocks of the prefix went from their index.
    lost: Vec<Present>,
    /// They live another life, or left.
    dead: Vec<Target>,
}

impl Leases {
    /// Sweeps until the service closes.
    pub async fn sweep_until(&self, closing: CancellationToken) {
        let mut period = tokio::time::interval(self.settings().sweep_period);
        period.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                _ = period.tick() => {}
                () = closing.cancelled() => return,
            }
            let partitions: Vec<Partition> = lock(&self.swept).partitions.keys().cloned().collect();
            for partition in partitions {
                // What cannot be written now is found again at the next sweep.
                if let Err(error) = self.sweep(&partition).await {
                    tracing::debug!(%error, "a partition was not swept");
                }
            }
            self.count("sweeps");
        }
    }

    /// Looks at every owner and the lease's target of one partition once.
    pub async fn sweep(&self, partition: &Partition) -> Result<(), Unavailable> {
        let record = self.look_at(partition).await?;
        for target in owners_of(&record).into_iter().filter(|target| self.is_ours(target)) {
            let present = self.present(partition, &target.worker).map(|present| present.target);
            if present.as_ref() != Some(&target) {
                self.step(partition, |r, now, s, c| r.gone(now, &target, s, c)).await?;
            }
        }
        let known = lock(&self.swept).partitions.get(partition).cloned().unwrap_or_default();
        for (prefix, known) in known {
            let found = self.look_for(partition, &record, &prefix, &known);
            for present in found.lost {
                self.step(partition, |r, now, s, c| r.removed(now, &prefix, &present, s, c)).await?;
            }
            for target in found.dead {
                self.step(partition, |r, now, s, c| r.gone(now, &target, s, c)).await?;
            }
            lock(&self.swept).seen(partition, &prefix, found.seen);
        }
        lock(&self.swept).forget(partition, &record);
        Ok(())
    }

    fn look_for(&self, partition: &Partition, record: &Record, prefix: &Prefix, known: &Known) -> Found {
        let owners = record.prefixes.get(prefix).into_iter().flat_map(|set| &set.owners).map(|owner| &owner.target);
        let leased = record.grant().filter(|grant| grant.prefix == *prefix).map(|grant| &grant.target);
        let mut found = Found { seen: Vec::new(), lost: Vec::new(), dead: Vec::new() };
        for target in owners.chain(leased) {
            let seen = known.seen.iter().find(|(owner, _)| owner == target).map(|(_, life)| life);
            let present = self.present(partition, &target.worker).map(|present| present.target);
            // Lives that another replica counted are judged by what they were called here when they were seen.
            let life = if self.is_ours(target) { Some(target) } else { seen };
            if life.is_some_and(|life| present.as_ref() != Some(life)) {
                found.dead.push(target.clone());
                continue;
            }
            let Some(present) = present else { continue };
            let Some(evidence) = self.evidence(partition, &target.worker, &known.blocks) else { continue };
            if evidence.holds || (seen.is_some() && !evidence.exact) {
                // A degraded rank proves nothing, in either direction.
                found.seen.push((target.clone(), present));
            } else if seen.is_some() {
                // Seen for as long as it is an owner: what was applied may be known a moment later than what it did.
                found.seen.push((target.clone(), present));
                found.lost.push(Present { target: target.clone(), sequences: evidence.sequences });
            }
        }
        found
    }
}

fn owners_of(record: &Record) -> Vec<Target> {
    let owners = record.prefixes.iter().flat_map(|(_, set)| &set.owners);
    let mut all: Vec<Target> = owners.map(|owner| owner.target.clone()).collect();
    all.sort_unstable_by(|a, b| (&a.worker, a.replica).cmp(&(&b.worker, b.replica)));
    all.dedup();
    all
}
