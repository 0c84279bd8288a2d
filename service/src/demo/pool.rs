//! The block pool of a mock engine: a trie of blocks, physical copies of them, and least-recently-used reuse. Pure.
//!
//! A *node* is a block in its context (namespace and everything before it). A *slot* is a physical block; it is empty or
//! holds a copy of one node. A node is live while a slot holds it. Slots that no request uses wait in order of their last
//! use; the oldest is overwritten first. A request gives its slots back tail first, so that children leave before parents.

use kvatlas_index::{ContentHash, EngineHash};
use std::collections::{BTreeSet, HashMap};

/// A node's number. Numbers of nodes that are gone are used again.
pub type NodeId = usize;
/// A slot's number.
pub type SlotId = usize;

/// The engine's own hash of a block and of everything before it.
pub type Digest = [u8; 32];

/// A block in its context.
#[derive(Clone, Debug)]
pub struct Node {
    /// The block before it; `None` for position 0.
    pub parent: Option<NodeId>,
    /// The hash as the wire carries it.
    pub name: EngineHash,
    /// What a lookup calls it.
    pub content: ContentHash,
    key: (Option<NodeId>, Digest),
    copies: Vec<SlotId>,
    children: usize,
}

#[derive(Clone, Copy, Default)]
struct Slot {
    node: Option<NodeId>,
    freed_at: u64,
}

/// The pool.
pub struct Pool {
    slots: Vec<Slot>,
    free: BTreeSet<(u64, SlotId)>,
    nodes: Vec<Option<Node>>,
    vacant: Vec<NodeId>,
    by_key: HashMap<(Option<NodeId>, Digest), NodeId>,
    clock: u64,
}

impl Pool {
    /// An empty pool of so many physical blocks.
    pub fn new(blocks: usize) -> Self {
        Self {
            slots: vec![Slot::default(); blocks],
            free: (0..blocks).map(|slot| (0, slot)).collect(),
            nodes: Vec::new(),
            vacant: Vec::new(),
            by_key: HashMap::new(),
            clock: 0,
        }
    }

    /// The node with this number, which must exist.
    pub fn node(&self, id: NodeId) -> &Node {
        self.nodes[id].as_ref().expect("a node in use is there")
    }

    /// The live block with this hash behind `parent`, if there is one.
    pub fn live_child(&self, parent: Option<NodeId>, digest: &Digest) -> Option<NodeId> {
        let id = *self.by_key.get(&(parent, *digest))?;
        (!self.node(id).copies.is_empty()).then_some(id)
    }

    /// Takes the newest copy of a live node out of reuse and returns its slot; nothing if a request uses that copy already.
    pub fn pin(&mut self, id: NodeId) -> Option<SlotId> {
        let slot = *self.node(id).copies.last()?;
        self.free.remove(&(self.slots[slot].freed_at, slot)).then_some(slot)
    }

    /// Takes the least recently used slot for a new block. Returns the name that it held until now. `None` if requests use
    /// every slot.
    pub fn take(&mut self) -> Option<(SlotId, Option<EngineHash>)> {
        let (_, slot) = self.free.pop_first()?;
        let evicted = self.slots[slot].node.take().map(|id| {
            let node = self.nodes[id].as_mut().expect("a slot's node is there");
            let name = node.name;
            node.copies.retain(|&s| s != slot);
            self.prune(id);
            name
        });
        Some((slot, evicted))
    }

    /// Fills a taken slot with a copy of the block behind `parent`, making its node if it is new.
    pub fn fill(&mut self, slot: SlotId, parent: Option<NodeId>, block: NewBlock) -> NodeId {
        let key = (parent, block.digest);
        let id = match self.by_key.get(&key) {
            Some(&id) => id,
            None => self.insert(key, block),
        };
        self.nodes[id].as_mut().expect("just found or made").copies.push(slot);
        self.slots[slot].node = Some(id);
        id
    }

    /// Gives slots back, the last of them to be reused first.
    pub fn release(&mut self, slots: &[SlotId]) {
        for &slot in slots.iter().rev() {
            self.clock += 1;
            self.slots[slot].freed_at = self.clock;
            self.free.insert((self.clock, slot));
        }
    }

    /// Every node with its copies, parents before children. Nodes without copies are there where a live one stands below.
    pub fn dump(&self) -> Vec<(&Node, u64)> {
        let mut out = Vec::new();
        let mut children: HashMap<Option<NodeId>, Vec<NodeId>> = HashMap::new();
        for (id, node) in self.nodes.iter().enumerate().filter_map(|(id, n)| Some((id, n.as_ref()?))) {
            children.entry(node.parent).or_default().push(id);
        }
        let mut todo = children.remove(&None).unwrap_or_default();
        while let Some(id) = todo.pop() {
            let node = self.node(id);
            out.push((node, node.copies.len() as u64));
            todo.extend(children.remove(&Some(id)).unwrap_or_default());
        }
        out
    }

    fn insert(&mut self, key: (Option<NodeId>, Digest), block: NewBlock) -> NodeId {
        let NewBlock { name, content, .. } = block;
        let node = Node { parent: key.0, name, content, key, copies: Vec::new(), children: 0 };
        if let Some(parent) = key.0 {
            self.nodes[parent].as_mut().expect("a parent is there").children += 1;
        }
        let id = self.vacant.pop().unwrap_or_else(|| {
            self.nodes.push(None);
            self.nodes.len() - 1
        });
        self.nodes[id] = Some(node);
        self.by_key.insert(key, id);
        id
    }

    /// Forgets a node that has neither copies nor children, and then its ancestors likewise.
    fn prune(&mut self, id: NodeId) {
        let mut at = Some(id);
        while let Some(id) = at {
            let node = self.node(id);
            if !node.copies.is_empty() || node.children > 0 {
                return;
            }
            let (key, parent) = (node.key, node.parent);
            self.by_key.remove(&key);
            self.nodes[id] = None;
            self.vacant.push(id);
            if let Some(parent) = parent {
                self.nodes[parent].as_mut().expect("a parent is there").children -= 1;
            }
            at = parent;
        }
    }
}

/// What a block is called.
#[derive(Clone, Copy, Debug)]
pub struct NewBlock {
    /// The engine's hash.
    pub digest: Digest,
    /// The hash as the wire carries it.
    pub name: EngineHash,
    /// What a lookup calls it.
    pub content: ContentHash,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(n: u8) -> NewBlock {
        NewBlock { digest: [n; 32], name: EngineHash(n.into()), content: ContentHash(n.into()) }
    }

    /// Stores a chain and gives it back; returns what was evicted.
    fn run(pool: &mut Pool, chain: &[u8]) -> Vec<u64> {
        let (mut slots, mut evicted, mut parent) = (Vec::new(), Vec::new(), None);
        for &n in chain {
            let (slot, out) = pool.take().unwrap();
            evicted.extend(out.map(|name| name.0));
            parent = Some(pool.fill(slot, parent, block(n)));
            slots.push(slot);
        }
        pool.release(&slots);
        evicted
    }

    fn live(pool: &Pool) -> Vec<(u64, u64)> {
        let mut live: Vec<_> = pool.dump().iter().filter(|(_, c)| *c > 0).map(|(n, c)| (n.name.0, *c)).collect();
        live.sort_unstable();
        live
    }

    #[test]
    fn the_tail_leaves_before_the_head() {
        let mut pool = Pool::new(4);
        assert!(run(&mut pool, &[1, 2, 3]).is_empty());
        assert_eq!(run(&mut pool, &[7, 8]), [3]);
        assert_eq!(live(&pool), [(1, 1), (2, 1), (7, 1), (8, 1)]);
        assert_eq!(run(&mut pool, &[9]), [2]);
    }

    #[test]
    fn copies_are_counted_and_leave_one_by_one() {
        let mut pool = Pool::new(3);
        run(&mut pool, &[1]);
        run(&mut pool, &[1]);
        assert_eq!(live(&pool), [(1, 2)]);
        run(&mut pool, &[2]);
        assert_eq!(run(&mut pool, &[3]), [1]);
        assert_eq!(live(&pool), [(1, 1), (2, 1), (3, 1)]);
    }

    #[test]
    fn a_pinned_block_is_not_reused_and_a_pool_in_use_gives_nothing() {
        let mut pool = Pool::new(2);
        run(&mut pool, &[1, 2]);
        let one = pool.live_child(None, &[1; 32]).unwrap();
        let slot = pool.pin(one).unwrap();
        assert_eq!(pool.pin(one), None);
        assert_eq!(pool.take().unwrap().1, Some(EngineHash(2)));
        assert!(pool.take().is_none());
        pool.release(&[slot]);
        assert_eq!(pool.take().unwrap().1, Some(EngineHash(1)));
        assert_eq!(pool.live_child(None, &[1; 32]), None);
    }

    #[test]
    fn nodes_without_copies_and_children_are_forgotten() {
        let mut pool = Pool::new(2);
        for n in 0..200 {
            run(&mut pool, &[n]);
        }
        assert!(pool.nodes.len() <= 3, "{}", pool.nodes.len());
        assert_eq!(pool.by_key.len(), 2);
    }
}
