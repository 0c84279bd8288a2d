//! The prompt of `lookup` and `explain`, from flags, a file or standard input.

use clap::Args;
use kvatlas_service::grpc::proto;
use kvatlas_service::grpc::proto::lookup_request::Prompt;
use std::error::Error;
use std::io::Read;

#[derive(Args)]
pub(crate) struct PromptArgs {
    /// The model's name.
    #[arg(long)]
    model: String,
    /// The routing group.
    #[arg(long, default_value = "")]
    group: String,
    /// Token ids, separated by commas or spaces; `-` reads them from standard input, `@FILE` from a file.
    #[arg(long, conflicts_with = "hashes", required_unless_present = "hashes", value_name = "IDS")]
    tokens: Option<String>,
    /// Content hashes of the blocks: hexadecimal with 0x, or decimal; `-` and `@FILE` as above.
    #[arg(long, value_name = "HASHES")]
    hashes: Option<String>,
    /// Name of the LoRA adapter.
    #[arg(long, default_value = "")]
    lora: String,
    /// The request's cache salt.
    #[arg(long, default_value = "")]
    salt: String,
    /// A multimodal item: its identifier, first token and number of tokens.
    #[arg(long = "item", value_name = "ID@OFFSET+LENGTH")]
    items: Vec<String>,
    /// Only this worker, or one rank of it.
    #[arg(long = "worker", value_name = "ID[#RANK]")]
    workers: Vec<String>,
    /// Only this tier.
    #[arg(long = "tier", value_parser = ["device", "host", "disk", "external"])]
    tiers: Vec<String>,
    /// Count a tier together with all nearer ones.
    #[arg(long)]
    cumulative: bool,
}

impl PromptArgs {
    pub(crate) fn request(&self) -> Result<proto::LookupRequest, Box<dyn Error>> {
        let prompt = match (&self.tokens, &self.hashes) {
            (Some(tokens), _) => {
                let words = words(tokens)?;
                let ids = words.iter().map(|w| w.parse::<u32>().map_err(|e| format!("token {w:?}: {e}")));
                Prompt::TokenIds(proto::TokenIds { ids: ids.collect::<Result<_, _>>()? })
            }
            (None, Some(hashes)) => {
                let hashes = words(hashes)?.iter().map(|w| hash(w)).collect::<Result<_, _>>()?;
                Prompt::ContentHashes(proto::ContentHashes { hashes })
            }
            (None, None) => return Err("--tokens or --hashes is required".into()),
        };
        let multimodal = self.items.iter().map(|i| item(i)).collect::<Result<Vec<_>, _>>()?;
        let namespace = proto::Namespace { lora_name: self.lora.clone(), cache_salt: self.salt.clone(), multimodal };
        let residency = if self.cumulative { proto::Residency::Cumulative } else { proto::Residency::PerTier };
        Ok(proto::LookupRequest {
            model: self.model.clone(),
            routing_group: self.group.clone(),
            prompt: Some(prompt),
            namespace: (namespace != proto::Namespace::default()).then_some(namespace),
            holders: self.workers.iter().map(|w| rank_ref(w)).collect(),
            tiers: self.tiers.iter().map(|t| tier(t).into()).collect(),
            residency: residency.into(),
            max_holders: 0,
            with_positions: false,
            include_vetoed: false,
        })
    }
}

fn words(text: &str) -> Result<Vec<String>, Box<dyn Error>> {
    let text = match text.strip_prefix('@') {
        Some(file) => std::fs::read_to_string(file).map_err(|error| format!("{file}: {error}"))?,
        None if text == "-" => {
            let mut all = String::new();
            std::io::stdin().read_to_string(&mut all)?;
            all
        }
        None => text.to_owned(),
    };
    let separator = |c: char| c.is_whitespace() || matches!(c, ',' | '[' | ']');
    Ok(text.split(separator).filter(|w| !w.is_empty()).map(str::to_owned).collect())
}

fn hash(word: &str) -> Result<u64, String> {
    let parsed = match word.strip_prefix("0x") {
        Some(hex) => u64::from_str_radix(hex, 16),
        None => word.parse(),
    };
    parsed.map_err(|error| format!("hash {word:?}: {error}"))
}

fn item(text: &str) -> Result<proto::MultimodalItem, String> {
    let parts = text.rsplit_once('@').and_then(|(id, place)| Some((id, place.split_once('+')?)));
    let number = |n: &str| n.parse::<u32>().map_err(|error| format!("item {text:?}: {error}"));
    let Some((identifier, (offset, length))) = parts else {
        return Err(format!("item {text:?}: expected ID@OFFSET+LENGTH"));
    };
    Ok(proto::MultimodalItem {
        identifier: identifier.to_owned(),
        offset_tokens: number(offset)?,
        length_tokens: number(length)?,
        without_offset: false,
    })
}

/// `#` and not `:`, since ids are URLs. A `#` that no number follows belongs to the id.
fn rank_ref(text: &str) -> proto::RankRef {
    let parts = text.rsplit_once('#').and_then(|(worker, rank)| Some((worker, rank.parse().ok()?)));
    match parts {
        Some((worker, rank)) => proto::RankRef { worker: worker.to_owned(), rank: Some(rank) },
        None => proto::RankRef { worker: text.to_owned(), rank: None },
    }
}

fn tier(name: &str) -> proto::Tier {
    match name {
        "host" => proto::Tier::Host,
        "disk" => proto::Tier::Disk,
        "external" => proto::Tier::External,
        _ => proto::Tier::Device,
    }
}
