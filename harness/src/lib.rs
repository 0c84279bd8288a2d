//! The workbench of KV Atlas: recorded engine streams against the product.
//!
//! [`kvrec`] and [`sidecar`] read a recording and the engine's truth beside it, [`recording`] puts them together, [`verify`]
//! plays them through the real decoder, cursor, normalizer and index. [`engine`] is a mock engine in virtual time, [`simulate`] a
//! fleet of them with routers, [`reference_cost`] an external router's cost function to compare with, [`decide`] measures what a
//! routing decision costs.

pub mod decide;
pub mod engine;
pub mod indexers;
pub mod kvrec;
pub mod ladder;
pub mod recording;
pub mod reference_cost;
pub mod sidecar;
pub mod simulate;
pub mod verify;
