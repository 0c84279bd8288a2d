use super::{End, Header, StreamCursor, Verdict};
use crate::ingest::{IngestLimits, Trust};
use std::time::Duration;

const APPLY: Verdict = Verdict::Apply { clear_first: false };
const REPLACE: Verdict = Verdict::Apply { clear_first: true };
const AGAIN: Verdict = Verdict::Again { clear: false };
const OVER: Verdict = Verdict::Again { clear: true };

struct Run {
    cursor: StreamCursor,
    now: Duration,
}

impl Run {
    fn new() -> Self {
        Self { cursor: StreamCursor::new(IngestLimits::default(), false), now: Duration::ZERO }
    }

    fn followed(sequences: std::ops::Range<u64>) -> Self {
        let mut run = Self::new();
        run.cursor.connected();
        sequences.for_each(|s| assert_eq!(run.batch(s, s), APPLY));
        run
    }

    fn batch(&mut self, sequence: u64, hash: u64) -> Verdict {
        self.cursor.batch(self.now, Header { sequence, hash, clears: false })
    }

    fn clear(&mut self, sequence: u64) -> Verdict {
        self.cursor.batch(self.now, Header { sequence, hash: sequence, clears: true })
    }

    fn reconnect(&mut self) {
        self.cursor.ended(End::Broken);
        self.cursor.connected();
    }

    fn counted(&self, reason: &str) -> u64 {
        self.cursor.counters().get(reason)
    }
}

#[test]
fn a_stream_from_the_first_batch_is_exact_and_one_from_later_is_partial_until_a_clear() {
    let run = Run::followed(0..3);
    assert_eq!((run.cursor.trust(), run.cursor.applied(), run.cursor.incarnation()), (Trust::Exact, Some(2), 1));
    let mut run = Run::followed(5..6);
    assert_eq!(run.cursor.trust(), Trust::Partial);
    assert_eq!(run.clear(6), APPLY);
    assert_eq!(run.cursor.trust(), Trust::Exact);
    let mut run = Run::new();
    run.cursor.connected();
    assert_eq!((run.cursor.trust(), run.clear(70), run.cursor.trust()), (Trust::NeverSeen, APPLY, Trust::Exact));
    let mut sglang = StreamCursor::new(IngestLimits::default(), true);
    sglang.connected();
    sglang.batch(Duration::ZERO, Header { sequence: 1, hash: 1, clears: false });
    assert_eq!(sglang.trust(), Trust::Exact);
}

#[test]
fn a_stream_goes_on_when_its_first_batch_is_the_last_one() {
    let mut run = Run::followed(0..9);
    run.cursor.ended(End::Broken);
    assert_eq!((run.cursor.trust(), run.cursor.start()), (Trust::Degraded, 7));
    run.cursor.connected();
    assert_eq!(run.cursor.trust(), Trust::Degraded, "nothing is proven yet");
    assert_eq!((run.batch(8, 8), run.cursor.trust()), (Verdict::Drop, Trust::Exact));
    assert_eq!(run.batch(9, 9), APPLY);
    for cursor in [0, 1] {
        let mut run = Run::followed(0..cursor + 1);
        run.reconnect();
        assert_eq!(run.cursor.start(), 0);
        assert!((0..=cursor).all(|s| run.batch(s, s) == Verdict::Drop));
        assert_eq!((run.cursor.trust(), run.batch(cursor + 1, 0)), (Trust::Exact, APPLY));
    }
}

#[test]
fn a_publisher_that_started_over_behind_a_disconnect_is_noticed() {
    let mut run = Run::followed(0..9);
    run.reconnect();
    assert_eq!(run.batch(8, 77), OVER);
    assert_eq!((run.cursor.applied(), run.cursor.start()), (None, 0));
    assert_eq!((run.batch(0, 70), run.cursor.trust(), run.cursor.incarnation()), (APPLY, Trust::Exact, 2));
    // It is further on than we were, and the server cannot show the batch that we had.
    let mut run = Run::followed(0..9);
    run.reconnect();
    assert_eq!((run.batch(9, 9), run.cursor.trust()), (REPLACE, Trust::Partial));
    assert_eq!(run.counted("unproven_resumes"), 1);
    // Within a stream: its first batch, a clear, or anything that is not what we had.
    let mut run = Run::followed(0..9);
    assert_eq!((run.batch(0, 70), run.cursor.trust()), (REPLACE, Trust::Exact));
    let mut run = Run::followed(0..9);
    assert_eq!((run.clear(4), run.cursor.trust()), (Verdict::Drop, Trust::Exact), "the same content");
    assert_eq!((run.batch(4, 40), run.cursor.applied()), (OVER, None));
    assert_eq!(run.counted("restarts"), 1);
}

#[test]
fn a_gap_is_asked_for_once_and_then_lost() {
    let mut run = Run::followed(0..9);
    assert_eq!(run.batch(11, 11), AGAIN);
    run.reconnect();
    assert_eq!(run.cursor.start(), 7);
    let verdicts = [8, 9, 10, 11].map(|s| run.batch(s, s));
    assert_eq!((verdicts, run.cursor.trust()), ([Verdict::Drop, APPLY, APPLY, APPLY], Trust::Exact));
    assert_eq!(run.batch(15, 15), AGAIN);
    run.reconnect();
    assert_eq!((run.batch(11, 11), run.batch(15, 15)), (Verdict::Drop, APPLY));
    assert_eq!((run.cursor.trust(), run.counted("lost_batches")), (Trust::Degraded, 3));
    let far = 16 + IngestLimits::default().repairable_batches_max;
    assert_eq!(run.batch(far + 1, 0), AGAIN);
    run.reconnect();
    assert_eq!((run.batch(15, 15), run.batch(far + 1, 0)), (Verdict::Drop, REPLACE));
    assert_eq!(run.cursor.trust(), Trust::Partial);
    assert_eq!((run.clear(far + 2), run.cursor.trust()), (APPLY, Trust::Exact));
}

#[test]
fn a_server_that_cannot_go_on_is_asked_from_the_start_and_one_that_does_not_offer_events_is_misconfigured() {
    let mut run = Run::followed(0..9);
    assert!(run.cursor.ended(End::StartOver));
    assert!(!run.cursor.ended(End::StartOver), "there is nothing to drop any more");
    assert_eq!(run.cursor.start(), 0);
    run.cursor.connected();
    assert_eq!((run.batch(0, 0), run.cursor.trust(), run.cursor.incarnation()), (APPLY, Trust::Exact, 2));
    assert!(run.cursor.ended(End::NotOffered));
    assert_eq!(run.cursor.trust(), Trust::Misconfigured);
    run.cursor.connected();
    assert_eq!((run.batch(0, 0), run.cursor.trust()), (APPLY, Trust::Exact));
}

#[test]
fn what_is_tainted_is_replaced_by_everything_from_the_start_with_growing_pauses() {
    let limits = IngestLimits::default();
    let mut run = Run::followed(5..9);
    assert_eq!(run.cursor.next_tick(), Some(limits.recovery_backoff_min));
    assert!(!run.cursor.tick(run.now));
    run.now = limits.recovery_backoff_min;
    assert!(run.cursor.tick(run.now));
    run.reconnect();
    assert_eq!((run.cursor.start(), run.batch(7, 7), run.batch(8, 8)), (0, Verdict::Drop, Verdict::Drop));
    let second = run.cursor.next_tick().unwrap();
    assert_eq!(second, run.now + 2 * limits.recovery_backoff_min);
    run.now = second;
    assert!(run.cursor.tick(run.now));
    run.reconnect();
    // A server that knows nothing but what comes: what is held stays, and so does what is said of it.
    assert_eq!((run.batch(10, 10), run.cursor.trust(), run.counted("lost_batches")), (APPLY, Trust::Partial, 1));
    run.now = run.cursor.next_tick().unwrap();
    assert!(run.cursor.tick(run.now));
    run.reconnect();
    assert_eq!((run.cursor.start(), run.batch(0, 0), run.cursor.trust()), (0, REPLACE, Trust::Exact));
    assert_eq!(run.counted("recovered"), 1);
    // Content that cannot be used would not be the next time.
    let mut run = Run::followed(0..9);
    run.cursor.content_lost(run.now, "x");
    assert_eq!((run.cursor.trust(), run.cursor.next_tick()), (Trust::Degraded, None));
}

#[test]
fn the_largest_sequences_do_not_overflow() {
    let mut run = Run::followed(0..2);
    assert_eq!(run.batch(u64::MAX, 1), AGAIN);
    run.reconnect();
    run.batch(1, 1);
    assert_eq!(run.batch(u64::MAX, 1), REPLACE);
    assert_eq!(run.batch(u64::MAX, 1), Verdict::Drop);
    assert_eq!(run.batch(0, 0), REPLACE);
}

/// A publisher and its server as they may be: lives, a window that forgets, batches that are left out, restarts that are told, not told
/// or hidden behind a disconnect, servers that know the present only.
struct World {
    random: u64,
    life: u64,
    /// Of this life: whether each batch clears, and whether the server leaves it out.
    batches: Vec<(bool, bool)>,
    window: usize,
    live_only: bool,
    /// The next batch of the open stream.
    stream: Option<usize>,
    cursor: StreamCursor,
    now: Duration,
    /// What the rank holds: lives and sequences of the batches since its last clear.
    held: Vec<(u64, u64)>,
    exact: u64,
}

impl World {
    fn new(seed: u64) -> Self {
        let limits = IngestLimits { payload_hashes_max: 6, repairable_batches_max: 3, ..IngestLimits::default() };
        let cursor = StreamCursor::new(limits, false);
        let (batches, held) = (Vec::new(), Vec::new());
        let (window, now) = (if seed.is_multiple_of(3) { usize::MAX } else { 8 }, Duration::ZERO);
        let live_only = seed.is_multiple_of(5);
        Self { random: seed, life: 0, batches, window, live_only, stream: None, cursor, now, held, exact: 0 }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.random;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }

    fn publish(&mut self, clears: bool, left_out: bool) {
        // A server that tells nobody of another life shows how it begins: that is what a client has to rely on.
        let left_out = left_out && !self.batches.is_empty();
        self.batches.push((clears, left_out));
    }

    fn end(&mut self, end: End) {
        self.stream = None;
        if self.cursor.ended(end) {
            self.held.clear();
        }
    }

    fn restart(&mut self) {
        self.life += 1;
        self.batches.clear();
        match self.below(3) {
            0 if self.stream.is_some() => self.end(End::StartOver),
            1 if self.stream.is_some() => self.stream = Some(0),
            _ => {
                if self.stream.is_some() {
                    self.end(End::Broken);
                }
                // Hidden: it may be further on than it was before anybody looks.
                (0..self.below(12)).for_each(|_| self.publish(false, false));
            }
        }
    }

    fn connect(&mut self) {
        let start = self.cursor.start() as usize;
        self.cursor.connected();
        let oldest = self.batches.len().saturating_sub(self.window);
        self.stream = match start {
            _ if self.live_only => Some(self.batches.len()),
            0 => Some(oldest),
            start if start + 1 >= oldest && start < self.batches.len() => Some(start + 1),
            _ => None,
        };
        if self.stream.is_none() {
            self.end(End::StartOver);
        }
    }

    fn deliver(&mut self) {
        let Some(at) = self.stream else { return self.connect() };
        let oldest = self.batches.len().saturating_sub(self.window);
        if at < oldest {
            return self.end(End::StartOver);
        }
        let Some((clears, left_out)) = self.batches.get(at).copied() else { return };
        self.stream = Some(at + 1);
        if left_out {
            return;
        }
        let sequence = at as u64;
        let header = Header { sequence, hash: self.life << 32 | sequence, clears };
        match self.cursor.batch(self.now, header) {
            Verdict::Drop => {}
            Verdict::Again { clear } => {
                if clear {
                    self.held.clear();
                }
                self.end(End::Broken);
            }
            Verdict::Apply { clear_first } => {
                if clear_first || clears {
                    self.held.clear();
                }
                self.held.push((self.life, sequence));
            }
        }
    }

    fn tick(&mut self) {
        let passed = self.below(3_000);
        self.now += Duration::from_millis(passed);
        if self.stream.is_some() && self.cursor.next_tick().is_some() && self.cursor.tick(self.now) {
            self.end(End::Broken);
        }
    }

    /// Exact is what the publisher held after the batch at the cursor; of a life that is over, as long as nothing has told of that.
    fn check(&mut self, seed: u64) {
        if self.cursor.trust() != Trust::Exact {
            return;
        }
        self.exact += 1;
        let cursor = self.cursor.applied().expect("something was applied");
        let life = self.held.last().expect("the batch at the cursor").0;
        let first = self.held[0].1;
        let want: Vec<_> = (first..=cursor).map(|sequence| (life, sequence)).collect();
        assert_eq!(self.held, want, "seed {seed}");
        if life == self.life {
            let begins = first == 0 || self.batches[first as usize].0;
            let later = self.batches[first as usize + 1..=cursor as usize].iter().any(|(clears, _)| *clears);
            assert!(begins && !later, "seed {seed}: from {first}");
        }
    }
}

#[test]
fn never_exact_and_wrong_and_exact_again_after_a_clear() {
    let mut exact = 0;
    for seed in 0..10_000 {
        let mut world = World::new(seed);
        for _ in 0..120 {
            match world.below(20) {
                0..=7 => {
                    let (clears, left_out) = (world.below(15) == 0, world.below(14) == 0);
                    world.publish(clears, left_out);
                }
                8 if world.below(3) == 0 => world.restart(),
                9 if world.stream.is_some() => world.end(End::Broken),
                10 => world.tick(),
                _ => world.deliver(),
            }
            world.check(seed);
        }
        // The network is calm and the publisher goes on: its next clear, if not something before it, makes the rank exact.
        for _ in 0..20 {
            world.deliver();
            world.deliver();
            world.publish(true, false);
            world.check(seed);
        }
        (0..400).for_each(|_| world.deliver());
        world.check(seed);
        let (trust, applied) = (world.cursor.trust(), world.cursor.applied());
        assert_eq!((trust, applied), (Trust::Exact, Some(world.batches.len() as u64 - 1)), "seed {seed}");
        exact += world.exact;
    }
    assert!(exact > 100_000, "{exact}");
}
