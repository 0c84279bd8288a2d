//! The messages, servers and clients of `smg.grpc.common` and of the two engine services that stream them.

#![allow(missing_docs, reason = "generated: the comments of the protobuf files are the documentation")]
#![allow(clippy::all, reason = "generated")]

/// As the generated code finds its way from one package to another.
pub mod smg {
    pub mod grpc {
        pub mod common {
            tonic::include_proto!("smg.grpc.common");
        }
    }
}

pub mod vllm {
    pub mod grpc {
        pub mod engine {
            tonic::include_proto!("vllm.grpc.engine");
        }
    }
}

pub mod sglang {
    pub mod grpc {
        pub mod scheduler {
            tonic::include_proto!("sglang.grpc.scheduler");
        }
    }
}

pub use sglang::grpc::scheduler::{sglang_scheduler_client, sglang_scheduler_server};
pub use smg::grpc::common;
pub use vllm::grpc::engine::{vllm_engine_client, vllm_engine_server};
