//! The paths.

use super::metrics::Metrics;
use crate::fleet::{KeepError, StateKeeper};
use crate::grpc::{ServiceFacts, Waiting};
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use std::sync::Arc;

/// Ranks that `/readyz` names.
const RANKS_SHOWN_MAX: usize = 32;

/// What the admin port shows.
#[derive(Clone)]
pub struct AdminState {
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// The state file.
    pub keeper: Arc<StateKeeper>,
    /// What the service knows about itself.
    pub facts: Arc<dyn ServiceFacts>,
}

/// The admin port's paths.
pub fn router(state: AdminState) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "live\n" }))
        .route("/readyz", get(readyz))
        .route("/state", post(save_state))
        .with_state(state)
}

async fn metrics(State(state): State<AdminState>) -> Response {
    match state.metrics.text() {
        Ok(text) => ([(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text)
            .into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, error.to_string()).into_response(),
    }
}

async fn readyz(State(state): State<AdminState>) -> Response {
    if state.facts.draining() {
        return (StatusCode::SERVICE_UNAVAILABLE, "draining\n").into_response();
    }
    if !state.facts.ready() {
        return (StatusCode::SERVICE_UNAVAILABLE, waiting(&state.facts.waiting_for())).into_response();
    }
    "ready\n".into_response()
}

/// Writes the state file now.
async fn save_state(State(state): State<AdminState>) -> Response {
    // A task of its own: a caller that hangs up does not leave the write half done.
    let keeper = state.keeper.clone();
    let saved = tokio::spawn(async move { keeper.save().await }).await.unwrap_or(Err(KeepError::Failed));
    match saved {
        Ok(written) => format!("{} ranks, {} bytes\n", written.ranks, written.bytes).into_response(),
        Err(error @ KeepError::Off) => (StatusCode::NOT_FOUND, format!("{error}\n")).into_response(),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("{error}\n")).into_response(),
    }
}

/// What is waited for, a line each.
fn waiting(waiting: &Waiting) -> String {
    let mut text = format!("waiting for {} ranks\n", waiting.ranks.len());
    if waiting.copy {
        text.push_str("waiting for the first copy of another replica\n");
    }
    for rank in waiting.ranks.iter().take(RANKS_SHOWN_MAX) {
        let (worker, trust, left) = (&rank.worker, rank.trust.name(), rank.left.as_secs_f64());
        text.push_str(&format!("{worker} rank {}: {trust}, at most {left:.1} s more\n", rank.rank));
    }
    if waiting.ranks.len() > RANKS_SHOWN_MAX {
        text.push_str("and others\n");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grpc::WaitingRank;
    use crate::ingest::Trust;
    use std::time::Duration;

    #[test]
    fn what_is_waited_for_is_named_up_to_a_limit() {
        let rank = |rank| WaitingRank {
            worker: "w".into(),
            rank,
            trust: Trust::Bootstrapping,
            left: Duration::from_millis(2_500),
        };
        let text = waiting(&Waiting { ranks: vec![rank(3)], copy: true });
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "waiting for 1 ranks",
                "waiting for the first copy of another replica",
                "w rank 3: BOOTSTRAPPING, at most 2.5 s more"
            ]
        );
        let text = waiting(&Waiting { ranks: (0..100).map(rank).collect(), copy: false });
        assert_eq!((text.lines().count(), text.lines().last()), (RANKS_SHOWN_MAX + 2, Some("and others")));
    }
}
