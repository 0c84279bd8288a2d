//! Exports of the oracle, as literally as the rest: each tier by itself, node by node from the root on, every node that leads
//! to a held one and is not held itself under a name nobody has.

use crate::error::IndexError;
use crate::lane::export::Exported;
use crate::reference::{Node, Parked, ROOT, Rank, Reference};
use crate::types::{ContentHash, EngineHash, RankKey, Store, StoreKind, Tier};
use std::collections::{BTreeMap, BTreeSet, HashMap};

impl Reference {
    /// Tells what a rank holds and has parked as operations that make the same rank of one that was freshly opened, here or
    /// in an index; nothing for a rank that is not open.
    pub fn export(&self, key: RankKey, see: &mut dyn FnMut(Exported<'_>)) {
        let Some(rank) = self.ranks.get(&key) else { return };
        let above: HashMap<Node, (Node, ContentHash)> = self.trie.iter().map(|(&(at, c), &n)| (n, (at, c))).collect();
        let mut made_up = (0..).map(EngineHash).filter(|&name| !rank.knows(name));
        for tier in Tier::ALL {
            rank.export_tier(tier, &above, &mut made_up, see);
        }
        let mut left = &rank.parked[..];
        while !left.is_empty() {
            left = rank.export_parked(left, &mut made_up, see);
        }
    }

    /// Applies one operation of an export.
    pub fn import(&mut self, key: RankKey, told: &Exported<'_>) -> Result<(), IndexError> {
        match *told {
            Exported::Store { tier, ref store } => self.store(key, tier, store).map(drop),
            Exported::Copies { tier, name, left } => self.set_copies(key, tier, name, left).map(drop),
            Exported::Remove { tier, names } => self.remove(key, tier, names).map(drop),
        }
    }
}

impl Rank {
    /// Whether a name is held, parked or waited for.
    fn knows(&self, name: EngineHash) -> bool {
        self.tiers.iter().any(|t| t.names.contains_key(&name))
            || self.parked.iter().any(|p| p.name == name || p.parent == name)
    }

    fn export_tier(
        &self,
        tier: Tier,
        above: &HashMap<Node, (Node, ContentHash)>,
        made_up: &mut dyn Iterator<Item = EngineHash>,
        see: &mut dyn FnMut(Exported<'_>),
    ) {
        let state = &self.tiers[tier.index()];
        let mut names: BTreeMap<Node, Vec<EngineHash>> = BTreeMap::new();
        for (&name, place) in &state.names {
            names.entry(place.node).or_default().push(name);
        }
        let mut needed = BTreeSet::new();
        for &node in names.keys() {
            let mut at = node;
            while at != ROOT && needed.insert(at) {
                at = above[&at].0;
            }
        }
        // A node has a higher number than the one above it.
        let mut first: HashMap<Node, EngineHash> = HashMap::new();
        let mut stood_in = Vec::new();
        for node in needed {
            let (parent, content) = above[&node];
            let here = names.remove(&node).unwrap_or_else(|| {
                stood_in.extend(made_up.next());
                stood_in[stood_in.len() - 1..].to_vec()
            });
            first.insert(node, here[0]);
            for name in here {
                let (names, contents, kind) = (&[name][..], &[content][..], StoreKind::Announce);
                see(Exported::Store {
                    tier,
                    store: Store { parent: first.get(&parent).copied(), names, contents, kind },
                });
                if let Some(left) = state.names.get(&name).map(|place| place.copies).filter(|&copies| copies > 1) {
                    see(Exported::Copies { tier, name, left });
                }
            }
        }
        stood_in.reverse();
        see(Exported::Remove { tier, names: &stood_in });
    }

    /// Blocks that follow each other; what is left. A block that waits for a name which is held came with a parked block of
    /// that name: which is before it, or is gone.
    fn export_parked<'a>(
        &self,
        parked: &'a [Parked],
        made_up: &mut dyn Iterator<Item = EngineHash>,
        see: &mut dyn FnMut(Exported<'_>),
    ) -> &'a [Parked] {
        let holds = |name: EngineHash| self.tiers.iter().any(|t| t.names.contains_key(&name));
        let Parked { tier, kind, parent, .. } = parked[0];
        let behind_held = holds(parent);
        let (mut names, mut contents) = (Vec::new(), Vec::new());
        if behind_held {
            names.push(parent);
            contents.push(ContentHash(0));
        }
        let (mut before, mut count) = (parent, 0);
        for p in parked {
            let follows = p.parent == before && p.tier == tier && p.kind == kind;
            if !follows || behind_held && (!holds(p.parent) || p.name == parent) {
                break;
            }
            names.push(p.name);
            contents.push(p.content);
            before = p.name;
            count += 1;
        }
        let parent = if behind_held { made_up.next() } else { Some(parent) };
        see(Exported::Store { tier, store: Store { parent, names: &names, contents: &contents, kind } });
        if behind_held {
            see(Exported::Remove { tier, names: &names[..1] });
        }
        &parked[count..]
    }
}
