//! `kvatlas serve`.

use clap::Args;
use kvatlas_service::config::{Flags, Raw, RawHugePages, RawNuma, Resolved, RoutingFlags};
use kvatlas_service::serve::{Running, runtime, start_on};
use kvatlas_service::topology::LookupPins;
use std::error::Error;
use std::io::Write;
use std::path::PathBuf;
use std::sync::Arc;
use tokio::signal::unix::{SignalKind, signal};

#[derive(Args)]
pub(crate) struct ServeArgs {
    /// Configuration file (TOML).
    #[arg(long, env = "KVATLAS_CONFIG")]
    config: Option<PathBuf>,
    /// Where gRPC is served; port 0 takes a free one [default: 127.0.0.1:50071].
    #[arg(long)]
    listen: Option<String>,
    /// Where metrics and probes are served; an empty text turns them off [default: 127.0.0.1:9571].
    #[arg(long)]
    admin_listen: Option<String>,
    /// Lane threads of each shard [default: half of the cores].
    #[arg(long)]
    lanes: Option<u32>,
    /// Pin lanes to cores also on a machine with one memory node.
    #[arg(long)]
    pin: bool,
    /// How shards and memory nodes go together [default: auto].
    #[arg(long, value_enum)]
    numa: Option<RawNuma>,
    /// Which pages the index asks for [default: collapse].
    #[arg(long, value_enum)]
    huge_pages: Option<RawHugePages>,
    /// Another replica's gRPC address, asked at the start for what it holds; may be given several times.
    #[arg(long = "peer", value_name = "HOST:PORT")]
    peers: Vec<String>,
    /// Where every rank's state is written on drain, for the next start; an empty text keeps none [default: none].
    #[arg(long)]
    state_file: Option<String>,
    #[allow(rustdoc::broken_intra_doc_links, reason = "brackets mark what may be left out, for the help text")]
    /// A static worker: id=..,model=..,block_size=16,events=tcp://host:5557[,replay=..][,dp_size=..][,engine=vllm|sglang][,hash_scheme=..]; every other key of a `[[workers]]` table works, too.
    #[arg(long = "worker", value_name = "KEY=VALUE,..")]
    workers: Vec<String>,
    /// Print the configuration in force as TOML and exit.
    #[arg(long)]
    print_config: bool,
    // Last, since its heading is for everything after it.
    #[command(flatten)]
    routing: RoutingFlags,
}

/// Runs the service on a runtime of its own, whose threads are placed as the configuration says.
pub(crate) fn run(args: ServeArgs) -> Result<(), Box<dyn Error>> {
    let raw = Raw::load(&Flags {
        file: args.config,
        listen: args.listen,
        admin_listen: args.admin_listen,
        lanes: args.lanes,
        pin: args.pin,
        numa: args.numa,
        huge_pages: args.huge_pages,
        peers: args.peers,
        state_file: args.state_file,
        routing: args.routing,
        workers: args.workers,
    })?;
    let resolved = Resolved::new(&raw)?;
    if args.print_config {
        print!("{}", raw.to_toml());
        return Ok(());
    }
    let (runtime, pins) = runtime(&resolved)?;
    runtime.block_on(serve(resolved, pins))
}

async fn serve(resolved: Resolved, pins: Arc<LookupPins>) -> Result<(), Box<dyn Error>> {
    // Before the start, so that a signal that comes early is not lost.
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let running = start_on(resolved, pins).await?;
    announce(&running)?;
    let name = tokio::select! {
        _ = terminate.recv() => "SIGTERM",
        _ = interrupt.recv() => "SIGINT",
    };
    tracing::info!(signal = name, "draining");
    running.shutdown().await;
    Ok(())
}

/// One line for people and programs: where the ports are.
fn announce(running: &Running) -> std::io::Result<()> {
    let admin = running.admin_addr().map_or_else(|| "off".to_owned(), |a| a.to_string());
    let mut out = std::io::stdout().lock();
    writeln!(out, "kvatlas serving grpc={} admin={admin}", running.grpc_addr())?;
    out.flush()
}
