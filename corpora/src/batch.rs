//! Operations in flat arrays: whoever plays them allocates nothing and follows no pointers.

use kvatlas_index::{ContentHash, EngineHash};
use std::ops::Range;

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OperationKind {
    /// A request's contents are looked up. The worker is the one that will serve it first.
    Lookup,
    /// A worker stored blocks.
    Store {
        /// Name of the block before the first one.
        parent: Option<EngineHash>,
        /// Of the blocks, so many are held by another worker at this moment.
        joined: u32,
        /// Whether these are decode blocks.
        decode: bool,
    },
    /// A worker removed blocks.
    Remove,
}

/// What kind of work an event is to an index.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// A lookup.
    Lookup,
    /// A store of which nobody holds any block.
    First,
    /// A store of which another worker holds every block.
    Join,
    /// A store that begins in what others hold and leaves it.
    Mixed,
    /// A store of decode blocks.
    Append,
    /// A removal.
    Remove,
}

/// One operation of a [`Batch`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Operation {
    /// Nanoseconds of the corpus's own time; never less than the operation before.
    pub at_ns: u64,
    /// The worker, below `Parameters::workers`.
    pub worker: u32,
    /// What is done.
    pub kind: OperationKind,
    pub(crate) names: Range<usize>,
    pub(crate) contents: Range<usize>,
}

impl Operation {
    /// Blocks that are asked for, stored or removed.
    pub fn blocks(&self) -> usize {
        self.names.len().max(self.contents.len())
    }

    /// The kind of work.
    pub fn class(&self) -> Class {
        match self.kind {
            OperationKind::Lookup => Class::Lookup,
            OperationKind::Remove => Class::Remove,
            OperationKind::Store { decode: true, .. } => Class::Append,
            OperationKind::Store { joined: 0, .. } => Class::First,
            OperationKind::Store { joined, .. } if joined as usize == self.names.len() => Class::Join,
            OperationKind::Store { .. } => Class::Mixed,
        }
    }
}

/// Operations in order, with their names and contents. To be reused: [`Batch::clear`] keeps the memory.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    /// The operations.
    pub operations: Vec<Operation>,
    names: Vec<EngineHash>,
    contents: Vec<ContentHash>,
}

impl Batch {
    /// Names of the blocks of a store or removal; empty for a lookup.
    #[inline]
    pub fn names(&self, operation: &Operation) -> &[EngineHash] {
        &self.names[operation.names.clone()]
    }

    /// Contents of the blocks of a store or lookup; empty for a removal.
    #[inline]
    pub fn contents(&self, operation: &Operation) -> &[ContentHash] {
        &self.contents[operation.contents.clone()]
    }

    /// All names in a row, in order of operations: for layouts of other indexes that are built ahead of time.
    pub fn all_names(&self) -> &[EngineHash] {
        &self.names
    }

    /// Where the operation's names stand in [`Batch::all_names`].
    pub fn names_range(&self, operation: &Operation) -> Range<usize> {
        operation.names.clone()
    }

    /// Where the operation's contents stand in [`Batch::all_contents`].
    pub fn contents_range(&self, operation: &Operation) -> Range<usize> {
        operation.contents.clone()
    }

    /// All contents in a row, in order of operations.
    pub fn all_contents(&self) -> &[ContentHash] {
        &self.contents
    }

    /// Drops all operations.
    pub fn clear(&mut self) {
        self.operations.clear();
        self.names.clear();
        self.contents.clear();
    }

    /// Appends a lookup.
    pub fn push_lookup(&mut self, worker: u32, contents: impl IntoIterator<Item = ContentHash>) {
        self.push((0, worker), OperationKind::Lookup, std::iter::empty(), contents.into_iter());
    }

    /// Appends a store of blocks, each a name and a content, of which nobody else holds any.
    pub fn push_store(
        &mut self,
        worker: u32,
        parent: Option<EngineHash>,
        blocks: impl IntoIterator<Item = (EngineHash, ContentHash), IntoIter: Clone>,
    ) {
        let blocks = blocks.into_iter();
        let kind = OperationKind::Store { parent, joined: 0, decode: false };
        self.push((0, worker), kind, blocks.clone().map(|block| block.0), blocks.map(|block| block.1));
    }

    /// Appends a removal.
    pub fn push_remove(&mut self, worker: u32, names: impl IntoIterator<Item = EngineHash>) {
        self.push((0, worker), OperationKind::Remove, names.into_iter(), std::iter::empty());
    }

    pub(crate) fn push(
        &mut self,
        (at_ns, worker): (u64, u32),
        kind: OperationKind,
        names: impl Iterator<Item = EngineHash>,
        contents: impl Iterator<Item = ContentHash>,
    ) {
        let (names_from, contents_from) = (self.names.len(), self.contents.len());
        self.names.extend(names);
        self.contents.extend(contents);
        let (names, contents) = (names_from..self.names.len(), contents_from..self.contents.len());
        self.operations.push(Operation { at_ns, worker, kind, names, contents });
    }
}
