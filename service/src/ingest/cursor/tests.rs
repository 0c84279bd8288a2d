use super::*;

/// A cursor with a clock, and the outputs of each step in short notation.
pub(super) struct Rig {
    pub(super) cursor: Cursor,
    pub(super) now: Duration,
}

fn b(text: &str) -> Bytes {
    Bytes::copy_from_slice(text.as_bytes())
}

impl Rig {
    pub(super) fn new(has_replay: bool) -> Self {
        Self { cursor: Cursor::new(IngestLimits::default(), has_replay, false), now: Duration::ZERO }
    }

    pub(super) fn step(&mut self, input: Input) -> Vec<String> {
        let mut out = Vec::new();
        self.cursor.step(self.now, input, &mut out);
        out.into_iter()
            .map(|o| match o {
                Output::Apply { seq, payload } => format!("{seq}:{}", String::from_utf8(payload.to_vec()).unwrap()),
                Output::Clear => "clear".into(),
                Output::RequestReplay { from, .. } => format!("ask {from}"),
                Output::CancelReplay => "cancel".into(),
                Output::RequestSnapshot { .. } => "state".into(),
                Output::CancelSnapshot => "no state".into(),
                Output::Load { seq } => format!("load {seq}"),
                Output::LoadSeed { seq } => format!("seed {seq}"),
                Output::DropSeed => "drop seed".into(),
            })
            .collect()
    }

    /// A live batch of the publisher's life `life`.
    pub(super) fn live(&mut self, life: char, seq: u64) -> Vec<String> {
        self.step(Input::Live { seq, payload: b(&format!("{life}{seq}")) })
    }

    pub(super) fn replay(&mut self, life: char, seqs: impl IntoIterator<Item = u64>) -> Vec<String> {
        let request = self.cursor.requests;
        let steps = seqs.into_iter();
        steps
            .flat_map(|seq| self.step(Input::ReplayBatch { request, seq, payload: b(&format!("{life}{seq}")) }))
            .collect()
    }

    pub(super) fn end(&mut self) -> Vec<String> {
        self.step(Input::ReplayEnd { request: self.cursor.requests })
    }

    pub(super) fn fail(&mut self) -> Vec<String> {
        self.step(Input::ReplayFailed { request: self.cursor.requests })
    }

    pub(super) fn wait(&mut self, seconds: u64) -> Vec<String> {
        self.now += Duration::from_secs(seconds);
        self.step(Input::Tick)
    }

    /// Connected, bootstrapped, with batches 0 to `last` applied live.
    pub(super) fn following(has_replay: bool, last: u64) -> Self {
        let mut rig = Rig::new(has_replay);
        rig.step(Input::Connected);
        if has_replay {
            rig.end();
        }
        for seq in 0..=last {
            assert_eq!(rig.live('a', seq), [format!("{}:a{}", seq, seq)]);
        }
        assert_eq!(rig.cursor.trust(), Trust::Exact);
        rig
    }

    pub(super) fn trust(&self) -> Trust {
        self.cursor.trust()
    }

    pub(super) fn count(&self, reason: &str) -> u64 {
        self.cursor.counters().get(reason)
    }
}

#[test]
fn row_1_the_first_batch_is_applied_and_exact_if_it_is_batch_0() {
    let mut rig = Rig::new(false);
    assert_eq!(rig.trust(), Trust::NeverSeen);
    rig.step(Input::Connected);
    assert_eq!(rig.live('a', 0), ["0:a0"]);
    assert_eq!((rig.trust(), rig.cursor.applied(), rig.cursor.incarnation()), (Trust::Exact, Some(0), 1));
}

#[test]
fn row_1_late_join_without_replay_is_partial_until_a_clear() {
    let mut rig = Rig::new(false);
    rig.step(Input::Connected);
    assert_eq!(rig.live('a', 7), ["7:a7"]);
    assert_eq!(rig.trust(), Trust::Partial);
    rig.live('a', 8);
    rig.cursor.cleared(8);
    assert_eq!(rig.trust(), Trust::Exact);
}

#[test]
fn row_1_a_first_sequence_of_1_is_fine_where_batch_0_is_the_startup_clear() {
    let mut rig = Rig { cursor: Cursor::new(IngestLimits::default(), false, true), now: Duration::ZERO };
    rig.step(Input::Connected);
    assert_eq!(rig.live('a', 1), ["1:a1"]);
    assert_eq!(rig.trust(), Trust::Exact);
}

#[test]
fn row_1_late_join_is_exact_if_the_replay_reaches_back_to_batch_0() {
    let mut rig = Rig::new(true);
    assert_eq!(rig.step(Input::Connected), ["ask 0"]);
    assert_eq!(rig.trust(), Trust::Bootstrapping);
    assert!(rig.live('a', 3).is_empty(), "held behind the replay");
    assert_eq!(rig.replay('a', 0..=3), ["0:a0", "1:a1", "2:a2", "3:a3"]);
    assert!(rig.live('a', 4).is_empty());
    assert_eq!(rig.end(), ["4:a4"]);
    assert_eq!((rig.trust(), rig.count("lost_batches")), (Trust::Exact, 0));
}

#[test]
fn row_1_late_join_is_partial_if_the_window_begins_later() {
    let mut rig = Rig::new(true);
    rig.step(Input::Connected);
    assert_eq!(rig.replay('a', [7, 8]), ["7:a7", "8:a8"]);
    rig.end();
    assert_eq!(rig.trust(), Trust::Partial);
}

#[test]
fn row_3_repetitions_are_dropped_and_counted() {
    let mut rig = Rig::following(true, 5);
    assert!(rig.live('a', 5).is_empty());
    assert!(rig.live('a', 2).is_empty());
    assert_eq!((rig.trust(), rig.count("stale"), rig.count("restarts")), (Trust::Exact, 2, 0));
}

#[test]
fn rows_4_and_5_a_gap_is_asked_for_once_and_mended_in_order() {
    let mut rig = Rig::following(true, 5);
    assert_eq!(rig.live('a', 8), ["ask 5"], "from the last batch applied, as proof of identity");
    assert!(rig.live('a', 9).is_empty());
    assert_eq!(rig.trust(), Trust::Degraded);
    assert_eq!(rig.replay('a', 5..=8), ["6:a6", "7:a7", "8:a8"]);
    assert_eq!(rig.end(), ["9:a9"]);
    assert_eq!((rig.trust(), rig.count("gaps"), rig.count("lost_batches")), (Trust::Exact, 1, 0));
}

#[test]
fn row_6_a_small_loss_keeps_the_blocks_and_degrades_until_a_clear() {
    for mute in [true, false] {
        let mut rig = Rig::following(true, 5);
        rig.live('a', 8);
        let did = if mute { rig.wait(2) } else { rig.fail() };
        assert_eq!(did, ["cancel", "8:a8"]);
        assert_eq!((rig.trust(), rig.count("lost_batches")), (Trust::Degraded, 2));
        assert_eq!(rig.live('a', 9), ["9:a9"]);
        rig.cursor.cleared(7);
        assert_eq!(rig.trust(), Trust::Degraded, "a clear from before the loss mends nothing");
        rig.cursor.cleared(9);
        assert_eq!(rig.trust(), Trust::Exact);
    }
}

#[test]
fn row_6_without_a_replay_endpoint() {
    let mut rig = Rig::following(false, 5);
    assert_eq!(rig.live('a', 8), ["8:a8"]);
    assert_eq!((rig.trust(), rig.count("gaps"), rig.count("lost_batches")), (Trust::Degraded, 1, 2));
}

#[test]
fn row_7_a_gap_beyond_the_ring_empties_the_rank() {
    let mut rig = Rig::following(true, 100);
    assert_eq!(rig.live('a', 20_000), ["ask 100"]);
    let did = rig.replay('a', 10_000..20_000);
    assert_eq!(did[..2], ["clear", "10000:a10000"]);
    assert_eq!(did.len(), 10_001);
    assert_eq!(rig.end(), ["20000:a20000"]);
    assert_eq!((rig.trust(), rig.count("lost_batches")), (Trust::Partial, 9_899));
    rig.live('a', 20_001);
    assert_eq!(rig.trust(), Trust::Partial);
    rig.cursor.cleared(20_001);
    assert_eq!(rig.trust(), Trust::Exact);
}

#[test]
fn row_8_a_restart_on_the_same_socket() {
    for first in [0, 1, 4] {
        let mut rig = Rig::following(true, 5);
        assert_eq!(rig.live('b', first), ["clear", "ask 0"]);
        assert_eq!((rig.cursor.incarnation(), rig.trust()), (2, Trust::Bootstrapping));
        let did = rig.replay('b', 0..=first);
        assert_eq!(did.len() as u64, first + 1);
        assert!(rig.end().is_empty());
        assert_eq!((rig.trust(), rig.count("restarts")), (Trust::Exact, 1));
    }
}

#[test]
fn row_8_a_restart_without_a_replay_endpoint() {
    let mut rig = Rig::following(false, 5);
    assert_eq!(rig.live('b', 0), ["clear", "0:b0"]);
    assert_eq!((rig.trust(), rig.cursor.incarnation()), (Trust::Exact, 2));
    assert_eq!(rig.live('c', 0), ["clear", "0:c0"]);
    let mut rig = Rig::following(false, 5);
    assert_eq!(rig.live('b', 3), ["clear", "3:b3"]);
    assert_eq!(rig.trust(), Trust::Partial);
}

#[test]
fn row_8_a_restart_hidden_behind_a_disconnect_is_found_by_the_payload() {
    // The new life is already further on than the old one was: by sequence alone it looks contiguous.
    let mut rig = Rig::following(true, 5);
    rig.step(Input::Disconnected);
    assert_eq!(rig.trust(), Trust::Degraded);
    assert_eq!(rig.step(Input::Connected), ["ask 5"]);
    assert!(rig.live('b', 6).is_empty());
    assert_eq!(rig.replay('b', [5]), ["cancel", "clear", "ask 0"]);
    assert_eq!(rig.replay('b', 0..=6).len(), 7);
    rig.end();
    assert_eq!((rig.trust(), rig.cursor.applied(), rig.cursor.incarnation()), (Trust::Exact, Some(6), 2));
}

#[test]
fn row_8_a_restarted_publisher_that_has_said_less_than_the_old_one() {
    let mut rig = Rig::following(true, 5);
    rig.wait(10);
    rig.replay('a', [5]);
    rig.end();
    rig.step(Input::Disconnected);
    rig.step(Input::Connected);
    assert_eq!(rig.end(), ["cancel", "clear", "ask 0"], "nothing at or after 5: not the publisher that sent 5");
    assert_eq!(rig.replay('b', 0..=2).len(), 3);
    rig.end();
    assert_eq!((rig.trust(), rig.cursor.applied()), (Trust::Exact, Some(2)));
}

#[test]
fn row_14_a_clear_in_order_mends_a_loss_before_it_but_not_one_after() {
    let mut rig = Rig::following(false, 5);
    rig.cursor.content_lost(5, "unreadable");
    assert_eq!(rig.trust(), Trust::Degraded);
    rig.live('a', 6);
    rig.cursor.cleared(6);
    assert_eq!(rig.trust(), Trust::Exact);
    rig.cursor.content_lost(6, "unreadable");
    rig.cursor.cleared(6);
    assert_eq!(rig.trust(), Trust::Degraded);
}

#[test]
fn row_15_a_reconnection_to_the_same_life_misses_nothing() {
    let mut rig = Rig::following(true, 5);
    rig.step(Input::Disconnected);
    assert_eq!(rig.step(Input::Connected), ["ask 5"]);
    assert!(rig.live('a', 9).is_empty());
    assert_eq!(rig.replay('a', 5..=9), ["6:a6", "7:a7", "8:a8", "9:a9"]);
    rig.end();
    assert_eq!((rig.trust(), rig.cursor.incarnation()), (Trust::Exact, 1));
}

#[test]
fn row_15_a_reconnection_that_proves_nothing_is_degraded() {
    let mut rig = Rig::following(false, 5);
    rig.step(Input::Disconnected);
    rig.step(Input::Connected);
    assert_eq!(rig.live('a', 6), ["6:a6"]);
    assert_eq!(rig.trust(), Trust::Degraded);

    let mut rig = Rig::following(true, 5);
    rig.step(Input::Disconnected);
    rig.step(Input::Connected);
    rig.live('a', 6);
    assert_eq!(rig.wait(2), ["cancel", "6:a6"]);
    assert_eq!(rig.trust(), Trust::Degraded);

    let mut rig = Rig::following(true, 5);
    rig.step(Input::Disconnected);
    rig.step(Input::Connected);
    assert_eq!(rig.replay('b', [6]), ["6:b6"], "the window begins behind the last batch known");
    rig.end();
    assert_eq!(rig.trust(), Trust::Degraded);
}

#[test]
fn row_15_a_doubtful_answer_stays_doubtful_when_another_connection_cuts_it_short() {
    // Life a ends at 4, unseen. The answer to the reconnection is of life b, whose window begins at 5: contiguous by
    // sequence. The connection breaks again before that answer ends, and b can prove the 5 that was applied.
    let mut rig = Rig::following(true, 4);
    rig.step(Input::Disconnected);
    assert_eq!(rig.step(Input::Connected), ["ask 4"]);
    assert_eq!(rig.replay('b', [5]), ["5:b5"]);
    rig.step(Input::Disconnected);
    assert_eq!(rig.step(Input::Connected), ["ask 5"]);
    assert_eq!(rig.replay('b', [5, 6, 7]), ["6:b6", "7:b7"]);
    rig.end();
    assert_eq!(rig.trust(), Trust::Degraded, "the blocks of life a may still be there");
    rig.live('b', 8);
    rig.cursor.cleared(8);
    assert_eq!(rig.trust(), Trust::Exact);
}

#[test]
fn row_15_a_doubtful_answer_stays_doubtful_when_a_hole_in_it_is_asked_for() {
    let mut rig = Rig::following(true, 4);
    rig.step(Input::Disconnected);
    rig.step(Input::Connected);
    assert_eq!(rig.replay('b', [5, 7]), ["5:b5", "ask 5"]);
    assert_eq!(rig.replay('b', 5..=7), ["6:b6", "7:b7"]);
    rig.end();
    assert_eq!(rig.trust(), Trust::Degraded);
}

#[test]
fn row_15_a_clear_inside_a_doubtful_answer_mends_it() {
    let mut rig = Rig::following(true, 4);
    rig.step(Input::Disconnected);
    rig.step(Input::Connected);
    assert_eq!(rig.replay('b', [5, 6]), ["5:b5", "6:b6"]);
    rig.cursor.cleared(6);
    rig.end();
    assert_eq!(rig.trust(), Trust::Exact);
}

#[test]
fn row_1_an_answer_behind_live_batches_of_an_older_life_is_doubtful() {
    // The live batches of life a are still under way when life b, whose window begins at 2, answers already.
    let mut rig = Rig::new(true);
    rig.step(Input::Connected);
    rig.live('a', 0);
    rig.live('a', 1);
    assert_eq!(rig.replay('b', [2, 3]), ["0:a0", "1:a1", "2:b2", "3:b3"]);
    rig.step(Input::Disconnected);
    assert_eq!(rig.step(Input::Connected), ["ask 3"]);
    rig.replay('b', [3]);
    rig.end();
    assert_eq!(rig.trust(), Trust::Degraded);
}

#[test]
fn row_1_an_answer_that_agrees_with_the_live_batches_is_exact() {
    let mut rig = Rig::new(true);
    rig.step(Input::Connected);
    (0..=2).for_each(|seq| drop(rig.live('a', seq)));
    assert_eq!(rig.replay('a', [2, 3]), ["0:a0", "1:a1", "2:a2", "3:a3"]);
    rig.end();
    assert_eq!(rig.trust(), Trust::Exact);
}

#[test]
fn a_hole_inside_an_answer_is_asked_for_again() {
    let mut rig = Rig::new(true);
    rig.step(Input::Connected);
    assert_eq!(rig.replay('a', [0, 1, 2]).len(), 3);
    assert_eq!(rig.replay('a', [7]), ["ask 2"]);
    assert_eq!(rig.replay('a', 2..=7).len(), 5);
    rig.end();
    assert_eq!((rig.trust(), rig.cursor.applied(), rig.count("replay_holes")), (Trust::Exact, Some(7), 1));
}

#[test]
fn an_answer_cut_short_is_carried_on_where_it_stopped() {
    let mut rig = Rig::following(true, 5);
    rig.live('a', 9);
    assert_eq!(rig.replay('a', [5, 6]), ["6:a6"]);
    assert_eq!(rig.end(), ["ask 6"], "the batch held says that there is more");
    assert_eq!(rig.replay('a', 6..=9), ["7:a7", "8:a8", "9:a9"]);
    rig.end();
    assert_eq!((rig.trust(), rig.count("lost_batches")), (Trust::Exact, 0));
}

#[test]
fn a_missing_end_marker_costs_time_and_nothing_else() {
    let mut rig = Rig::following(true, 5);
    rig.live('a', 7);
    rig.replay('a', 5..=7);
    assert_eq!(rig.wait(2), ["cancel", "ask 7"]);
    rig.replay('a', [7]);
    assert_eq!(rig.wait(2), ["cancel"]);
    assert_eq!((rig.trust(), rig.count("replay_end_missing")), (Trust::Exact, 1));
    assert_eq!(rig.live('a', 8), ["8:a8"]);
}

#[test]
fn answers_to_a_request_given_up_are_ignored() {
    let mut rig = Rig::following(true, 5);
    rig.live('a', 7);
    let old = rig.cursor.requests;
    rig.fail();
    let late = Input::ReplayBatch { request: old, seq: 6, payload: b("a6") };
    assert!(rig.step(late).is_empty());
    assert_eq!(rig.count("replay_late"), 1);
}

#[test]
fn holding_is_bounded_and_the_bound_gives_the_replay_up() {
    let limits = IngestLimits { held_batches_max: 3, ..IngestLimits::default() };
    let mut rig = Rig { cursor: Cursor::new(limits, true, false), now: Duration::ZERO };
    rig.step(Input::Connected);
    rig.end();
    rig.live('a', 0);
    rig.live('a', 2);
    rig.live('a', 3);
    rig.live('a', 4);
    assert_eq!(rig.live('a', 5), ["cancel", "2:a2", "3:a3", "4:a4", "5:a5"]);
    assert_eq!((rig.trust(), rig.count("held_overflows"), rig.count("lost_batches")), (Trust::Degraded, 1, 1));
}

#[test]
fn live_batches_that_a_long_replay_has_overtaken_are_no_restart() {
    let limits = IngestLimits { payload_hashes_max: 4, ..IngestLimits::default() };
    let mut rig = Rig { cursor: Cursor::new(limits, true, false), now: Duration::ZERO };
    rig.step(Input::Connected);
    rig.replay('a', 0..=50);
    rig.end();
    for seq in 20..=50 {
        assert!(rig.live('a', seq).is_empty());
    }
    assert_eq!(rig.live('a', 51), ["51:a51"]);
    assert_eq!((rig.trust(), rig.count("restarts")), (Trust::Exact, 0));
}

#[test]
fn a_silent_rank_is_probed_and_a_lost_tail_found() {
    let mut rig = Rig::following(true, 5);
    assert!(rig.wait(9).is_empty());
    assert_eq!(rig.wait(1), ["ask 5"]);
    assert_eq!(rig.trust(), Trust::Exact, "a question is no doubt");
    assert_eq!(rig.replay('a', 5..=6), ["6:a6"]);
    rig.end();
    assert_eq!(rig.trust(), Trust::Exact);
}

#[test]
fn a_mute_probe_changes_nothing_and_is_asked_less_often() {
    let mut rig = Rig::following(true, 5);
    assert_eq!(rig.wait(10), ["ask 5"]);
    assert_eq!(rig.wait(2), ["cancel"]);
    assert_eq!(rig.trust(), Trust::Exact);
    assert!(rig.wait(19).is_empty());
    assert_eq!(rig.wait(1), ["ask 5"]);
    // What comes meanwhile waits for the deadline and no longer.
    assert!(rig.live('a', 6).is_empty());
    assert_eq!(rig.wait(2), ["cancel", "6:a6"]);
}

#[test]
fn a_replay_endpoint_of_another_publisher_is_not_asked_for_ever() {
    let mut rig = Rig::new(true);
    rig.step(Input::Connected);
    rig.live('a', 0);
    rig.live('a', 1);
    let did = rig.replay('x', [0]);
    assert_eq!(did, ["cancel", "clear", "0:a0", "1:a1"]);
    assert_eq!((rig.trust(), rig.count("replay_conflicts"), rig.count("restarts")), (Trust::Exact, 1, 0));
}

#[test]
fn sequences_at_the_end_of_their_range_do_not_overflow() {
    let mut rig = Rig::new(false);
    rig.step(Input::Connected);
    rig.live('a', u64::MAX);
    rig.cursor.content_lost(u64::MAX, "unreadable");
    rig.live('a', u64::MAX);
    rig.live('b', 0);
    rig.live('b', u64::MAX - 1);
    assert_eq!(rig.trust(), Trust::Partial);
}
