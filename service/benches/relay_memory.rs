//! Ten million blocks through the relay of the whole service, with subscribers that never read: what its histories count and what the
//! process takes. Fails where the bound is not kept.

#[path = "../tests/common/mod.rs"]
mod common;
#[path = "../tests/relay_traffic/mod.rs"]
mod relay_traffic;

/// The service's own allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::io::Result<()> {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    for bound in [64 << 20, 16 << 20] {
        let report = runtime.block_on(relay_traffic::drive(10_000_000, bound));
        println!("{report}");
        report.check();
    }
    Ok(())
}
