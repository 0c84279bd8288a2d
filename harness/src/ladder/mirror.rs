//! What every worker holds, kept beside an indexer: enough to build a fresh one with the same content.

use super::tape::Step;
use crate::indexers::EventLane;
use kvatlas_index::{ContentHash, EngineHash};
use std::collections::HashMap;

/// Blocks of one store when a fresh indexer is filled: what the mock caches send at most with blocks of 128 tokens.
const STORE_BLOCKS: usize = 64;

/// A block of a worker. One that is gone stays while blocks after it are held.
#[derive(Clone, Copy, Debug)]
struct Block {
    parent: Option<EngineHash>,
    content: ContentHash,
    held: bool,
    after: u32,
}

/// The content of all workers.
#[derive(Debug)]
pub struct Mirror {
    workers: Vec<HashMap<EngineHash, Block>>,
}

impl Mirror {
    /// Without any block.
    pub fn new(workers: u32) -> Self {
        Self { workers: (0..workers).map(|_| HashMap::new()).collect() }
    }

    /// Blocks that are held.
    pub fn memberships(&self) -> u64 {
        self.workers.iter().flat_map(HashMap::values).filter(|b| b.held).count() as u64
    }

    /// Follows an event.
    pub fn apply(&mut self, worker: u32, step: Step<'_>) {
        let blocks = &mut self.workers[worker as usize];
        match step {
            Step::Lookup(_) => {}
            Step::Clear => blocks.clear(),
            Step::Remove(names) => names.iter().for_each(|&name| remove(blocks, name)),
            Step::Store { mut parent, names, contents } => {
                for (&name, &content) in names.iter().zip(contents) {
                    match blocks.get_mut(&name) {
                        Some(known) => known.held = true,
                        None => {
                            blocks.insert(name, Block { parent, content, held: true, after: 0 });
                            if let Some(before) = parent.and_then(|p| blocks.get_mut(&p)) {
                                before.after += 1;
                            }
                        }
                    }
                    parent = Some(name);
                }
            }
        }
    }

    /// Stores everything that is held, worker by worker, chain by chain; blocks that are gone in the middle of a chain are
    /// stored and removed again.
    pub fn fill(&self, lane: &mut dyn EventLane) {
        for (worker, blocks) in self.workers.iter().enumerate() {
            let worker = worker as u32;
            let mut children: HashMap<Option<EngineHash>, Vec<EngineHash>> = HashMap::new();
            blocks.iter().for_each(|(&name, block)| children.entry(block.parent).or_default().push(name));
            children.values_mut().for_each(|names| names.sort_unstable());
            let mut starts: Vec<(Option<EngineHash>, EngineHash)> = Vec::new();
            let push = |starts: &mut Vec<_>, parent: Option<EngineHash>, skip: usize| {
                let names = children.get(&parent).map_or(&[][..], |names| names.get(skip..).unwrap_or(&[]));
                starts.extend(names.iter().rev().map(|&name| (parent, name)));
            };
            push(&mut starts, None, 0);
            while let Some((parent, mut name)) = starts.pop() {
                let (mut names, mut contents) = (Vec::new(), Vec::new());
                loop {
                    names.push(name);
                    contents.push(blocks[&name].content);
                    if names.len() == STORE_BLOCKS {
                        push(&mut starts, Some(name), 0);
                        break;
                    }
                    push(&mut starts, Some(name), 1);
                    match children.get(&Some(name)).and_then(|names| names.first()) {
                        Some(&next) => name = next,
                        None => break,
                    }
                }
                lane.store(worker, parent, &names, &contents);
            }
            let gone: Vec<EngineHash> = blocks.iter().filter(|(_, b)| !b.held).map(|(&name, _)| name).collect();
            if !gone.is_empty() {
                lane.remove(worker, &gone);
            }
        }
    }
}

fn remove(blocks: &mut HashMap<EngineHash, Block>, name: EngineHash) {
    if let Some(block) = blocks.get_mut(&name) {
        block.held = false;
    }
    let mut at = Some(name);
    while let Some(name) = at {
        let Some(&Block { held: false, after: 0, parent, .. }) = blocks.get(&name) else { return };
        blocks.remove(&name);
        if let Some(before) = parent.and_then(|p| blocks.get_mut(&p)) {
            before.after -= 1;
        }
        at = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ladder::check::{Checked, Oracle};

    struct IntoOracle(Oracle);

    impl EventLane for IntoOracle {
        fn store(&mut self, worker: u32, parent: Option<EngineHash>, names: &[EngineHash], contents: &[ContentHash]) {
            self.0.apply(worker, Step::Store { parent, names, contents });
        }
        fn remove(&mut self, worker: u32, names: &[EngineHash]) {
            self.0.apply(worker, Step::Remove(names));
        }
        fn clear(&mut self, worker: u32) {
            self.0.apply(worker, Step::Clear);
        }
    }

    #[test]
    fn a_fresh_indexer_answers_like_the_old_one_with_forks_and_holes() {
        let mut old = Oracle::new(2);
        let mut mirror = Mirror::new(2);
        let names = |range: std::ops::Range<u64>| range.map(EngineHash).collect::<Vec<_>>();
        let contents = |range: std::ops::Range<u64>| range.map(ContentHash).collect::<Vec<_>>();
        let mut apply = |worker, step: Step<'_>| {
            old.apply(worker, step);
            mirror.apply(worker, step);
        };
        let long = (names(0..200), contents(0..200));
        apply(0, Step::Store { parent: None, names: &long.0, contents: &long.1 });
        apply(1, Step::Store { parent: None, names: &long.0[..9], contents: &long.1[..9] });
        let fork = (names(1000..1070), contents(1000..1070));
        apply(0, Step::Store { parent: Some(EngineHash(99)), names: &fork.0, contents: &fork.1 });
        apply(0, Step::Remove(&names(50..52)));
        apply(0, Step::Remove(&names(190..200)));
        apply(1, Step::Remove(&names(0..1)));
        let mut fresh = IntoOracle(Oracle::new(2));
        mirror.fill(&mut fresh);
        assert_eq!(mirror.memberships(), 188 + 70 + 8);
        let forked = [contents(0..100), fork.1].concat();
        for query in [&long.1[..], &forked[..], &long.1[..50]] {
            let mut checked = Checked::default();
            let mut lines = fresh.0.lookup(query);
            old.compare(query, &mut lines, &mut checked);
            assert_eq!(checked.differing, 0);
        }
        mirror.apply(0, Step::Remove(&names(0..50)));
        mirror.apply(0, Step::Remove(&names(52..190)));
        mirror.apply(0, Step::Remove(&names(1000..1070)));
        assert!(mirror.workers[0].is_empty(), "nothing that is gone is kept without need");
    }
}
