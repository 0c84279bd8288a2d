//! The side fold: events counted as literally as possible, keyed by medium, group and name. It knows every line of the
//! truth, also the groups that the index leaves out, and which names stand for which content.
//!
//! It shares the decoder with the product and nothing else.

use crate::sidecar::LiveSets;
use kvatlas_service::wire::{Batch, Event, Namespace, Stored, WireHash, store_namespace};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// A block's content as a fold sees it: the name before it, the namespace (of a first block), its tokens.
type Content = (Option<u64>, Namespace, Vec<u32>);

/// Events of one publisher's life, folded.
#[derive(Default)]
pub struct Fold {
    live: LiveSets,
    /// Groups that attend to everything before a token; the others have windows.
    full_groups: BTreeSet<u32>,
    window_groups: BTreeSet<u32>,
    names: HashMap<Content, BTreeSet<u64>>,
    /// The engine announces blocks again that it has already (`kv_cache_report_mode=full`).
    reannounces: bool,
    /// Names announced again so far.
    announced: u64,
    byte_names: BTreeSet<u64>,
}

impl Fold {
    /// Nothing folded yet.
    pub fn new(reannounces: bool) -> Self {
        Self { reannounces, ..Self::default() }
    }

    /// Folds one batch.
    pub fn apply(&mut self, batch: &Batch<'_>) {
        for event in &batch.events {
            match event {
                Event::Stored(stored) => self.store(stored),
                Event::Removed(removed) => {
                    let set = self.live.entry(place(removed.medium, removed.group)).or_default();
                    removed.hashes.iter().for_each(|name| take_one(set, name.0));
                }
                Event::Cleared(_) => self.live.clear(),
            }
        }
        self.live.retain(|_, set| !set.is_empty());
    }

    fn store(&mut self, stored: &Stored<'_>) {
        let at = place(stored.medium, stored.group);
        let group = at.1;
        match stored.kind {
            None | Some("full_attention" | "mla_attention") => self.full_groups.insert(group),
            Some(_) => self.window_groups.insert(group),
        };
        // A store from the first token on, of blocks that are all there, is what a reused prefix looks like.
        let from_the_start = self.reannounces && stored.parent.is_none();
        let set = self.live.entry(at).or_default();
        for name in stored.hashes.iter() {
            let copies = set.entry(name.0).or_insert(0);
            if from_the_start && *copies > 0 {
                self.announced += 1;
            } else {
                *copies += 1;
            }
        }
        if self.full_groups.contains(&group) {
            self.learn(stored);
        }
    }

    /// Remembers which names a content has, from stores whose names and tokens line up.
    fn learn(&mut self, stored: &Stored<'_>) {
        let digests = stored.hashes.wire().filter(|hash| matches!(hash, WireHash::Digest(_)));
        self.byte_names.extend(digests.map(|hash| hash.name().0));
        let (tokens, names) = (stored.tokens.iter().collect::<Vec<u32>>(), stored.hashes.to_vec());
        let size = stored.block_size as usize;
        if size == 0 || tokens.len() != size * names.len() {
            return;
        }
        let mut before = stored.parent.map(|p| p.0);
        for (name, block) in names.iter().zip(tokens.chunks_exact(size)) {
            let namespace = if before.is_none() { store_namespace(stored) } else { Namespace::NONE };
            self.names.entry((before, namespace, block.to_vec())).or_default().insert(name.0);
            before = Some(name.0);
        }
    }

    /// The live blocks by medium and group.
    pub fn live(&self) -> &LiveSets {
        &self.live
    }

    /// Whether the group attends to everything; one that was never announced does.
    pub fn is_full(&self, group: u32) -> bool {
        self.full_groups.contains(&group) || !self.window_groups.contains(&group)
    }

    /// Whether a window group stands beside a full one.
    pub fn is_hybrid(&self) -> bool {
        !self.window_groups.is_empty() && !self.full_groups.is_empty()
    }

    /// Names announced again so far.
    pub fn announced(&self) -> u64 {
        self.announced
    }

    /// Different names that were digests on the wire.
    pub fn byte_names(&self) -> u64 {
        self.byte_names.len() as u64
    }

    /// For each full block of `tokens`, in order, every name that its content ever had; ends where none is known.
    pub fn path(&self, tokens: &[u32], namespace: Namespace, block_size: usize) -> Vec<BTreeSet<u64>> {
        let mut path: Vec<BTreeSet<u64>> = Vec::new();
        for block in tokens.chunks_exact(block_size) {
            let at = |before: Option<u64>, namespace| self.names.get(&(before, namespace, block.to_vec()));
            let names: BTreeSet<u64> = match path.last() {
                None => at(None, namespace).into_iter().flatten().copied().collect(),
                Some(before) => {
                    before.iter().filter_map(|&b| at(Some(b), Namespace::NONE)).flatten().copied().collect()
                }
            };
            if names.is_empty() {
                break;
            }
            path.push(names);
        }
        path
    }
}

/// Engines before tiers and groups have one of each.
fn place(medium: Option<&str>, group: Option<u64>) -> (String, u32) {
    (medium.unwrap_or("GPU").to_owned(), group.unwrap_or(0) as u32)
}

fn take_one(set: &mut BTreeMap<u64, u64>, name: u64) {
    if let Some(copies) = set.get_mut(&name) {
        *copies -= 1;
        if *copies == 0 {
            set.remove(&name);
        }
    }
}
