use super::*;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

fn contents(hashes: &[u64]) -> Vec<ContentHash> {
    hashes.iter().copied().map(ContentHash).collect()
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn new(blocks_max: u32) -> Approximate {
    let settings = ApproximateSettings { blocks_max, ..ApproximateSettings::default() };
    Approximate::new(&settings, 7).unwrap()
}

fn complete(routed: &mut Approximate, now: u64, events: bool, contents: &[ContentHash], known: &[u32]) -> Overlap {
    let mut overlap = Overlap::default();
    overlap.reset(known.len());
    known.iter().zip(0..).for_each(|(blocks, slot)| overlap.credit(slot, *blocks));
    routed.complete(at(now), events, contents, &mut overlap);
    overlap
}

#[test]
fn without_events_a_worker_holds_what_it_was_sent_and_the_answer_says_that_it_is_a_guess() {
    let mut routed = new(1 << 10);
    routed.record(at(1), 0, &contents(&[1, 2, 3]));
    routed.record(at(1), 2, &contents(&[1, 2, 9, 9]));
    let overlap = complete(&mut routed, 2, false, &contents(&[1, 2, 9, 8]), &[0; 3]);
    assert_eq!(
        (overlap.blocks.as_slice(), overlap.approximate, overlap.predicted),
        ([2, 0, 3].as_slice(), true, false)
    );
    assert!((0..3).all(|slot| overlap.confirmed(slot) == 0));
    let nobody = complete(&mut routed, 2, false, &contents(&[5]), &[0; 3]);
    assert_eq!((nobody.blocks.as_slice(), nobody.approximate), ([0; 3].as_slice(), true));
}

#[test]
fn with_events_a_dispatch_is_a_prediction_beside_what_events_say() {
    let mut routed = new(1 << 10);
    let prompt = contents(&[1, 2, 3, 4]);
    routed.record(at(1), 0, &prompt);
    routed.record(at(1), 1, &prompt[..2]);
    let overlap = complete(&mut routed, 2, true, &prompt, &[1, 3, 2]);
    assert_eq!(
        (overlap.blocks.as_slice(), overlap.approximate, overlap.predicted),
        ([4, 3, 2].as_slice(), false, true)
    );
    assert_eq!([0, 1, 2].map(|slot| overlap.confirmed(slot)), [1, 3, 2]);
    let confirmed = complete(&mut routed, 2, true, &prompt, &[4, 3, 2]);
    assert!(!confirmed.predicted, "events say as much: nothing is predicted");
}

#[test]
fn a_prediction_lives_shorter_than_a_guess() {
    let mut routed = new(1 << 10);
    let prompt = contents(&[1, 2]);
    routed.record(at(0), 0, &prompt);
    assert_eq!(complete(&mut routed, 4, true, &prompt, &[0]).blocks, [2]);
    assert_eq!(complete(&mut routed, 5, true, &prompt, &[0]).blocks, [0]);
    assert_eq!(routed.next_expiry(), Some(at(5)));
    assert_eq!(complete(&mut routed, 179, false, &prompt, &[0]).blocks, [2]);
    assert_eq!(complete(&mut routed, 180, false, &prompt, &[0]).blocks, [0]);
    assert_eq!(routed.next_expiry(), Some(at(180)));
    assert!(!routed.tidy(at(180)));
    assert_eq!((routed.figures(), routed.next_expiry()), (ApproximateFigures::default(), None));
}

#[test]
fn a_block_stays_as_long_as_one_prompt_with_it() {
    let mut routed = new(1 << 10);
    for (now, prompt) in [(0, [1, 2, 3]), (50, [1, 2, 4]), (100, [1, 2, 3])] {
        routed.record(at(now), 0, &contents(&prompt));
    }
    routed.tidy(at(180));
    assert_eq!(complete(&mut routed, 180, false, &contents(&[1, 2, 3]), &[0]).blocks, [3]);
    assert_eq!(complete(&mut routed, 180, false, &contents(&[1, 2, 4]), &[0]).blocks, [3]);
    routed.tidy(at(230));
    assert_eq!(complete(&mut routed, 230, false, &contents(&[1, 2, 4]), &[0]).blocks, [2]);
    assert_eq!(routed.figures().blocks, 3);
}

#[test]
fn the_oldest_prompt_goes_for_a_new_one_and_a_prompt_beyond_the_bound_is_cut() {
    let mut routed = new(5);
    routed.record(at(0), 0, &contents(&[1, 2, 3]));
    routed.record(at(0), 1, &contents(&[4, 5]));
    routed.record(at(0), 1, &contents(&[6]));
    assert_eq!(complete(&mut routed, 1, false, &contents(&[1]), &[0; 2]).blocks, [0, 0]);
    assert_eq!(complete(&mut routed, 1, false, &contents(&[4, 5]), &[0; 2]).blocks, [0, 2]);
    let long: Vec<_> = (10..30).map(ContentHash).collect();
    routed.record(at(1), 0, &long);
    assert_eq!(complete(&mut routed, 1, false, &long, &[0; 2]).blocks, [5, 0]);
    assert_eq!(routed.figures(), ApproximateFigures { prompts: 1, blocks: 5, refused: 0 });
}

#[test]
fn a_worker_that_is_gone_or_empty_holds_nothing_and_its_slot_is_given_again() {
    let mut routed = new(1 << 10);
    let prompt = contents(&[1, 2, 3]);
    routed.record(at(0), 0, &prompt);
    routed.record(at(0), 1, &prompt);
    routed.forget(0);
    routed.forget(5);
    assert_eq!(complete(&mut routed, 1, false, &prompt, &[0; 2]).blocks, [0, 3]);
    routed.record(at(2), 0, &prompt[..2]);
    assert_eq!(complete(&mut routed, 2, false, &prompt, &[0; 2]).blocks, [2, 3]);
    // The prompt of the slot's former life leaves nothing to take from the new one.
    routed.tidy(at(181));
    assert_eq!(complete(&mut routed, 181, false, &prompt, &[0; 2]).blocks, [2, 0]);
}

#[test]
fn settings_change_while_it_runs() {
    let mut routed = new(1 << 10);
    let prompt = contents(&[1, 2, 3]);
    routed.record(at(0), 0, &prompt);
    let shorter = ApproximateSettings { age_max: at(2), blocks_max: 1 << 10, ..ApproximateSettings::default() };
    routed.configure(&shorter).unwrap();
    assert_eq!(complete(&mut routed, 1, false, &prompt, &[0]).blocks, [3]);
    assert_eq!(complete(&mut routed, 2, false, &prompt, &[0]).blocks, [0]);
    let off = ApproximateSettings { enabled: false, ..shorter };
    routed.configure(&off).unwrap();
    routed.record(at(2), 0, &prompt);
    let overlap = complete(&mut routed, 2, false, &prompt, &[1]);
    assert_eq!((overlap.blocks.as_slice(), overlap.approximate), ([1].as_slice(), false));
    assert_eq!(routed.figures(), ApproximateFigures::default());
}

/// More workers than the index takes: the others are remembered as before, and the refusal is counted.
#[test]
fn a_limit_of_the_index_is_counted_and_nothing_else() {
    let mut routed = new(1 << 18);
    for slot in 0..=WORKERS_MAX {
        routed.record(at(0), slot, &contents(&[1]));
    }
    assert_eq!(routed.figures().refused, 1);
    let known = vec![0; WORKERS_MAX as usize + 1];
    let overlap = complete(&mut routed, 1, false, &contents(&[1]), &known);
    assert_eq!(overlap.blocks.iter().sum::<u32>(), WORKERS_MAX);
}

/// The same as lists of prompts.
struct Naive {
    blocks_max: usize,
    prompts: Vec<(u64, Slot, Vec<ContentHash>)>,
}

impl Naive {
    fn blocks(&self) -> usize {
        self.prompts.iter().map(|(_, _, contents)| contents.len()).sum()
    }

    fn depth(&self, slot: Slot, query: &[ContentHash]) -> u32 {
        let of_slot = self.prompts.iter().filter(|prompt| prompt.1 == slot);
        let common = |prompt: &[ContentHash]| prompt.iter().zip(query).take_while(|(a, b)| a == b).count() as u32;
        of_slot.map(|(_, _, contents)| common(contents)).max().unwrap_or(0)
    }
}

fn random_prompt(rng: &mut StdRng) -> Vec<ContentHash> {
    // Few contents and a favourite, so that beginnings are shared and chains branch.
    let length = if rng.random_bool(0.1) { rng.random_range(30..90) } else { rng.random_range(0..9) };
    (0..length).map(|_| ContentHash(if rng.random_bool(0.7) { 1 } else { rng.random_range(1..4) })).collect()
}

#[test]
fn random_histories_are_those_of_a_naive_model_and_bounded() {
    const SLOTS: u32 = 12;
    for seed in 0..60 {
        let mut rng = StdRng::seed_from_u64(seed);
        let blocks_max = rng.random_range(1..400);
        let events = rng.random_bool(0.5);
        let mut routed = new(blocks_max);
        let age_max = if events { 5 } else { 180 };
        let (mut naive, mut now) = (Naive { blocks_max: blocks_max as usize, prompts: Vec::new() }, 0);
        // Which age counts is known from the first question on.
        complete(&mut routed, now, events, &[], &[]);
        for step in 0..600 {
            let prompt = random_prompt(&mut rng);
            let slot = rng.random_range(0..SLOTS);
            match rng.random_range(0..12) {
                0 => now += rng.random_range(0..age_max),
                1 => {
                    routed.forget(slot);
                    // Its prompts are void, but stand in the ring until it is their turn.
                    naive.prompts.iter_mut().filter(|p| p.1 == slot).for_each(|p| p.1 = SLOTS);
                }
                2..=6 => {
                    routed.record(at(now), slot, &prompt);
                    let prompt = &prompt[..prompt.len().min(naive.blocks_max)];
                    while naive.blocks() + prompt.len() > naive.blocks_max {
                        naive.prompts.remove(0);
                    }
                    naive.prompts.push((now, slot, prompt.to_vec()));
                }
                _ => {
                    assert!(!routed.tidy(at(now)), "seed {seed} step {step}");
                    naive.prompts.retain(|prompt| now < prompt.0 + age_max);
                    let known: Vec<u32> = (0..SLOTS).map(|_| rng.random_range(0..4)).collect();
                    let known = if events { known } else { vec![0; SLOTS as usize] };
                    let overlap = complete(&mut routed, now, events, &prompt, &known);
                    let depths = (0..SLOTS).zip(&known).map(|(slot, known)| naive.depth(slot, &prompt).max(*known));
                    assert_eq!(overlap.blocks, depths.collect::<Vec<_>>(), "seed {seed} step {step}");
                    assert_eq!(overlap.predicted, overlap.blocks != known && events, "seed {seed} step {step}");
                }
            }
            naive.prompts.retain(|prompt| now < prompt.0 + age_max && !prompt.2.is_empty());
            assert!(routed.figures().blocks <= u64::from(blocks_max), "seed {seed} step {step}");
            assert_eq!(routed.figures().refused, 0, "seed {seed} step {step}");
        }
    }
}
