//! A lane hangs a child at a run's end, or joins it, while another lane's last holder leaves and trims that end.
#![cfg(loom)]

use kvatlas_index::version::Version;
use kvatlas_loom_tests::check::{FOUND, broken, sound};
use kvatlas_loom_tests::protocol::*;
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering::*};
use loom::thread;

/// A run over two positions. `cut` is the leaving holder's, `joined` the other lane's, `kid` the child bit of position 2.
struct Run<P> {
    version: P,
    len: AtomicU64,
    cut: AtomicU64,
    joined: AtomicU64,
    kid: AtomicU64,
}

fn run<P: Protocol>() -> Arc<Run<P>> {
    let word = AtomicU64::new;
    Arc::new(Run { version: P::new_alive(), len: word(2), cut: word(2), joined: word(0), kid: word(0) })
}

/// How a form of the models differs from the product.
#[derive(Clone, Copy, PartialEq)]
enum Form {
    Sound,
    /// The child bit is set without LOCK.
    BitOutside,
    /// The length was read before LOCK.
    LenFromBefore,
    /// Holders and child bit were read before LOCK.
    DecidedBefore,
}

/// The holder leaves; the end goes if nobody has it and nothing hangs there (rule R4).
fn leave<P: Protocol>(run: &Run<P>, form: Form) {
    let needed = || run.joined.load(Relaxed) == 2 || run.kid.load(Relaxed) == 1;
    let early = needed();
    let mut held = run.version.lock();
    run.cut.store(0, Release);
    let needed = if form == Form::DecidedBefore { early } else { needed() };
    if !needed && run.len.load(Relaxed) == 2 {
        held.window(|| run.len.store(1, Relaxed));
    }
}

/// Joins the run to its end, and hangs a child there; whether it did.
fn attach<P: Protocol>(run: &Run<P>, form: Form) -> bool {
    let before = run.len.load(Acquire) == 2;
    if form == Form::BitOutside && before {
        run.kid.store(1, Relaxed);
    }
    let held = run.version.lock();
    let there = match form {
        Form::LenFromBefore | Form::BitOutside => before,
        _ => run.len.load(Relaxed) == 2,
    };
    if there {
        run.kid.store(1, Relaxed);
        run.joined.store(2, Release);
    }
    drop(held);
    there
}

fn attach_against_trim<P: Protocol>(form: Form) {
    let run = run::<P>();
    let lane = run.clone();
    let leaver = thread::spawn(move || leave(&lane, form));
    let attached = attach(&run, form);
    leaver.join().unwrap();
    assert!(!attached || run.len.load(Acquire) == 2, "{FOUND}a child hangs at a trimmed position");
    assert!(attached || run.len.load(Acquire) == 1, "{FOUND}an end that nobody needs stays");
}

#[test]
fn an_attached_end_is_never_trimmed() {
    sound("attach against trim", || attach_against_trim::<Version>(Form::Sound));
}

#[test]
fn broken_bit_set_outside_the_lock() {
    broken("child bit without the lock", || attach_against_trim::<Version>(Form::BitOutside));
}

#[test]
fn broken_length_from_before_the_lock() {
    broken("length from before the lock", || attach_against_trim::<Version>(Form::LenFromBefore));
}

#[test]
fn broken_decided_before_the_lock() {
    broken("trim decided before the lock", || attach_against_trim::<Version>(Form::DecidedBefore));
}
