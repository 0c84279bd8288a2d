//! The three paths.

use super::metrics::Metrics;
use crate::grpc::ServiceFacts;
use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;

/// What the admin port shows.
#[derive(Clone)]
pub struct AdminState {
    /// The metrics.
    pub metrics: Arc<Metrics>,
    /// What the service knows about itself.
    pub facts: Arc<dyn ServiceFacts>,
}

/// The admin port's paths.
pub fn router(state: AdminState) -> Router {
    Router::new()
        .route("/metrics", get(metrics))
        .route("/livez", get(|| async { "live\n" }))
        .route("/readyz", get(readyz))
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
        return (StatusCode::SERVICE_UNAVAILABLE, "waiting for static ranks\n").into_response();
    }
    "ready\n".into_response()
}
