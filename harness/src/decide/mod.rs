//! What a routing decision costs.

pub mod corpus;
