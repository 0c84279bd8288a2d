//! Arms side by side: each played with every seed, figures as means with their intervals.

use super::arrivals::Arrival;
use super::desk_router::DeskRouter;
use super::metrics::Figures;
use super::world::{Loads, WorldSpec, run};
use kvatlas_service::routing::{PolicyName, RoutingSettings};
use serde::Serialize;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// What routes.
#[derive(Clone, Debug)]
pub struct Arm {
    /// Its name in tables.
    pub name: String,
    /// The settings of its desks.
    pub settings: Arc<RoutingSettings>,
}

impl Arm {
    /// A policy under these settings.
    pub fn policy(policy: PolicyName, settings: &RoutingSettings) -> Self {
        let settings = RoutingSettings { policy, ..settings.clone() };
        Self { name: policy.name().to_owned(), settings: Arc::new(settings) }
    }
}

/// A mean over seeds, with half of its 95 % interval (Student's t).
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Mean {
    /// The mean.
    pub mean: f64,
    /// Half the interval's width; 0 with one seed.
    pub half: f64,
}

impl Mean {
    fn of(values: &[f64]) -> Self {
        let n = values.len() as f64;
        let mean = values.iter().sum::<f64>() / n.max(1.0);
        if values.len() < 2 {
            return Self { mean, half: 0.0 };
        }
        let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / (n - 1.0);
        Self { mean, half: t_95(values.len() - 1) * (variance / n).sqrt() }
    }
}

/// The 97.5 % quantile of Student's distribution.
fn t_95(freedom: usize) -> f64 {
    const SMALL: [f64; 10] = [12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228];
    // Beyond ten, the tenth: too wide rather than too narrow.
    SMALL[freedom.clamp(1, SMALL.len()) - 1]
}

/// One arm's figures.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// The arm.
    pub arm: String,
    /// By seed.
    pub runs: Vec<Figures>,
}

impl Row {
    /// The mean of a figure.
    pub fn mean(&self, of: impl Fn(&Figures) -> f64) -> Mean {
        Mean::of(&self.runs.iter().map(of).collect::<Vec<_>>())
    }
}

/// A seed and its arrivals.
pub type Seeded = (u64, Arc<[Arrival]>);

/// Plays every arm with every list of arrivals (one for each seed), as many at once as the machine has cores. `done` is told after
/// each run.
pub fn play(spec: &WorldSpec, routers: usize, arms: &[Arm], seeds: &[Seeded], done: impl Fn() + Sync) -> Vec<Row> {
    let jobs = arms.len() * seeds.len();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(jobs.max(1));
    let mut results: Vec<(usize, Figures)> = std::thread::scope(|scope| {
        let work = || {
            let mut mine = Vec::new();
            loop {
                let job = next.fetch_add(1, Ordering::Relaxed);
                if job >= jobs {
                    return mine;
                }
                let (arm, (seed, arrivals)) = (&arms[job / seeds.len()], &seeds[job % seeds.len()]);
                mine.push((job, one(spec, routers, arm, *seed, arrivals)));
                done();
            }
        };
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        threads.into_iter().flat_map(|thread| thread.join().expect("a run that ends")).collect()
    });
    results.sort_by_key(|(job, _)| *job);
    let mut figures = results.into_iter().map(|(_, figures)| figures);
    arms.iter().map(|arm| Row { arm: arm.name.clone(), runs: figures.by_ref().take(seeds.len()).collect() }).collect()
}

fn one(spec: &WorldSpec, routers: usize, arm: &Arm, seed: u64, arrivals: &[Arrival]) -> Figures {
    let spec = WorldSpec { seed, ..*spec };
    let polled = match spec.loads {
        Loads::Polled(every_ms) => Some(Duration::from_millis(every_ms)),
        Loads::Pushed => None,
    };
    let router = |number: u64| {
        let seed = seed.wrapping_mul(1_000).wrapping_add(number);
        DeskRouter::new(spec.workers, &spec.engine, arm.settings.clone(), polled, seed)
    };
    let mut routers: Vec<DeskRouter> = (0..routers as u64).map(router).collect();
    run(&spec, arrivals, &mut routers).1
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_are_students() {
        let mean = Mean::of(&[1.0, 2.0, 3.0]);
        assert!((mean.mean - 2.0).abs() < 1e-12 && (mean.half - 4.303 / 3.0_f64.sqrt()).abs() < 1e-9, "{mean:?}");
        assert_eq!(Mean::of(&[5.0]), Mean { mean: 5.0, half: 0.0 });
    }
}
