//! Compiles the protobuf files without protoc and keeps their descriptors for server reflection. Hashes the sources of routing, so
//! that two programs which decide by other code say so.

use protox::prost_reflect::prost::Message;
use sha2::{Digest, Sha256};
use std::path::{Path, PathBuf};

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

/// Where decisions are made.
const ROUTING: &str = "src/routing";

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto");
    println!("cargo:rerun-if-changed={ROUTING}");
    // Not KVATLAS_: what begins so is a setting, and the tests see this variable too.
    println!("cargo:rustc-env=ROUTING_CODE={}", hash_of_sources(Path::new(ROUTING))?);
    let descriptors = protox::compile(PROTOS, ["proto"])?;
    let out = PathBuf::from(std::env::var("OUT_DIR")?);
    std::fs::write(out.join("kvatlas_v1.bin"), descriptors.encode_to_vec())?;
    tonic_prost_build::configure().compile_fds(descriptors)?;
    if std::env::var_os("CARGO_FEATURE_ETCD").is_some() {
        // A client only, and nothing of it in our reflection.
        let etcd = protox::compile(["etcd/kv.proto"], ["proto"])?;
        tonic_prost_build::configure().build_server(false).compile_fds(etcd)?;
    }
    Ok(())
}

/// The first 16 digits of a SHA-256 over every file of a folder: names, lengths and contents, in the order of names.
fn hash_of_sources(folder: &Path) -> std::io::Result<String> {
    let mut files = Vec::new();
    list(folder, &mut files)?;
    files.sort();
    let mut hash = Sha256::new();
    for file in files {
        let (name, text) = (file.to_string_lossy(), std::fs::read(&file)?);
        for part in [name.as_bytes(), &text] {
            hash.update((part.len() as u64).to_le_bytes());
            hash.update(part);
        }
    }
    Ok(hash.finalize().iter().take(8).map(|byte| format!("{byte:02x}")).collect())
}

fn list(folder: &Path, files: &mut Vec<PathBuf>) -> std::io::Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
