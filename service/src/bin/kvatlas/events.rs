//! `kvatlas events`: what is applied for one rank, as it happens.

use crate::client::{ClientArgs, refused, tier_name, trust_name};
use clap::Args;
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::event::Event;
use kvatlas_service::grpc::proto::event_service_client::EventServiceClient;
use serde_json::{Value, json};
use std::error::Error;
use std::io::Write;

#[derive(Args)]
pub(crate) struct EventsArgs {
    #[command(flatten)]
    client: ClientArgs,
    /// The worker's id.
    worker: String,
    /// Data-parallel rank.
    #[arg(long, default_value_t = 0)]
    rank: u32,
    /// Begin with this sequence, which the history must have, instead of with everything that the rank holds.
    #[arg(long, requires = "life")]
    from: Option<u64>,
    /// The life that the sequence belongs to, as printed before.
    #[arg(long, requires = "from")]
    life: Option<u64>,
    /// End after so many batches.
    #[arg(long)]
    count: Option<u64>,
}

pub(crate) async fn events(args: EventsArgs) -> Result<(), Box<dyn Error>> {
    let mut client = EventServiceClient::new(args.client.stream_channel().await?);
    let request =
        proto::SubscribeRequest { worker: args.worker, rank: args.rank, from_sequence: args.from, life: args.life };
    let mut stream = args.client.opened(client.subscribe(request)).await?.into_inner();
    let mut left = args.count.unwrap_or(u64::MAX);
    while left > 0 {
        let Some(message) = stream.message().await.map_err(refused)? else { break };
        left -= u64::from(message.batch.is_some());
        let line = if args.client.json { as_json(&message).to_string() } else { as_text(&message) };
        // A reader that went away (`| head`) is no error.
        if writeln!(std::io::stdout(), "{line}").is_err() {
            break;
        }
    }
    Ok(())
}

fn as_text(message: &proto::RelayedBatch) -> String {
    let trust = match message.trust() {
        proto::Trust::Unspecified => String::new(),
        trust => format!("  [{}]", trust_name(trust.into())),
    };
    let Some(batch) = &message.batch else { return format!("{:>12} {trust}", "") };
    let kind = match &message.snapshot {
        Some(part) if part.last => format!("state {} (last)", part.chunk),
        Some(part) => format!("state {}", part.chunk),
        None if batch.reset => format!("first of life {}", message.life),
        None if batch.lost_before => "after a loss".to_owned(),
        None => String::new(),
    };
    let events: Vec<_> = batch.events.iter().filter_map(|e| e.event.as_ref()).map(event_text).collect();
    format!("{:>12} {kind:<14} {}{trust}", batch.sequence, events.join(", "))
}

fn event_text(event: &Event) -> String {
    match event {
        Event::Stored(stored) => {
            let after = stored.parent.map_or_else(|| "the root".to_owned(), |parent| format!("{parent:016x}"));
            let what = if stored.content.is_some() { format!("after {after}") } else { "names only".to_owned() };
            format!("+{} {} {what}", stored.engine_hashes.len(), tier_name(stored.tier))
        }
        Event::Removed(removed) => format!("-{} {}", removed.engine_hashes.len(), tier_name(removed.tier)),
        Event::CopiesLeft(left) => {
            format!("{:016x} has {} copies in {}", left.engine_hash, left.copies, tier_name(left.tier))
        }
        Event::Cleared(cleared) if cleared.tier() == proto::Tier::Unspecified => "all cleared".to_owned(),
        Event::Cleared(cleared) => format!("{} cleared", tier_name(cleared.tier)),
    }
}

/// One line of JSON. Hashes are text: a reader's numbers may have 53 bits only.
fn as_json(message: &proto::RelayedBatch) -> Value {
    let batch = message.batch.as_ref();
    let events: Option<Vec<Value>> =
        batch.map(|b| b.events.iter().filter_map(|e| e.event.as_ref()).map(event_json).collect());
    json!({
        "life": message.life.to_string(),
        "trust": (message.trust() != proto::Trust::Unspecified).then(|| trust_name(message.trust)),
        "sequence": batch.map(|b| b.sequence),
        "published_at": batch.and_then(|b| b.published_at),
        "reset": batch.is_some_and(|b| b.reset),
        "lost_before": batch.is_some_and(|b| b.lost_before),
        "snapshot": message.snapshot.map(|part| json!({ "chunk": part.chunk, "last": part.last })),
        "events": events,
    })
}

fn event_json(event: &Event) -> Value {
    let names = |hashes: &[u64]| hashes.iter().map(u64::to_string).collect::<Vec<_>>();
    match event {
        Event::Stored(stored) => {
            let contents = match &stored.content {
                Some(proto::blocks_stored::Content::ContentHashes(hashes)) => Some(names(&hashes.hashes)),
                _ => None,
            };
            json!({ "stored": {
                "tier": tier_name(stored.tier), "parent": stored.parent.map(|p| p.to_string()),
                "engine_hashes": names(&stored.engine_hashes), "content_hashes": contents,
                "announced_again": stored.announced_again,
            }})
        }
        Event::Removed(removed) => {
            json!({ "removed": { "tier": tier_name(removed.tier), "engine_hashes": names(&removed.engine_hashes) } })
        }
        Event::CopiesLeft(left) => json!({ "copies_left": {
            "tier": tier_name(left.tier), "engine_hash": left.engine_hash.to_string(), "copies": left.copies,
        }}),
        Event::Cleared(cleared) => {
            let tier = (cleared.tier() != proto::Tier::Unspecified).then(|| tier_name(cleared.tier));
            json!({ "cleared": { "tier": tier } })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_is_one_line_that_says_what_it_is() {
        let stored = proto::BlocksStored {
            engine_hashes: vec![1, 2],
            content: Some(proto::blocks_stored::Content::ContentHashes(proto::ContentHashes { hashes: vec![3, 4] })),
            tier: proto::Tier::Device.into(),
            parent: Some(255),
            ..Default::default()
        };
        let events = vec![proto::Event { event: Some(Event::Stored(stored)) }];
        let batch = proto::EventBatch { sequence: 7, events, lost_before: true, ..Default::default() };
        let message =
            proto::RelayedBatch { batch: Some(batch), life: 9, trust: proto::Trust::Degraded.into(), snapshot: None };
        let text = as_text(&message);
        assert!(text.contains("after a loss   +2 device after 00000000000000ff  [DEGRADED]"), "{text}");
        let json = as_json(&message);
        assert_eq!((&json["sequence"], &json["trust"]), (&json!(7), &json!("DEGRADED")));
        assert_eq!(json["events"][0]["stored"]["content_hashes"], json!(["3", "4"]));
    }
}
