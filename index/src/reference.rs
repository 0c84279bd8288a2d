//! The oracle: what the index means, written down as literally as possible. Single-threaded, hash maps, no cleverness.
//!
//! A rank has four tiers. A tier holds *names*; a name stands at one node of a trie of content hashes and has a number of
//! physical copies. A lookup walks the trie and asks each tier how many nodes from the root on it holds without a gap.
//!
//! Not here: memory limits (other than the parking bound), speed, threads.

mod export;

use crate::error::IndexError;
use crate::types::{
    Cleared, ContentHash, EngineHash, HolderDepth, RankKey, Removed, Residency, Store, StoreKind, Stored, Tier,
};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// A node of the content trie; 0 is the root, which nobody holds.
type Node = u64;
const ROOT: Node = 0;

/// Where a name stands, and how many physical copies of it exist.
#[derive(Clone, Copy)]
struct Place {
    node: Node,
    copies: u64,
}

#[derive(Default)]
struct TierState {
    names: HashMap<EngineHash, Place>,
    /// For each held node, how many names stand there (twins are two names at one node).
    held: HashMap<Node, u64>,
}

/// A block whose parent is not known to its rank yet.
struct Parked {
    tier: Tier,
    parent: EngineHash,
    name: EngineHash,
    content: ContentHash,
    kind: StoreKind,
}

#[derive(Default)]
struct Rank {
    tiers: [TierState; Tier::COUNT],
    parked: Vec<Parked>,
}

/// The oracle.
pub struct Reference {
    trie: HashMap<(Node, ContentHash), Node>,
    ranks: BTreeMap<RankKey, Rank>,
    orphans_max_per_rank: usize,
}

impl Reference {
    /// An empty oracle that parks at most so many orphan blocks a rank.
    pub fn new(orphans_max_per_rank: usize) -> Self {
        Self { trie: HashMap::new(), ranks: BTreeMap::new(), orphans_max_per_rank }
    }

    /// Makes a rank known, holding nothing. Opening it again empties it.
    pub fn open_rank(&mut self, key: RankKey) {
        self.ranks.insert(key, Rank::default());
    }

    /// Forgets a rank with all it holds.
    pub fn close_rank(&mut self, key: RankKey) {
        self.ranks.remove(&key);
    }

    /// Applies a store. A store of which any block names itself as its parent is refused whole.
    pub fn store(&mut self, key: RankKey, tier: Tier, store: &Store<'_>) -> Result<Stored, IndexError> {
        if store.names.len() != store.contents.len() {
            return Err(IndexError::LengthMismatch { names: store.names.len(), contents: store.contents.len() });
        }
        let mut before = store.parent;
        for &name in store.names {
            if before == Some(name) {
                return Err(IndexError::SelfParent { name });
            }
            before = Some(name);
        }
        let mut did = Stored::default();
        if store.names.is_empty() {
            return Ok(did);
        }
        let Some(mut at) = self.resolve_parent(key, tier, store.parent)? else {
            self.park(key, tier, store, &mut did)?;
            return Ok(did);
        };
        for (&name, &content) in store.names.iter().zip(store.contents) {
            at = self.child(at, content);
            self.rank(key)?.hold(tier, name, at, store.kind, &mut did);
        }
        self.attach(key, store.names, &mut did)?;
        Ok(did)
    }

    /// Applies stores that carry names only: each name is held where any tier of the rank has it.
    pub fn adopt(&mut self, key: RankKey, tier: Tier, names: &[EngineHash]) -> Result<Stored, IndexError> {
        let mut did = Stored::default();
        let rank = self.rank(key)?;
        for &name in names {
            match rank.resolve(tier, name) {
                Some(node) => rank.hold(tier, name, node, StoreKind::Copy, &mut did),
                None => did.unknown += 1,
            }
        }
        Ok(did)
    }

    /// Takes one copy of each name away. A parked block of that name goes first, the latest one.
    pub fn remove(&mut self, key: RankKey, tier: Tier, names: &[EngineHash]) -> Result<Removed, IndexError> {
        let mut did = Removed::default();
        let rank = self.rank(key)?;
        for &name in names {
            if let Some(i) = rank.parked.iter().rposition(|p| p.tier == tier && p.name == name) {
                rank.parked.remove(i);
                did.parked += 1;
                continue;
            }
            match rank.tiers[tier.index()].names.get_mut(&name) {
                None => did.unknown += 1,
                Some(place) if place.copies > 1 => {
                    place.copies -= 1;
                    did.copies += 1;
                }
                Some(_) => {
                    rank.tiers[tier.index()].forget(name);
                    did.removed += 1;
                }
            }
        }
        Ok(did)
    }

    /// Sets how many copies of a name are left, as an engine that counts them itself says; 0 takes parked blocks of that
    /// name away, too.
    pub fn set_copies(&mut self, key: RankKey, tier: Tier, name: EngineHash, left: u64) -> Result<Removed, IndexError> {
        let mut did = Removed::default();
        let rank = self.rank(key)?;
        if left == 0 {
            let before = rank.parked.len();
            rank.parked.retain(|p| p.tier != tier || p.name != name);
            did.parked = (before - rank.parked.len()) as u64;
        }
        match rank.tiers[tier.index()].names.get_mut(&name) {
            None => did.unknown = u64::from(did.parked == 0),
            Some(place) if left > 0 => {
                place.copies = left;
                did.copies = 1;
            }
            Some(_) => {
                rank.tiers[tier.index()].forget(name);
                did.removed = 1;
            }
        }
        Ok(did)
    }

    /// Drops everything in one tier of a rank, or in all.
    pub fn clear(&mut self, key: RankKey, tier: Option<Tier>) -> Result<Cleared, IndexError> {
        let rank = self.rank(key)?;
        let mut did = Cleared::default();
        for t in Tier::ALL.into_iter().filter(|&t| tier.is_none_or(|only| only == t)) {
            did.blocks += rank.tiers[t.index()].held.len() as u64;
            rank.tiers[t.index()] = TierState::default();
            let before = rank.parked.len();
            rank.parked.retain(|p| p.tier != t);
            did.parked += (before - rank.parked.len()) as u64;
        }
        Ok(did)
    }

    /// Every holder with at least one leading block of `query`, sorted.
    pub fn lookup(&self, query: &[ContentHash], residency: Residency) -> Vec<HolderDepth> {
        let mut path = Vec::new();
        let mut at = ROOT;
        for &content in query {
            match self.trie.get(&(at, content)) {
                Some(&node) => {
                    path.push(node);
                    at = node;
                }
                None => break,
            }
        }
        let mut answer = Vec::new();
        for (&rank, state) in &self.ranks {
            let mut nearer = 0;
            for tier in Tier::ALL {
                let first = if residency == Residency::Cumulative { 0 } else { tier.index() };
                let tiers = &state.tiers[first..=tier.index()];
                let blocks = path.iter().take_while(|n| tiers.iter().any(|t| t.held.contains_key(n))).count() as u32;
                let tell = if residency == Residency::Cumulative { blocks > nearer } else { blocks > 0 };
                if tell {
                    answer.push(HolderDepth { rank, tier, blocks });
                }
                nearer = nearer.max(blocks);
            }
        }
        answer.sort_unstable();
        answer
    }

    /// The names of a holder with their copies, sorted by name.
    pub fn names(&self, key: RankKey, tier: Tier) -> Vec<(EngineHash, u64)> {
        let mut names: Vec<_> = match self.ranks.get(&key) {
            Some(rank) => rank.tiers[tier.index()].names.iter().map(|(&n, p)| (n, p.copies)).collect(),
            None => Vec::new(),
        };
        names.sort_unstable();
        names
    }

    /// Blocks (positions) that a holder has.
    pub fn held(&self, key: RankKey, tier: Tier) -> u64 {
        self.ranks.get(&key).map_or(0, |r| r.tiers[tier.index()].held.len() as u64)
    }

    /// Blocks parked for a rank.
    pub fn parked(&self, key: RankKey) -> u64 {
        self.ranks.get(&key).map_or(0, |r| r.parked.len() as u64)
    }

    fn rank(&mut self, key: RankKey) -> Result<&mut Rank, IndexError> {
        self.ranks.get_mut(&key).ok_or(IndexError::UnknownRank { slot: key.0 })
    }

    fn child(&mut self, at: Node, content: ContentHash) -> Node {
        let fresh = self.trie.len() as Node + 1;
        *self.trie.entry((at, content)).or_insert(fresh)
    }

    fn resolve_parent(
        &mut self,
        key: RankKey,
        tier: Tier,
        parent: Option<EngineHash>,
    ) -> Result<Option<Node>, IndexError> {
        let rank = self.rank(key)?;
        Ok(match parent {
            None => Some(ROOT),
            Some(name) => rank.resolve(tier, name),
        })
    }

    /// Parks the blocks of a store one by one, each behind the name before it, as long as there is room.
    fn park(&mut self, key: RankKey, tier: Tier, store: &Store<'_>, did: &mut Stored) -> Result<(), IndexError> {
        let limit = self.orphans_max_per_rank;
        let rank = self.rank(key)?;
        let parents = store.parent.into_iter().chain(store.names.iter().copied());
        for ((&name, &content), parent) in store.names.iter().zip(store.contents).zip(parents) {
            if rank.parked.len() >= limit {
                did.orphans_dropped += 1;
                continue;
            }
            rank.parked.push(Parked { tier, parent, name, content, kind: store.kind });
            did.orphans += 1;
        }
        Ok(())
    }

    /// Attaches what waited for these names, then what waited for those, first come first served.
    fn attach(&mut self, key: RankKey, names: &[EngineHash], did: &mut Stored) -> Result<(), IndexError> {
        let mut arrived: VecDeque<EngineHash> = names.iter().copied().collect();
        while let Some(parent) = arrived.pop_front() {
            while let Some(i) = self.rank(key)?.parked.iter().position(|p| p.parent == parent) {
                let block = self.rank(key)?.parked.remove(i);
                let node = self.rank(key)?.resolve(block.tier, parent).expect("a name that arrived is held");
                let node = self.child(node, block.content);
                self.rank(key)?.hold(block.tier, block.name, node, block.kind, did);
                did.attached += 1;
                arrived.push_back(block.name);
            }
        }
        Ok(())
    }
}

impl Rank {
    /// Where a name stands: in its own tier first, then in the nearest other one.
    fn resolve(&self, tier: Tier, name: EngineHash) -> Option<Node> {
        let own = self.tiers[tier.index()].names.get(&name);
        own.or_else(|| self.tiers.iter().find_map(|t| t.names.get(&name))).map(|p| p.node)
    }

    /// The latest store wins: a name that stands elsewhere moves here, with its copies.
    fn hold(&mut self, tier: Tier, name: EngineHash, node: Node, kind: StoreKind, did: &mut Stored) {
        let state = &mut self.tiers[tier.index()];
        let extra = u64::from(kind == StoreKind::Copy);
        match state.names.get_mut(&name) {
            None => {
                state.names.insert(name, Place { node, copies: 1 });
                *state.held.entry(node).or_insert(0) += 1;
                did.stored += 1;
            }
            Some(place) if place.node == node => {
                place.copies = place.copies.saturating_add(extra);
                did.copies += extra;
            }
            Some(place) => {
                place.copies = place.copies.saturating_add(extra);
                let old = std::mem::replace(&mut place.node, node);
                *state.held.entry(node).or_insert(0) += 1;
                state.leave(old);
                did.moved += 1;
            }
        }
    }
}

impl TierState {
    fn forget(&mut self, name: EngineHash) {
        if let Some(place) = self.names.remove(&name) {
            self.leave(place.node);
        }
    }

    fn leave(&mut self, node: Node) {
        if let Some(names) = self.held.get_mut(&node) {
            *names -= 1;
            if *names == 0 {
                self.held.remove(&node);
            }
        }
    }
}
