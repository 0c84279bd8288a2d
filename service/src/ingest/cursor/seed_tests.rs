use super::recovery_tests::asked_for_its_state;
use super::tests::Rig;
use super::*;
use crate::seed::Proof;
use xxhash_rust::xxh3::xxh3_64;

/// A seed of life `life` with its newest batches up to `cursor`.
fn cut(life: char, cursor: u64) -> Cut {
    let proof = |sequence| Proof { sequence, payload_hash: xxh3_64(format!("{life}{sequence}").as_bytes()) };
    Cut {
        cursor,
        incarnation: 3,
        trust: Trust::Exact,
        proofs: (cursor.saturating_sub(2)..=cursor).map(proof).collect(),
    }
}

/// A rank that starts with this seed, connected: the seed's question is the first one.
fn asked(seed: Cut) -> Rig {
    let mut rig = Rig::new(true);
    let cursor = seed.cursor;
    assert!(rig.step(Input::Seed(seed)).is_empty());
    assert_eq!(rig.trust(), Trust::NeverSeen);
    assert_eq!(rig.step(Input::Connected), [format!("ask {cursor}")]);
    assert_eq!(rig.trust(), Trust::Bootstrapping);
    rig
}

/// Nothing came of the seed: the rank is filled as if there had been none.
fn filled_without(mut rig: Rig, reason: &str) {
    assert_eq!((rig.count(reason), rig.count("seeds_loaded")), (1, 0));
    assert_eq!(rig.trust(), Trust::Bootstrapping);
    let applied = rig.replay('b', 0..3);
    assert_eq!(applied, ["0:b0", "1:b1", "2:b2"]);
    rig.end();
    assert_eq!((rig.trust(), rig.cursor.incarnation(), rig.count("restarts")), (Trust::Exact, 1, 0));
}

#[test]
fn a_seed_is_loaded_when_the_batch_at_its_cursor_comes_back() {
    let mut rig = asked(cut('a', 7));
    assert!(rig.live('a', 10).is_empty(), "held");
    assert_eq!(rig.replay('a', [7, 8, 9]), ["seed 7", "8:a8", "9:a9"]);
    assert_eq!(rig.trust(), Trust::Bootstrapping, "what follows is not known yet");
    assert_eq!(rig.end(), ["10:a10"]);
    assert_eq!((rig.trust(), rig.cursor.applied(), rig.cursor.incarnation()), (Trust::Exact, Some(10), 3));
    assert_eq!((rig.count("seeds_loaded"), rig.count("restarts"), rig.count("gaps")), (1, 0, 0));
    assert_eq!(rig.live('a', 11), ["11:a11"]);
    // Its proofs are remembered like batches that were applied.
    assert!(rig.live('a', 6).is_empty());
    assert_eq!(rig.count("stale"), 1);
}

#[test]
fn a_live_batch_before_the_cursor_proves_a_seed_as_well() {
    let mut rig = asked(cut('a', 7));
    assert_eq!(rig.live('a', 6), ["seed 7"]);
    assert_eq!(rig.trust(), Trust::Bootstrapping);
    // The replay stays mute, and nothing is missing.
    assert!(rig.live('a', 7).is_empty());
    assert!(rig.live('a', 8).is_empty(), "held behind the answer");
    assert_eq!(rig.wait(2), ["cancel", "8:a8"]);
    assert_eq!((rig.trust(), rig.count("stale")), (Trust::Exact, 2));

    // Also where there is no replay endpoint at all.
    let mut rig = Rig::new(false);
    rig.step(Input::Seed(cut('a', 7)));
    assert!(rig.step(Input::Connected).is_empty());
    assert_eq!(rig.live('a', 5), ["seed 7"]);
    assert_eq!([rig.live('a', 6), rig.live('a', 7)], [[""; 0]; 2]);
    assert_eq!(rig.live('a', 8), ["8:a8"]);
    assert_eq!((rig.trust(), rig.count("gaps")), (Trust::Exact, 0));
}

#[test]
fn another_life_is_told_by_its_payload_even_at_the_same_sequence() {
    let mut rig = asked(cut('a', 7));
    assert_eq!(rig.replay('b', [7]), ["drop seed", "cancel", "ask 0"]);
    filled_without(rig, "seed_dropped_other_life");

    let mut rig = asked(cut('a', 7));
    assert_eq!(rig.live('b', 6), ["drop seed", "cancel", "ask 0"], "a live batch tells, too");
    assert_eq!(rig.replay('b', 0..=6).len(), 7);
    rig.end();
    assert_eq!((rig.trust(), rig.count("seed_dropped_other_life")), (Trust::Exact, 1));
}

#[test]
fn a_younger_life_does_not_know_the_batch() {
    let mut rig = asked(cut('a', 7));
    assert_eq!(rig.end(), ["drop seed", "cancel", "ask 0"]);
    filled_without(rig, "seed_dropped_unknown_batch");
}

#[test]
fn a_ring_that_rolled_over_proves_nothing() {
    let mut rig = asked(cut('a', 7));
    assert_eq!(rig.replay('a', [8]), ["drop seed", "cancel", "ask 0"]);
    assert_eq!(rig.count("seed_dropped_rolled_over"), 1);
    rig.replay('a', [8, 9]);
    rig.end();
    assert_eq!(rig.trust(), Trust::Partial, "as without a seed");
}

#[test]
fn a_mute_replay_is_not_waited_for_long() {
    let mut rig = asked(cut('a', 7));
    let silence = IngestLimits::default().replay_silence_max;
    assert_eq!(rig.cursor.next_tick(), Some(silence));
    assert_eq!(rig.wait(silence.as_secs()), ["drop seed", "cancel", "ask 0"]);
    filled_without(rig, "seed_dropped_no_answer");
    let mut rig = asked(cut('a', 7));
    assert_eq!(rig.fail(), ["drop seed", "cancel", "ask 0"]);
    filled_without(rig, "seed_dropped_no_answer");
}

#[test]
fn without_a_replay_the_first_live_batch_decides() {
    for first in [0, 4, 8, 9] {
        let mut rig = Rig::new(false);
        rig.step(Input::Seed(cut('a', 7)));
        rig.step(Input::Connected);
        // Batch 8 would follow, but whose life is it?
        assert_eq!(rig.live('a', first), ["drop seed".to_owned(), format!("{first}:a{first}")]);
        assert_eq!(rig.count("seed_dropped_no_replay"), 1);
        assert_eq!(rig.trust(), if first == 0 { Trust::Exact } else { Trust::Partial });
    }
}

#[test]
fn the_question_is_asked_again_after_a_reconnection() {
    let mut rig = asked(cut('a', 7));
    rig.step(Input::Disconnected);
    assert_eq!(rig.step(Input::Connected), ["cancel", "ask 7"]);
    assert_eq!(rig.replay('a', [7]), ["seed 7"]);
    rig.end();
    assert_eq!(rig.trust(), Trust::Exact);
}

#[test]
fn a_seed_that_comes_late_puts_the_history_off() {
    let mut rig = Rig::new(true);
    assert_eq!(rig.step(Input::Connected), ["ask 0"]);
    rig.replay('a', 0..3);
    assert_eq!(rig.step(Input::Seed(cut('a', 7))), ["ask 7"]);
    assert_eq!(rig.trust(), Trust::Bootstrapping);
    assert_eq!(rig.replay('a', [7, 8]), ["seed 7", "8:a8"]);
    rig.end();
    assert_eq!(rig.trust(), Trust::Exact);

    // Nothing comes of it: the history goes on where it was, if the publisher is still the same one.
    let mut rig = Rig::new(true);
    rig.step(Input::Connected);
    rig.replay('a', 0..3);
    rig.step(Input::Seed(cut('b', 7)));
    assert_eq!(rig.replay('a', [7]), ["drop seed", "cancel", "ask 2"]);
    assert_eq!(rig.replay('a', 2..9).len(), 6);
    rig.end();
    assert_eq!(rig.trust(), Trust::Exact);
}

#[test]
fn a_seed_makes_a_rank_exact_that_joined_late() {
    let mut rig = Rig::new(true);
    rig.step(Input::Connected);
    rig.replay('a', [5, 6, 7]);
    rig.end();
    assert_eq!(rig.trust(), Trust::Partial);
    assert_eq!(rig.step(Input::Seed(cut('a', 6))), ["ask 6"]);
    assert_eq!(rig.trust(), Trust::Partial, "nothing is given away before the answer is known");
    assert_eq!(rig.replay('a', [6, 7]), ["seed 6", "7:a7"]);
    rig.end();
    assert_eq!((rig.trust(), rig.cursor.applied()), (Trust::Exact, Some(7)));

    // One that is exact has no use for any; nor one that is not, for a state that is not.
    assert_eq!(rig.step(Input::Seed(cut('a', 6))), ["drop seed"]);
    rig.cursor.history_lost("for this test");
    assert_eq!(rig.step(Input::Seed(Cut { trust: Trust::Partial, ..cut('a', 6) })), ["drop seed"]);
    assert_eq!(rig.count("seed_dropped_not_needed"), 2);
}

#[test]
fn a_state_that_was_not_exact_is_none_after_it_was_loaded() {
    let mut rig = asked(Cut { trust: Trust::Degraded, ..cut('a', 7) });
    rig.replay('a', [7, 8]);
    rig.end();
    assert_eq!(rig.trust(), Trust::Degraded);
    assert_eq!(rig.wait(0), ["ask 0"], "the usual recovery");
    rig.fail();
    rig.live('a', 9);
    rig.cursor.cleared(9);
    assert_eq!(rig.trust(), Trust::Exact);
}

#[test]
fn what_was_applied_in_another_life_goes_before_the_seed_is_taken() {
    // The rank joined life a late; its publisher restarted unnoticed, and a peer has seen that.
    let mut rig = Rig::new(true);
    rig.step(Input::Connected);
    rig.replay('a', [6, 7, 8]);
    rig.end();
    rig.step(Input::Seed(cut('b', 8)));
    assert_eq!(rig.replay('b', [8]), ["cancel", "clear", "ask 0", "ask 8"]);
    assert_eq!((rig.cursor.incarnation(), rig.count("restarts")), (2, 1));
    assert_eq!(rig.replay('b', [8, 9]), ["seed 8", "9:b9"]);
    rig.end();
    assert_eq!((rig.trust(), rig.cursor.applied()), (Trust::Exact, Some(9)));
}

#[test]
fn the_newest_seed_counts() {
    let mut rig = asked(cut('a', 7));
    assert_eq!(rig.step(Input::Seed(cut('a', 9))), ["ask 9"]);
    assert_eq!(rig.replay('a', [9]), ["seed 9"]);
    assert_eq!((rig.count("seed_dropped_replaced"), rig.count("seeds_loaded")), (1, 1));
}

#[test]
fn too_much_behind_the_question_ends_it() {
    let limits = IngestLimits { held_batches_max: 2, ..IngestLimits::default() };
    let mut rig = Rig { cursor: Cursor::new(limits, true, false), now: Duration::ZERO };
    rig.step(Input::Seed(cut('a', 7)));
    rig.step(Input::Connected);
    rig.live('a', 8);
    rig.live('a', 9);
    assert_eq!(rig.live('a', 10), ["drop seed", "cancel", "ask 0", "cancel", "8:a8", "9:a9", "10:a10"]);
    assert_eq!((rig.trust(), rig.count("seed_dropped_overflow")), (Trust::Partial, 1));
}

#[test]
fn a_cut_says_what_proves_it() {
    let mut rig = Rig::following(true, 9);
    let found = rig.cursor.cut().unwrap();
    assert_eq!((found.cursor, found.trust, found.incarnation, found.proofs.len()), (9, Trust::Exact, 1, 8));
    assert_eq!(found.payload_hash(9), Some(xxh3_64(b"a9")));
    // The connection is no part of the state.
    rig.step(Input::Disconnected);
    assert_eq!((rig.trust(), rig.cursor.cut()), (Trust::Degraded, Some(found.clone())));
    rig.cursor.content_lost(9, "for this test");
    assert_eq!(rig.cursor.cut().unwrap().trust, Trust::Degraded);
    assert_eq!(Rig::new(true).cursor.cut(), None);

    // A loaded seed is one to go on from.
    let mut rig = asked(found.clone());
    rig.replay('a', [9]);
    rig.end();
    assert_eq!(rig.cursor.cut(), Some(found));
    // A state that the engine told has no payloads.
    let mut rig = asked_for_its_state();
    rig.step(Input::SnapshotReady { request: rig.cursor.requests, next: 10 });
    rig.replay('a', [9]);
    rig.end();
    assert_eq!((rig.trust(), rig.cursor.cut()), (Trust::Exact, None));
    rig.live('a', 10);
    assert_eq!(rig.cursor.cut().unwrap().proofs.len(), 1);
}
