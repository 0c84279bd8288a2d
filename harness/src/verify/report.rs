//! What a comparison found, and its lines of text.

use std::collections::BTreeMap;
use std::fmt;

/// Differences that are kept in words; the rest are counted.
const DIFFERENCES_SHOWN_MAX: usize = 5;

/// Facts of the engines or of their wires that make their answer differ from prefix residency. Each is computed, then
/// listed; what no rule explains is a difference.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Rule {
    /// The engine cleared its cache and publishes that with its next batch: until then the wire is behind.
    ClearUnpublished,
    /// Reused blocks are announced again from the first token on; a name that is held gets no further copy for it.
    ReportModeFull,
    /// A window group's blocks are not in the index. Their live sets were compared through the side fold.
    WindowGroup,
    /// Beside a full group the window groups decide, too: the index answers an upper bound.
    WindowUpperBound,
    /// Requests differ in a key that the wire does not carry: the blocks of both answer.
    ExtraKey,
    /// Names are digests on the wire; their low 64 bits are the names of the index.
    ByteHashes,
    /// Batches before the first live one came from the replay.
    FirstFromReplay,
    /// The publisher's next life was recognised and the old one's blocks dropped.
    Restart,
}

impl Rule {
    const fn words(self) -> &'static str {
        match self {
            Rule::ClearUnpublished => "checkpoints before a clear that is not published yet, which is the next event",
            Rule::ReportModeFull => {
                "names announced again in report mode full, counted once; answers are marked upper_bound"
            }
            Rule::WindowGroup => "live sets of window groups, left out of the index and compared by the side fold",
            Rule::WindowUpperBound => {
                "probes above the engine's answer, which window blocks shorten; marked upper_bound"
            }
            Rule::ExtraKey => "probes above the engine's answer, which extra_key separates; it is not on the wire",
            Rule::ByteHashes => "names of 32 bytes on the wire, compared by their low 64 bits",
            Rule::FirstFromReplay => "batches that were lost live and came from the replay",
            Rule::Restart => "restarts of the publisher, recognised from its messages",
        }
    }
}

/// The result of one recording.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// The recording.
    pub name: String,
    /// Checkpoints at which every live set is the engine's, with copies.
    pub checkpoints_equal: u64,
    /// Checkpoints compared.
    pub checkpoints: u64,
    /// Probes of which every column is the engine's, or is explained by a rule.
    pub probes_equal: u64,
    /// Probes compared: prompts at checkpoints.
    pub probes: u64,
    /// Probes that answered less than the engine has.
    pub probes_under: u64,
    /// Probes that answered more, for whichever reason.
    pub probes_over: u64,
    /// How often each rule was needed.
    pub rules: BTreeMap<Rule, u64>,
    /// The first differences, in words.
    pub differences: Vec<String>,
    /// All differences.
    pub differences_count: u64,
}

impl Report {
    /// Whether nothing differs.
    pub fn is_exact(&self) -> bool {
        self.differences_count == 0 && self.checkpoints == self.checkpoints_equal && self.probes == self.probes_equal
    }

    /// Notes that a rule was needed so many times.
    pub fn rule(&mut self, rule: Rule, times: u64) {
        if times > 0 {
            *self.rules.entry(rule).or_insert(0) += times;
        }
    }

    /// Notes a difference.
    pub fn difference(&mut self, words: impl FnOnce() -> String) {
        self.differences_count += 1;
        if self.differences.len() < DIFFERENCES_SHOWN_MAX {
            self.differences.push(words());
        }
    }

    /// How often a rule was needed.
    pub fn count(&self, rule: Rule) -> u64 {
        self.rules.get(&rule).copied().unwrap_or(0)
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Report { name, checkpoints_equal, checkpoints, probes_equal, probes, .. } = self;
        write!(f, "{name:<28} checkpoints {checkpoints_equal}/{checkpoints} probes {probes_equal}/{probes}")?;
        if !self.is_exact() {
            write!(f, "  DIFFERS ({})", self.differences_count)?;
        }
        for (rule, times) in &self.rules {
            write!(f, "\n    {times:>4} {}", rule.words())?;
        }
        for words in &self.differences {
            write!(f, "\n    difference: {words}")?;
        }
        Ok(())
    }
}
