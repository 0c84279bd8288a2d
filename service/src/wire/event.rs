//! What an engine's event says, whichever engine and version wrote it. Everything borrows from the message.
//!
//! The types here are the engines' words, checked for form only: a medium is still text, a group is still a number. What
//! they mean (tiers, attention kinds, block sizes) is the normalizer's business.

use super::extras::ExtraKeys;
use super::hashes::Hashes;
use super::tokens::Tokens;
use kvatlas_index::EngineHash;

/// One decoded payload.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Batch<'a> {
    /// The publisher's clock, Unix seconds; `None` if the field is not a finite number.
    pub timestamp: Option<f64>,
    /// Data-parallel rank; `None` if it is absent, nil or not a number.
    pub rank: Option<u32>,
    /// The readable events, in order.
    pub events: Vec<Event<'a>>,
    /// What could not be read, summed up by reason and field. Bounded by the number of such pairs, not by the message.
    pub skipped: Vec<Skip>,
}

impl Batch<'_> {
    /// Events that cost something: all that were not read.
    pub fn skipped_count(&self) -> u64 {
        self.skipped.iter().map(|s| s.count).sum()
    }
}

/// Events that were left out for one reason.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Skip {
    /// Why.
    pub reason: SkipReason,
    /// The field at fault, by its wire name; empty where no single field is.
    pub field: &'static str,
    /// How many events.
    pub count: u64,
}

/// Why an event was left out.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum SkipReason {
    /// The event is neither a tagged array nor a tagged map.
    NotAnEvent,
    /// The event has a type that this version does not know.
    UnknownTag,
    /// A field that the event cannot do without is absent.
    MissingField,
    /// A field has the wrong type or an impossible value.
    BadField,
    /// A token id is negative or does not fit 32 bits.
    TokenOutOfRange,
    /// Bigram pairs do not follow one another.
    BrokenBigrams,
    /// A field is longer than [`super::DecodeLimits`] allows.
    OverLimit,
}

impl SkipReason {
    /// Every reason, for metrics that want them all at zero from the start.
    pub const ALL: [SkipReason; 7] = [
        SkipReason::NotAnEvent,
        SkipReason::UnknownTag,
        SkipReason::MissingField,
        SkipReason::BadField,
        SkipReason::TokenOutOfRange,
        SkipReason::BrokenBigrams,
        SkipReason::OverLimit,
    ];

    /// The label in metrics.
    pub const fn label(self) -> &'static str {
        match self {
            SkipReason::NotAnEvent => "not_an_event",
            SkipReason::UnknownTag => "unknown_tag",
            SkipReason::MissingField => "missing_field",
            SkipReason::BadField => "bad_field",
            SkipReason::TokenOutOfRange => "token_out_of_range",
            SkipReason::BrokenBigrams => "broken_bigrams",
            SkipReason::OverLimit => "over_limit",
        }
    }
}

/// One event.
#[derive(Clone, PartialEq, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "most events are stores, and a box for each would cost more than its room"
)]
pub enum Event<'a> {
    /// Blocks became available.
    Stored(Stored<'a>),
    /// Blocks are gone.
    Removed(Removed<'a>),
    /// Everything is gone.
    Cleared(Cleared<'a>),
}

/// [`super::DecodeLimits::events_max`] counts on it: a batch at that limit takes 96 MiB.
const _: () = assert!(size_of::<Event<'_>>() <= 384);

/// `BlockStored`.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stored<'a> {
    /// Names of the blocks, in order. May be empty (a window group outside its window).
    pub hashes: Hashes<'a>,
    /// Name of the block before the first; `None` for position 0, and for placeholders.
    pub parent: Option<EngineHash>,
    /// The whole digest of that block, where the engine sends whole digests.
    pub parent_digest: Option<&'a [u8]>,
    /// Token ids of the blocks; empty for placeholders.
    pub tokens: Tokens<'a>,
    /// Tokens (bigrams for a bigram tree) of a block; 0 for placeholders.
    pub block_size: u64,
    /// vLLM's process-local adapter number. Deprecated there; part of a namespace only where no name is said.
    pub lora_id: Option<i64>,
    /// Adapter name.
    pub lora_name: Option<&'a str>,
    /// Cache salt as a field of its own (SGLang). vLLM's salt is in `extra_keys`; [`super::store_namespace`] reads both.
    pub cache_salt: Option<&'a str>,
    /// vLLM's extra keys, one entry a hash; empty if absent.
    pub extra_keys: ExtraKeys<'a>,
    /// `GPU`, `CPU`, `CPU_PINNED`, `DISK`, ...; `None` before engines had tiers.
    pub medium: Option<&'a str>,
    /// KV-cache group.
    pub group: Option<u64>,
    /// Attention kind of the group: `full_attention`, `sliding_window`, ...
    pub kind: Option<&'a str>,
    /// Window of the group, tokens.
    pub sliding_window: Option<u64>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<&'a str>,
    /// The secondary tier that made the event.
    pub ownership: Option<&'a str>,
    /// The request's session: attribution only.
    pub session_id: Option<&'a str>,
    /// How the blocks came about; `REUSED` announces blocks again that were cached already.
    pub origin: Option<&'a str>,
    /// Whether block hashes cover tokens after the block (vLLM 0.33, speculative drafting).
    pub has_lookahead: bool,
}

impl Stored<'_> {
    /// Whether an adapter is said by its number only, as vLLM did before 0.14. Adapters are numbered from 1.
    pub fn has_unnamed_adapter(&self) -> bool {
        self.lora_id.is_some_and(|id| id != 0) && self.lora_name.is_none_or(str::is_empty)
    }
}

/// `BlockRemoved`.
#[derive(Clone, PartialEq, Debug)]
pub struct Removed<'a> {
    /// Names; one copy of each is gone.
    pub hashes: Hashes<'a>,
    /// Where they lived.
    pub medium: Option<&'a str>,
    /// KV-cache group.
    pub group: Option<u64>,
    /// `LOCAL` or `REMOTE`.
    pub locality: Option<&'a str>,
    /// The secondary tier that made the event.
    pub ownership: Option<&'a str>,
    /// Copies left of each name, as many as names, where the engine says so.
    pub remaining_copy_counts: Option<Vec<u64>>,
}

/// `AllBlocksCleared` and `TierBlocksCleared`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Cleared<'a> {
    /// The tier; `None` for all (`AllBlocksCleared`).
    pub medium: Option<&'a str>,
}
