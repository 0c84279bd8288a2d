//! Compiles the protobuf files without protoc and keeps their descriptors for server reflection.

use protox::prost_reflect::prost::Message;
use std::path::PathBuf;

const PROTOS: [&str; 8] = [
    "kvatlas/v1/common.proto",
    "kvatlas/v1/index.proto",
    "kvatlas/v1/event.proto",
    "kvatlas/v1/lease.proto",
    "kvatlas/v1/routing.proto",
    "kvatlas/v1/worker.proto",
    "vllm/grpc/engine.proto",
    "sglang/grpc/scheduler.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("kvatlas_v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    Ok(())
}
