//! The messages and the client that `proto/etcd/` generates.

#![allow(missing_docs, reason = "generated: the comments of the protobuf file are the documentation")]
#![allow(clippy::all, reason = "generated")]

tonic::include_proto!("etcdserverpb");
