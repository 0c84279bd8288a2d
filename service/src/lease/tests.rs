//! The rows of routing.md 3.5 that one partition's machine decides, and its answers one by one.

use super::*;
use crate::ingest::Counters;
use std::time::Duration;

const PREFIX: &[u8] = b"prefix";

fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn target(worker: &str) -> Target {
    Target { worker: worker.into(), generation: 1, incarnation: 1, replica: 1 }
}

fn at(applied: u64) -> Sequences {
    Sequences(vec![applied])
}

fn usage() -> Proof {
    Proof::End(EndProof {
        clean: true,
        finish_reason: "stop".into(),
        output_tokens: 7,
        prompt_tokens: 160,
        router_prompt_tokens: 170,
        block_size: 16,
    })
}

fn evidence(holds: bool, applied: u64) -> Proof {
    Proof::Index(IndexEvidence { holds, exact: true, sequences: at(applied) })
}

/// A partition that has been quiet for long enough, and its clock.
struct Table {
    record: Record,
    now: Duration,
    settings: LeaseSettings,
    counts: Counters,
    tokens: u32,
}

impl Table {
    fn new() -> Self {
        Self::with(LeaseSettings::default())
    }

    fn with(settings: LeaseSettings) -> Self {
        let record = Record::new(secs(100), &settings);
        Self { record, now: secs(100) + settings.quiet(), settings, counts: Counters::default(), tokens: 0 }
    }

    fn ask(&mut self, router: &str, worker: &str) -> Acquire {
        self.tokens += 1;
        Acquire {
            prefix: PREFIX.to_vec(),
            router: router.into(),
            token: TokenHash::of(&self.tokens.to_string()),
            target: target(worker),
            owner_revision: self.record.prefixes.get(PREFIX).map_or(0, |set| set.revision),
            telemetry_digest: 0,
            deadline: None,
        }
    }

    fn acquire(&mut self, ask: &Acquire) -> Result<Lease, Refused> {
        self.record.acquire(self.now, ask, &ask.target, &self.settings, &mut self.counts)
    }

    fn granted(&mut self, router: &str, worker: &str) -> LeaseKey {
        let ask = self.ask(router, worker);
        self.acquire(&ask).unwrap().key
    }

    fn dispatch(&mut self, key: LeaseKey, worker: &str, applied: u64) -> Result<Duration, Lost> {
        let present = Present { target: target(worker), sequences: at(applied) };
        self.record.renew(self.now, key, Some(Some(&present)), &self.settings, &mut self.counts)
    }

    fn renew(&mut self, key: LeaseKey) -> Result<Duration, Lost> {
        self.record.renew(self.now, key, None, &self.settings, &mut self.counts)
    }

    fn commit(&mut self, key: LeaseKey, proof: &Proof, worker: &str) -> Result<u64, NotCommitted> {
        let present = target(worker);
        self.record.commit(self.now, key, proof, Some(&present), &self.settings, &mut self.counts)
    }

    fn abort(&mut self, key: LeaseKey) -> bool {
        self.record.abort(self.now, key, &self.settings, &mut self.counts)
    }

    fn removed(&mut self, worker: &str, applied: u64) -> bool {
        let present = Present { target: target(worker), sequences: at(applied) };
        self.record.removed(self.now, PREFIX, &present, &self.settings, &mut self.counts)
    }

    fn owners(&self) -> Vec<&str> {
        let set = self.record.prefixes.get(PREFIX);
        set.map_or(Vec::new(), |set| set.owners.iter().map(|owner| owner.target.worker.as_str()).collect())
    }

    /// One more owner, by the whole way.
    fn seed(&mut self, worker: &str) {
        let key = self.granted("r", worker);
        self.dispatch(key, worker, 0).unwrap();
        self.commit(key, &usage(), worker).unwrap();
        self.now += self.settings.cooldown_committed;
    }

    fn refusal(&mut self, ask: &Acquire) -> (Reason, Duration) {
        let refused = self.acquire(ask).unwrap_err();
        (refused.reason, refused.retry_after)
    }
}

#[test]
fn sl1_two_routers_acquire_at_once() {
    let mut table = Table::new();
    let (first, second) = (table.ask("a", "peer"), table.ask("b", "peer"));
    let lease = table.acquire(&first).unwrap();
    assert_eq!((lease.ttl, lease.max_hold), (secs(5), secs(120)));
    assert_eq!(table.refusal(&second), (Reason::Held, secs(5)));
    table.dispatch(lease.key, "peer", 0).unwrap();
    table.commit(lease.key, &usage(), "peer").unwrap();
    assert_eq!(table.owners(), ["peer"], "one expansion");
    assert_eq!(table.counts.get("granted"), 1);
}

#[test]
fn sl2_a_process_that_stood_still_for_ten_seconds() {
    let mut table = Table::new();
    let mut fences = Fences::new(8);
    let partition = Partition { model: "m".into(), namespace: String::new(), pool: String::new() };
    let old = table.granted("blue", "peer");
    table.dispatch(old, "peer", 0).unwrap();
    table.now += secs(10);
    // The lease ended at 5 s; cooldown 30 s from then on.
    let ask = table.ask("green", "peer");
    assert_eq!(table.refusal(&ask), (Reason::Cooldown, secs(25)));
    assert_eq!(table.counts.get("expired"), 1);
    table.now += secs(25);
    let new = table.granted("green", "peer");
    assert!(new.fence > old.fence);
    table.dispatch(new, "peer", 0).unwrap();
    assert_eq!(fences.admit(&partition, new.fence), Ok(()));
    assert_eq!(table.commit(old, &usage(), "peer"), Err(NotCommitted::Lost));
    assert_eq!(table.renew(old), Err(Lost));
    assert!(fences.admit(&partition, old.fence).is_err(), "the old dispatch is refused by its fence");
    table.commit(new, &usage(), "peer").unwrap();
    assert_eq!(table.owners(), ["peer"]);
}

/// What a router may choose from while a seeded request is in flight: [`Prefixes`] holds committed owners only.
#[test]
fn sl3_an_ordinary_request_while_seeding() {
    let mut table = Table::new();
    table.seed("owner");
    let key = table.granted("r", "peer");
    assert_eq!(table.owners(), ["owner"], "while it is held");
    table.dispatch(key, "peer", 0).unwrap();
    assert_eq!(table.owners(), ["owner"], "while the request is in flight");
    table.commit(key, &usage(), "peer").unwrap();
    assert_eq!(table.owners(), ["owner", "peer"]);
}

#[test]
fn sl4_a_stream_that_does_not_end_as_it_should() {
    let cut = |change: fn(&mut EndProof)| {
        let Proof::End(mut end) = usage() else { unreachable!("an end") };
        change(&mut end);
        Proof::End(end)
    };
    for (bad, rejected) in [
        (cut(|end| end.clean = false), Rejected::NotClean),
        (cut(|end| end.finish_reason = "error".into()), Rejected::FinishReason),
        (cut(|end| end.finish_reason = "abort".into()), Rejected::FinishReason),
    ] {
        let mut table = Table::new();
        table.seed("owner");
        let key = table.granted("r", "peer");
        table.dispatch(key, "peer", 0).unwrap();
        assert_eq!(table.commit(key, &bad, "peer"), Err(NotCommitted::Rejected(rejected)));
        assert!(!table.abort(key), "the token was used for a dispatch");
        assert_eq!(table.owners(), ["owner"]);
        let ask = table.ask("r", "peer");
        assert_eq!(table.refusal(&ask), (Reason::Cooldown, secs(30)));
    }
}

#[test]
fn sl5_a_stream_without_usage_is_proven_by_the_index() {
    let mut table = Table::new();
    let key = table.granted("r", "peer");
    table.dispatch(key, "peer", 40).unwrap();
    assert_eq!(table.commit(key, &evidence(false, 41), "peer"), Err(NotCommitted::Rejected(Rejected::NotHeld)));
    table.now += secs(1);
    assert_eq!(table.renew(key), Ok(secs(5)), "the lease goes on meanwhile");
    table.commit(key, &evidence(true, 42), "peer").unwrap();
    assert_eq!(table.owners(), ["peer"]);
}

#[test]
fn sl8_the_target_restarts_between_acquire_and_commit() {
    let mut table = Table::new();
    let key = table.granted("r", "peer");
    table.dispatch(key, "peer", 0).unwrap();
    let restarted = Target { incarnation: 2, ..target("peer") };
    let commit = table.record.commit(table.now, key, &usage(), Some(&restarted), &table.settings, &mut table.counts);
    assert_eq!(commit, Err(NotCommitted::TargetChanged));
    assert_eq!(table.owners(), [""; 0]);
    // And where it restarts before the dispatch, nothing is sent.
    table.now += table.settings.cooldown_failed;
    let key = table.granted("r", "peer");
    let present = Present { target: restarted, sequences: at(0) };
    let announced = table.record.renew(table.now, key, Some(Some(&present)), &table.settings, &mut table.counts);
    assert_eq!(announced, Err(Lost));
    assert_eq!(table.renew(key), Err(Lost), "the lease is over");
}

#[test]
fn every_refusal_has_its_reason() {
    let mut table = Table::new();
    let mut ask = table.ask("r", "a");
    ask.owner_revision = 1;
    assert_eq!(table.refusal(&ask).0, Reason::RevisionMismatch, "there is no owner");
    table.seed("a");
    let ask = table.ask("r", "a");
    assert_eq!(table.refusal(&ask).0, Reason::AlreadyOwner);
    let stale = Acquire { owner_revision: 0, ..table.ask("r", "b") };
    assert_eq!(table.refusal(&stale).0, Reason::RevisionMismatch);
    let ask = table.ask("r", "b");
    let other_life = Target { generation: 9, ..target("b") };
    let refused = table.record.acquire(table.now, &ask, &other_life, &table.settings, &mut table.counts);
    assert_eq!(refused.unwrap_err().reason, Reason::TargetChanged);
    for worker in ["b", "c", "d"] {
        table.seed(worker);
    }
    let ask = table.ask("r", "e");
    assert_eq!(table.refusal(&ask).0, Reason::Ceiling);
}

#[test]
fn a_token_pays_for_one_dispatch_and_comes_back_without_one() {
    let mut table = Table::new();
    let ask = table.ask("r", "peer");
    let key = table.acquire(&ask).unwrap().key;
    assert_eq!(table.refusal(&ask).0, Reason::TokenUsed, "while its own lease is out, too");
    assert!(table.abort(key) && table.abort(key), "refunded, and said again");
    table.now += table.settings.cooldown_failed;
    let key = table.acquire(&ask).unwrap().key;
    table.dispatch(key, "peer", 0).unwrap();
    assert_eq!(table.dispatch(key, "peer", 0), Err(Lost), "announced once");
    assert!(!table.abort(key));
    table.now += table.settings.cooldown_failed;
    assert_eq!(table.refusal(&ask).0, Reason::TokenUsed);
}

#[test]
fn a_commit_needs_a_dispatch_and_may_be_repeated() {
    let mut table = Table::new();
    let key = table.granted("r", "peer");
    assert_eq!(table.commit(key, &usage(), "peer"), Err(NotCommitted::Rejected(Rejected::NotDispatched)));
    table.dispatch(key, "peer", 0).unwrap();
    let revision = table.commit(key, &usage(), "peer").unwrap();
    assert_eq!(table.commit(key, &usage(), "peer"), Ok(revision));
    assert_eq!(table.counts.get("committed"), 1);
    let guessed = LeaseKey { lease_id: key.lease_id + 1, ..key };
    assert_eq!(table.commit(guessed, &usage(), "peer"), Err(NotCommitted::Lost));
}

#[test]
fn a_removal_revokes_and_an_older_commit_does_not_resurrect() {
    let mut table = Table::new();
    let key = table.granted("r", "peer");
    table.dispatch(key, "peer", 10).unwrap();
    assert!(!table.removed("peer", 12), "nobody owned it yet");
    assert_eq!(table.commit(key, &usage(), "peer"), Err(NotCommitted::Rejected(Rejected::Removed)));
    assert_eq!(table.commit(key, &evidence(true, 11), "peer"), Err(NotCommitted::Rejected(Rejected::Removed)));
    table.commit(key, &evidence(true, 13), "peer").unwrap();
    assert!(!table.removed("peer", 13), "an old removal does not touch a newer proof");
    assert_eq!(table.owners(), ["peer"]);
    assert!(table.removed("peer", 14));
    assert_eq!(table.owners(), [""; 0]);
    assert_eq!(table.counts.get("revoked"), 1);
}

#[test]
fn an_owner_of_an_earlier_life_goes() {
    let mut table = Table::new();
    table.seed("a");
    assert!(!table.record.gone(
        table.now,
        &Target { incarnation: 2, ..target("a") },
        &table.settings,
        &mut table.counts
    ));
    assert!(table.record.gone(table.now, &target("a"), &table.settings, &mut table.counts));
    assert_eq!(table.owners(), [""; 0]);
}

#[test]
fn a_lease_ends_at_the_requests_deadline_however_often_it_is_renewed() {
    let mut table = Table::new();
    let ask = Acquire { deadline: Some(secs(8)), ..table.ask("r", "peer") };
    let lease = table.acquire(&ask).unwrap();
    assert_eq!(lease.max_hold, secs(8));
    table.now += secs(4);
    assert_eq!(table.renew(lease.key), Ok(secs(4)));
    table.now += secs(4);
    assert_eq!(table.renew(lease.key), Err(Lost));
}

#[test]
fn after_an_expiry_nobody_gets_a_lease_before_every_clock_has_seen_it() {
    let mut table = Table::with(LeaseSettings { cooldown_failed: Duration::ZERO, ..LeaseSettings::default() });
    table.granted("r", "peer");
    table.now += secs(5);
    let ask = table.ask("s", "peer");
    assert_eq!(table.refusal(&ask), (Reason::Cooldown, secs(6)), "ttl and skew");
    table.now += secs(6);
    assert!(table.acquire(&ask).is_ok());
}

#[test]
fn a_clock_that_goes_back_does_not_prolong_or_shorten_anything() {
    let mut table = Table::new();
    table.granted("r", "peer");
    table.now += secs(5);
    let ask = table.ask("s", "peer");
    assert_eq!(table.refusal(&ask), (Reason::Cooldown, secs(30)));
    table.now -= secs(5);
    assert_eq!(table.refusal(&ask), (Reason::Cooldown, secs(30)));
}

#[test]
fn a_store_that_forgot_grants_nothing_at_first_and_fences_go_on_rising() {
    let mut table = Table::new();
    let old = table.granted("r", "peer");
    table.record = Record::new(table.now, &table.settings);
    let ask = table.ask("s", "peer");
    assert_eq!(table.refusal(&ask), (Reason::Cooldown, secs(6)));
    assert_eq!(table.renew(old), Err(Lost));
    table.now += secs(6);
    assert!(table.acquire(&ask).unwrap().key.fence > old.fence);
}

#[test]
fn tables_are_bounded_and_nothing_is_granted_beyond_them() {
    let mut table = Table::with(LeaseSettings { prefixes_max: 1, tokens_max: 2, ..LeaseSettings::default() });
    table.seed("a");
    let other = Acquire { prefix: b"other".to_vec(), owner_revision: 0, ..table.ask("r", "b") };
    assert_eq!(table.refusal(&other).0, Reason::PrefixesFull, "the one prefix has an owner");
    assert!(table.removed("a", 1));
    let key = table.acquire(&other).unwrap().key;
    assert!(table.record.prefixes.get(PREFIX).is_none() && table.record.prefixes.forgotten > 0);
    table.dispatch(key, "b", 0).unwrap();
    assert!(!table.abort(key));
    table.now += table.settings.cooldown_failed;
    let ask = table.ask("r", "b");
    assert_eq!(table.refusal(&ask).0, Reason::TokensFull);
    table.now += table.settings.token_lifetime;
    assert!(table.acquire(&ask).is_ok());
}

#[test]
fn a_record_is_the_same_after_it_was_stored() {
    let mut table = Table::new();
    table.seed("a");
    table.removed("a", 3);
    table.seed("b");
    let key = table.granted("r", "c");
    table.dispatch(key, "c", 5).unwrap();
    let text = serde_json::to_string(&table.record).unwrap();
    assert_eq!(serde_json::from_str::<Record>(&text).unwrap(), table.record);
}
