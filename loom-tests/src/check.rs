//! Runs a model and says whether loom accepts it.

use kvatlas_index::fault::{Fault, inject};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

/// Every claim of a model fails with a text that begins so; any other panic (a deadlock, a bound of loom's) is no verdict.
pub const FOUND: &str = "found: ";

/// Switches between threads that loom forces at most in one execution of a model. `LOOM_MAX_PREEMPTIONS` overrides it.
const PREEMPTIONS: usize = 2;
/// The same for a broken form.
const PREEMPTIONS_BROKEN: usize = 3;

struct Verdict {
    executions: usize,
    outcome: Result<(), String>,
}

fn explore(preemptions: usize, model: impl Fn() + Send + Sync + 'static) -> Verdict {
    let executions = Arc::new(AtomicUsize::new(0));
    let counted = executions.clone();
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = builder.preemption_bound.or(Some(preemptions));
        builder.max_branches = 50_000;
        builder.check(move || {
            counted.fetch_add(1, Ordering::Relaxed);
            model();
        });
    }));
    let outcome = outcome.map_err(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        text.or_else(|| panic.downcast_ref::<&str>().map(|text| text.to_string())).unwrap_or_default()
    });
    Verdict { executions: executions.load(Ordering::Relaxed), outcome }
}

/// The model holds in every execution, and there is more than one.
pub fn sound(name: &str, model: impl Fn() + Send + Sync + 'static) {
    sound_to(PREEMPTIONS, name, model);
}

/// The same with so many preemptions, where that ends soon enough or something is found with as many only.
pub fn sound_to(preemptions: usize, name: &str, model: impl Fn() + Send + Sync + 'static) {
    let start = Instant::now();
    let verdict = explore(preemptions, model);
    if let Err(text) = verdict.outcome {
        panic!("{name} is unsound after {} executions: {text}", verdict.executions);
    }
    assert!(verdict.executions > 1, "{name}: loom ran a single execution, so it checked nothing");
    println!("{name}: sound, {} executions, {:.2} s", verdict.executions, start.elapsed().as_secs_f64());
}

/// Loom finds the fault.
pub fn broken(name: &str, model: impl Fn() + Send + Sync + 'static) {
    let verdict = explore(PREEMPTIONS_BROKEN, model);
    match verdict.outcome {
        Ok(()) => panic!("{name}: loom accepts the broken form after {} executions", verdict.executions),
        Err(text) => {
            assert!(text.contains(FOUND), "{name}: stopped for another reason: {text}");
            println!("{name}: rejected after {} executions: {text}", verdict.executions);
        }
    }
}

/// Loom finds a fault of the product's own code.
pub fn broken_by(fault: Fault, name: &str, model: impl Fn() + Send + Sync + 'static) {
    broken_by_all(&[fault], name, model);
}

/// Loom finds faults of the product's own code that the others' absence would make good.
pub fn broken_by_all(faults: &[Fault], name: &str, model: impl Fn() + Send + Sync + 'static) {
    inject(faults);
    broken(&format!("{name}, {faults:?}"), model);
    inject(&[]);
}
