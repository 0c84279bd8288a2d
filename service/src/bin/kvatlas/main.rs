//! `kvatlas`: the service and its client commands.

mod client;
mod demo;
mod events;
mod lookup;
mod prompt;
mod serve;
mod show;

use clap::{Parser, Subcommand};
use std::io::IsTerminal;
use std::process::ExitCode;
use tracing_subscriber::EnvFilter;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Knows which worker of an LLM fleet holds which prefix in its KV cache.
#[derive(Parser)]
#[command(name = "kvatlas", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs the service.
    Serve(serve::ServeArgs),
    /// Shows the service at work: mock engines on real wires, live figures, and a comparison with an oracle at the end.
    Demo(kvatlas_service::demo::DemoArgs),
    /// How many leading blocks of a prompt each worker holds.
    Lookup(lookup::LookupArgs),
    /// Why each worker matched as far as it did.
    Explain(lookup::ExplainArgs),
    /// The workers and how far each rank can be believed.
    Workers(show::WorkersArgs),
    /// What is applied for one rank, as it happens: its state or a cursor first, then every batch.
    Events(events::EventsArgs),
    /// What the service knows, in figures.
    Status(show::StatusArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    // The demo draws on the terminal and shows every rank's trust there: only errors may interrupt.
    let level = if matches!(cli.command, Command::Demo(_)) { "error" } else { "info" };
    let filter = EnvFilter::try_from_env("KVATLAS_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    if let Command::Serve(args) = cli.command {
        return match serve::run(args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => failed(error.as_ref()),
        };
    }
    let runtime = match tokio::runtime::Builder::new_multi_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error),
    };
    let done = runtime.block_on(async {
        match cli.command {
            Command::Serve(_) => unreachable!("served above, on a runtime of its own"),
            Command::Demo(args) => demo::run(args).await,
            Command::Lookup(args) => lookup::lookup(args).await,
            Command::Explain(args) => lookup::explain(args).await,
            Command::Workers(args) => show::workers(args).await,
            Command::Events(args) => events::events(args).await,
            Command::Status(args) => show::status(args).await,
        }
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failed(error.as_ref()),
    }
}

fn failed(error: &dyn std::error::Error) -> ExitCode {
    eprintln!("kvatlas: {error}");
    ExitCode::FAILURE
}
