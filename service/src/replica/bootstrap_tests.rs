use super::super::assembly::tests::{ALL, chunk, end, head, not_exact};
use super::*;

const MS: Duration = Duration::from_millis(1);

fn settings(peers: usize) -> ReplicaSettings {
    ReplicaSettings {
        peers: (0..peers).map(|peer| format!("http://peer-{peer}")).collect(),
        deadline: 10_000 * MS,
        silence_max: 500 * MS,
        pause_min: 100 * MS,
        pause_max: 400 * MS,
        ..ReplicaSettings::default()
    }
}

/// A bootstrap with a clock. So many ranks want a seed.
struct World {
    bootstrap: Bootstrap,
    now: Duration,
    left: usize,
}

impl World {
    fn new(settings: ReplicaSettings) -> Self {
        Self { bootstrap: Bootstrap::new(settings), now: Duration::ZERO, left: 1 }
    }

    fn step(&mut self, input: Input) -> Vec<Output> {
        let mut out = Vec::new();
        self.bootstrap.step(self.now, self.left, input, &mut out);
        out
    }

    /// Lets time pass up to the next tick.
    fn tick(&mut self) -> Vec<Output> {
        self.now = self.now.max(self.bootstrap.next_tick().expect("not over"));
        self.step(Input::Tick)
    }

    fn pieces(&mut self, call: u64, pieces: impl IntoIterator<Item = Piece>) -> Vec<Output> {
        pieces.into_iter().flat_map(|piece| self.step(Input::Piece { call, piece, wanted: true })).collect()
    }

    fn failed(&mut self, call: u64, failure: Failure) -> Vec<Output> {
        self.step(Input::Failed { call, failure })
    }
}

fn call(call: u64, peer: usize) -> Output {
    Output::Call { call, peer, resume: None }
}

/// What is done, without the seeds themselves and without the places to begin at.
fn brief(out: &[Output]) -> Vec<String> {
    let word = |output: &Output| match output {
        Output::Call { peer, resume: None, .. } => format!("call {peer}"),
        Output::Call { peer, resume: Some(r), .. } => format!("call {peer} from {}:{} {}", r.worker, r.rank, r.chunks),
        Output::HangUp => "hang up".to_owned(),
        Output::Offer(seed) => format!("offer {}:{}", seed.identity.worker, seed.identity.rank),
        Output::Done(outcome) => outcome.name().to_owned(),
    };
    out.iter().map(word).collect()
}

#[test]
fn the_first_peer_that_answers_tells_everything() {
    let mut world = World::new(settings(2));
    assert_eq!(world.tick(), [call(1, 0)]);
    assert_eq!(world.failed(1, Failure::Broken), [call(2, 1)]);
    let out = world.pieces(2, [head("a", 0, 0), chunk(0), end(1), head("b", 0, 0), end(0)]);
    assert_eq!(brief(&out), ["offer a:0", "offer b:0"]);
    world.left = 0;
    assert_eq!(world.pieces(2, [ALL]), [Output::HangUp, Output::Done(Outcome::Complete)]);
    assert_eq!((world.bootstrap.next_tick(), world.bootstrap.passes()), (None, 1));
    assert_eq!(world.pieces(2, [head("c", 0, 0)]), []);
    assert_eq!(world.bootstrap.counters().get("ranks_offered"), 2);
}

#[test]
fn a_copy_that_breaks_off_goes_on_with_the_same_peer() {
    let mut world = World::new(settings(2));
    world.tick();
    world.pieces(1, [head("a", 0, 0), chunk(0), chunk(1)]);
    assert_eq!(brief(&world.failed(1, Failure::Broken)), ["call 0 from a:0 2"]);
    // Nothing came of it: the next one, from there.
    world.pieces(2, [head("a", 0, 2)]);
    assert_eq!(brief(&world.failed(2, Failure::Broken)), ["call 1 from a:0 2"]);
    // That one knows another state.
    let out = world.pieces(3, [head("a", 0, 0), chunk(0), end(1)]);
    assert_eq!(brief(&out), ["offer a:0"]);
    assert_eq!(brief(&world.failed(3, Failure::Broken)), ["call 1 from a:1 0"]);
    assert_eq!(world.bootstrap.counters().get("calls_resumed"), 2);
}

#[test]
fn a_peer_that_always_begins_anew_is_left() {
    let mut world = World::new(settings(2));
    world.tick();
    world.pieces(1, [head("a", 0, 0), chunk(0), chunk(1)]);
    world.failed(1, Failure::Broken);
    world.pieces(2, [head("a", 0, 0), chunk(0)]);
    assert_eq!(brief(&world.failed(2, Failure::Broken)), ["call 1 from a:0 1"]);
}

#[test]
fn peers_in_vain_are_asked_again_after_growing_pauses() {
    let mut world = World::new(settings(2));
    world.tick();
    let mut at = Vec::new();
    for round in 0..4 {
        let first = 2 * round + 1;
        assert_eq!(brief(&world.failed(first, Failure::Broken)), ["call 1"]);
        assert_eq!(world.failed(first + 1, Failure::Broken), []);
        assert_eq!(brief(&world.tick()), ["call 0"]);
        at.push(world.now.as_millis());
    }
    assert_eq!(at, [100, 300, 700, 1100]);
}

#[test]
fn a_silent_peer_is_given_up() {
    let mut world = World::new(settings(2));
    world.tick();
    world.now = 300 * MS;
    world.pieces(1, [head("a", 0, 0)]);
    assert_eq!(world.bootstrap.next_tick(), Some(800 * MS));
    world.now = 799 * MS;
    assert_eq!(world.step(Input::Tick), []);
    assert_eq!(brief(&world.tick()), ["hang up", "call 0 from a:0 0"], "a rank more than before");
    assert_eq!(brief(&world.tick()), ["hang up", "call 1 from a:0 0"]);
    // What it says now is nobody's.
    assert_eq!(world.pieces(1, [chunk(0)]), []);
}

#[test]
fn a_peer_that_contradicts_itself_is_not_asked_again() {
    let mut world = World::new(settings(2));
    world.tick();
    let out = world.pieces(1, [head("a", 0, 0), chunk(0), chunk(5)]);
    assert_eq!(brief(&out), ["hang up", "call 1"], "nothing of it is used");
    assert_eq!(world.failed(2, Failure::Broken), []);
    assert_eq!(brief(&world.tick()), ["call 1"]);
    assert_eq!(world.failed(3, Failure::Useless), []);
    assert_eq!(world.tick(), [Output::Done(Outcome::NoPeer)]);
    assert_eq!(world.bootstrap.counters().get("misfit_number"), 1);
}

#[test]
fn without_peers_it_is_over_at_once() {
    let mut world = World::new(settings(0));
    assert_eq!(world.tick(), [Output::Done(Outcome::NoPeer)]);
}

#[test]
fn ranks_that_no_peer_has_are_asked_for_until_they_are_exact() {
    let mut world = World::new(settings(2));
    world.tick();
    assert_eq!(world.pieces(1, [not_exact("a", 0), ALL]), [Output::HangUp]);
    assert_eq!(world.tick(), [call(2, 1)]);
    assert_eq!(world.pieces(2, [not_exact("a", 0)]), []);
    // The engine's replay was quicker.
    world.left = 0;
    assert_eq!(world.step(Input::Tick), [Output::HangUp, Output::Done(Outcome::Complete)]);
}

#[test]
fn what_only_a_peer_knows_is_waited_for() {
    let mut world = World::new(settings(1));
    world.left = 0;
    assert_eq!(world.tick(), [call(1, 0)]);
    assert_eq!(world.pieces(1, [ALL]), [Output::HangUp, Output::Done(Outcome::Complete)]);

    let mut world = World::new(ReplicaSettings { register_workers: false, ..settings(1) });
    world.left = 0;
    assert_eq!(world.tick(), [Output::Done(Outcome::Complete)]);
}

#[test]
fn it_ends_at_its_deadline_whatever_happens() {
    let mut world = World::new(settings(1));
    world.tick();
    for number in 0.. {
        // A peer with endless ranks.
        world.now += 400 * MS;
        let out = world.pieces(1, [not_exact(&format!("w{number:05}"), 0)]);
        if !out.is_empty() {
            assert_eq!(out, [Output::HangUp, Output::Done(Outcome::Deadline)]);
            break;
        }
    }
    assert_eq!(world.now, 10_000 * MS);
}
