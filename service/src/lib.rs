//! The KV Atlas service: ingest of engine events, and lookups over gRPC.
//!
//! Layers, each importing only the ones before it: `kvatlas_index` <- [`wire`], [`seed`], [`ingest`] <- [`smg`], [`lanes`],
//! [`relay`], [`republish`], [`fleet`], [`loads`], [`lookup`], [`routing`] <- [`lease`], [`desks`] <- [`grpc`], [`admin`] <-
//! [`log`] <- [`serve`] <- the binary.

pub mod admin;
pub mod config;
pub mod demo;
pub mod desks;
pub mod fleet;
pub mod grpc;
pub mod ingest;
pub mod lanes;
pub mod lease;
pub mod loads;
pub mod log;
pub mod lookup;
pub mod ops;
pub mod relay;
pub mod replica;
pub mod republish;
pub mod routing;
pub mod seed;
pub mod serve;
pub mod smg;
pub mod topology;
pub mod wire;
