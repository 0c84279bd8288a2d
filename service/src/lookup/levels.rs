//! A lookup for whoever needs depths and no rows: a decision of routing.

use super::engine::{LookupEngine, hash_prompt};
use super::question::{LookupError, Prompt};
use crate::fleet::Group;
use crate::lanes::{LaneCounters, LaneHandle};
use kvatlas_index::{ContentHash, Levels, LookupOptions, Outcome, Residency};
use std::time::{Duration, Instant};

/// What the index says of one prompt, in buffers that are used again.
#[derive(Debug)]
pub struct PromptLevels<'a> {
    /// Content hashes of the prompt's full blocks.
    pub contents: &'a [ContentHash],
    /// Who holds how many leading ones, of any model and group, each tier together with all nearer ones.
    pub levels: &'a Levels,
    /// Writers kept changing the path: nobody is in `levels` more deeply than he should be, but some not deeply enough.
    pub busy: bool,
    /// Time that hashing took.
    pub hashed_in: Duration,
    /// Time that the index took.
    pub looked_up_in: Duration,
}

impl LookupEngine {
    /// Checks a prompt against its limits, hashes it for the group's block size, looks it up, and calls `use_it` with what was
    /// found before the buffers go back. No prompt is one of no blocks. Runs on the calling thread; allocates nothing once warm.
    pub fn prompt_levels<T>(
        &self,
        group: &Group,
        prompt: Option<&Prompt>,
        use_it: impl FnOnce(PromptLevels<'_>) -> T,
    ) -> Result<T, LookupError> {
        if let Some(prompt) = prompt {
            self.check_prompt(prompt)?;
            self.check_items(group, prompt)?;
        }
        Ok(self.with_scratch(|scratch| {
            let start = Instant::now();
            scratch.contents.clear();
            if let Some(prompt) = prompt {
                hash_prompt(group, prompt, &mut scratch.contents);
            }
            let hashed = Instant::now();
            let options = LookupOptions { filter: None, residency: self.residency() };
            let outcome = scratch.reader.lookup_levels(&scratch.contents, &options, &mut scratch.levels);
            use_it(PromptLevels {
                contents: &scratch.contents,
                levels: &scratch.levels,
                busy: outcome == Outcome::Busy,
                hashed_in: hashed - start,
                looked_up_in: hashed.elapsed(),
            })
        }))
    }

    /// Each tier with all nearer ones. While nobody holds anything but on the device, the two ways of counting are one, and the one that
    /// looks at each tier by itself sorts nothing.
    fn residency(&self) -> Residency {
        let beyond = |lane: &LaneHandle| LaneCounters::read(&lane.counters().beyond_device) > 0;
        if self.lanes().iter().any(beyond) { Residency::Cumulative } else { Residency::PerTier }
    }
}
