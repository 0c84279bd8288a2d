//! The messages, servers and clients that `proto/` generates. Nothing below the gRPC layer knows them.

#![allow(missing_docs, reason = "generated: the comments of the protobuf files are the documentation")]
#![allow(clippy::all, reason = "generated")]

tonic::include_proto!("kvatlas.v1");

/// The descriptors of every message, for server reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] = tonic::include_file_descriptor_set!("kvatlas_v1");
