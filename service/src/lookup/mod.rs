//! Lookups: a question in the service's own words, joined with the fleet into an answer.
//!
//! A lookup takes a snapshot of the fleet, computes content hashes where tokens were given, asks the index, and joins the rows
//! with names and trust. It touches no lane, and the only lock on its way guards the pool of readers for one push or pop.
//!
//! Not here: protobuf, admission, metrics exposition.

mod answer;
mod engine;
mod explain;
mod items;
mod levels;
mod question;
mod times;

pub use answer::{Answer, RankCounts, Row};
pub use engine::{LookupEngine, LookupLimits};
pub use explain::{Explained, Finding, FindingKind, Stop, Why};
pub use items::ItemLimits;
pub use levels::PromptLevels;
pub use question::{ItemText, LookupError, NamespaceText, Prompt, Question, RankChoice, TierSet};
pub use times::{BUCKETS_LEN, LookupTimes, TimesSum};
