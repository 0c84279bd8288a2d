//! Bytes of a stores frame: operations, one behind the other.
//!
//! ```text
//! op     tag u8 | tier u8 | detail u8 | 0 u8 | count u32, and then
//! store  parent u64 (0 without one) | names, count x u64 | contents, count x u64     detail: bit 0 announces, bit 1 has a parent
//! adopt  names, count x u64
//! remove names, count x u64
//! copies name u64 | left u64                                                         count: 0
//! clear                                                                              detail: 1 for every tier; count: 0
//! ```

use super::codec::Input;
use crate::ops::Op;
use kvatlas_index::{ContentHash, EngineHash, StoreKind, Tier};

const STORE: u8 = 1;
const ADOPT: u8 = 2;
const REMOVE: u8 = 3;
const COPIES: u8 = 4;
const CLEAR: u8 = 5;

const ANNOUNCES: u8 = 1;
const HAS_PARENT: u8 = 2;

/// Appends an operation.
pub(super) fn write_op(op: &Op, out: &mut Vec<u8>) {
    match op {
        Op::Store { tier, parent, names, contents, kind } => {
            let announces = if *kind == StoreKind::Announce { ANNOUNCES } else { 0 };
            let has_parent = if parent.is_some() { HAS_PARENT } else { 0 };
            head(STORE, *tier, announces | has_parent, names.len(), out);
            out.extend(parent.map_or(0, |name| name.0).to_le_bytes());
            out.extend(names.iter().flat_map(|name| name.0.to_le_bytes()));
            out.extend(contents.iter().flat_map(|content| content.0.to_le_bytes()));
        }
        Op::Adopt { tier, names } => {
            head(ADOPT, *tier, 0, names.len(), out);
            out.extend(names.iter().flat_map(|name| name.0.to_le_bytes()));
        }
        Op::Remove { tier, names } => {
            head(REMOVE, *tier, 0, names.len(), out);
            out.extend(names.iter().flat_map(|name| name.0.to_le_bytes()));
        }
        Op::SetCopies { tier, name, left } => {
            head(COPIES, *tier, 0, 0, out);
            out.extend(name.0.to_le_bytes());
            out.extend(left.to_le_bytes());
        }
        Op::Clear { tier } => head(CLEAR, tier.unwrap_or(Tier::Device), u8::from(tier.is_none()), 0, out),
    }
}

/// Checks operations without taking them.
pub(super) fn check_ops(payload: &[u8]) -> Result<(), &'static str> {
    let mut input = Input(payload);
    while !input.0.is_empty() {
        Head::read(&mut input)?.body(&mut input)?;
    }
    Ok(())
}

/// Reads operations.
pub(super) fn read_ops(payload: &[u8]) -> Result<Vec<Op>, &'static str> {
    let (mut input, mut ops) = (Input(payload), Vec::new());
    while !input.0.is_empty() {
        let head = Head::read(&mut input)?;
        let body = head.body(&mut input)?;
        ops.push(head.op(body));
    }
    Ok(ops)
}

fn head(tag: u8, tier: Tier, detail: u8, count: usize, out: &mut Vec<u8>) {
    out.extend([tag, tier as u8, detail, 0]);
    out.extend((count as u32).to_le_bytes());
}

/// The first eight bytes of an operation.
struct Head {
    tag: u8,
    tier: Tier,
    detail: u8,
    count: usize,
}

impl Head {
    fn read(input: &mut Input<'_>) -> Result<Self, &'static str> {
        let [tag, tier, detail, zero] = [input.byte()?, input.byte()?, input.byte()?, input.byte()?];
        let count = input.small()? as usize;
        let tier = Tier::from_index(usize::from(tier)).ok_or("a tier is unknown")?;
        let detail_max = match tag {
            STORE => ANNOUNCES | HAS_PARENT,
            CLEAR => 1,
            ADOPT | REMOVE | COPIES => 0,
            _ => return Err("an operation is unknown"),
        };
        if detail > detail_max || zero != 0 || (count != 0 && matches!(tag, COPIES | CLEAR)) {
            return Err("an operation's head means nothing");
        }
        Ok(Self { tag, tier, detail, count })
    }

    /// The words behind it.
    fn body<'a>(&self, input: &mut Input<'a>) -> Result<&'a [u8], &'static str> {
        let words = match self.tag {
            STORE => 1 + 2 * self.count,
            ADOPT | REMOVE => self.count,
            COPIES => 2,
            _ => 0,
        };
        input.bytes(8 * words)
    }

    fn op(&self, body: &[u8]) -> Op {
        let tier = self.tier;
        let mut words = body.chunks_exact(8).map(|word| u64::from_le_bytes(word.try_into().expect("chunks of eight")));
        let mut word = || words.next().unwrap_or_default();
        match self.tag {
            STORE => {
                let parent = EngineHash(word());
                Op::Store {
                    tier,
                    parent: (self.detail & HAS_PARENT != 0).then_some(parent),
                    kind: if self.detail & ANNOUNCES != 0 { StoreKind::Announce } else { StoreKind::Copy },
                    names: words.by_ref().take(self.count).map(EngineHash).collect(),
                    contents: words.map(ContentHash).collect(),
                }
            }
            ADOPT => Op::Adopt { tier, names: words.map(EngineHash).collect() },
            REMOVE => Op::Remove { tier, names: words.map(EngineHash).collect() },
            COPIES => Op::SetCopies { tier, name: EngineHash(word()), left: word() },
            _ => Op::Clear { tier: (self.detail == 0).then_some(tier) },
        }
    }
}
