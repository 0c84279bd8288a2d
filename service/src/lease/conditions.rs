//! Whether a router may ask for a lease at all: every figure has to be known, the target idle, and the owners pressured.

use crate::routing::{OwnerPressureSettings, WorkerLoad};

/// One worker of the partition, as a router sees it.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Its load; `None` where no record is complete, valid and fresh.
    pub load: Option<&'a WorkerLoad>,
    /// Whether it is an owner of the prefix.
    pub is_owner: bool,
}

/// Why no lease is asked for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Unmet {
    /// Owner pressure is not on for the partition.
    NotEnabled,
    /// The target is none of the workers.
    UnknownTarget,
    /// A worker's load is missing, malformed or stale.
    Telemetry,
    /// A worker does not say how much it may run at once.
    Caps,
    /// The target is an owner.
    IsOwner,
    /// There are as many owners as allowed.
    Ceiling,
    /// The target has requests waiting.
    TargetWaits,
    /// The target is under pressure itself.
    TargetPressured,
    /// The target is not so much less pressured than the owners that one more would help.
    NoSlack,
    /// Nobody has a place left.
    NoHeadroom,
}

impl Unmet {
    /// The name in metrics.
    pub const fn name(self) -> &'static str {
        match self {
            Unmet::NotEnabled => "not_enabled",
            Unmet::UnknownTarget => "unknown_target",
            Unmet::Telemetry => "telemetry",
            Unmet::Caps => "caps",
            Unmet::IsOwner => "is_owner",
            Unmet::Ceiling => "ceiling",
            Unmet::TargetWaits => "target_waits",
            Unmet::TargetPressured => "target_pressured",
            Unmet::NoSlack => "no_slack",
            Unmet::NoHeadroom => "no_headroom",
        }
    }
}

/// Checks the preconditions of routing.md 3.3 for seeding `target`. `workers` are all of the partition: one that is not known is
/// reason enough. Without an owner there is nobody to be less pressured than. Allocates nothing.
pub fn may_seed(
    workers: &[Seen<'_>],
    target: usize,
    enabled: bool,
    settings: &OwnerPressureSettings,
) -> Result<(), Unmet> {
    if !enabled {
        return Err(Unmet::NotEnabled);
    }
    let at = workers.get(target).ok_or(Unmet::UnknownTarget)?;
    let mut headroom = 0_i64;
    // The least pressured owner: it is the one that the prefix's requests would go to otherwise.
    let mut owner: Option<f64> = None;
    for worker in workers {
        let load = worker.load.ok_or(Unmet::Telemetry)?;
        let pressure = pressure(load)?;
        headroom = headroom.saturating_add(load.running_max.unwrap_or(0).saturating_sub(load.running));
        if worker.is_owner {
            owner = Some(owner.map_or(pressure, |least| least.min(pressure)));
        }
    }
    let load = at.load.ok_or(Unmet::Telemetry)?;
    let own = pressure(load)?;
    let owners = workers.iter().filter(|worker| worker.is_owner).count();
    let unmet = [
        (at.is_owner, Unmet::IsOwner),
        (owners >= settings.owners_max, Unmet::Ceiling),
        (load.waiting != 0, Unmet::TargetWaits),
        (own >= settings.watermark, Unmet::TargetPressured),
        (owner.is_some_and(|owner| own > owner - settings.slack), Unmet::NoSlack),
        (headroom <= 0, Unmet::NoHeadroom),
    ];
    unmet.into_iter().find(|(unmet, _)| *unmet).map_or(Ok(()), |(_, reason)| Err(reason))
}

/// `max(U, V, (R + W) / M)` of routing.md 2.8; without a cap there is no such figure here, and so no lease.
fn pressure(load: &WorkerLoad) -> Result<f64, Unmet> {
    let cap = load.running_max.filter(|cap| *cap > 0).ok_or(Unmet::Caps)?;
    let requests = load.running.saturating_add(load.waiting);
    Ok(load.usage.max(load.utilization).max(requests as f64 / cap as f64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{LoadReport, Malformed, RankLoad};

    fn rank(running: i64, waiting: i64, cap: i64) -> RankLoad {
        RankLoad { running, waiting, max_running: cap, token_usage: 0.12, ..RankLoad::default() }
    }

    fn load(ranks: Vec<RankLoad>) -> Result<WorkerLoad, Malformed> {
        WorkerLoad::from_report(&LoadReport { rank_count: ranks.len() as u32, ranks, ..LoadReport::default() })
    }

    fn judge(owner: &WorkerLoad, peer: Option<&WorkerLoad>) -> Result<(), Unmet> {
        let workers = [Seen { load: Some(owner), is_owner: true }, Seen { load: peer, is_owner: false }];
        may_seed(&workers, 1, true, &OwnerPressureSettings::default())
    }

    #[test]
    fn a_trapped_owner_beside_an_idle_peer_is_reason_to_ask() {
        let (owner, peer) = (load(vec![rank(38, 36, 38)]).unwrap(), load(vec![rank(0, 0, 38)]).unwrap());
        assert_eq!(judge(&owner, Some(&peer)), Ok(()));
        let workers = [Seen { load: Some(&owner), is_owner: true }, Seen { load: Some(&peer), is_owner: false }];
        let settings = OwnerPressureSettings::default();
        assert_eq!(may_seed(&workers, 1, false, &settings), Err(Unmet::NotEnabled));
        assert_eq!(may_seed(&workers, 2, true, &settings), Err(Unmet::UnknownTarget));
        assert_eq!(may_seed(&workers, 0, true, &settings), Err(Unmet::IsOwner));
    }

    #[test]
    fn every_precondition_stops_it_alone() {
        let of = |running, waiting, cap| load(vec![rank(running, waiting, cap)]).unwrap();
        let owner = of(38, 36, 38);
        assert_eq!(judge(&owner, Some(&of(1, 1, 38))), Err(Unmet::TargetWaits));
        assert_eq!(judge(&owner, Some(&of(35, 0, 38))), Err(Unmet::TargetPressured));
        assert_eq!(judge(&of(38, 0, 38), Some(&of(34, 0, 38))), Ok(()), "0.895 of 1");
        assert_eq!(judge(&of(19, 0, 38), Some(&of(17, 0, 38))), Err(Unmet::NoSlack));
        assert_eq!(judge(&of(200, 0, 38), Some(&of(0, 0, 38))), Err(Unmet::NoHeadroom));
        assert_eq!(judge(&owner, Some(&of(0, 0, 0))), Err(Unmet::Caps));
        let peer = of(0, 0, 38);
        let mut workers = vec![Seen { load: Some(&owner), is_owner: true }; 4];
        workers.push(Seen { load: Some(&peer), is_owner: false });
        assert_eq!(may_seed(&workers, 4, true, &OwnerPressureSettings::default()), Err(Unmet::Ceiling));
    }

    #[test]
    fn the_first_owner_needs_no_pressure() {
        let peer = load(vec![rank(0, 0, 38)]).unwrap();
        let workers = [Seen { load: Some(&peer), is_owner: false }; 2];
        assert_eq!(may_seed(&workers, 0, true, &OwnerPressureSettings::default()), Ok(()));
    }

    /// SL7: malformed, negative, incomplete or inconsistent load on any worker, and nothing is acquired.
    #[test]
    fn sl7_bad_telemetry_of_any_worker() {
        let owner = load(vec![rank(38, 36, 38)]).unwrap();
        let peer = load(vec![rank(0, 0, 38)]).unwrap();
        let twice = vec![rank(0, 0, 19), rank(0, 0, 19)];
        let of = |change: fn(&mut Vec<RankLoad>)| {
            let mut ranks = twice.clone();
            ranks[1].rank = 1;
            change(&mut ranks);
            WorkerLoad::from_report(&LoadReport { rank_count: 2, ranks, ..LoadReport::default() })
        };
        assert_eq!(judge(&owner, Some(&of(|_| ()).unwrap())), Ok(()), "as it should be, it would be asked for");
        let bad: [fn(&mut Vec<RankLoad>); 6] = [
            |ranks| ranks[1].running = -1,
            |ranks| ranks[0].waiting = -1,
            |ranks| ranks[1].token_usage = f64::NAN,
            |ranks| ranks.truncate(1),
            |ranks| ranks[1].rank = 0,
            |ranks| ranks[1].rank = 2,
        ];
        for change in bad {
            let refused = of(change);
            assert!(refused.is_err());
            assert_eq!(judge(&owner, refused.ok().as_ref()), Err(Unmet::Telemetry), "of the target");
            let workers = [
                Seen { load: Some(&owner), is_owner: true },
                Seen { load: Some(&peer), is_owner: false },
                Seen { load: None, is_owner: false },
            ];
            let third = may_seed(&workers, 1, true, &OwnerPressureSettings::default());
            assert_eq!(third, Err(Unmet::Telemetry), "of a third worker");
        }
        let capless = of(|ranks| ranks[1].max_running = 0).unwrap();
        assert_eq!(judge(&owner, Some(&capless)), Err(Unmet::Caps));
    }
}
