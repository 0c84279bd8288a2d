use super::*;
use crate::routing::approximate::Approximate;
use crate::routing::columns::Status;
use crate::routing::load::RankLoad;
use crate::routing::settings::ApproximateSettings;
use crate::routing::testing::{Fleet, Prompt, busy, rank, seeded};

/// What says who the holders are.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) enum Mode {
    Events,
    Guesses,
    Heads,
}

const MODES: [Mode; 3] = [Mode::Events, Mode::Guesses, Mode::Heads];

/// A fleet with the policy, and with what is remembered of routed prompts, as a desk has it.
pub(super) struct Routed {
    pub fleet: Fleet,
    policy: CacheAware,
    approximate: Approximate,
    mode: Mode,
    booking: u64,
}

impl Routed {
    pub fn new(mode: Mode, mut fleet: Fleet) -> Self {
        if mode == Mode::Heads {
            fleet.settings.hash_mode.boundaries = vec![64, 256];
        }
        let settings = ApproximateSettings { blocks_max: 1 << 14, ..ApproximateSettings::default() };
        let approximate = Approximate::new(&settings, 1).unwrap();
        Self { fleet, policy: CacheAware::default(), approximate, mode, booking: 1 }
    }

    fn pick(&mut self, prompt: &Prompt, rng: &mut dyn Rng) -> Pick {
        if self.mode == Mode::Guesses {
            self.fleet.overlap.reset(self.fleet.columns.len());
            self.approximate.complete(self.fleet.now, false, &prompt.contents, &mut self.fleet.overlap);
        }
        self.fleet.pick(&mut self.policy, &prompt.request(self.booking), rng).expect("a worker")
    }

    pub fn dispatch(&mut self, prompt: &Prompt, rng: &mut dyn Rng) -> Pick {
        let pick = self.pick(prompt, rng);
        self.dispatched(prompt, pick.slot);
        pick
    }

    /// As if it had been sent there.
    fn dispatched(&mut self, prompt: &Prompt, slot: Slot) {
        let Fleet { now, columns, settings, .. } = &mut self.fleet;
        columns.dispatched(*now, slot, prompt.tokens.unwrap_or(1024), &settings.load);
        let news = News::Dispatched { request: prompt.request(self.booking), slot, blocks: 0 };
        self.policy.news(&self.fleet.view(&[]), self.fleet.now, news);
        self.approximate.record(self.fleet.now, slot, &prompt.contents);
        self.booking += 1;
    }

    /// Who holds the beginning of a prompt, as a decision about it sees it.
    pub fn holders(&mut self, prompt: &Prompt) -> Vec<Slot> {
        self.pick(prompt, &mut seeded(1));
        let mut holders = self.policy.holders.clone();
        holders.sort_unstable();
        holders
    }

    /// Lets a worker hold the prompt, by the mode's own means.
    fn hold(&mut self, prompt: &Prompt, slot: Slot) {
        match self.mode {
            Mode::Events => self.fleet.overlap.credit(slot, prompt.contents.len() as u32),
            Mode::Guesses | Mode::Heads => {
                self.dispatched(prompt, slot);
                self.fleet.columns.ended(slot, self.fleet.now, prompt.tokens.unwrap_or(1024));
            }
        }
    }

    /// How often each worker gets one of so many unrelated prompts.
    fn burst(&mut self, requests: u32, prompt: impl Fn(u32) -> Prompt, rng: &mut dyn Rng) -> Vec<u32> {
        let mut counts = vec![0; self.fleet.columns.len()];
        for number in 0..requests {
            counts[self.dispatch(&prompt(number), rng).slot as usize] += 1;
        }
        counts
    }
}

fn unrelated(number: u32) -> Prompt {
    Prompt::new(number + 100, 1024)
}

fn untokenized(number: u32) -> Prompt {
    Prompt { token_ids: Vec::new(), ..unrelated(number) }
}

#[test]
fn ca1_miss_burst_in_tree_mode() {
    let mut routed = Routed::new(Mode::Guesses, Fleet::of(&[rank(0, 0.36), rank(0, 0.0)]));
    assert_eq!(routed.burst(8, unrelated, &mut seeded(101)), [4, 4]);
}

#[test]
fn ca2_miss_burst_in_every_mode_behind_the_tightest_gate() {
    let cases = MODES.into_iter().map(|mode| (mode, true)).chain([(Mode::Heads, false)]);
    for (mode, tokenized) in cases {
        let prompt = if tokenized { unrelated } else { untokenized };
        // By expected wait alone, seven of eight would go to the fast one: a miss is gated as a spill is.
        let mut fleet = Fleet::of(&[rank(1, 100.0), rank(1, 1.0)]);
        fleet.settings.cache_aware.balance_abs_threshold = 0.0;
        fleet.settings.cache_aware.balance_rel_threshold = 1.0;
        assert_eq!(Routed::new(mode, fleet).burst(8, prompt, &mut seeded(102)), [4, 4], "{mode:?}");
    }
}

#[test]
fn ca3_the_burst_of_32_between_two_polls() {
    const SLOTS: u32 = 16;
    for mode in MODES {
        let (mut routed, mut rng) = (Routed::new(mode, Fleet::of(&[rank(0, 0.36), rank(0, 0.0)])), seeded(103));
        let mut counts = [0; 2];
        for number in 0..32 {
            let slot = routed.dispatch(&unrelated(number), &mut rng).slot as usize;
            counts[slot] += 1;
            assert!(counts[slot] <= SLOTS + 1 || counts[1 - slot] >= SLOTS, "{mode:?}: {counts:?}");
        }
        assert_eq!(counts, [16, 16], "{mode:?}");
    }
}

fn pressed(mode: Mode) -> Routed {
    let full = RankLoad { token_usage: 0.95, ..rank(1, 100.0) };
    let mut fleet = Fleet::of(&[full, RankLoad { token_usage: 0.1, ..rank(1, 100.0) }]);
    fleet.settings.cache_aware.balance_token_usage_threshold = 0.5;
    let mut routed = Routed::new(mode, fleet);
    routed.hold(&Prompt::new(1, 1024), 0);
    routed.fleet.in_flight(&[0, 100]);
    routed
}

#[test]
fn ca4_kv_pressure_beats_the_gate() {
    for mode in MODES {
        let mut routed = pressed(mode);
        let pick = routed.pick(&Prompt::new(1, 1024), &mut seeded(104));
        assert_eq!((pick.slot, pick.branch), (1, Branch::KvPressureMinWait), "{mode:?}");
        // Without the pressure the gate forbids it.
        routed.fleet.settings.cache_aware.balance_token_usage_threshold = 1.0;
        let pick = routed.pick(&unrelated(1), &mut seeded(104));
        assert_eq!(pick.slot, 0, "{mode:?}");
    }
}

#[test]
fn ca5_kv_pressure_comes_before_the_exits_of_hash_mode() {
    let mut routed = pressed(Mode::Heads);
    for prompt in [untokenized(1), Prompt::unknown(), Prompt::new(2, 40)] {
        let pick = routed.pick(&prompt, &mut seeded(105));
        assert_eq!((pick.slot, pick.branch), (1, Branch::KvPressureMinWait));
    }
}

#[test]
fn the_ceiling_is_a_trigger_of_its_own_and_old_records_are_none() {
    let full = RankLoad { token_usage: 0.95, ..rank(1, 100.0) };
    let mut fleet = Fleet::of(&[full, full]);
    let pressed = |fleet: &Fleet| kv_pressure::is_pressed(&fleet.view(&fleet.candidates()));
    assert!(!pressed(&fleet), "off by default");
    fleet.settings.cache_aware.overload_token_usage_threshold = 0.9;
    assert!(pressed(&fleet));
    fleet.settings.cache_aware.overload_token_usage_threshold = 0.95;
    assert!(!pressed(&fleet), "not above it");
    fleet.settings.cache_aware.overload_token_usage_threshold = f64::NAN;
    assert!(!pressed(&fleet));
    fleet.settings.cache_aware.overload_token_usage_threshold = 0.9;
    (0..2).for_each(|slot| fleet.columns.darken(slot));
    assert!(!pressed(&fleet));
}

fn four(mode: Mode, in_flight: [u32; 4]) -> Routed {
    let mut routed = Routed::new(mode, Fleet::of(&[busy(0); 4]));
    routed.hold(&Prompt::new(1, 1024), 0);
    routed.fleet.in_flight(&in_flight);
    routed
}

#[test]
fn ca7_hit_under_the_gate() {
    for mode in MODES {
        let pick = four(mode, [40, 4, 4, 4]).pick(&Prompt::new(1, 1024), &mut seeded(107));
        assert_eq!((pick.slot, pick.branch), (0, Branch::Hit), "{mode:?}");
    }
}

#[test]
fn ca8_a_hot_holder_spills_and_the_next_prompt_has_two() {
    for mode in MODES {
        let (mut routed, prompt, mut rng) = (four(mode, [47, 4, 4, 4]), Prompt::new(1, 1024), seeded(108));
        let spill = routed.dispatch(&prompt, &mut rng);
        assert!(spill.slot != 0 && spill.branch == Branch::Spill, "{mode:?}: {spill:?}");
        if mode == Mode::Events {
            // Its events show it.
            routed.hold(&prompt, spill.slot);
        }
        let pick = routed.pick(&prompt, &mut rng);
        assert_eq!((routed.holders(&prompt), pick.branch), (vec![0, spill.slot], Branch::Hit), "{mode:?}");
    }
}

#[test]
fn ca9_dead_holder() {
    for mode in MODES {
        let (mut routed, prompt, mut rng) = (four(mode, [0; 4]), Prompt::new(1, 1024), seeded(109));
        routed.fleet.put(0, Status::VETOED, true);
        let pick = routed.dispatch(&prompt, &mut rng);
        assert!(pick.slot != 0 && pick.branch == Branch::Miss, "{mode:?}: {pick:?}");
        // Once the dead worker is gone for good, the only holder is who got the request.
        let gone = News::Emptied { slot: 0, gone: true };
        routed.policy.news(&routed.fleet.view(&[]), routed.fleet.now, gone);
        routed.approximate.forget(0);
        routed.fleet.put(0, Status::VETOED, false);
        if mode == Mode::Events {
            routed.fleet.hold(&[0; 4]);
            routed.hold(&prompt, pick.slot);
        }
        let next = routed.pick(&prompt, &mut rng);
        assert_eq!((next.slot, next.branch), (pick.slot, Branch::Hit), "{mode:?}");
    }
}

#[test]
fn ca10_an_index_that_holds_nothing_of_the_model_is_not_asked() {
    let mut fleet = Fleet::of(&[busy(0); 3]);
    let settings = ApproximateSettings { blocks_max: 1 << 14, ..ApproximateSettings::default() };
    let mut approximate = Approximate::new(&settings, 1).unwrap();
    let (mut policy, mut rng, prompt) = (CacheAware::default(), seeded(110), Prompt::new(1, 160));
    approximate.record(fleet.now, 2, &prompt.contents[..5]);
    // 5 of 10 blocks: as events they would count; as a guess it takes more than half.
    for (events, branch) in [(false, Branch::Miss), (true, Branch::Hit)] {
        fleet.overlap.reset(3);
        approximate.complete(fleet.now, events, &prompt.contents, &mut fleet.overlap);
        assert_eq!((fleet.overlap.approximate, fleet.overlap.predicted), (!events, events));
        assert_eq!(fleet.pick(&mut policy, &prompt.request(1), &mut rng).unwrap().branch, branch);
    }
    approximate.record(fleet.now, 2, &prompt.contents[..6]);
    fleet.overlap.reset(3);
    approximate.complete(fleet.now, false, &prompt.contents, &mut fleet.overlap);
    let pick = fleet.pick(&mut policy, &prompt.request(1), &mut rng).unwrap();
    assert_eq!((pick.slot, pick.branch), (2, Branch::Hit));
}

#[test]
fn a_prompt_shorter_than_a_block_and_an_overlap_below_the_least_are_misses() {
    let mut fleet = Fleet::of(&[busy(0), busy(500)]);
    let (mut policy, mut rng) = (CacheAware::default(), seeded(111));
    let pick = fleet.pick(&mut policy, &Prompt::new(1, 10).request(1), &mut rng).unwrap();
    assert_eq!((pick.slot, pick.branch), (0, Branch::Miss));
    fleet.settings.cache_aware.event_min_overlap_blocks = 4;
    for (blocks, slot, branch) in [(3, 0, Branch::Miss), (4, 1, Branch::Hit)] {
        fleet.hold(&[0, blocks]);
        let pick = fleet.pick(&mut policy, &Prompt::new(1, 1024).request(1), &mut rng).unwrap();
        assert_eq!((pick.slot, pick.branch), (slot, branch));
    }
}

#[test]
fn another_holder_that_is_not_gated_comes_before_a_spill() {
    let mut routed = four(Mode::Events, [47, 4, 4, 4]);
    routed.fleet.record(3, &[busy(90_000)]);
    routed.hold(&Prompt::new(1, 1024), 3);
    let pick = routed.pick(&Prompt::new(1, 1024), &mut seeded(112));
    assert_eq!((pick.slot, pick.branch), (3, Branch::Hit), "however long its queue is");
}

#[test]
fn the_deepest_holders_share_by_expected_wait() {
    let mut fleet = Fleet::of(&[busy(4000), busy(1000), busy(0), busy(1000)]);
    fleet.hold(&[8, 8, 7, 8]);
    let counts = fleet.shares(PolicyName::CacheAware, 1000, &Prompt::new(1, 1024), &mut seeded(113));
    assert!(counts[0] == 0 && counts[2] == 0, "{counts:?}");
    assert!((430..=570).contains(&counts[1]), "{counts:?}");
}

#[test]
fn decay_prefers_the_holder_with_less_queued_and_spares_dark_ones() {
    // As fast as it is, the first has the least expected wait.
    let fast = RankLoad { waiting_uncached_tokens: 4096, ..rank(1, 1e6) };
    let mut fleet = Fleet::of(&[fast, busy(0)]);
    fleet.hold(&[8, 8]);
    let pick = |fleet: &Fleet| {
        let (mut policy, mut trace) = (CacheAware::default(), Trace::on());
        let (candidates, prompt) = (fleet.candidates(), Prompt::new(1, 1024));
        let request = prompt.request(1);
        let pick = policy.pick(&fleet.view(&candidates), &request, &mut seeded(114), &mut trace).unwrap();
        let scores = trace.rows().iter().filter(|row| row.what == "score").map(|row| row.value).collect::<Vec<_>>();
        (pick.slot, scores)
    };
    assert_eq!(pick(&fleet), (0, vec![]));
    fleet.settings.cache_aware.overlap_decay = 0.5;
    // Four prompts of 1,024 tokens more: 1 / (1 + 0.5 · 4).
    assert_eq!(pick(&fleet), (1, vec![1.0 / 3.0, 1.0]));
    fleet.columns.darken(0);
    assert_eq!(pick(&fleet).1, [1.0, 1.0]);
    for odd in [f64::NAN, -1.0, f64::INFINITY] {
        fleet.settings.cache_aware.overlap_decay = odd;
        assert_eq!(pick(&fleet).1, [0.0; 0], "off");
    }
}

#[test]
fn temperature_draws_by_score() {
    let mut fleet = Fleet::of(&[busy(0), busy(1024), busy(3072)]);
    fleet.hold(&[8, 8, 8]);
    fleet.settings.cache_aware.selection_temperature = 0.5;
    let mut rng = seeded(115);
    let prompt = Prompt::new(1, 1024);
    let counts = fleet.shares(PolicyName::CacheAware, 9000, &prompt, &mut rng);
    assert!(
        counts.iter().all(|count| (2_820..=3_180).contains(count)),
        "equal scores, whatever they queue: {counts:?}"
    );
    // Scores 1, 1/2, 1/4: of the range 1, 1/3, 0, so that weights are exp(0), exp(-4/3), exp(-2).
    fleet.settings.cache_aware.overlap_decay = 1.0;
    let counts = fleet.shares(PolicyName::CacheAware, 9000, &prompt, &mut rng);
    let weights = [1.0, (-4.0_f64 / 3.0).exp(), (-2.0_f64).exp()];
    for (count, weight) in counts.iter().zip(weights) {
        let expected = 9000.0 * weight / weights.iter().sum::<f64>();
        let deviation = (expected * (1.0 - expected / 9000.0)).sqrt();
        assert!((f64::from(*count) - expected).abs() < 4.0 * deviation, "{counts:?}, {expected}");
    }
    // No weight for anybody but the first, and the first is gated.
    fleet.settings.cache_aware.selection_temperature = 1e-9;
    fleet.in_flight(&[100, 0, 0]);
    let counts = fleet.shares(PolicyName::CacheAware, 100, &prompt, &mut rng);
    assert_eq!(counts, [0, 100, 0]);
}

#[test]
fn of_a_thousand_holders_a_few_are_looked_at_and_all_are_chosen_as_often() {
    let mut fleet = Fleet::of(&[busy(0); 1024]);
    fleet.hold(&[5; 1024]);
    let (mut policy, mut rng, prompt) = (CacheAware::default(), seeded(116), Prompt::new(1, 1024));
    let mut counts = vec![0_u32; 8];
    for _ in 0..4000 {
        let pick = fleet.pick(&mut policy, &prompt.request(1), &mut rng).unwrap();
        assert_eq!((policy.holders.len(), pick.branch), (32, Branch::Hit));
        counts[pick.slot as usize / 128] += 1;
    }
    // 500 of 4,000 with a deviation of 21.
    assert!(counts.iter().all(|count| (416..=584).contains(count)), "{counts:?}");
}

#[test]
fn hash_mode_remembers_every_dispatch_whoever_chose() {
    let mut routed = Routed::new(Mode::Heads, Fleet::of(&[busy(0); 4]));
    let (prompt, mut rng) = (Prompt::new(9, 1024), seeded(117));
    routed.dispatched(&prompt, 2);
    assert_eq!(routed.pick(&prompt, &mut rng).slot, 2);
    routed.fleet.now += routed.fleet.settings.hash_mode.ttl;
    assert_eq!(routed.pick(&prompt, &mut rng).branch, Branch::Miss);
    assert_eq!(routed.policy.heads.len(), 0, "pruned on the way");
}
