use super::tests::Rig;
use super::*;

/// Batches 0 to 5 and 8 to 9 applied, 6 and 7 lost: the replay did not answer.
fn degraded() -> Rig {
    let mut rig = Rig::following(true, 5);
    rig.live('a', 8);
    rig.live('a', 9);
    assert_eq!(rig.fail(), ["cancel", "8:a8", "9:a9"]);
    assert_eq!(rig.trust(), Trust::Degraded);
    rig
}

#[test]
fn a_degraded_rank_is_filled_again_from_the_beginning() {
    let mut rig = degraded();
    assert_eq!(rig.cursor.next_tick(), Some(Duration::ZERO), "at once");
    assert_eq!(rig.wait(0), ["ask 0"]);
    assert_eq!(rig.trust(), Trust::Degraded, "nothing is given away before the answer is known");
    assert!(rig.live('a', 10).is_empty(), "held");
    assert_eq!(rig.replay('a', [0]), ["clear", "0:a0"]);
    assert_eq!(rig.trust(), Trust::Bootstrapping);
    assert_eq!(rig.replay('a', 1..10).len(), 9);
    assert_eq!(rig.end(), ["10:a10"]);
    assert_eq!((rig.trust(), rig.cursor.incarnation()), (Trust::Exact, 1));
    assert_eq!((rig.count("recoveries"), rig.count("recovered_by_replay"), rig.count("restarts")), (1, 1, 0));
    assert_eq!(rig.live('a', 11), ["11:a11"]);
    assert_eq!(rig.wait(1), [""; 0]);
}

#[test]
fn a_window_that_moved_on_costs_no_blocks_and_is_not_asked_for_ever() {
    let mut rig = degraded();
    assert_eq!(rig.wait(0), ["ask 0"]);
    rig.live('a', 10);
    assert_eq!(rig.replay('a', [3]), ["cancel", "10:a10"]);
    assert_eq!((rig.trust(), rig.count("recovery_out_of_window")), (Trust::Degraded, 1));
    // Once more, in case that the first replies were lost; then never in this life.
    assert!(rig.wait(0).is_empty());
    assert_eq!(rig.wait(1), ["ask 0"]);
    assert_eq!(rig.replay('a', [4]), ["cancel"]);
    rig.live('a', 11);
    for _ in 0..9 {
        assert!(rig.wait(1).is_empty());
    }
    assert_eq!(rig.count("recoveries"), 2);
    // A clear mends the rank; a loss after it is asked for from the clear on.
    rig.live('a', 12);
    rig.cursor.cleared(12);
    assert_eq!(rig.trust(), Trust::Exact);
    rig.live('a', 14);
    rig.fail();
    assert_eq!(rig.trust(), Trust::Degraded);
    assert_eq!(rig.wait(0), ["ask 12"]);
    assert_eq!(rig.replay('a', [12]), ["clear", "12:a12"]);
    rig.cursor.cleared(12);
    rig.replay('a', [13, 14]);
    rig.end();
    assert_eq!((rig.trust(), rig.count("recovered_by_replay")), (Trust::Exact, 1));
}

#[test]
fn what_was_taken_for_a_clear_has_to_be_one() {
    let mut rig = degraded();
    rig.cursor.cleared(9);
    rig.live('a', 11);
    rig.fail();
    assert_eq!(rig.wait(0), ["ask 9"]);
    // The batch comes back, but whoever applies it sees no clear in it.
    rig.replay('a', 9..12);
    rig.end();
    assert_eq!(rig.trust(), Trust::Partial);
    assert_eq!(rig.count("recovery_failed"), 1);
    assert_eq!(rig.wait(1), ["ask 0"], "the first batch of all is a beginning in any case");
}

#[test]
fn pauses_grow_and_attempts_end() {
    let mut rig = degraded();
    let limits = IngestLimits::default();
    let mut pauses = Vec::new();
    for _ in 0..limits.recovery_attempts_max {
        let failed = rig.now;
        while rig.step(Input::Tick) != ["ask 0"] {
            // A probe in between is answered, and no news.
            rig.replay('a', [9]);
            rig.end();
            rig.now += Duration::from_millis(500);
        }
        pauses.push((rig.now - failed).as_secs());
        rig.fail();
    }
    assert_eq!(pauses, [0, 1, 2, 4, 8, 16, 32, 60]);
    assert_eq!(rig.count("recovery_given_up"), 1);
    assert_eq!(rig.cursor.next_tick(), Some(rig.now + limits.idle_probe));
    // Another connection is another chance.
    rig.step(Input::Disconnected);
    assert_eq!(rig.step(Input::Connected), ["ask 9"]);
    rig.replay('a', [9]);
    rig.end();
    assert_eq!(rig.wait(0), ["ask 0"]);
}

#[test]
fn a_rebuild_that_is_cut_short_is_not_exact_and_is_made_again() {
    let mut rig = degraded();
    rig.wait(0);
    rig.replay('a', 0..4);
    // Carried on where it stopped, and given up there.
    assert_eq!(rig.fail(), ["cancel", "ask 3"]);
    assert_eq!(rig.fail(), ["cancel"]);
    assert_eq!((rig.trust(), rig.cursor.applied()), (Trust::Degraded, Some(3)));
    assert_eq!(rig.count("recovery_failed"), 1);
    assert_eq!(rig.wait(1), ["ask 0"]);
    rig.replay('a', 0..10);
    rig.end();
    assert_eq!((rig.trust(), rig.cursor.applied()), (Trust::Exact, Some(9)));
}

#[test]
fn an_end_before_what_was_applied_is_no_end() {
    let mut rig = degraded();
    rig.wait(0);
    rig.replay('a', 0..4);
    rig.end();
    assert_eq!((rig.trust(), rig.count("recovery_failed")), (Trust::Degraded, 1));
}

#[test]
fn another_life_in_the_answer_is_a_restart() {
    let mut rig = degraded();
    rig.wait(0);
    assert_eq!(rig.replay('b', [0]), ["cancel", "clear", "ask 0"]);
    assert_eq!((rig.count("restarts"), rig.count("recovery_abandoned")), (1, 1));
    rig.replay('b', 0..3);
    rig.end();
    assert_eq!((rig.trust(), rig.cursor.incarnation()), (Trust::Exact, 2));
}

#[test]
fn content_that_cannot_be_read_is_not_asked_for_again() {
    let mut rig = Rig::following(true, 5);
    rig.cursor.content_lost(5, "a batch could not be read");
    rig.wait(0);
    assert!(rig.wait(0).is_empty());
    assert_eq!((rig.trust(), rig.count("recoveries")), (Trust::Degraded, 0));
    // What the index dropped may find room the next time.
    let mut rig = Rig::following(true, 5);
    rig.cursor.history_lost("a memory limit");
    assert_eq!(rig.cursor.next_tick(), Some(Duration::ZERO));
    rig.wait(0);
    assert_eq!(rig.wait(0), ["ask 0"]);
    rig.replay('a', 0..6);
    rig.cursor.history_lost("a memory limit");
    rig.end();
    assert_eq!((rig.trust(), rig.count("recovery_failed")), (Trust::Partial, 1));
    assert!(rig.wait(0).is_empty());
    assert_eq!(rig.wait(1), ["ask 0"]);
}

#[test]
fn none_are_made_where_none_are_allowed_or_none_can_help() {
    let limits = IngestLimits { recovery_attempts_max: 0, ..IngestLimits::default() };
    let mut rig = Rig { cursor: Cursor::new(limits, true, false), ..degraded() };
    rig.step(Input::Connected);
    rig.end();
    rig.live('a', 0);
    rig.cursor.history_lost("a memory limit");
    assert!(rig.wait(0).is_empty());
    let mut rig = Rig::following(false, 5);
    rig.live('a', 8);
    assert_eq!(rig.trust(), Trust::Degraded);
    assert_eq!((rig.wait(5), rig.cursor.next_tick()), (vec![], None));
}

/// As [`degraded`], with a publisher that can be asked for its state; the replay is out of the window.
pub(super) fn asked_for_its_state() -> Rig {
    let mut rig = degraded();
    rig.cursor =
        std::mem::replace(&mut rig.cursor, Cursor::new(IngestLimits::default(), true, false)).with_snapshots(true);
    assert_eq!(rig.wait(0), ["ask 0"]);
    assert_eq!(rig.replay('a', [3]), ["cancel"]);
    assert_eq!(rig.wait(0), ["state"], "at once, for it is another way");
    rig
}

fn ready(rig: &mut Rig, next: u64) -> Vec<String> {
    rig.step(Input::SnapshotReady { request: rig.cursor.requests, next })
}

#[test]
fn a_state_takes_the_place_of_what_the_rank_held() {
    // Behind the live stream, beside it, and ahead of it.
    for next in [9, 11, 14] {
        let mut rig = asked_for_its_state();
        assert_eq!(rig.live('a', 10), ["10:a10"], "the stream goes on meanwhile");
        assert_eq!(ready(&mut rig, next), [format!("load {}", next - 1), format!("ask {}", next - 1)]);
        assert_eq!(rig.trust(), Trust::Degraded);
        let newest = 13;
        rig.replay('a', next - 1..=newest);
        rig.end();
        assert_eq!((rig.trust(), rig.cursor.applied()), (Trust::Exact, Some(newest)));
        // What the state has already still comes live.
        (11..=newest).for_each(|seq| assert!(rig.live('a', seq).is_empty()));
        assert_eq!(rig.live('a', newest + 1), ["14:a14"]);
        assert_eq!((rig.count("recovered_by_snapshot"), rig.count("restarts")), (1, 0));
    }
}

#[test]
fn a_state_without_what_follows_it_is_not_exact() {
    let mut rig = asked_for_its_state();
    assert_eq!(ready(&mut rig, 5), ["load 4", "ask 4"]);
    rig.replay('a', [4, 5]);
    rig.end();
    assert_eq!((rig.trust(), rig.count("recovery_failed")), (Trust::Degraded, 1));
}

#[test]
fn a_state_is_given_up_with_its_connection_with_its_life_and_with_its_time() {
    let mut rig = asked_for_its_state();
    assert_eq!(rig.step(Input::Disconnected), ["no state"]);
    assert!(ready(&mut rig, 10).is_empty());
    let mut rig = asked_for_its_state();
    assert_eq!(rig.live('b', 2), ["no state", "clear", "ask 0"]);
    let mut rig = asked_for_its_state();
    let seconds = IngestLimits::default().snapshot_duration_max.as_secs();
    let waited: Vec<_> = (0..=seconds).flat_map(|_| rig.wait(1)).filter(|o| o == "no state").collect();
    assert_eq!((waited.len(), rig.count("recovery_snapshot_abandoned")), (1, 1));
    // One that comes when a clear has mended the rank, or is none, or of an empty publisher.
    let mut rig = asked_for_its_state();
    rig.live('a', 10);
    rig.cursor.cleared(10);
    assert!(ready(&mut rig, 11).is_empty());
    assert_eq!(rig.trust(), Trust::Exact);
    let mut rig = asked_for_its_state();
    assert!(ready(&mut rig, 0).is_empty());
    let mut rig = asked_for_its_state();
    rig.step(Input::SnapshotFailed { request: rig.cursor.requests });
    assert_eq!((rig.trust(), rig.count("recovery_snapshot_failed")), (Trust::Degraded, 1));
    assert_eq!(rig.wait(1), ["ask 0"]);
}
