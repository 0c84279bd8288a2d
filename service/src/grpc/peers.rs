//! The client's side of `EventService.GetSnapshot`: drives a [`Bootstrap`] over connections to the peers.

use super::proto;
use super::proto::event_service_client::EventServiceClient;
use super::proto::snapshot_chunk::Part;
use super::questions::{event_tier, registration_from_proto, trust_from_proto};
use crate::fleet::{Fleet, Registration};
use crate::ingest::Trust;
use crate::ops::Op;
use crate::replica::{Bootstrap, Failure, Input, Misfit, Output, Piece, Progress, RankHead, ReplicaSettings, Resume};
use crate::seed::{Cut, Identity, Learned, Proof, Seed};
use kvatlas_index::{ContentHash, EngineHash, StoreKind};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

/// Parts that wait between a connection and whoever takes them.
const PARTS_READY_MAX: usize = 2;

/// Asks the peers for what they hold, and offers it to the ranks that are not exact, until the bootstrap is over or `closing` is
/// cancelled. `message_bytes_max`: bytes of one part.
pub async fn start_from_peers(
    fleet: Arc<Fleet>,
    settings: ReplicaSettings,
    message_bytes_max: usize,
    progress: Arc<Progress>,
    closing: CancellationToken,
) {
    let (sender, parts) = mpsc::channel(PARTS_READY_MAX);
    let bootstrap = Bootstrap::new(settings.clone());
    let (started, calls) = (Instant::now(), JoinSet::new());
    let mut driver = Driver { fleet, settings, message_bytes_max, bootstrap, progress, started, calls, sender, parts };
    tokio::select! {
        () = driver.run() => {}
        () = closing.cancelled() => {}
    }
}

/// What a call brought, or why it ended.
type Heard = Result<Part, Failure>;

struct Driver {
    fleet: Arc<Fleet>,
    settings: ReplicaSettings,
    message_bytes_max: usize,
    bootstrap: Bootstrap,
    progress: Arc<Progress>,
    started: Instant,
    calls: JoinSet<()>,
    sender: mpsc::Sender<(u64, Heard)>,
    parts: mpsc::Receiver<(u64, Heard)>,
}

impl Driver {
    async fn run(&mut self) {
        while let Some(due) = self.bootstrap.next_tick() {
            let input = tokio::select! {
                Some((call, heard)) = self.parts.recv() => self.input(call, heard).await,
                () = sleep_until(self.started + due) => Input::Tick,
            };
            let mut outputs = Vec::new();
            self.bootstrap.step(self.started.elapsed(), self.left(), input, &mut outputs);
            for output in outputs {
                self.carry_out(output).await;
            }
            self.progress.note(&self.bootstrap);
            // Ended tasks are taken out, so that the set stays as small as what runs.
            while self.calls.try_join_next().is_some() {}
        }
    }

    /// Ranks that a seed could still help.
    fn left(&self) -> usize {
        let view = self.fleet.view();
        view.ranks().filter(|rank| !rank.is_pushed() && rank.status.brief().trust != Trust::Exact).count()
    }

    async fn input(&mut self, call: u64, heard: Heard) -> Input {
        let part = match heard {
            Ok(part) => part,
            Err(failure) => return Input::Failed { call, failure },
        };
        match piece(part) {
            Ok((piece, registration)) => {
                let wanted = match (&piece, registration) {
                    (Piece::Head(head), Some(registration)) => self.wants(&head.identity, registration).await,
                    _ => false,
                };
                Input::Piece { call, piece, wanted }
            }
            Err(unusable) => {
                self.bootstrap.count(unusable);
                Input::Failed { call, failure: Failure::Useless }
            }
        }
    }

    /// Whether a rank of ours could use a state. Makes its worker known where only the peer knew it.
    async fn wants(&mut self, identity: &Identity, registration: Registration) -> bool {
        let known = self.fleet.view().worker(&identity.worker).is_ok();
        // Once: a worker that was removed since is not brought back by a peer that has not heard of it.
        if !known && self.settings.register_workers && self.bootstrap.passes() == 0 {
            match self.fleet.register(registration, false, false).await {
                Ok(_) => self.bootstrap.count("workers_registered"),
                Err(error) => {
                    self.bootstrap.count("workers_refused");
                    tracing::warn!(worker = %identity.worker, %error, "a peer's worker was not registered");
                }
            }
        }
        let view = self.fleet.view();
        let rank = view.rank(&identity.worker, identity.rank);
        rank.is_ok_and(|rank| !rank.is_pushed() && rank.status.brief().trust != Trust::Exact)
    }

    async fn carry_out(&mut self, output: Output) {
        match output {
            Output::Call { call, peer, resume } => {
                self.calls.abort_all();
                let peer = self.settings.peers[peer].clone();
                tracing::debug!(%peer, ?resume, "a peer is asked for what it holds");
                let settings = self.settings.clone();
                let (sender, bytes_max) = (self.sender.clone(), self.message_bytes_max);
                self.calls.spawn(async move {
                    let failure = fetch(peer, resume, &settings, bytes_max, call, &sender).await;
                    let _over = sender.send((call, Err(failure))).await;
                });
            }
            Output::HangUp => self.calls.abort_all(),
            Output::Offer(seed) => self.offer(*seed).await,
            Output::Done(outcome) => {
                let counts = self.bootstrap.counters();
                let (copies, offered) = (counts.get("copies"), counts.get("ranks_offered"));
                tracing::info!(outcome = outcome.name(), copies, offered, "the start from peers is over");
            }
        }
    }

    /// Hands a seed to its rank, where its cursor judges it.
    async fn offer(&mut self, seed: Seed) {
        let view = self.fleet.view();
        let Ok(rank) = view.rank(&seed.identity.worker, seed.identity.rank) else { return };
        match timeout(self.settings.silence_max, rank.seeds.offer(seed)).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => self.bootstrap.count("offers_refused"),
            Err(_) => self.bootstrap.count("offers_stalled"),
        }
    }
}

/// Makes one call and passes on what it brings; why it ended. The end of a whole copy is a failure that nobody looks at.
async fn fetch(
    peer: String,
    resume: Option<Resume>,
    settings: &ReplicaSettings,
    message_bytes_max: usize,
    call: u64,
    to: &mpsc::Sender<(u64, Heard)>,
) -> Failure {
    let Ok(endpoint) = Endpoint::from_shared(peer.clone()) else { return Failure::Useless };
    let endpoint = endpoint.connect_timeout(settings.connect_max);
    let channel = match timeout(settings.connect_max, endpoint.connect()).await {
        Ok(Ok(channel)) => channel,
        Ok(Err(error)) => {
            tracing::debug!(%peer, %error, "a peer cannot be reached");
            return Failure::Broken;
        }
        Err(_) => return Failure::Broken,
    };
    let mut client = EventServiceClient::new(channel).max_decoding_message_size(message_bytes_max);
    let request = proto::GetSnapshotRequest { model: String::new(), resume: resume.map(resume_to_proto) };
    let mut stream = match client.get_snapshot(request).await {
        Ok(stream) => stream.into_inner(),
        Err(status) => return failure(&peer, &status),
    };
    loop {
        match stream.message().await {
            Ok(Some(proto::SnapshotChunk { part: Some(part) })) => {
                if to.send((call, Ok(part))).await.is_err() {
                    return Failure::Broken;
                }
            }
            // A part of a newer version.
            Ok(Some(proto::SnapshotChunk { part: None })) => {}
            Ok(None) => return Failure::Broken,
            Err(status) => return failure(&peer, &status),
        }
    }
}

fn failure(peer: &str, status: &Status) -> Failure {
    tracing::debug!(%peer, code = ?status.code(), message = status.message(), "a peer's copy ended");
    match status.code() {
        // The last is our own refusal of a part that is too large.
        Code::Unimplemented
        | Code::InvalidArgument
        | Code::PermissionDenied
        | Code::Unauthenticated
        | Code::OutOfRange => Failure::Useless,
        _ => Failure::Broken,
    }
}

fn resume_to_proto(resume: Resume) -> proto::SnapshotResume {
    let Resume { worker, rank, chunks, checksum } = resume;
    proto::SnapshotResume { worker, rank, chunks, checksum }
}

/// A part in our own words, and the registration that a header names. The error is the reason in the counters.
fn piece(part: Part) -> Result<(Piece, Option<Registration>), &'static str> {
    match part {
        Part::Header(header) => {
            let trust = trust_from_proto(header.trust());
            let spec = header.worker.ok_or("header_without_worker")?;
            let registration = registration_from_proto(spec).map_err(|_| "header_malformed")?;
            let identity = Identity::of(&registration.worker, header.rank);
            let trust = trust.ok_or("header_malformed")?;
            let (cut, learned) = match header.cut {
                Some(cut) => {
                    let (cut, learned) = rank_cut(cut, trust);
                    (Some(cut), learned)
                }
                None => (None, Learned::default()),
            };
            let head = RankHead { identity, trust, cut, learned, first_chunk: header.first_chunk };
            Ok((Piece::Head(Box::new(head)), Some(registration)))
        }
        Part::Chunk(proto::RankChunk { number, events }) => {
            let ops = events.into_iter().map(op).collect::<Option<_>>().ok_or(Misfit::Operation.label())?;
            Ok((Piece::Chunk { number, ops }, None))
        }
        Part::End(proto::RankEnd { chunks, blocks, checksum }) => Ok((Piece::End { chunks, blocks, checksum }, None)),
        Part::All(proto::AllRanks { ranks }) => Ok((Piece::All { ranks }, None)),
    }
}

fn rank_cut(cut: proto::RankCut, trust: Trust) -> (Cut, Learned) {
    let proto::RankCut { cursor, proofs, incarnation, main_group, size_agrees, upper_bound } = cut;
    let proofs = proofs.into_iter().map(|proof| Proof { sequence: proof.sequence, payload_hash: proof.hash }).collect();
    (Cut { cursor, incarnation, trust, proofs }, Learned { main_group, size_agrees, upper_bound })
}

/// An event of a state; `None` for one that no state has.
fn op(event: proto::Event) -> Option<Op> {
    use proto::blocks_stored::Content;
    use proto::event::Event;
    let names = |hashes: Vec<u64>| hashes.into_iter().map(EngineHash).collect::<Vec<_>>();
    Some(match event.event? {
        Event::Stored(stored) => {
            let tier = event_tier(stored.tier).ok()?;
            let Some(Content::ContentHashes(contents)) = stored.content else { return None };
            if contents.hashes.len() != stored.engine_hashes.len() || stored.namespace.is_some() {
                return None;
            }
            let kind = if stored.announced_again { StoreKind::Announce } else { StoreKind::Copy };
            let contents = contents.hashes.into_iter().map(ContentHash).collect();
            Op::Store {
                tier,
                parent: stored.parent.map(EngineHash),
                names: names(stored.engine_hashes),
                contents,
                kind,
            }
        }
        Event::Removed(removed) => {
            Op::Remove { tier: event_tier(removed.tier).ok()?, names: names(removed.engine_hashes) }
        }
        Event::CopiesLeft(left) => {
            let (tier, name) = (event_tier(left.tier).ok()?, EngineHash(left.engine_hash));
            Op::SetCopies { tier, name, left: left.copies }
        }
        Event::Cleared(_) => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::super::relayed::event;
    use super::*;
    use kvatlas_index::Tier;

    #[test]
    fn the_operations_of_a_state_come_back_as_they_were() {
        let names = || vec![EngineHash(7), EngineHash(u64::MAX)];
        let contents = || vec![ContentHash(1), ContentHash(0)];
        let store = |tier, parent, kind| Op::Store { tier, parent, names: names(), contents: contents(), kind };
        let ops = [
            store(Tier::Device, None, StoreKind::Announce),
            store(Tier::Host, Some(EngineHash(0)), StoreKind::Copy),
            Op::Remove { tier: Tier::Disk, names: names() },
            Op::SetCopies { tier: Tier::External, name: EngineHash(3), left: 9 },
        ];
        for one in ops {
            assert_eq!(op(event(&one)), Some(one));
        }
        for none in [Op::Clear { tier: None }, Op::Adopt { tier: Tier::Device, names: names() }] {
            assert_eq!(op(event(&none)), None);
        }
        let Some(proto::event::Event::Stored(mut short)) = event(&store(Tier::Device, None, StoreKind::Copy)).event
        else {
            unreachable!()
        };
        short.engine_hashes.pop();
        assert_eq!(op(proto::Event { event: Some(proto::event::Event::Stored(short)) }), None);
        assert_eq!(op(proto::Event { event: None }), None);
    }

    #[test]
    fn headers_that_are_none_are_named() {
        let spec = proto::WorkerSpec { id: "w".into(), model: "m".into(), block_size: 4, ..Default::default() };
        let header = proto::RankHeader { worker: Some(spec), trust: proto::Trust::Exact.into(), ..Default::default() };
        assert!(piece(Part::Header(header.clone())).is_ok());
        let refused = |header| piece(Part::Header(header)).map(drop);
        assert_eq!(refused(proto::RankHeader { worker: None, ..header.clone() }), Err("header_without_worker"));
        assert_eq!(refused(proto::RankHeader { trust: 77, ..header.clone() }), Err("header_malformed"));
        let odd = proto::WorkerSpec { engine: 9, ..header.worker.clone().unwrap() };
        assert_eq!(refused(proto::RankHeader { worker: Some(odd), ..header }), Err("header_malformed"));
    }
}
