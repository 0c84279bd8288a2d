use super::*;
use crate::routing::load::{LoadReport, RankLoad, WorkerLoad};
use crate::routing::testing::{Fleet, Prompt, seeded, varied};
use rand::RngExt;

const BLOCKS: u32 = 64;

fn rank(running: i64, waiting: i64, cap: i64, usage: f64) -> RankLoad {
    RankLoad { running, waiting, max_running: cap, token_usage: usage, ..RankLoad::default() }
}

fn idle() -> RankLoad {
    rank(0, 0, 38, 0.0)
}

/// The trapped owner of OP3.
fn trapped() -> RankLoad {
    rank(38, 36, 38, 0.12)
}

fn prompt() -> Prompt {
    Prompt::new(1, u64::from(BLOCKS) * 16)
}

/// A fleet of which the first holds the prompt.
fn owned(ranks: &[RankLoad]) -> Fleet {
    let mut fleet = Fleet::of(ranks);
    fleet.overlap.credit(0, BLOCKS);
    fleet
}

fn pick(fleet: &Fleet) -> (Slot, Branch) {
    let pick = fleet.pick(&mut OwnerPressure::default(), &prompt().request(1), &mut seeded(200)).unwrap();
    (pick.slot, pick.branch)
}

fn pressures(fleet: &Fleet) -> Vec<f64> {
    let candidates = fleet.candidates();
    let view = fleet.view(&candidates);
    let pressure = Pressure::of(&view, [].iter());
    let known = candidates.iter().map(|slot| pressure.known(*slot).map_or(-1.0, |is| (is * 1000.0).round() / 1000.0));
    known.collect()
}

#[test]
fn op1_below_watermark() {
    let fleet = owned(&[rank(33, 0, 38, 0.0), idle()]);
    assert_eq!(pressures(&fleet), [0.868, 0.0]);
    assert_eq!(pick(&fleet), (0, Branch::CachedOwnerHold));
}

#[test]
fn op2_spill_at_release() {
    let fleet = owned(&[rank(35, 0, 38, 0.12), idle()]);
    assert_eq!(pressures(&fleet), [0.921, 0.0]);
    assert_eq!(pick(&fleet), (1, Branch::OwnerPressureSpill));
}

#[test]
fn op3_trapped_owner() {
    let fleet = owned(&[trapped(), idle()]);
    assert_eq!(pressures(&fleet), [1.947, 0.0]);
    assert_eq!(pick(&fleet), (1, Branch::OwnerPressureSpill));
}

#[test]
fn op4_observed_hot_owner() {
    let fleet = owned(&[rank(37, 116, 37, 0.0), idle()]);
    assert_eq!(pressures(&fleet), [4.135, 0.0]);
    assert_eq!(pick(&fleet), (1, Branch::OwnerPressureSpill));
}

#[test]
fn op5_multi_dp() {
    let mut fleet = owned(&[idle(), idle()]);
    fleet.record(0, &[rank(19, 1, 19, 0.0), rank(18, 0, 19, 0.0)]);
    assert_eq!(pressures(&fleet), [1.0, 0.0]);
    assert_eq!(pick(&fleet), (1, Branch::OwnerPressureSpill));
}

#[test]
fn op6_one_rank_without_cap() {
    let mut fleet = owned(&[trapped(), idle()]);
    fleet.record(1, &[rank(0, 0, 19, 0.0), rank(0, 0, 0, 0.0)]);
    assert_eq!(pressures(&fleet), [0.12, 0.0]);
    assert_eq!(pick(&fleet), (0, Branch::CachedOwnerHold));
}

#[test]
fn op7_stale_cap_of_a_third_worker() {
    let mut fleet = owned(&[trapped(), idle(), idle()]);
    assert_ne!(pick(&fleet).0, 0);
    fleet.columns.fresh_until[2] = fleet.now.as_nanos() as u64 - 1;
    assert_eq!(pressures(&fleet), [0.12, 0.0, -1.0]);
    assert_eq!(pick(&fleet), (0, Branch::CachedOwnerHold));
}

/// A scrape of sixteen tensor-parallel workers that each count all 35.
#[test]
fn op8_scraped_counts() {
    let fleet = owned(&[rank(16 * 35, 0, 0, 0.12), idle()]);
    assert_eq!(pressures(&fleet), [0.12, 0.0]);
    assert_eq!(pick(&fleet), (0, Branch::CachedOwnerHold));
}

#[test]
fn op9_second_suitable_owner() {
    let mut fleet = owned(&[rank(38, 0, 40, 0.0), rank(16, 0, 40, 0.0), rank(0, 0, 40, 0.0)]);
    fleet.overlap.credit(1, BLOCKS);
    assert_eq!(pressures(&fleet), [0.95, 0.4, 0.0]);
    assert_eq!(pick(&fleet), (1, Branch::CachedOwnerHold));
}

#[test]
fn op10_saturated_peers() {
    let fleet = owned(&[rank(38, 38, 40, 0.0), rank(36, 0, 40, 0.0), rank(0, 0, 40, 0.97)]);
    assert_eq!(pressures(&fleet), [1.9, 0.9, 0.97], "exactly the watermark is pressured");
    assert_eq!(pick(&fleet), (0, Branch::NoSafeSpillHold));
}

#[test]
fn op11_slack() {
    let fleet = owned(&[rank(93, 0, 100, 0.0), rank(85, 0, 100, 0.0)]);
    assert_eq!(pressures(&fleet), [0.93, 0.85]);
    assert_eq!(pick(&fleet), (0, Branch::NoSafeSpillHold));
    let fleet = owned(&[rank(93, 0, 100, 0.0), rank(82, 0, 100, 0.0)]);
    assert_eq!(pick(&fleet), (1, Branch::OwnerPressureSpill));
}

/// A policy and its fleet, and what its decisions were.
struct Played {
    fleet: Fleet,
    policy: OwnerPressure,
    booking: u64,
    rng: rand::rngs::StdRng,
}

impl Played {
    fn new(fleet: Fleet) -> Self {
        Self { fleet, policy: OwnerPressure::default(), booking: 0, rng: seeded(212) }
    }

    /// Another request, dispatched.
    fn next(&mut self, prompt: &Prompt) -> (Slot, Branch) {
        self.booking += 1;
        let request = prompt.request(self.booking);
        let pick = self.fleet.pick(&mut self.policy, &request, &mut self.rng).unwrap();
        self.fleet.columns.dispatched(
            self.fleet.now,
            pick.slot,
            request.tokens_or(0.0) as u64,
            &self.fleet.settings.load,
        );
        self.tell(News::Dispatched { request, slot: pick.slot, blocks: 0 });
        (pick.slot, pick.branch)
    }

    fn tell(&mut self, news: News<'_>) {
        self.policy.news(&self.fleet.view(&[]), self.fleet.now, news);
    }

    fn wait(&mut self, seconds: f64) {
        self.fleet.now += Duration::from_secs_f64(seconds);
        // Every record is told again, so that none is old.
        let now = self.fleet.now.as_nanos() as u64;
        self.fleet.columns.fresh_until.fill(now + 1_000_000_000);
    }
}

#[test]
fn op12_coalescing() {
    let mut played = Played::new(owned(&[trapped(), idle()]));
    assert_eq!(played.next(&prompt()), (1, Branch::OwnerPressureSpill));
    for _ in 0..10 {
        assert_eq!(played.next(&prompt()), (1, Branch::OwnerPressureCoalesce));
    }
    // 35 of 38 are below the watermark no more; the cooldown is not over, and the peer is the less pressured owner.
    for _ in 11..35 {
        assert_eq!(played.next(&prompt()).1, Branch::OwnerPressureCoalesce);
    }
    assert_eq!(played.next(&prompt()), (1, Branch::ReplicationHold));
}

#[test]
fn op13_ceiling() {
    let owner = |running| rank(running, 0, 100, 0.0);
    let mut fleet = Fleet::of(&[owner(99), owner(98), owner(93), owner(97), owner(0)]);
    (0..4).for_each(|slot| fleet.overlap.credit(slot, BLOCKS));
    // A pressure of one hundred tells more than the wait.
    assert_eq!(pick(&fleet), (2, Branch::ReplicationHold));
    fleet.settings.owner_pressure.owners_max = 5;
    assert_eq!(pick(&fleet), (4, Branch::OwnerPressureSpill));
    // Also where fewer owners are looked at than there are.
    (fleet.settings.owner_pressure.owners_max, fleet.settings.holders_max) = (4, 1);
    assert_eq!(pick(&fleet).1, Branch::ReplicationHold);
}

#[test]
fn op14_malformed_record() {
    let malformed = [
        vec![RankLoad { waiting: -1, ..trapped() }],
        vec![RankLoad { token_usage: f64::NAN, ..trapped() }],
        vec![trapped(), trapped()],
    ];
    for ranks in malformed {
        let mut fleet = owned(&[trapped(), idle()]);
        // The whole record is refused, and what was known before is not believed any more.
        let report = LoadReport { rank_count: ranks.len() as u32, ranks, ..LoadReport::default() };
        let refused = WorkerLoad::from_report(&report).unwrap_err();
        fleet.columns.darken(0);
        assert_eq!(pressures(&fleet), [-1.0, 0.0], "{refused:?}");
        assert_eq!(pick(&fleet), (0, Branch::CachedOwnerHold), "{refused:?}");
    }
    // No headroom is seen at a peer with such a record, whatever the last valid one said.
    let mut fleet = owned(&[rank(0, 0, 38, 0.95), idle()]);
    assert_eq!(pick(&fleet).0, 1);
    fleet.columns.darken(1);
    assert_eq!(pick(&fleet), (0, Branch::NoSafeSpillHold));
}

#[test]
fn a_dark_owner_is_as_pressured_as_the_others_are() {
    let mut fleet = owned(&[rank(0, 0, 0, 0.95), idle(), rank(0, 0, 0, 0.4)]);
    fleet.overlap.credit(1, BLOCKS);
    fleet.columns.darken(1);
    assert_eq!(pick(&fleet), (2, Branch::OwnerPressureSpill), "and so not below the watermark");
    fleet.overlap.credit(2, BLOCKS);
    assert_eq!(pick(&fleet), (2, Branch::CachedOwnerHold));
}

#[test]
fn the_first_owner_of_a_prefix_is_the_least_wait_and_the_next_requests_follow() {
    let mut fleet = Fleet::of(&[RankLoad { waiting: 9, ..idle() }, idle(), RankLoad { waiting: 9, ..idle() }]);
    fleet.settings.load.ack_delay = Duration::ZERO;
    let mut played = Played::new(fleet);
    assert_eq!(played.next(&prompt()), (1, Branch::OwnerBootstrap));
    assert_eq!(played.next(&prompt()), (1, Branch::OwnerPressureCoalesce));
    assert_eq!(played.next(&Prompt::new(2, 1024)).1, Branch::OwnerBootstrap, "another prompt");
    assert_eq!(played.next(&Prompt::new(3, 8)).1, Branch::Miss, "shorter than a block");
    // The first owner is no expansion: under pressure another one may follow at once.
    played.fleet.record(1, &[trapped()]);
    assert_eq!(played.next(&prompt()).1, Branch::OwnerPressureSpill);
    assert_eq!(played.next(&prompt()).1, Branch::OwnerPressureCoalesce);
}

#[test]
fn a_provisional_owner_is_forgotten_unless_something_shows_that_it_is_one() {
    let trapped = || Played::new(owned(&[trapped(), idle(), rank(20, 0, 38, 0.95)]));
    let spilled = || {
        let mut played = trapped();
        assert_eq!(played.next(&prompt()), (1, Branch::OwnerPressureSpill));
        played
    };
    let mut played = spilled();
    played.wait(9.9);
    assert_eq!(played.next(&prompt()), (1, Branch::OwnerPressureCoalesce));
    played.wait(0.1);
    assert_eq!(played.next(&prompt()), (1, Branch::OwnerPressureSpill), "forgotten, and chosen again");

    // Its events show it, and later that it is gone.
    let mut played = spilled();
    played.fleet.overlap.credit(1, BLOCKS);
    assert_eq!(played.next(&prompt()), (1, Branch::CachedOwnerHold));
    played.fleet.overlap.blocks[1] = BLOCKS - 1;
    played.wait(5.0);
    assert_eq!(played.next(&prompt()), (1, Branch::OwnerPressureSpill));

    // A clean end proves it, for as long again.
    let mut played = spilled();
    played.wait(9.0);
    played.tell(News::Ended { booking: 1, slot: 1, clean: true });
    assert_eq!(played.next(&prompt()), (1, Branch::CachedOwnerHold));
    played.wait(9.9);
    assert_eq!(played.next(&prompt()), (1, Branch::CachedOwnerHold));
    played.wait(0.1);
    assert_eq!(played.next(&prompt()).1, Branch::OwnerPressureSpill);

    // Another end proves nothing; an empty cache disproves.
    let mut played = spilled();
    played.tell(News::Ended { booking: 1, slot: 1, clean: false });
    assert_eq!(played.next(&prompt()), (1, Branch::OwnerPressureCoalesce));
    played.tell(News::Emptied { slot: 1, gone: false });
    assert_eq!(played.next(&prompt()).1, Branch::ReplicationHold, "no owner any more, but too soon for another");
}

#[test]
fn what_is_not_dispatched_makes_no_owner() {
    let mut played = Played::new(owned(&[trapped(), idle(), idle()]));
    for _ in 0..3 {
        assert_eq!(pick(&played.fleet).1, Branch::OwnerPressureSpill);
    }
    let prompt = prompt();
    let chosen = |played: &mut Played| {
        let pick = played.fleet.pick(&mut played.policy, &prompt.request(1), &mut played.rng).unwrap();
        assert_eq!(pick.branch, Branch::OwnerPressureSpill);
        pick.slot
    };
    // Asked only; given to somebody else; another request under the same number.
    chosen(&mut played);
    let slot = chosen(&mut played);
    played.tell(News::Dispatched { request: prompt.request(1), slot: 3 - slot, blocks: 0 });
    let slot = chosen(&mut played);
    played.tell(News::Dispatched { request: Prompt::new(5, 1024).request(1), slot, blocks: 0 });
    let slot = chosen(&mut played);
    played.tell(News::Dispatched { request: prompt.request(2), slot, blocks: 0 });
    assert_eq!(played.policy.prefixes.sizes(), (0, 0));
    let slot = chosen(&mut played);
    played.tell(News::Dispatched { request: prompt.request(1), slot, blocks: 0 });
    assert_eq!(played.policy.prefixes.sizes(), (1, 1));
}

#[test]
fn a_prediction_makes_no_owner_and_a_guess_does() {
    let mut fleet = owned(&[trapped(), idle()]);
    fleet.overlap.predict(1, BLOCKS);
    assert_eq!(pick(&fleet), (1, Branch::OwnerPressureSpill), "its events do not show it");
    let mut fleet = owned(&[idle(), idle()]);
    fleet.overlap.approximate = true;
    assert_eq!(pick(&fleet), (0, Branch::CachedOwnerHold));
    fleet.overlap.blocks[0] = BLOCKS / 2;
    assert_eq!(pick(&fleet).1, Branch::OwnerBootstrap, "half of a prompt is no match");
}

#[test]
fn kv_pressure_comes_first() {
    let mut fleet = owned(&[rank(0, 0, 38, 0.8), idle()]);
    fleet.settings.cache_aware.overload_token_usage_threshold = 0.7;
    assert_eq!(pick(&fleet), (1, Branch::KvPressureMinWait));
}

#[test]
fn a_thousand_candidates_that_all_own_it() {
    let mut fleet = Fleet::of(&[trapped(); 1024]);
    (0..1024).for_each(|slot| fleet.overlap.credit(slot, BLOCKS));
    assert_eq!(pick(&fleet).1, Branch::ReplicationHold);
}

#[test]
fn random_histories_keep_the_table_bounded_and_the_owners_few() {
    for seed in 0..40 {
        let mut rng = varied(seed);
        let workers = rng.random_range(2..9);
        let mut played = Played::new(Fleet::of(&vec![idle(); workers]));
        let settings = &mut played.fleet.settings.owner_pressure;
        settings.prefixes_max = rng.random_range(1..6);
        settings.owners_max = rng.random_range(1..4);
        let (max, owners_max, prompts) = (settings.prefixes_max, settings.owners_max, rng.random_range(1..12));
        for step in 0..400 {
            let slot = rng.random_range(0..workers as Slot);
            match rng.random_range(0..10) {
                0 => played.wait(rng.random_range(0.0..4.0)),
                1 => played.tell(News::Emptied { slot, gone: rng.random_bool(0.5) }),
                2 => {
                    let booking = rng.random_range(0..played.booking + 1);
                    played.tell(News::Ended { booking, slot, clean: rng.random_bool(0.7) });
                }
                3 => {
                    let load = rank(rng.random_range(0..39), rng.random_range(0..40), 38, rng.random_range(0.0..1.0));
                    played.fleet.record(slot, &[load]);
                }
                4 => played.fleet.overlap.blocks[slot as usize] = rng.random_range(0..BLOCKS),
                _ => {
                    played.next(&Prompt::new(rng.random_range(0..prompts), u64::from(BLOCKS) * 16));
                    let policy = &played.policy;
                    let not_shown = policy.provisional.len() + policy.proven.len();
                    assert!(not_shown <= owners_max, "seed {seed} step {step}: {not_shown} of {owners_max}");
                }
            }
            let (known, made_by) = played.policy.prefixes.sizes();
            assert!(known <= max && made_by <= max, "seed {seed} step {step}: {known} and {made_by} of {max}");
        }
    }
}
