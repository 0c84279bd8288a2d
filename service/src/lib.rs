//! The KV Atlas service: ingest of engine events, and lookups over gRPC.
//!
//! Layers, each importing only the ones before it: `kvatlas_index` <- [`wire`], [`ingest`] <- gRPC, admin, fleet <- the binary.

#[cfg(test)]
mod demo;
pub mod admin;
pub mod config;
pub mod fleet;
pub mod grpc;
pub mod ingest;
pub mod lanes;
pub mod lookup;
pub mod ops;
pub mod serve;
pub mod wire;
