//! The relay's memory stays under its bound whatever goes through it and whoever does not read. The only test of this file, since it
//! looks at the whole process. `cargo bench -p kvatlas-service --bench relay_memory` drives ten million blocks.
#![allow(clippy::unwrap_used, reason = "helpers of tests fail as tests do")]

mod common;
mod relay_traffic;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_million_blocks_leave_no_more_than_the_histories_may_keep() {
    let report = relay_traffic::drive(2_000_000, 8 << 20).await;
    println!("{report}");
    report.check();
}
