//! `kvatlas lookup` and `kvatlas explain`.

use crate::client::{ANSWER_BYTES_MAX, ClientArgs, age, figure, refused, table, tier_name, trust_name};
use crate::prompt::PromptArgs;
use clap::Args;
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::index_service_client::IndexServiceClient;
use serde_json::json;
use std::error::Error;

#[derive(Args)]
pub(crate) struct LookupArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Most holders to show; 0 for all.
    #[arg(long, default_value_t = 0)]
    max_holders: u32,
    /// Show cursor and age of every rank as well.
    #[arg(long)]
    positions: bool,
    /// Show holders of vetoed workers, too: those that cannot be reached.
    #[arg(long)]
    include_vetoed: bool,
}

#[derive(Args)]
pub(crate) struct ExplainArgs {
    #[command(flatten)]
    client: ClientArgs,
    #[command(flatten)]
    prompt: PromptArgs,
    /// Most ranks to explain; 0 for the service's choice.
    #[arg(long, default_value_t = 0)]
    max_ranks: u32,
}

pub(crate) async fn lookup(args: LookupArgs) -> Result<(), Box<dyn Error>> {
    let request = proto::LookupRequest {
        max_holders: args.max_holders,
        with_positions: args.positions,
        include_vetoed: args.include_vetoed,
        ..args.prompt.request()?
    };
    let mut client = IndexServiceClient::new(args.client.channel().await?).max_decoding_message_size(ANSWER_BYTES_MAX);
    let answer = client.lookup(request).await.map_err(refused)?.into_inner();
    if args.client.json {
        println!("{:#}", lookup_json(&answer));
    } else {
        print_lookup(&answer);
    }
    Ok(())
}

fn holder(answer: &proto::LookupResponse, i: usize) -> Option<(&str, u32, i32, u32, u64, i32, bool)> {
    let worker = answer.workers.get(*answer.worker.get(i)? as usize)?;
    Some((
        worker,
        *answer.rank.get(i)?,
        *answer.tier.get(i)?,
        *answer.matched_blocks.get(i)?,
        *answer.matched_tokens.get(i)?,
        *answer.trust.get(i)?,
        *answer.upper_bound.get(i)?,
    ))
}

fn lookup_json(answer: &proto::LookupResponse) -> serde_json::Value {
    let holders = (0..answer.worker.len()).filter_map(|i| Some((holder(answer, i)?, answer.vetoed.get(i))));
    let holders = holders.map(|((worker, rank, tier, blocks, tokens, trust, upper_bound), vetoed)| {
        json!({
            "worker": worker, "rank": rank, "tier": tier_name(tier), "matched_blocks": blocks, "matched_tokens": tokens,
            "trust": trust_name(trust), "upper_bound": upper_bound, "vetoed": vetoed.copied().unwrap_or_default(),
        })
    });
    let positions = answer.positions.iter().map(|p| {
        json!({
            "worker": p.worker, "rank": p.rank, "cursor": p.cursor, "last_event_age_ms": p.last_event_age_ms,
            "trust": trust_name(p.trust), "incarnation": p.incarnation,
        })
    });
    json!({
        "block_size": answer.block_size,
        "query_blocks": answer.query_blocks,
        "partial_tail_tokens": answer.partial_tail_tokens,
        "holders": holders.collect::<Vec<_>>(),
        "holders_total": answer.holders_total,
        "truncated": answer.truncated,
        "busy": answer.busy,
        "ranks_total": answer.ranks_total,
        "ranks_not_exact": answer.ranks_not_exact,
        "ranks_vetoed": answer.ranks_vetoed,
        "positions": positions.collect::<Vec<_>>(),
    })
}

fn print_lookup(answer: &proto::LookupResponse) {
    println!(
        "{} blocks of {} tokens, {} tokens after them; {} of {} ranks exact",
        answer.query_blocks,
        answer.block_size,
        answer.partial_tail_tokens,
        answer.ranks_total - answer.ranks_not_exact.min(answer.ranks_total),
        answer.ranks_total
    );
    if answer.worker.is_empty() {
        println!("nobody holds the first block (`kvatlas explain` says why)");
    } else {
        let mut rows = table(&["worker", "rank", "tier", "blocks", "tokens", "trust"]);
        for (worker, rank, tier, blocks, tokens, trust, upper) in
            (0..answer.worker.len()).filter_map(|i| holder(answer, i))
        {
            let bound = if upper { "at most " } else { "" };
            let blocks = format!("{bound}{blocks}");
            rows.add_row([
                worker.into(),
                figure(rank),
                tier_name(tier).into(),
                figure(blocks),
                figure(tokens),
                trust_name(trust).into(),
            ]);
        }
        println!("{rows}");
    }
    if answer.ranks_vetoed > 0 {
        let how = if answer.vetoed.is_empty() { "left out" } else { "shown all the same" };
        println!("{} ranks of vetoed workers, {how} (`kvatlas workers` says why)", answer.ranks_vetoed);
    }
    if answer.truncated {
        println!("shortened: {} holders in all", answer.holders_total);
    }
    if answer.busy {
        println!("writers kept changing the path: figures may be too low");
    }
    if !answer.positions.is_empty() {
        let mut rows = table(&["worker", "rank", "trust", "cursor", "newest event", "incarnation"]);
        for p in &answer.positions {
            let cursor = p.cursor.map_or_else(|| "-".to_owned(), |c| c.to_string());
            rows.add_row([
                p.worker.as_str().into(),
                figure(p.rank),
                trust_name(p.trust).into(),
                figure(cursor),
                figure(age(p.last_event_age_ms)),
                figure(p.incarnation),
            ]);
        }
        println!("{rows}");
    }
}

pub(crate) async fn explain(args: ExplainArgs) -> Result<(), Box<dyn Error>> {
    let request = proto::ExplainRequest { lookup: Some(args.prompt.request()?), max_ranks: args.max_ranks };
    let mut client = IndexServiceClient::new(args.client.channel().await?).max_decoding_message_size(ANSWER_BYTES_MAX);
    let answer = client.explain(request).await.map_err(refused)?.into_inner();
    if args.client.json {
        println!("{:#}", explain_json(&answer));
    } else {
        print_explain(&answer);
    }
    Ok(())
}

fn finding_name(kind: i32) -> &'static str {
    proto::finding::Kind::try_from(kind).map_or("UNKNOWN", |k| k.as_str_name().trim_start_matches("KIND_"))
}

fn stop_name(stop: i32) -> &'static str {
    proto::rank_explanation::Stop::try_from(stop).map_or("UNKNOWN", |s| s.as_str_name().trim_start_matches("STOP_"))
}

fn explain_json(answer: &proto::ExplainResponse) -> serde_json::Value {
    let findings = answer.findings.iter().map(|f| json!({"kind": finding_name(f.kind), "message": f.message}));
    let ranks = answer.ranks.iter().map(|r| {
        let steps = r.steps.iter().map(|s| {
            json!({
                "from_block": s.from_block, "known_blocks": s.known_blocks, "held_blocks": s.held_blocks,
                "holders": s.holders,
            })
        });
        json!({
            "worker": r.worker, "rank": r.rank, "tier": tier_name(r.tier), "matched_blocks": r.matched_blocks,
            "matched_tokens": r.matched_tokens, "stop": stop_name(r.stop), "stopped_at_block": r.stopped_at_block,
            "message": r.message, "trust": trust_name(r.trust), "trust_detail": r.trust_detail,
            "upper_bound": r.upper_bound, "steps": steps.collect::<Vec<_>>(),
        })
    });
    json!({
        "block_size": answer.block_size,
        "query_blocks": answer.query_blocks,
        "partial_tail_tokens": answer.partial_tail_tokens,
        "findings": findings.collect::<Vec<_>>(),
        "ranks": ranks.collect::<Vec<_>>(),
        "truncated": answer.truncated,
    })
}

fn print_explain(answer: &proto::ExplainResponse) {
    for finding in &answer.findings {
        println!("{}: {}", finding_name(finding.kind), finding.message);
    }
    println!(
        "{} blocks of {} tokens, {} tokens after them",
        answer.query_blocks, answer.block_size, answer.partial_tail_tokens
    );
    if !answer.ranks.is_empty() {
        let mut rows = table(&["worker", "rank", "tier", "blocks", "trust", "stop", "why"]);
        for r in &answer.ranks {
            rows.add_row([
                r.worker.as_str().into(),
                figure(r.rank),
                tier_name(r.tier).into(),
                figure(r.matched_blocks),
                trust_name(r.trust).into(),
                stop_name(r.stop).into(),
                r.message.as_str().into(),
            ]);
        }
        println!("{rows}");
    }
    if answer.truncated {
        println!("shortened: more ranks are registered");
    }
}
