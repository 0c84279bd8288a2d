//! The engines' own metrics as load records. Pure.
//!
//! | field | vLLM | SGLang |
//! |---|---|---|
//! | rank | label `engine` | label `dp_rank` |
//! | running | `vllm:num_requests_running` | `sglang:num_running_reqs` |
//! | waiting | `vllm:num_requests_waiting` | `sglang:num_queue_reqs` |
//! | usage | `vllm:kv_cache_usage_perc`, before `vllm:gpu_cache_usage_perc` | `sglang:token_usage` |
//! | rate | growth of `vllm:generation_tokens_total` since the poll before | `sglang:gen_throughput` |
//! | tokens used | – | `sglang:num_used_tokens` |
//! | tokens of the pool | – | `sglang:max_total_num_tokens` |
//! | hit rate | – | `sglang:cache_hit_rate` |
//!
//! Several series of one rank (tensor-parallel ranks that each tell the same) are one: the largest counts. A scraped count never
//! carries a cap (`max_running`), so it enters no ratio of requests to seats.

use super::exposition::Exposition;
use crate::routing::RankLoad;
use std::collections::BTreeMap;
use std::time::Duration;

/// Ranks that are told apart in one text; more are left out, which makes the worker's record incomplete.
const RANKS_MAX: usize = 4096;
/// Largest count that is taken over: beyond it a float is no count any more.
const COUNT_MAX: f64 = 9.007_199_254_740_992e15;

/// Turns texts of one worker into records; remembers what rates are made of.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    /// Generated tokens by rank, and when that was.
    before: BTreeMap<u32, (Duration, f64)>,
}

#[derive(Clone, Copy, Default)]
struct Told {
    load: RankLoad,
    generated: Option<f64>,
    /// Running or waiting requests were told: without either it is no load.
    is_load: bool,
}

impl Scrape {
    /// The records of a text that came at `now` (from any origin, never falling), by rank. `None`: it has no load of an engine in it.
    pub fn read(&mut self, now: Duration, text: Exposition<'_>) -> Option<Vec<RankLoad>> {
        let mut told: BTreeMap<u32, Told> = BTreeMap::new();
        for sample in text.samples() {
            let Some((engine, metric)) = sample.name.split_once(':') else { continue };
            let label = match engine {
                "vllm" => "engine",
                "sglang" => "dp_rank",
                _ => continue,
            };
            let rank = sample.label(label).map_or(Some(0), |rank| rank.parse().ok());
            let Some(rank) = rank.filter(|rank| told.len() < RANKS_MAX || told.contains_key(rank)) else { continue };
            note(told.entry(rank).or_default(), engine, metric, sample.value);
        }
        told.retain(|_, told| told.is_load);
        if told.is_empty() {
            return None;
        }
        let ranks = told.iter().map(|(rank, told)| self.record(now, *rank, told)).collect();
        self.before.retain(|rank, _| told.contains_key(rank));
        Some(ranks)
    }

    fn record(&mut self, now: Duration, rank: u32, told: &Told) -> RankLoad {
        let mut load = RankLoad { rank, ..told.load };
        let Some(generated) = told.generated else { return load };
        if let Some((at, before)) = self.before.insert(rank, (now, generated)) {
            // A counter that fell began anew: nothing is known of the time between.
            let (grown, seconds) = (generated - before, now.saturating_sub(at).as_secs_f64());
            if grown > 0.0 && seconds > 0.0 {
                load.gen_throughput = grown / seconds;
            }
        }
        load
    }
}

fn note(told: &mut Told, engine: &str, metric: &str, value: f64) {
    let load = &mut told.load;
    // What is no number stays one: the record's check refuses it by its field.
    let most = |is: f64| if value.is_nan() { value } else { is.max(value) };
    let count = |is: i64| if value.is_nan() || value < 0.0 { -1 } else { is.max(value.min(COUNT_MAX) as i64) };
    match (engine, metric) {
        ("vllm", "num_requests_running") | ("sglang", "num_running_reqs") => {
            (load.running, told.is_load) = (count(load.running), true);
        }
        ("vllm", "num_requests_waiting") | ("sglang", "num_queue_reqs") => {
            (load.waiting, told.is_load) = (count(load.waiting), true);
        }
        ("vllm", "kv_cache_usage_perc" | "gpu_cache_usage_perc") | ("sglang", "token_usage") => {
            load.token_usage = most(load.token_usage);
        }
        ("vllm", "generation_tokens_total") => told.generated = Some(most(told.generated.unwrap_or(0.0))),
        ("sglang", "gen_throughput") => load.gen_throughput = most(load.gen_throughput),
        ("sglang", "num_used_tokens") => load.used_tokens = count(load.used_tokens),
        ("sglang", "max_total_num_tokens") => load.max_total_tokens = count(load.max_total_tokens),
        ("sglang", "cache_hit_rate") => load.cache_hit_rate = most(load.cache_hit_rate),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routing::{LoadReport, Malformed, WorkerLoad};

    fn read(scrape: &mut Scrape, seconds: u64, text: &str) -> Option<Vec<RankLoad>> {
        let text = Exposition::new(text.as_bytes()).unwrap();
        scrape.read(Duration::from_secs(seconds), text)
    }

    fn vllm(generated: u64) -> String {
        format!(
            "# TYPE vllm:num_requests_running gauge\n\
             vllm:num_requests_running{{engine=\"0\",model_name=\"m\"}} 3.0\n\
             vllm:num_requests_running{{engine=\"1\",model_name=\"m\"}} 0.0\n\
             vllm:num_requests_waiting{{engine=\"0\",model_name=\"m\"}} 2.0\n\
             vllm:num_requests_waiting{{engine=\"1\",model_name=\"m\"}} 0.0\n\
             vllm:kv_cache_usage_perc{{engine=\"0\",model_name=\"m\"}} 0.42\n\
             vllm:generation_tokens_total{{engine=\"0\",model_name=\"m\"}} {generated}\n\
             vllm:generation_tokens_created{{engine=\"0\",model_name=\"m\"}} 1.7e9\n\
             python_gc_objects_collected_total{{generation=\"0\"}} 12\n"
        )
    }

    #[test]
    fn a_vllm_text_has_a_record_for_each_engine_and_rates_from_the_second_poll_on() {
        let mut scrape = Scrape::default();
        let first = read(&mut scrape, 10, &vllm(1_000)).unwrap();
        let expected = RankLoad { running: 3, waiting: 2, token_usage: 0.42, ..RankLoad::default() };
        assert_eq!(first, [expected, RankLoad { rank: 1, ..RankLoad::default() }]);
        assert_eq!(read(&mut scrape, 12, &vllm(1_500)).unwrap()[0].gen_throughput, 250.0);
        assert_eq!(read(&mut scrape, 14, &vllm(20)).unwrap()[0].gen_throughput, 0.0, "restarted");
        assert_eq!(read(&mut scrape, 15, &vllm(120)).unwrap()[0].gen_throughput, 100.0);
    }

    #[test]
    fn an_sglang_text_counts_each_rank_once_however_many_tell() {
        let text = "sglang:num_running_reqs{model_name=\"m\",tp_rank=\"0\",dp_rank=\"0\"} 16\n\
                    sglang:num_running_reqs{model_name=\"m\",tp_rank=\"1\",dp_rank=\"0\"} 16\n\
                    sglang:num_queue_reqs{tp_rank=\"0\",dp_rank=\"0\"} 4\n\
                    sglang:token_usage{tp_rank=\"0\",dp_rank=\"0\"} 0.9\n\
                    sglang:gen_throughput{tp_rank=\"0\",dp_rank=\"0\"} 812.5\n\
                    sglang:num_used_tokens{tp_rank=\"0\",dp_rank=\"0\"} 900\n\
                    sglang:max_total_num_tokens{tp_rank=\"0\",dp_rank=\"0\"} 1000\n\
                    sglang:cache_hit_rate{tp_rank=\"0\",dp_rank=\"0\"} 0.5\n";
        let load = RankLoad {
            running: 16,
            waiting: 4,
            token_usage: 0.9,
            gen_throughput: 812.5,
            used_tokens: 900,
            max_total_tokens: 1000,
            cache_hit_rate: 0.5,
            ..RankLoad::default()
        };
        assert_eq!(read(&mut Scrape::default(), 1, text), Some(vec![load]));
    }

    #[test]
    fn a_text_of_something_else_is_no_load() {
        assert_eq!(read(&mut Scrape::default(), 1, "up 1\ngo_threads 7\n"), None);
        assert_eq!(read(&mut Scrape::default(), 1, "vllm:kv_cache_usage_perc 0.1"), None, "usage alone");
        assert_eq!(read(&mut Scrape::default(), 1, "sglang:num_running_reqs{dp_rank=\"x\"} 1"), None);
    }

    #[test]
    fn what_is_no_number_is_refused_by_its_field() {
        for (text, field) in [
            ("vllm:num_requests_running NaN\n", Malformed::Running),
            ("vllm:num_requests_running 1\nvllm:num_requests_waiting -4\n", Malformed::Waiting),
            ("vllm:num_requests_running 1\nvllm:kv_cache_usage_perc NaN\n", Malformed::TokenUsage),
            ("sglang:num_running_reqs 1\nsglang:token_usage 1.5\n", Malformed::TokenUsage),
            ("sglang:num_running_reqs 1\nsglang:gen_throughput +Inf\n", Malformed::GenThroughput),
        ] {
            let ranks = read(&mut Scrape::default(), 1, text).unwrap();
            let report = LoadReport { rank_count: 1, ranks, ..LoadReport::default() };
            assert_eq!(WorkerLoad::from_report(&report), Err(field), "{text}");
        }
    }
}
