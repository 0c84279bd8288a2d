//! Generates corpora and their manifests: `kvatlas-corpora manifest FILE` plays a corpus and writes what it was,
//! `kvatlas-corpora check FILES` plays them again and compares.

use clap::{Args, Parser, Subcommand, ValueEnum};
use kvatlas_corpora::{Manifest, Names, Parameters, Sharing, Synthetic, Trace, TraceSource};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Parser)]
#[command(about = "KV-cache traffic made of request traces")]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Plays a corpus and writes its manifest.
    Manifest(Corpus),
    /// Plays the corpora of manifests again and compares. Those of trace files need the folder that has them.
    Check {
        /// Folder of trace files.
        #[arg(long)]
        traces: Option<PathBuf>,
        /// The manifests.
        files: Vec<PathBuf>,
    },
}

#[derive(Args)]
struct Corpus {
    /// Trace file of the Mooncake form; made up when left out.
    #[arg(long)]
    trace: Option<PathBuf>,
    /// Tokens of a block.
    #[arg(long, default_value_t = 128)]
    block_tokens: u32,
    #[arg(long, value_enum, default_value = "standard")]
    sharing: Level,
    #[arg(long, value_enum, default_value = "same")]
    names: Naming,
    /// Removal events of one name each.
    #[arg(long)]
    one_hash_removals: bool,
    /// Of a thousand evictions, so many take any block.
    #[arg(long, default_value_t = 0)]
    random_evictions_per_mille: u32,
    /// Workers, where not the standard number.
    #[arg(long)]
    workers: Option<u32>,
    /// Blocks of a worker, where not the standard number.
    #[arg(long)]
    blocks_per_worker: Option<u32>,
    /// Workers that serve each prompt, where not the standard number.
    #[arg(long)]
    replicas: Option<u32>,
    /// Of a thousand prompts, so many go elsewhere.
    #[arg(long)]
    wander_per_mille: Option<u32>,
    /// Copies of the trace that run at the same time.
    #[arg(long)]
    copies: Option<u32>,
    /// Requests to play.
    #[arg(long, default_value_t = 2000)]
    requests: u64,
    /// Where the manifest goes; printed when left out.
    #[arg(long)]
    out: Option<PathBuf>,
}

#[derive(Clone, Copy, ValueEnum)]
enum Level {
    High,
    Standard,
    Low,
}

#[derive(Clone, Copy, ValueEnum)]
enum Naming {
    Same,
    Random,
}

type Failed = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Manifest(corpus) => manifest(&corpus),
        Command::Check { traces, files } => files.iter().try_for_each(|file| check(file, traces.as_deref())),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("FAILED: {error}");
            ExitCode::FAILURE
        }
    }
}

fn read_trace(path: &Path) -> Result<Trace, Failed> {
    let file = std::fs::File::open(path).map_err(|error| format!("{}: {error}", path.display()))?;
    Ok(Trace::read(std::io::BufReader::new(file))?)
}

fn manifest(corpus: &Corpus) -> Result<(), Failed> {
    let (source, trace) = match &corpus.trace {
        Some(path) => {
            let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            (TraceSource::Mooncake { file }, read_trace(path)?)
        }
        None => (TraceSource::Synthetic(Synthetic::default()), Trace::synthetic(&Synthetic::default())),
    };
    let begin = std::time::Instant::now();
    let manifest = Manifest::generate(source, &trace, corpus.parameters(), corpus.requests)?;
    let holders = manifest.resident as f64 / manifest.distinct.max(1) as f64;
    let fill = 100.0 * manifest.resident as f64 / manifest.parameters.capacity() as f64;
    eprintln!(
        "{} blocks, {holders:.2} holders a block, pools {fill:.1} % full, {:.1} s",
        manifest.blocks,
        begin.elapsed().as_secs_f64()
    );
    let text = serde_json::to_string_pretty(&manifest)? + "\n";
    match &corpus.out {
        Some(path) => std::fs::write(path, text)?,
        None => print!("{text}"),
    }
    Ok(())
}

fn check(file: &Path, traces: Option<&Path>) -> Result<(), Failed> {
    let kept: Manifest = serde_json::from_str(&std::fs::read_to_string(file)?)?;
    let trace = match &kept.trace {
        TraceSource::Synthetic(settings) => Trace::synthetic(settings),
        TraceSource::Mooncake { file: name } => {
            let Some(folder) = traces else {
                println!("{}: skipped, needs --traces with {name}", file.display());
                return Ok(());
            };
            read_trace(&folder.join(name))?
        }
    };
    let again = Manifest::generate(kept.trace.clone(), &trace, kept.parameters.clone(), kept.requests)?;
    if again != kept {
        return Err(format!("{} differs: now {}", file.display(), serde_json::to_string(&again)?).into());
    }
    println!("{}: the same ({} blocks)", file.display(), kept.blocks);
    Ok(())
}

impl Corpus {
    fn parameters(&self) -> Parameters {
        let sharing = match self.sharing {
            Level::High => Sharing::High,
            Level::Standard => Sharing::Standard,
            Level::Low => Sharing::Low,
        };
        let names = match self.names {
            Naming::Same => Names::Same,
            Naming::Random => Names::Random,
        };
        let mut parameters = Parameters::standard(self.block_tokens, sharing, names);
        let set = |to: &mut u32, wanted: Option<u32>| *to = wanted.unwrap_or(*to);
        set(&mut parameters.workers, self.workers);
        set(&mut parameters.blocks_per_worker, self.blocks_per_worker);
        set(&mut parameters.replicas, self.replicas);
        set(&mut parameters.wander_per_mille, self.wander_per_mille);
        set(&mut parameters.copies, self.copies);
        set(&mut parameters.removal_names_max, self.one_hash_removals.then_some(1));
        parameters.random_evictions_per_mille = self.random_evictions_per_mille;
        parameters
    }
}
