//! The engines, and what befalls everybody: pauses, crashes, partitions, restarts, removals and clocks.

use super::super::super::*;
use super::{Broken, Event, ROUTERS, WORKERS, World};
use crate::ingest::Counters;
use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::Duration;

impl World {
    pub(super) fn at_the_engine(&mut self, attempt: u64, fence: u64) {
        let admitted = self.is(Broken::NoFenceAtTheEngine) || self.fences.admit(&self.partition, fence).is_ok();
        if !admitted {
            self.tally.late_dispatches += 1;
            return;
        }
        self.checks.let_in(fence);
        // Its client cut the connection before it was there.
        let Some(router) = self.router_of(attempt) else { return };
        let Some(acquire) = self.routers[router].attempt.as_ref().filter(|a| a.flying).map(|a| a.acquire.clone())
        else {
            return;
        };
        let takes = Duration::from_millis(200) + self.random.millis(9_000);
        let tokens = 100 + self.random.below(17);
        let usage = EndProof {
            clean: true,
            finish_reason: "stop".into(),
            output_tokens: 1,
            prompt_tokens: 100,
            router_prompt_tokens: tokens,
            block_size: 16,
        };
        let end = match self.random.below(8) {
            0..=4 => End::Usage(usage),
            5 => End::Clean,
            _ => End::Failed,
        };
        let engine = self.engine(&acquire.target.worker);
        let end = if self.engines[engine].life == acquire.target { end } else { End::Failed };
        self.after(takes, Event::EngineEnds { attempt, fence, end });
    }

    pub(super) fn engine(&self, worker: &str) -> usize {
        self.engines.iter().position(|engine| engine.life.worker == worker).unwrap_or(0)
    }

    pub(super) fn engine_ends(&mut self, attempt: u64, fence: u64, end: End) {
        let Some(router) = self.router_of(attempt) else { return };
        let Some(acquire) = self.routers[router].attempt.as_ref().filter(|a| a.flying).map(|a| a.acquire.clone())
        else {
            return;
        };
        let at = self.engine(&acquire.target.worker);
        let end = if self.engines[at].life == acquire.target { end } else { End::Failed };
        if end != End::Failed {
            self.engines[at].held.insert(acquire.prefix[0]);
            self.engines[at].applied += 1;
            self.checks.ended(fence);
        }
        let delay = self.delay();
        self.after(delay, Event::ToRouter { attempt, call: None, heard: Heard::Ended(end) });
    }

    pub(super) fn chaos(&mut self) {
        let router = self.random.below(ROUTERS as u64) as usize;
        match self.random.below(14) {
            0 | 1 => {
                let pause = Duration::from_millis(100) + self.random.millis(10_000);
                self.routers[router].paused = Some(self.now + pause);
                self.tally.pauses += 1;
                self.after(pause, Event::Resume(router));
            }
            2 => {
                // Its connections go with it.
                self.routers[router].attempt = None;
                self.tally.crashes += 1;
            }
            3 => {
                self.routers[router].partitioned = true;
                let pause = self.random.millis(9_000);
                self.after(pause, Event::Heal(router));
            }
            4 => {
                let at = self.random.below(WORKERS as u64) as usize;
                let engine = &mut self.engines[at];
                let dead = engine.life.clone();
                engine.life.incarnation += 1;
                (engine.applied, engine.held) = (0, HashSet::new());
                let gone = self.record.gone(self.now, &dead, &self.settings, &mut Counters::default());
                self.tally.revoked += u64::from(gone);
            }
            5..=7 => self.remove(),
            8 => self.routers[router].offset = self.random.pick(&[Duration::ZERO, Duration::from_secs(1)]),
            _ => {}
        }
        self.checks.owners(&self.record, None);
        let pause = self.random.millis(1_200);
        self.after(pause, Event::Chaos);
    }

    /// An engine drops a prefix, and the sweep sees that.
    fn remove(&mut self) {
        let held = self.engines.iter().enumerate().flat_map(|(i, e)| e.held.iter().map(move |prefix| (i, *prefix)));
        let Some((at, prefix)) = held.min_by_key(|(i, prefix)| Reverse((*i, *prefix))) else { return };
        let engine = &mut self.engines[at];
        engine.held.remove(&prefix);
        engine.applied += 1;
        let present = Present { target: engine.life.clone(), sequences: Sequences(vec![engine.applied]) };
        let life = (prefix, present.target.worker.clone(), present.target.incarnation);
        self.removals.insert(life, present.sequences.0[0]);
        let revoked = self.record.removed(self.now, &[prefix], &present, &self.settings, &mut Counters::default());
        self.tally.revoked += u64::from(revoked);
        if self.is(Broken::NoTombstones) {
            self.record.prefixes.forget_tombstones();
        }
    }
}
