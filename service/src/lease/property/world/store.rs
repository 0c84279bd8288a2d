//! The replicas: each steps the record by its own clock, and the variants that are broken there.

use super::super::super::*;
use super::super::checks::Commit;
use super::{Ask, Broken, Event, World};
use crate::ingest::Counters;
use std::time::Duration;

impl World {
    /// A replica steps the record, by its own clock.
    pub(super) fn at_the_store(&mut self, attempt: u64, call: u64, ask: Ask) {
        let router = self.router_of(attempt);
        let offset = match router {
            Some(router) => self.routers[router].offset,
            None => self.random.pick(&[Duration::ZERO, Duration::from_secs(1)]),
        };
        let (clock, mut counts) = (self.now + offset, Counters::default());
        let heard = self.answer(clock, ask, &mut counts);
        for (reason, count) in counts.iter() {
            match reason {
                "granted" => self.tally.granted += count,
                "committed" => self.tally.committed += count,
                "expired" => self.tally.expired += count,
                "aborted" => self.tally.aborted += count,
                "fenced" => self.tally.fenced += count,
                "refused_token_used" => self.tally.tokens_replayed += count,
                "refused_held" | "refused_cooldown" => self.tally.refused += count,
                _ => {}
            }
        }
        let partitioned = router.is_some_and(|router| self.routers[router].partitioned);
        if let Some(heard) = heard.filter(|_| !partitioned && !self.random.one_in(20)) {
            let delay = self.delay();
            self.after(delay, Event::ToRouter { attempt, call: Some(call), heard });
        }
    }

    fn answer(&mut self, clock: Duration, ask: Ask, counts: &mut Counters) -> Option<Heard> {
        let settings = self.settings.clone();
        self.break_before(&settings);
        let heard = match ask {
            Ask::Acquire(ask) => {
                let life = self.engines[self.engine(&ask.target.worker)].life.clone();
                let answer = self.record.acquire(clock, &ask, &life, &settings, counts);
                if let Ok(lease) = &answer {
                    self.checks.granted(lease.key.fence, ask.token);
                    self.publish_first(&ask);
                }
                self.checks.owners(&self.record, None);
                Some(Heard::Acquired(answer))
            }
            Ask::Renew(key, dispatching) => {
                let key = self.key(key);
                let present = self.record.grant().map(|grant| self.present(&grant.target));
                let announced = dispatching.then_some(present.as_ref());
                Some(Heard::Renewed(self.record.renew(clock, key, announced, &settings, counts).ok()))
            }
            Ask::Commit(key, end) => Some(self.commit(clock, key, end, counts)),
            Ask::Abort(key) => {
                let key = self.key(key);
                let token = self.record.grant().filter(|grant| grant.is(key)).map(|grant| grant.token);
                let lied = self.is(Broken::RefundAfterDispatch);
                if lied && let Phase::Granted(grant) = &mut self.record.phase {
                    grant.dispatched = None;
                }
                let refunded = self.record.abort(clock, key, &settings, counts);
                token.filter(|_| refunded).into_iter().for_each(|token| self.checks.refunded(token));
                None
            }
        };
        self.break_after();
        heard
    }

    fn present(&self, target: &Target) -> Present {
        let engine = &self.engines[self.engine(&target.worker)];
        let target = if self.is(Broken::TargetNotLookedAt) { target.clone() } else { engine.life.clone() };
        Present { target, sequences: Sequences(vec![engine.applied]) }
    }

    fn commit(&mut self, clock: Duration, key: LeaseKey, end: Option<EndProof>, counts: &mut Counters) -> Heard {
        let (settings, asked) = (self.settings.clone(), key);
        let key = self.key(key);
        let grant = self.record.grant().cloned();
        let target = grant.as_ref().map(|grant| grant.target.clone());
        let engine = target.as_ref().map(|target| self.engines[self.engine(&target.worker)].clone());
        let prefix = grant.as_ref().map_or(0, |grant| grant.prefix[0]);
        let holds = engine.as_ref().is_some_and(|engine| engine.held.contains(&prefix));
        let sequences = Sequences(vec![engine.as_ref().map_or(0, |engine| engine.applied)]);
        let proof = match end {
            Some(end) => Proof::End(end),
            None => Proof::Index(IndexEvidence { holds, exact: true, sequences }),
        };
        let removed =
            target.as_ref().and_then(|t| self.removals.get(&(prefix, t.worker.clone(), t.incarnation)).copied());
        let dispatched = grant.as_ref().and_then(|grant| grant.dispatched.clone());
        let from = if matches!(proof, Proof::End(_)) { dispatched.and_then(|s| s.0.first().copied()) } else { None };
        let present = target.as_ref().map(|target| self.present(target).target);
        let answer = self.record.commit(clock, key, &proof, present.as_ref(), &settings, counts);
        let fresh = counts.get("committed") > 0;
        if let (true, Some(target), Some(engine)) = (fresh, &target, &engine) {
            let commit = Commit {
                fence: asked.fence,
                prefix: &vec![prefix],
                target,
                life: &engine.life,
                holds,
                removed_since: removed.zip(from).is_some_and(|(removed, from)| removed > from),
            };
            self.checks.committed(&commit);
            self.checks.owners(&self.record, Some(&commit));
        } else {
            self.checks.owners(&self.record, None);
        }
        Heard::Committed(match answer {
            Ok(_) => Answer::Done,
            Err(NotCommitted::Rejected(_)) => Answer::Rejected,
            Err(NotCommitted::Lost | NotCommitted::TargetChanged) => Answer::Over,
        })
    }

    /// The key that a caller sent; without a fence check, whichever would do.
    fn key(&self, key: LeaseKey) -> LeaseKey {
        let current = self.record.grant().map(|grant| LeaseKey { lease_id: grant.lease_id, fence: grant.fence });
        if self.is(Broken::NoFenceCheck) { current.unwrap_or(key) } else { key }
    }

    fn break_before(&mut self, settings: &LeaseSettings) {
        if self.is(Broken::TokensForgotten) {
            self.record.tokens.forget(self.now + settings.token_lifetime * 2, settings.token_lifetime);
        }
    }

    fn break_after(&mut self) {
        if self.is(Broken::NoSkewWait)
            && let Phase::Cooldown { until, ending: Ending::Expired, .. } = &mut self.record.phase
        {
            *until = Duration::ZERO;
        }
    }

    fn publish_first(&mut self, ask: &Acquire) {
        if self.is(Broken::PublishFirst) {
            let owner = Owner { target: ask.target.clone(), proven: Sequences::default() };
            let revision = self.record.revision + 1;
            self.record.prefixes.join(&ask.prefix, owner, revision);
            self.record.revision = revision;
        }
    }
}
