//! The cells of the whole gate table.

/// A cell of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name, as `peers --cell` takes it.
    pub name: &'static str,
    /// Who takes part beside ours.
    pub rivals: &'static [&'static str],
    /// The section of the table.
    pub section: &'static str,
    /// What measures it: `peers`, or `ladder`.
    pub command: &'static str,
}

/// `kvatlas-ahead` is ours once more, with a lane that sees its queue; `kvatlas-small-pages` never makes huge ones.
const BOTH: &[&str] = &["kvatlas-ahead", "kvatlas-small-pages", "kv-index", "crtc"];
const PEERS: &[&str] = &["kv-index", "crtc"];
/// CRTC refuses most of what a fleet with random names sends, so its times say nothing there.
const ONE: &[&str] = &["kvatlas-ahead", "kvatlas-small-pages", "kv-index"];

/// Names that are the same on every worker.
const SAME: &str = "Same names";
/// Names of a worker's own.
const RANDOM: &str = "Random names";
/// One hash a removal event.
const ONE_HASH: &str = "One hash a removal event";
/// kv-index at the best fill of its maps.
const BEST_FILL: &str = "kv-index's maps at their best fill";
/// Shapes of their own.
const SHAPES: &str = "Shapes of their own";
/// The open-loop ladder.
const LADDER: &str = "The two-core ladder";
/// Exactness.
pub(super) const EXACT: &str = "Exactness";

const fn cell(name: &'static str, rivals: &'static [&'static str], section: &'static str) -> Listed {
    Listed { name, rivals, section, command: "peers" }
}

/// Every cell, in the order of the table.
pub const CELLS: &[Listed] = &[
    cell("high-same-128", BOTH, SAME),
    cell("standard-same-128", BOTH, SAME),
    cell("low-same-128", BOTH, SAME),
    cell("high-same-16", BOTH, SAME),
    cell("low-same-16", BOTH, SAME),
    cell("high-same-1", BOTH, SAME),
    cell("low-same-1", BOTH, SAME),
    cell("high-random-128", ONE, RANDOM),
    cell("standard-random-128", ONE, RANDOM),
    cell("low-random-128", ONE, RANDOM),
    cell("high-random-16", ONE, RANDOM),
    cell("low-random-16", ONE, RANDOM),
    cell("high-random-1", ONE, RANDOM),
    cell("low-random-1", ONE, RANDOM),
    cell("high-same-128-one", ONE, ONE_HASH),
    cell("low-same-128-one", ONE, ONE_HASH),
    cell("high-random-128-one", ONE, ONE_HASH),
    cell("low-random-128-one", ONE, ONE_HASH),
    cell("high-same-128-best-fill", ONE, BEST_FILL),
    cell("low-same-128-best-fill", ONE, BEST_FILL),
    cell("high-random-128-best-fill", ONE, BEST_FILL),
    cell("low-random-128-best-fill", ONE, BEST_FILL),
    cell("holders", PEERS, SHAPES),
    cell("root", PEERS, SHAPES),
    cell("prompt", &[], SHAPES),
    cell("after-churn", &[], SHAPES),
    Listed { name: "ladder-high-same-128", rivals: PEERS, section: LADDER, command: "ladder" },
    Listed { name: "ladder-low-same-128", rivals: PEERS, section: LADDER, command: "ladder" },
    cell("exact", PEERS, EXACT),
];
