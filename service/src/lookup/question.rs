//! What a lookup asks, and why it may be refused.

use crate::fleet::FleetError;
use crate::wire::{ContentHasher, MultimodalItem, Namespace, Prompt as HashedPrompt};
use kvatlas_index::{ContentHash, Residency, Tier};

/// The namespace of a prompt, as text.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NamespaceText {
    /// Name of the LoRA adapter; empty for none.
    pub lora_name: String,
    /// Cache salt; empty for none.
    pub cache_salt: String,
    /// Multimodal items.
    pub items: Vec<ItemText>,
}

impl NamespaceText {
    /// Whether this is the base namespace.
    pub fn is_base(&self) -> bool {
        self.lora_name.is_empty() && self.cache_salt.is_empty() && self.items.is_empty()
    }

    /// The content hashes of the full blocks of `tokens`, appended to `out`. The namespace itself goes into a chain's first block
    /// only (`at_root`); items go into every block that they overlap.
    pub(crate) fn hash(&self, mut hasher: ContentHasher, tokens: &[u32], at_root: bool, out: &mut Vec<ContentHash>) {
        let items = self.items.iter().map(|i| MultimodalItem {
            identifier: &i.identifier,
            offset: i.offset_tokens,
            len: i.length_tokens,
            at_offset: i.at_offset,
        });
        let items: Vec<MultimodalItem<'_>> = items.collect();
        let namespace =
            if at_root { Namespace::new(Some(&self.lora_name), Some(&self.cache_salt)) } else { Namespace::NONE };
        hasher.prompt(&HashedPrompt { tokens, namespace, items: &items }, out);
    }
}

/// One multimodal item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemText {
    /// What the engine calls it.
    pub identifier: String,
    /// Its first placeholder token.
    pub offset_tokens: usize,
    /// Placeholder tokens, at least 1.
    pub length_tokens: usize,
    /// Whether the workers' events carry offsets.
    pub at_offset: bool,
}

/// The prompt of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Prompt {
    /// Content hashes of its full blocks.
    ContentHashes(Vec<u64>),
    /// Its tokens, to be hashed here.
    Tokens {
        /// Token ids.
        ids: Vec<u32>,
        /// Their namespace.
        namespace: NamespaceText,
    },
}

/// A worker, or one rank of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RankChoice {
    /// The worker's id.
    pub worker: String,
    /// The rank; `None` for every rank.
    pub rank: Option<u32>,
}

/// A set of tiers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TierSet(u8);

impl TierSet {
    /// Every tier.
    pub const ALL: TierSet = TierSet((1 << Tier::COUNT) - 1);

    /// Whether the tier is in the set.
    pub const fn contains(self, tier: Tier) -> bool {
        self.0 >> tier.index() & 1 == 1
    }
}

impl FromIterator<Tier> for TierSet {
    /// The empty list stands for every tier.
    fn from_iter<I: IntoIterator<Item = Tier>>(tiers: I) -> Self {
        match tiers.into_iter().fold(0, |set, tier| set | 1 << tier.index()) {
            0 => Self::ALL,
            set => Self(set),
        }
    }
}

/// One lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    /// The model.
    pub model: String,
    /// The routing group; empty for the default one.
    pub routing_group: String,
    /// The prompt.
    pub prompt: Prompt,
    /// Only these workers or ranks; empty for all.
    pub holders: Vec<RankChoice>,
    /// Only these tiers.
    pub tiers: TierSet,
    /// How tiers count.
    pub residency: Residency,
    /// Most rows of the answer; 0 for all.
    pub max_holders: usize,
    /// Whether ranks of vetoed workers are in the answer, too.
    pub include_vetoed: bool,
}

/// Why a lookup has no answer.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum LookupError {
    /// Unknown model, group, worker or rank.
    #[error(transparent)]
    Fleet(#[from] FleetError),
    /// A list is longer than its limit.
    #[error("{field}: {len} entries, at most {limit} (limit {setting})")]
    TooLong {
        /// The field.
        field: &'static str,
        /// Its length.
        len: usize,
        /// The setting.
        setting: &'static str,
        /// Its value.
        limit: usize,
    },
    /// A field is malformed.
    #[error("{field}: {reason}")]
    Invalid {
        /// The field.
        field: &'static str,
        /// What is wrong with it.
        reason: String,
    },
}
