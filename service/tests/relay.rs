//! `EventService.Subscribe` over real sockets: a copy that is fed by it answers like the original.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;

use common::{MODEL, ask, batch, cleared, clients, in_time, removed, rows, run, small, spec, stored, tokens};
use kvatlas_service::config::Raw;
use kvatlas_service::grpc::proto;
use proto::apply_ack::Status as Ack;
use tonic::{Code, Streaming};

const WORKER: &str = "w";

async fn subscribe(
    clients: &mut common::Clients,
    from: Option<(u64, u64)>,
) -> Result<Streaming<proto::RelayedBatch>, tonic::Status> {
    let request = proto::SubscribeRequest {
        worker: WORKER.into(),
        rank: 0,
        from_sequence: from.map(|(sequence, _)| sequence),
        life: from.map(|(_, life)| life),
    };
    in_time(clients.events.subscribe(request)).await.map(tonic::Response::into_inner)
}

/// Reads up to a batch and, unless `trust` is UNSPECIFIED, until the stream has said that a copy with everything so far is as
/// good as that.
async fn read_to(
    stream: &mut Streaming<proto::RelayedBatch>,
    sequence: u64,
    trust: proto::Trust,
) -> Vec<proto::RelayedBatch> {
    let mut all = Vec::new();
    let mut reached = None;
    loop {
        let message = in_time(stream.message()).await.unwrap().expect("no end");
        reached = message.batch.as_ref().map(|b| b.sequence).or(reached);
        let settled = trust == proto::Trust::Unspecified || message.trust() == trust;
        all.push(message);
        if reached == Some(sequence) && settled {
            return all;
        }
    }
}

async fn end_of(stream: &mut Streaming<proto::RelayedBatch>) -> tonic::Status {
    loop {
        if let Err(status) = in_time(stream.message()).await {
            return status;
        }
    }
}

/// Registers the worker there and applies what was relayed; every batch is taken.
async fn copy_into(clients: &mut common::Clients, relayed: &[proto::RelayedBatch]) {
    clients.register(spec(WORKER)).await.unwrap();
    let batches: Vec<_> = relayed.iter().filter_map(|message| message.batch.clone()).collect();
    let count = batches.len();
    let acks = clients.apply(batches).await.unwrap();
    assert_eq!(acks.iter().filter(|ack| ack.status() == Ack::Applied).count(), count, "{acks:?}");
}

/// A history with a chain, a branch, copies, another tier, a hole, an orphan and names without tokens.
fn events() -> Vec<proto::EventBatch> {
    let mut host = stored(None, 1, tokens(3));
    if let Some(proto::event::Event::Stored(stored)) = &mut host.event {
        stored.set_tier(proto::Tier::Host);
    }
    let branch: Vec<u32> = (100..108).collect();
    let names_only = proto::Event {
        event: Some(proto::event::Event::Stored(proto::BlocksStored {
            tier: proto::Tier::Disk.into(),
            engine_hashes: vec![1, 2],
            ..Default::default()
        })),
    };
    vec![
        batch(WORKER, 0, vec![stored(None, 1, tokens(6)), host]),
        batch(WORKER, 1, vec![stored(Some(3), 20, branch), stored(None, 1, tokens(2))]),
        batch(WORKER, 2, vec![removed(&[2, 2, 5]), stored(Some(999), 40, tokens(1))]),
        batch(WORKER, 3, vec![names_only, removed(&[6])]),
    ]
}

fn questions() -> Vec<proto::LookupRequest> {
    let mut branch = tokens(3);
    branch.extend(100..108);
    let mut all = vec![ask(tokens(6)), ask(tokens(3)), ask(branch)];
    for question in &mut all {
        question.model = MODEL.into();
    }
    all
}

async fn assert_alike(original: &mut common::Clients, copy: &mut common::Clients) {
    for question in questions() {
        let (a, b) = (original.lookup(question.clone()).await.unwrap(), copy.lookup(question).await.unwrap());
        assert_eq!(rows(&a), rows(&b));
        assert_eq!((a.tier, a.matched_blocks), (b.tier, b.matched_blocks));
    }
}

fn with_history(batches: usize) -> Raw {
    let mut raw = small();
    raw.relay.history_batches_max = batches;
    raw.relay.snapshot_blocks_max = 4;
    raw
}

/// The original after the events, and a copy made of what a subscription from the start gives.
async fn original_and_copy(history: usize) -> (Vec<proto::RelayedBatch>, [kvatlas_service::serve::Running; 2]) {
    let (original, copy) = (run(with_history(history)).await, run(small()).await);
    let (mut from, mut to) = (clients(&original).await, clients(&copy).await);
    from.register(spec(WORKER)).await.unwrap();
    from.apply(events()).await.unwrap();
    let mut stream = subscribe(&mut from, None).await.unwrap();
    let relayed = read_to(&mut stream, 3, proto::Trust::Exact).await;
    copy_into(&mut to, &relayed).await;
    assert_alike(&mut from, &mut to).await;
    // What comes later finds both alike: the parked block's parent, and a copy that is counted.
    let later = [
        batch(WORKER, 4, vec![stored(Some(1), 999, (50..54).collect()), removed(&[1])]),
        batch(WORKER, 5, vec![removed(&[1])]),
    ];
    // One by one: a history of one batch would move past a subscriber that has to read two.
    let mut more = Vec::new();
    for batch in later {
        let sequence = batch.sequence;
        from.apply(vec![batch]).await.unwrap();
        more.extend(read_to(&mut stream, sequence, proto::Trust::Unspecified).await);
    }
    copy_into(&mut to, &more).await;
    assert_alike(&mut from, &mut to).await;
    (relayed, [original, copy])
}

#[tokio::test]
async fn a_copy_made_of_the_history_answers_like_the_original() {
    let (relayed, _running) = original_and_copy(100).await;
    let batches: Vec<_> = relayed.iter().filter_map(|m| m.batch.as_ref()).collect();
    assert_eq!(
        batches.iter().map(|b| (b.sequence, b.reset)).collect::<Vec<_>>(),
        [(0, true), (1, false), (2, false), (3, false)]
    );
    assert!(relayed.iter().all(|m| m.snapshot.is_none()));
}

#[tokio::test]
async fn a_copy_made_of_the_state_answers_like_the_original() {
    // Room for what comes later, which nobody waits for, and not for what was before.
    let (relayed, _running) = original_and_copy(2).await;
    let parts: Vec<_> = relayed.iter().filter_map(|m| Some((m.snapshot?, m.batch.as_ref()?))).collect();
    assert!(parts.len() > 1, "{relayed:?}");
    assert!(parts.iter().enumerate().all(|(i, (part, batch))| {
        part.chunk as usize == i && part.last == (i + 1 == parts.len()) && batch.reset == (i == 0)
    }));
    assert_eq!(parts.last().unwrap().1.sequence, 3);
    assert!(parts.windows(2).all(|pair| pair[0].1.sequence + 1 == pair[1].1.sequence));
}

/// A service to which the events were applied, a subscription that has caught up with them, and its life.
async fn subscribed(
    history: usize,
) -> (kvatlas_service::serve::Running, common::Clients, Streaming<proto::RelayedBatch>, u64) {
    let running = run(with_history(history)).await;
    let mut clients = clients(&running).await;
    clients.register(spec(WORKER)).await.unwrap();
    clients.apply(events()).await.unwrap();
    let mut stream = subscribe(&mut clients, None).await.unwrap();
    let life = read_to(&mut stream, 3, proto::Trust::Exact).await[0].life;
    (running, clients, stream, life)
}

#[tokio::test]
async fn a_cursor_goes_on_where_it_was() {
    let (_running, mut clients, stream, life) = subscribed(2).await;
    drop(stream);

    let mut stream = subscribe(&mut clients, Some((2, life))).await.unwrap();
    let relayed = read_to(&mut stream, 3, proto::Trust::Exact).await;
    let sequences: Vec<_> = relayed.iter().filter_map(|m| m.batch.as_ref()).map(|b| (b.sequence, b.reset)).collect();
    assert_eq!(sequences, [(2, false), (3, false)]);
    // The very next one is in no history yet: it comes live.
    let mut stream = subscribe(&mut clients, Some((4, life))).await.unwrap();
    clients.apply(vec![batch(WORKER, 4, vec![cleared()])]).await.unwrap();
    assert_eq!(
        read_to(&mut stream, 4, proto::Trust::Exact).await.last().unwrap().batch.as_ref().unwrap().events.len(),
        1
    );
}

#[tokio::test]
async fn a_cursor_that_cannot_go_on_is_told_why() {
    let (_running, mut clients, _stream, life) = subscribed(2).await;

    for (from, expected) in [
        ((1, life), Code::OutOfRange),
        ((5, life), Code::OutOfRange),
        ((u64::MAX, life), Code::OutOfRange),
        ((3, life ^ 1), Code::DataLoss),
    ] {
        assert_eq!(subscribe(&mut clients, Some(from)).await.unwrap_err().code(), expected, "{from:?}");
    }
    let half = proto::SubscribeRequest { worker: WORKER.into(), from_sequence: Some(1), ..Default::default() };
    assert_eq!(clients.events.subscribe(half).await.unwrap_err().code(), Code::InvalidArgument);
    for (worker, rank) in [("nobody", 0), (WORKER, 1)] {
        let request = proto::SubscribeRequest { worker: worker.into(), rank, ..Default::default() };
        assert_eq!(clients.events.subscribe(request).await.unwrap_err().code(), Code::NotFound);
    }
}

#[tokio::test]
async fn a_publisher_that_starts_over_ends_what_was_relayed() {
    let (_running, mut clients, mut stream, life) = subscribed(100).await;
    let again = proto::EventBatch { reset: true, ..batch(WORKER, 0, vec![stored(None, 1, tokens(2))]) };
    clients.apply(vec![again]).await.unwrap();
    assert_eq!(end_of(&mut stream).await.code(), Code::DataLoss);
    assert_eq!(subscribe(&mut clients, Some((1, life))).await.unwrap_err().code(), Code::DataLoss);
    let mut stream = subscribe(&mut clients, None).await.unwrap();
    let relayed = read_to(&mut stream, 0, proto::Trust::Exact).await;
    assert_ne!(relayed[0].life, life);
}

#[tokio::test]
async fn a_rank_that_a_limit_emptied_begins_another_life() {
    let mut raw = small();
    raw.index.names_max_per_holder = 4;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec(WORKER)).await.unwrap();
    clients.apply(vec![batch(WORKER, 0, vec![stored(None, 1, tokens(2))])]).await.unwrap();
    let mut stream = subscribe(&mut clients, None).await.unwrap();
    read_to(&mut stream, 0, proto::Trust::Exact).await;
    let acks = clients.apply(vec![batch(WORKER, 1, vec![stored(None, 10, tokens(6))])]).await.unwrap();
    assert_eq!(acks[0].status(), Ack::LimitReached);
    assert_eq!(end_of(&mut stream).await.code(), Code::DataLoss);

    // What is left is told as a state: no batch leads to it.
    let mut stream = subscribe(&mut clients, None).await.unwrap();
    let relayed = read_to(&mut stream, 1, proto::Trust::Degraded).await;
    assert_eq!(relayed[0].snapshot, Some(proto::SnapshotPart { chunk: 0, last: true }));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_command_line_prints_what_is_applied() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec(WORKER)).await.unwrap();
    clients.apply(events()).await.unwrap();
    let endpoint = format!("http://{}", running.grpc_addr());
    let printed = tokio::task::spawn_blocking(move || {
        let mut command = std::process::Command::new(env!("CARGO_BIN_EXE_kvatlas"));
        command.args(["events", WORKER, "--count", "4", "--json", "--endpoint", &endpoint]).output().unwrap()
    });
    let output = in_time(printed).await.unwrap();
    assert!(output.status.success(), "{output:?}");
    let text = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let sequences: Vec<_> = lines.iter().filter_map(|line| line["sequence"].as_u64()).collect();
    assert_eq!(sequences, [0, 1, 2, 3]);
    assert_eq!((&lines[0]["reset"], &lines[0]["events"][0]["stored"]["tier"]), (&true.into(), &"device".into()));
}

#[tokio::test]
async fn a_loss_is_marked_and_changes_the_trust() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec(WORKER)).await.unwrap();
    clients.apply(events()).await.unwrap();
    let mut stream = subscribe(&mut clients, None).await.unwrap();
    read_to(&mut stream, 3, proto::Trust::Exact).await;
    let jump = proto::EventBatch { lost_before: true, ..batch(WORKER, 9, vec![removed(&[1])]) };
    clients.apply(vec![jump]).await.unwrap();
    let relayed = read_to(&mut stream, 9, proto::Trust::Degraded).await;
    assert!(relayed[0].batch.as_ref().unwrap().lost_before);
}

#[tokio::test]
async fn a_worker_that_goes_takes_its_subscriptions_along() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec(WORKER)).await.unwrap();
    let mut stream = subscribe(&mut clients, None).await.unwrap();
    clients.apply(events()).await.unwrap();
    read_to(&mut stream, 3, proto::Trust::Exact).await;
    let request = proto::DeregisterRequest { worker: WORKER.into(), generation: None };
    clients.workers.deregister(request).await.unwrap();
    assert_eq!(end_of(&mut stream).await.code(), Code::NotFound);
    assert_eq!((running.fleet().relay().bytes(), running.fleet().relay().subscribers()), (0, 0));
}

#[tokio::test]
async fn a_subscriber_that_does_not_read_is_cut_off_and_costs_no_memory() {
    let mut raw = with_history(usize::MAX);
    raw.relay.history_bytes_max = 64 << 10;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec(WORKER)).await.unwrap();
    let mut stuck = subscribe(&mut clients, None).await.unwrap();
    // Content that is stored and removed again: far more than the history and the connection's windows take together.
    let mut sequence = 0;
    while running.fleet().relay().cut_off() == 0 {
        let batches = (0..64).map(|i| {
            let store = stored(None, 1, vec![7; 4 * 512]);
            let names: Vec<u64> = (1..=512).collect();
            batch(WORKER, sequence + i, vec![store, removed(&names)])
        });
        clients.apply(batches.collect()).await.unwrap();
        sequence += 64;
        assert!(running.fleet().relay().bytes() <= 64 << 10);
        assert!(sequence < 100_000, "never cut off");
    }
    assert_eq!(end_of(&mut stuck).await.code(), Code::DataLoss);
}

#[tokio::test]
async fn a_snapshot_that_nobody_reads_makes_room_for_another() {
    let mut raw = with_history(0);
    raw.relay.snapshots_in_flight_max = 1;
    raw.relay.snapshot_stall_max_ms = 500;
    raw.index.blocks_max = 1 << 20;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec(WORKER)).await.unwrap();
    // 204,800 blocks in parts of 512, 3 MB: more than the queue and the connection take.
    let chains = (0..400_u32).map(|chain| {
        let ids = (0..4 * 512).map(|token| chain * 4096 + token).collect();
        batch(WORKER, u64::from(chain), vec![stored(None, u64::from(chain) * 1000, ids)])
    });
    clients.apply(chains.collect()).await.unwrap();
    let mut stuck = subscribe(&mut clients, None).await.unwrap();
    let mut other = common::clients(&running).await;
    let mut read = subscribe(&mut other, None).await.unwrap();
    read_to(&mut read, 399, proto::Trust::Exact).await;
    assert_eq!(end_of(&mut stuck).await.code(), Code::DataLoss);
}

#[tokio::test]
async fn histories_share_one_bound() {
    let mut raw = small();
    raw.relay.bytes_max = 32 << 10;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    for worker in ["a", "b", "c"] {
        clients.register(spec(worker)).await.unwrap();
    }
    for sequence in 0..200 {
        let of = |worker| batch(worker, sequence, vec![stored(None, 1, tokens(32)), removed(&[1])]);
        clients.apply(["a", "b", "c"].map(of).to_vec()).await.unwrap();
        assert!(running.fleet().relay().bytes() <= 32 << 10);
    }
}

#[tokio::test]
async fn there_are_so_many_subscriptions_and_no_more() {
    let mut raw = small();
    raw.relay.subscribers_max = 2;
    let running = run(raw).await;
    let mut clients = clients(&running).await;
    clients.register(spec(WORKER)).await.unwrap();
    let _one = subscribe(&mut clients, None).await.unwrap();
    let two = subscribe(&mut clients, None).await.unwrap();
    let refused = subscribe(&mut clients, None).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted);
    assert!(refused.message().contains("relay.subscribers_max"), "{refused:?}");
    drop(two);
    // The place is free when the service has seen the client go.
    let again = async {
        while subscribe(&mut clients, None).await.is_err() {
            tokio::task::yield_now().await;
        }
    };
    in_time(again).await;
}

#[tokio::test]
async fn a_drain_ends_subscriptions() {
    let running = run(small()).await;
    let mut clients = clients(&running).await;
    clients.register(spec(WORKER)).await.unwrap();
    let mut stream = subscribe(&mut clients, None).await.unwrap();
    let (_, status) = tokio::join!(running.shutdown(), end_of(&mut stream));
    assert_eq!(status.code(), Code::Unavailable);
}

#[tokio::test]
async fn a_state_is_cut_between_two_batches_while_events_come() {
    // Nothing of the history is kept, so that each subscription is a state and what comes after it.
    let (original, copy) = (run(with_history(4096)).await, run(small()).await);
    let (mut from, mut to) = (clients(&original).await, clients(&copy).await);
    from.register(spec(WORKER)).await.unwrap();
    let steps = |range: std::ops::Range<u64>| {
        range.map(|i| {
            let ids: Vec<u32> = (0..8).map(|t| (i as u32 % 50) * 8 + t).collect();
            let gone = (i % 3 == 2).then(|| removed(&[1000 + 10 * ((i - 1) % 50)]));
            let events = std::iter::once(stored(None, 1000 + 10 * (i % 50), ids)).chain(gone);
            batch(WORKER, i, events.collect())
        })
    };
    from.apply(steps(0..5000).collect()).await.unwrap();
    let writer = tokio::spawn({
        let mut from = clients(&original).await;
        let batches: Vec<_> = steps(5000..9000).collect();
        async move { from.apply(batches).await.unwrap() }
    });
    let mut stream = subscribe(&mut from, None).await.unwrap();
    let mut relayed = read_to(&mut stream, 8999, proto::Trust::Exact).await;
    writer.await.unwrap();
    assert!(relayed.iter().any(|m| m.snapshot.is_some()));
    relayed.retain(|m| m.batch.is_some());
    let sequences: Vec<u64> = relayed.iter().filter_map(|m| Some(m.batch.as_ref()?.sequence)).collect();
    assert!(sequences.windows(2).all(|pair| pair[0] + 1 == pair[1]), "no gap, no copy");
    copy_into(&mut to, &relayed).await;
    for i in 0..50_u32 {
        let question = ask((0..8).map(|t| i * 8 + t).collect());
        let (a, b) = (from.lookup(question.clone()).await.unwrap(), to.lookup(question).await.unwrap());
        assert_eq!(rows(&a), rows(&b), "{i}");
    }
}
