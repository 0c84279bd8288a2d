//! The admin port: `/metrics`, `/livez`, `/readyz` over plain HTTP, away from the gRPC port.
//!
//! Metrics are read when somebody scrapes, from what the service counts anyway. Their number is bounded by workers times ranks times
//! the fixed lists of reasons; a worker's series end with its registration.

mod desks;
mod load_metrics;
mod metrics;
mod routes;

pub use metrics::{MetricSources, Metrics};
pub use routes::{AdminState, router};
