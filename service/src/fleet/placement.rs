//! Which lane a rank goes to. Pure.
//!
//! A lane pays once for each block that its ranks share, and keeps names of its own; ranks of other shards share nothing with it.
//! So ranks that are likely to see the same prompts under the same names belong together, as long as no lane gets too much: a
//! lane (and a shard) has at most `lane_share_max_percent` of the mean number of ranks. A group that is larger than that is
//! spread evenly over as few lanes as take it, those of one shard first.

use super::registration::Registration;
use crate::ingest::{Engine, HashChoice};
use crate::wire::HashMode;
use std::collections::HashMap;

/// What ranks have in common whose prompts make the same blocks under the same names: model, block size, and how the engine
/// names blocks. The routing group is not part of it: engines of one model see the same system prompts in every group.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct Sharing {
    model: String,
    block_size: u32,
    mode: HashMode,
    names: String,
}

impl Sharing {
    pub(super) fn of(registration: &Registration) -> Self {
        let worker = &registration.worker;
        Self {
            model: worker.model.clone(),
            block_size: worker.block_size,
            mode: registration.mode(),
            names: naming(worker.engine, &worker.hash_scheme, worker.hash_seed.as_deref()),
        }
    }
}

/// Engines that are set up alike name the same block alike.
fn naming(engine: Engine, scheme: &HashChoice, seed: Option<&str>) -> String {
    format!("{engine:?} {scheme:?} {seed:?}")
}

/// Ranks of one lane.
#[derive(Clone, Debug, Default)]
struct Load {
    ranks: usize,
    of_group: HashMap<Sharing, usize>,
}

/// The ranks of every lane.
#[derive(Clone, Debug)]
pub(super) struct Placement {
    /// The lanes of each shard, by number.
    shards: Vec<Vec<usize>>,
    lanes: Vec<Load>,
    share_max_percent: u32,
}

impl Placement {
    /// `shard_of_lane[lane]` is the lane's shard. `share_max_percent` is at least 100.
    pub(super) fn new(shard_of_lane: &[u32], share_max_percent: u32) -> Self {
        let shards = shard_of_lane.iter().max().map_or(0, |last| *last as usize + 1);
        let lanes_of =
            |shard: usize| (0..shard_of_lane.len()).filter(|l| shard_of_lane[*l] as usize == shard).collect();
        Self {
            shards: (0..shards).map(lanes_of).collect(),
            lanes: vec![Load::default(); shard_of_lane.len()],
            share_max_percent,
        }
    }

    /// The lane for one more rank of a group. The same registrations in the same order give the same places.
    pub(super) fn choose(&self, group: &Sharing) -> usize {
        let place = |lanes: &[usize]| Place {
            ranks: lanes.iter().map(|l| self.lanes[*l].ranks).sum(),
            members: lanes.iter().map(|l| self.lanes[*l].of_group.get(group).copied().unwrap_or(0)).sum(),
        };
        let shards: Vec<_> = self.shards.iter().map(|lanes| place(lanes)).collect();
        let shard = &self.shards[choose(&shards, self.share_max_percent)];
        let lanes: Vec<_> = shard.iter().map(|lane| place(&[*lane])).collect();
        shard[choose(&lanes, self.share_max_percent)]
    }

    /// A rank of the group is on the lane now.
    pub(super) fn opened(&mut self, lane: usize, group: &Sharing) {
        let load = &mut self.lanes[lane];
        load.ranks += 1;
        *load.of_group.entry(group.clone()).or_default() += 1;
    }

    /// A rank of the group has left the lane.
    pub(super) fn closed(&mut self, lane: usize, group: &Sharing) {
        let load = &mut self.lanes[lane];
        load.ranks -= 1;
        if let Some(members) = load.of_group.get_mut(group) {
            *members -= 1;
            if *members == 0 {
                load.of_group.remove(group);
            }
        }
    }
}

/// A shard or a lane, as the choice sees it.
#[derive(Clone, Copy, Debug)]
struct Place {
    ranks: usize,
    /// Ranks of the group in question.
    members: usize,
}

/// The least loaded of the few places that the group needs, those with most of its ranks. There is at least one place.
fn choose(places: &[Place], share_max_percent: u32) -> usize {
    let total = places.iter().map(|p| p.ranks).sum::<usize>() + 1;
    let members = places.iter().map(|p| p.members).sum::<usize>() + 1;
    // Small fleets round to the even share, else two ranks would crowd one of two lanes.
    let even = total.div_ceil(places.len());
    let most = even.max(total * share_max_percent as usize / (100 * places.len()));
    // At least one place has room: were all at `even` or more, there would be more ranks than there are.
    let mut open: Vec<usize> = (0..places.len()).filter(|i| places[*i].ranks < most).collect();
    open.sort_by_key(|i| (std::cmp::Reverse(places[*i].members), places[*i].ranks, *i));
    let needed = members.div_ceil(most).max(1);
    open.truncate(needed);
    open.into_iter().min_by_key(|i| (places[*i].ranks, *i)).expect("a place below the even share")
}

/// How much of the work one rank is, and where it is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct RankLoad {
    /// The rank, by any number that the caller knows it by.
    pub rank: u32,
    /// Its lane.
    pub lane: usize,
    /// Work that it is, in any unit.
    pub work: u64,
}

/// One rank that should change its lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Move {
    pub rank: u32,
    pub from: usize,
    pub to: usize,
}

/// The work of the busiest lane in percent of its shard's mean, over all shards; 100 when all are even, or idle.
pub(super) fn imbalance_percent(ranks: &[RankLoad], shard_of_lane: &[u32]) -> u64 {
    let lanes = lane_work(ranks, shard_of_lane.len());
    let worst = (0..lanes.len()).filter_map(|lane| {
        let mates: Vec<u64> =
            (0..lanes.len()).filter(|l| shard_of_lane[*l] == shard_of_lane[lane]).map(|l| lanes[l]).collect();
        let sum = mates.iter().sum::<u64>();
        (u128::from(lanes[lane]) * 100 * mates.len() as u128).checked_div(u128::from(sum))
    });
    worst.max().map_or(100, |percent| u64::try_from(percent).unwrap_or(u64::MAX))
}

fn lane_work(ranks: &[RankLoad], lanes: usize) -> Vec<u64> {
    let mut work = vec![0_u64; lanes];
    for rank in ranks {
        work[rank.lane] = work[rank.lane].saturating_add(rank.work);
    }
    work
}

/// Most moves of one plan: a bound on the time that a plan takes. What is uneven afterwards is seen by the next one.
pub(super) const MOVES_MAX: usize = 64;

/// Moves after which no lane does more than `share_max_percent` of its shard's mean work, as far as whole ranks and [`MOVES_MAX`]
/// allow; none while that is so already. Each move takes the rank of the busiest lane that evens it out best with the idlest lane of
/// its shard. A move costs in proportion to what the rank holds, so a rank moves once at most.
pub(super) fn plan(ranks: &[RankLoad], shard_of_lane: &[u32], share_max_percent: u32) -> Vec<Move> {
    let mut work = lane_work(ranks, shard_of_lane.len());
    let mut moves: Vec<Move> = Vec::new();
    let mut moved = vec![false; ranks.len()];
    let mut settled = vec![false; shard_of_lane.len()];
    while moves.len() < MOVES_MAX
        && let Some((from, to)) = unequal_pair(&work, shard_of_lane, share_max_percent, &settled)
    {
        let gap = work[from] - work[to];
        let movable = (0..ranks.len())
            .filter(|i| ranks[*i].lane == from && !moved[*i] && ranks[*i].work > 0 && ranks[*i].work < gap);
        // Half of the gap is what evens the two out; nearest to it is best.
        match movable.min_by_key(|i| (ranks[*i].work.abs_diff(gap / 2), ranks[*i].rank)) {
            Some(i) => {
                moved[i] = true;
                work[from] -= ranks[i].work;
                work[to] += ranks[i].work;
                moves.push(Move { rank: ranks[i].rank, from, to });
            }
            None => settled[from] = true,
        }
    }
    moves
}

/// The busiest lane above its bound, and the idlest of its shard.
fn unequal_pair(
    work: &[u64],
    shard_of_lane: &[u32],
    share_max_percent: u32,
    settled: &[bool],
) -> Option<(usize, usize)> {
    let mates = |lane: usize| (0..work.len()).filter(move |l| shard_of_lane[*l] == shard_of_lane[lane]);
    let over = |lane: usize| {
        let (sum, count) = mates(lane).fold((0_u128, 0), |(sum, count), l| (sum + u128::from(work[l]), count + 1));
        u128::from(work[lane]) * 100 * count > sum * u128::from(share_max_percent)
    };
    let from =
        (0..work.len()).filter(|l| !settled[*l] && over(*l)).max_by_key(|l| (work[*l], std::cmp::Reverse(*l)))?;
    let to = mates(from).min_by_key(|l| (work[*l], *l))?;
    (to != from).then_some((from, to))
}

#[cfg(test)]
mod tests {
    use super::super::registration::tests::pushed;
    use super::*;

    fn group(model: &str) -> Sharing {
        Sharing::of(&pushed("w", model, 16))
    }

    /// Places ranks of these models in order; returns the lanes.
    fn placed(placement: &mut Placement, models: &[&str]) -> Vec<usize> {
        let place = |model: &&str| {
            let lane = placement.choose(&group(model));
            placement.opened(lane, &group(model));
            lane
        };
        models.iter().map(place).collect()
    }

    fn ranks_of(placement: &Placement) -> Vec<usize> {
        placement.lanes.iter().map(|l| l.ranks).collect()
    }

    #[test]
    fn a_fleet_of_one_kind_is_spread_evenly() {
        let mut placement = Placement::new(&[0, 0, 0, 0], 125);
        placed(&mut placement, &["m"; 128]);
        assert_eq!(ranks_of(&placement), [32; 4]);
        let mut placement = Placement::new(&[0, 0, 1, 1], 125);
        placed(&mut placement, &["m"; 8]);
        assert_eq!(ranks_of(&placement), [2; 4]);
    }

    #[test]
    fn kinds_stay_apart_as_far_as_the_bound_allows() {
        let mut placement = Placement::new(&[0, 0], 125);
        assert_eq!(placed(&mut placement, &["a", "b", "a", "b", "b", "a"]), [0, 1, 0, 1, 1, 0]);
        // One kind after the other: nobody knows what is to come, so the first kind is on both lanes.
        let mut placement = Placement::new(&[0, 0, 0, 0], 125);
        placed(&mut placement, &["a"; 32]);
        placed(&mut placement, &["b"; 32]);
        let most = *ranks_of(&placement).iter().max().unwrap();
        assert!(most <= 20, "at most 125 % of 16: {:?}", ranks_of(&placement));
    }

    #[test]
    fn lanes_of_the_same_shard_come_first() {
        let mut placement = Placement::new(&[0, 0, 1, 1], 125);
        let lanes = placed(&mut placement, &["a", "b", "a", "b", "a", "b", "a", "b"]);
        let shard = |lane: &usize| lane / 2;
        assert!(lanes.iter().step_by(2).all(|l| shard(l) == 0), "{lanes:?}");
        assert!(lanes.iter().skip(1).step_by(2).all(|l| shard(l) == 1), "{lanes:?}");
    }

    #[test]
    fn no_lane_ever_exceeds_the_bound_and_leaving_makes_room() {
        for percent in [100, 125, 300] {
            let mut placement = Placement::new(&[0, 0, 0], percent);
            let mut state = 7_u64;
            let mut there: Vec<(usize, String)> = Vec::new();
            for _ in 0..2000 {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                if state >> 62 == 0 && !there.is_empty() {
                    let (lane, model) = there.swap_remove((state >> 20) as usize % there.len());
                    placement.closed(lane, &group(&model));
                    continue;
                }
                let model = format!("m{}", (state >> 33) % 5);
                let lane = placement.choose(&group(&model));
                placement.opened(lane, &group(&model));
                there.push((lane, model));
                let most = there.len().div_ceil(3).max(there.len() * percent as usize / 300);
                assert!(placement.lanes[lane].ranks <= most, "{percent} %: {:?}", ranks_of(&placement));
            }
            there.drain(..).for_each(|(lane, model)| placement.closed(lane, &group(&model)));
            assert!(placement.lanes.iter().all(|l| l.ranks == 0 && l.of_group.is_empty()));
        }
    }

    #[test]
    fn naming_and_block_size_are_part_of_a_kind_and_the_routing_group_is_not() {
        let base = pushed("w", "m", 16);
        let kind = |change: fn(&mut Registration)| {
            let mut other = base.clone();
            change(&mut other);
            Sharing::of(&other)
        };
        assert_eq!(kind(|r| r.worker.routing_group = "g".into()), Sharing::of(&base));
        assert_eq!(kind(|r| r.worker.id = "x".into()), Sharing::of(&base));
        let others = [
            kind(|r| r.worker.hash_seed = Some("1".into())),
            kind(|r| r.worker.block_size = 32),
            kind(|r| r.worker.bigram = true),
            kind(|r| r.worker.engine = Engine::Sglang),
        ];
        assert!(others.iter().all(|o| *o != Sharing::of(&base)));
    }

    fn loads(of: &[(usize, u64)]) -> Vec<RankLoad> {
        of.iter().enumerate().map(|(i, (lane, work))| RankLoad { rank: i as u32, lane: *lane, work: *work }).collect()
    }

    #[test]
    fn moves_are_few_and_even_things_out() {
        // Within the bound: nothing.
        assert_eq!(plan(&loads(&[(0, 10), (1, 12)]), &[0, 0], 125), []);
        let ranks = loads(&[(0, 40), (0, 30), (0, 30), (1, 10)]);
        assert_eq!(imbalance_percent(&ranks, &[0, 0]), 181);
        assert_eq!(plan(&ranks, &[0, 0], 125), [Move { rank: 0, from: 0, to: 1 }]);
        // One rank that is all the work stays where it is, and shards do not exchange ranks.
        assert_eq!(plan(&loads(&[(0, 100), (1, 0)]), &[0, 0], 125), []);
        assert_eq!(plan(&loads(&[(0, 50), (0, 50), (1, 1)]), &[0, 1], 125), []);
        assert_eq!((imbalance_percent(&[], &[0, 0]), imbalance_percent(&loads(&[(0, 0)]), &[0, 0])), (100, 100));
    }

    #[test]
    fn a_plan_ends_and_never_makes_things_worse() {
        let mut state = 3_u64;
        for _ in 0..200 {
            let mut next = || {
                state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                state >> 33
            };
            let shard_of_lane = [0, 0, 0, 1, 1];
            let of: Vec<_> = (0..40).map(|_| ((next() % 5) as usize, next() % 1000)).collect();
            let mut ranks = loads(&of);
            let before = imbalance_percent(&ranks, &shard_of_lane);
            let moves = plan(&ranks, &shard_of_lane, 110);
            for Move { rank, from, to } in &moves {
                assert_eq!(shard_of_lane[*from], shard_of_lane[*to]);
                let rank = &mut ranks[*rank as usize];
                assert_eq!(rank.lane, *from);
                rank.lane = *to;
            }
            assert!(moves.len() <= MOVES_MAX && imbalance_percent(&ranks, &shard_of_lane) <= before.max(110));
        }
    }
}
