//! The gRPC face: protobuf at the edge, converted here and never passed further in.

pub mod proto;
