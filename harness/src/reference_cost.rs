//! The cost function of an external router, to be compared with: blocks of prefill still to do, and blocks that are held, at each
//! worker. Everything in it is the router's own book. For the workbench only; no policy of the product is made of it.
//!
//! ```text
//! raw     = (active prefill tokens + prompt tokens) / block size
//! credit  = overlap_credit·device/(1 + decay·excess) + host_credit·host + disk_credit·disk + shared_credit·shared
//! prefill = prefill_scale · max(0, raw − credit)
//! cost    = (prefill + active blocks + additional blocks + request_weight·active requests) · taint
//! ```
//!
//! `excess` is the active prefill above that of the least loaded worker, in blocks, over the blocks of the request.

use rand::{Rng, RngExt};

/// The weights. The default is the external router's own.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReferenceWeights {
    /// Of a block that the worker holds on the device.
    pub overlap_credit: f64,
    /// How much a worker's active prefill takes from that.
    pub overlap_decay: f64,
    /// Of a block in host memory.
    pub host_credit: f64,
    /// Of a block on disk.
    pub disk_credit: f64,
    /// Of a block beyond these in a cache that workers share.
    pub shared_credit: f64,
    /// Of a block of prefill.
    pub prefill_scale: f64,
    /// Of a request in flight.
    pub request_weight: f64,
    /// 0: the least cost; above: a draw, the flatter the higher.
    pub temperature: f64,
}

impl Default for ReferenceWeights {
    fn default() -> Self {
        Self {
            overlap_credit: 1.0,
            overlap_decay: 0.0,
            host_credit: 0.75,
            disk_credit: 0.25,
            shared_credit: 0.0,
            prefill_scale: 1.0,
            request_weight: 0.0,
            temperature: 0.0,
        }
    }
}

/// A worker, as the router's book has it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ReferenceWorker {
    /// Uncached prompt tokens of requests whose first token has not come.
    pub active_prefill_tokens: u64,
    /// Leading blocks of the prompt that it holds on the device.
    pub device_overlap: u32,
    /// In host memory.
    pub host_overlap: u32,
    /// On disk.
    pub disk_overlap: u32,
    /// Blocks of the prompt that a shared cache has beyond its own.
    pub shared_beyond: u32,
    /// Different prompt blocks of requests that have not ended.
    pub active_blocks: u64,
    /// Blocks that the request would add to them.
    pub additional_blocks: u64,
    /// Requests that have not ended.
    pub active_requests: u32,
    /// Factor of its cost; 1 for a worker that nobody prefers or avoids.
    pub taint: f64,
}

impl Default for ReferenceWorker {
    fn default() -> Self {
        Self {
            active_prefill_tokens: 0,
            device_overlap: 0,
            host_overlap: 0,
            disk_overlap: 0,
            shared_beyond: 0,
            active_blocks: 0,
            additional_blocks: 0,
            active_requests: 0,
            taint: 1.0,
        }
    }
}

impl ReferenceWeights {
    /// The cost at each worker for a prompt of so many tokens, in blocks; in place of what `costs` held. Lower is better.
    pub fn costs(&self, prompt_tokens: u64, block_size: u32, workers: &[ReferenceWorker], costs: &mut Vec<f64>) {
        let blocks = |tokens: u64| tokens as f64 / f64::from(block_size.max(1));
        let least = workers.iter().map(|worker| worker.active_prefill_tokens).min().unwrap_or(0);
        let request_blocks = blocks(prompt_tokens.max(1));
        costs.clear();
        costs.extend(workers.iter().map(|worker| {
            let excess = blocks(worker.active_prefill_tokens - least) / request_blocks;
            let credit = self.overlap_credit * f64::from(worker.device_overlap) / (1.0 + self.overlap_decay * excess)
                + self.host_credit * f64::from(worker.host_overlap)
                + self.disk_credit * f64::from(worker.disk_overlap)
                + self.shared_credit * f64::from(worker.shared_beyond);
            let raw = blocks(worker.active_prefill_tokens.saturating_add(prompt_tokens));
            let prefill = self.prefill_scale * (raw - credit).max(0.0);
            let decode = worker.active_blocks as f64 + worker.additional_blocks as f64;
            (prefill + decode + self.request_weight * f64::from(worker.active_requests)) * worker.taint
        }));
    }

    /// The place of a worker: the least cost, drawn among equals, or with a temperature drawn by [`probabilities`]. `None` without
    /// workers.
    pub fn pick(&self, costs: &[f64], rng: &mut dyn Rng) -> Option<usize> {
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        if self.temperature > 0.0 {
            let weights: Vec<f64> = probabilities(costs, self.temperature).collect();
            let mut left = rng.random_range(0.0..1.0);
            let drawn = weights.iter().position(|weight| {
                left -= weight;
                left < 0.0
            });
            // What roundings leave over is the last one's.
            return drawn.or(weights.len().checked_sub(1));
        }
        let is_least = |cost: &f64| *cost <= least;
        let many = costs.iter().copied().filter(is_least).count();
        let drawn = if many > 1 { rng.random_range(0..many) } else { 0 };
        costs.iter().enumerate().filter(|(_, cost)| is_least(cost)).nth(drawn).map(|(place, _)| place)
    }
}

/// The probabilities of a draw: a softmax of the costs, brought to 0 to 1 and divided by the temperature. Equal where all costs are.
pub fn probabilities(costs: &[f64], temperature: f64) -> impl Iterator<Item = f64> {
    let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
    let most = costs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let spread = (most - least) * temperature;
    let weight = move |cost: f64| if spread > 0.0 { (-(cost - least) / spread).exp() } else { 1.0 };
    let sum: f64 = costs.iter().map(|cost| weight(*cost)).sum();
    costs.iter().map(move |cost| weight(*cost) / sum)
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;
    use rand::rngs::StdRng;

    /// A row's worker: active prefill tokens, overlap, active and additional blocks.
    fn worker((active, overlap, decode, additional): (u64, u32, u64, u64)) -> ReferenceWorker {
        ReferenceWorker {
            active_prefill_tokens: active,
            device_overlap: overlap,
            active_blocks: decode,
            additional_blocks: additional,
            ..ReferenceWorker::default()
        }
    }

    fn costs(weights: &ReferenceWeights, workers: &[ReferenceWorker]) -> Vec<f64> {
        let mut costs = vec![9.0];
        weights.costs(1600, 16, workers, &mut costs);
        costs
    }

    #[track_caller]
    fn assert_row(a: (u64, u32, u64, u64), b: (u64, u32, u64, u64), expected: [f64; 2], place: usize) {
        let weights = ReferenceWeights::default();
        let costs = costs(&weights, &[worker(a), worker(b)]);
        assert_eq!(costs, expected);
        assert_eq!(weights.pick(&costs, &mut StdRng::seed_from_u64(1)), Some(place));
    }

    #[test]
    fn rc1_overlap_saves_prefill() {
        assert_row((0, 0, 0, 100), (0, 100, 0, 100), [200.0, 100.0], 1);
    }

    #[test]
    fn rc2_held_blocks_outweigh_it() {
        assert_row((0, 100, 120, 100), (0, 0, 0, 100), [220.0, 200.0], 1);
    }

    #[test]
    fn rc3_prefill_under_way_outweighs_it() {
        assert_row((3200, 100, 0, 100), (0, 0, 0, 100), [300.0, 200.0], 1);
    }

    #[test]
    fn rc4_a_temperature_draws() {
        let costs = [100.0, 150.0, 200.0];
        let expected = [0.6652, 0.2447, 0.0900];
        let is: Vec<f64> = probabilities(&costs, 0.5).collect();
        assert!(is.iter().zip(expected).all(|(is, expected)| (is - expected).abs() < 5e-5), "{is:?}");
        let weights = ReferenceWeights { temperature: 0.5, ..ReferenceWeights::default() };
        let (mut rng, mut drawn) = (StdRng::seed_from_u64(4), [0_u32; 3]);
        (0..30_000).for_each(|_| drawn[weights.pick(&costs, &mut rng).unwrap()] += 1);
        // Four standard deviations.
        let near = |(drawn, share): (&u32, f64)| (f64::from(*drawn) / 30_000.0 - share).abs() < 0.011;
        assert!(drawn.iter().zip(expected).all(near), "{drawn:?}");
    }

    #[test]
    fn every_weight_counts() {
        let busy = ReferenceWorker {
            host_overlap: 10,
            disk_overlap: 20,
            shared_beyond: 4,
            active_requests: 3,
            ..worker((1600, 40, 0, 0))
        };
        let idle = worker((0, 0, 0, 0));
        let weights = ReferenceWeights::default();
        assert_eq!(costs(&weights, &[busy, idle]), [200.0 - 40.0 - 7.5 - 5.0, 100.0]);
        let weights = ReferenceWeights { overlap_decay: 1.0, shared_credit: 0.5, request_weight: 2.0, ..weights };
        // As much prefill as the request has blocks: the decay halves the device's credit.
        assert_eq!(costs(&weights, &[busy, idle]), [200.0 - 20.0 - 7.5 - 5.0 - 2.0 + 6.0, 100.0]);
        let weights = ReferenceWeights { prefill_scale: 0.5, ..ReferenceWeights::default() };
        let avoided = ReferenceWorker { taint: 3.0, ..idle };
        assert_eq!(costs(&weights, &[avoided, worker((0, 900, 7, 0))]), [150.0, 7.0], "credit never pays for more");
    }

    #[test]
    fn equals_are_drawn_and_nobody_is_nobody() {
        let mut rng = StdRng::seed_from_u64(5);
        for temperature in [0.0, 0.3] {
            let weights = ReferenceWeights { temperature, ..ReferenceWeights::default() };
            let first = (0..1000).filter(|_| weights.pick(&[7.0, 7.0], &mut rng) == Some(0)).count();
            assert!((420..=580).contains(&first), "{first}");
            assert_eq!(weights.pick(&[], &mut rng), None);
        }
    }
}
