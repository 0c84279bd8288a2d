//! Byte-level layout of a shard's regions, and typed views of them.
//!
//! ```text
//! CON[position]  u64  content hash                                   read by lookups
//! ENG[position]  u64  canonical engine hash (the first storer's)     read by lanes
//! OWN[granule]   u32  run of the granule's lowest live position      read by lanes
//! KID[granule]   u8   bit per position: a child hangs here           read by lanes
//! HDR[run]       8 x u64, one cache line:
//!    0  version                                         (version.rs)
//!    1  base position : 32 | parent position : 32       parent 0 = the root
//!    2  next run : 32 | holder block : 32               next = physical successor made by a split
//!    3  len : 16 | cap : 16 | holders : 24 | flags : 8  blocks, positions usable from base, holders in set form
//!    4-7  inline form: 8 x u32 holder entries; set form: bits of full holders, device tier, ranks 0..256, canonical names
//! EXT[block]     16 x u64, two cache lines; in set form HDR word 2 leads to a leaf of up to 30 keys, or to a crowd's root:
//!    leaf, node  a tree of keys by cutoff or by slot                         (cover/tree)
//!    root   0    tree by cutoff : 32 | tree by slot : 32
//!           1    first page : 32 | -
//!    page   0    private : 1 | tier : 11 | number : 20 | next page : 32
//!           1-14 bits of full holders, 896 ranks of one tier
//! entry  u32: private : 1 | slot : 21 | cutoff : 10     0 = empty; held = blocks [0, cutoff) of the run; keys: cover/mod.rs
//! ```
//!
//! A slot is a holder's place in the shard: tier : 2 | rank slot : 19, so that ranks of one tier stand side by side. Words are written under the run's LOCK (rules R1 to R4
//! of ARCHITECTURE.md) and read under its version.

use crate::alloc::GRANULE;
use crate::config::IndexConfig;
use crate::error::ConfigError;
use crate::fault::{Fault, injected};
use crate::place::Site;
use crate::region::Region;
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use crate::types::Tier;
use crate::version::Version;

/// Position of the root: the parent of every first block.
pub(crate) const ROOT: u32 = 0;
/// Words of a header.
const HEADER: usize = 4 + PAGE_WORDS;
/// Words of a holder block.
pub(crate) const BLOCK: usize = 16;
/// Holder words of a header.
pub(crate) const PAGE_WORDS: usize = if cfg!(loom) { 2 } else { 4 };
/// Slots with a bit in a header in set form.
pub(crate) const HEADER_SLOTS: u32 = 64 * PAGE_WORDS as u32;
/// Ranks of a page of full holders.
pub(crate) const PAGE_RANKS: u32 = 64 * (BLOCK as u32 - 2);
/// Entries of the inline form.
pub(crate) const INLINE: usize = 2 * PAGE_WORDS;
/// Flag: the holders are in set form.
pub(crate) const SET_FORM: u8 = 1;
/// Flag: the set form is a crowd.
pub(crate) const CROWD: u8 = 2;

/// Bits of a cutoff: 0..=512 blocks.
const CUT_BITS: u32 = 10;
const SLOT_BITS: u32 = 21;
const _: () = assert!(1 + SLOT_BITS + CUT_BITS == 32);
const RANK_BITS: u32 = 19;
/// Rank slots that holder entries have bits for.
pub(crate) const RANKS_END: u32 = 1 << RANK_BITS;
const _: () = assert!(Tier::COUNT << RANK_BITS == 1 << SLOT_BITS, "ranks times tiers fit a slot");

/// The slot of a rank's tier.
#[inline]
pub(crate) fn slot_of(rank: u32, tier: Tier) -> u32 {
    (tier.index() as u32) << RANK_BITS | rank
}
/// The rank of a slot.
#[inline]
pub(crate) fn rank_of(slot: u32) -> u32 {
    slot % RANKS_END
}
/// The number of a slot's tier.
#[inline]
pub(crate) fn tier_of(slot: u32) -> u32 {
    slot >> RANK_BITS
}

/// One holder of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub slot: u32,
    pub cut: u32,
    pub private: bool,
}

impl Entry {
    #[inline]
    pub fn pack(self) -> u32 {
        if self.cut == 0 { 0 } else { u32::from(self.private) << 31 | self.slot << CUT_BITS | self.cut }
    }
    #[inline]
    pub fn unpack(word: u32) -> Entry {
        Entry {
            slot: word >> CUT_BITS & ((1 << SLOT_BITS) - 1),
            cut: word & ((1 << CUT_BITS) - 1),
            private: word >> 31 == 1,
        }
    }
}

/// The fixed part of a header, as loaded.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Fields {
    pub base: u32,
    pub parent: u32,
    pub next: u32,
    pub ext: u32,
    pub len: u32,
    pub cap: u32,
    pub holders: u32,
    pub flags: u8,
}

impl Fields {
    /// Position after the last block.
    #[inline]
    pub fn end(&self) -> u32 {
        self.base.wrapping_add(self.len)
    }
    #[inline]
    pub fn set_form(&self) -> bool {
        self.flags & SET_FORM != 0
    }
    #[inline]
    pub fn pack_size(&self) -> u64 {
        u64::from(self.len) | u64::from(self.cap) << 16 | u64::from(self.holders) << 32 | u64::from(self.flags) << 56
    }
    #[inline]
    pub fn pack_place(&self) -> u64 {
        u64::from(self.base) | u64::from(self.parent) << 32
    }
    #[inline]
    pub fn pack_links(&self) -> u64 {
        u64::from(self.next) | u64::from(self.ext) << 32
    }
}

/// A run's header in the arena.
#[derive(Clone, Copy)]
pub(crate) struct Header<'a>(&'a [AtomicU64; HEADER]);

impl<'a> Header<'a> {
    #[inline]
    pub fn version(self) -> &'a Version {
        Version::of(&self.0[0])
    }

    /// The fixed fields. `size` first, with Acquire: it pairs with the Release of an append, which does not move the
    /// version, so that the content below `len` is seen.
    #[inline]
    pub fn load(self) -> Fields {
        let relaxed = injected(Fault::LenLoadedRelaxed);
        let size = self.0[3].load(if relaxed { Ordering::Relaxed } else { Ordering::Acquire });
        let place = self.0[1].load(Ordering::Relaxed);
        let links = self.0[2].load(Ordering::Relaxed);
        Fields {
            base: place as u32,
            parent: (place >> 32) as u32,
            next: links as u32,
            ext: (links >> 32) as u32,
            len: (size & 0xffff) as u32,
            cap: (size >> 16 & 0xffff) as u32,
            holders: (size >> 32 & 0xff_ffff) as u32,
            flags: (size >> 56) as u8,
        }
    }

    /// Stores place, links and size. Inside a window, or before the run is published.
    #[inline]
    pub fn store(self, f: &Fields) {
        self.0[1].store(f.pack_place(), Ordering::Relaxed);
        self.0[2].store(f.pack_links(), Ordering::Relaxed);
        self.0[3].store(f.pack_size(), Ordering::Relaxed);
    }
    /// Stores `len`, `cap`, holder count and flags as one word. Release: pairs with the Acquire in [`Header::load`].
    #[inline]
    pub fn store_size(self, f: &Fields) {
        let relaxed = injected(Fault::LenStoredRelaxed);
        self.0[3].store(f.pack_size(), if relaxed { Ordering::Relaxed } else { Ordering::Release });
    }
    /// Stores `next` and the holder block as one word.
    #[inline]
    pub fn store_links(self, f: &Fields) {
        self.0[2].store(f.pack_links(), Ordering::Release);
    }
    /// The four holder words.
    #[inline]
    pub fn holder_words(self) -> &'a [AtomicU64; PAGE_WORDS] {
        self.0.last_chunk().unwrap_or_else(|| unreachable!("a header has eight words"))
    }
}

/// One 32-bit half of some words.
#[inline]
pub(crate) fn half(words: &[AtomicU64], i: usize) -> u32 {
    (words[i / 2].load(Ordering::Relaxed) >> (i % 2 * 32)) as u32
}

/// A holder block in the arena. Its stores happen inside a window, or before the block is published.
#[derive(Clone, Copy)]
pub(crate) struct Block<'a>(&'a [AtomicU64; BLOCK]);

impl<'a> Block<'a> {
    /// All words.
    #[inline]
    pub fn words(self) -> &'a [AtomicU64; BLOCK] {
        self.0
    }
    /// Of a crowd's root: the trees by cutoff and by slot.
    #[inline]
    pub fn roots(self) -> (u32, u32) {
        (half(self.0, 0), half(self.0, 1))
    }
    #[inline]
    pub fn set_roots(self, cuts: u32, slots: u32) {
        self.0[0].store(u64::from(cuts) | u64::from(slots) << 32, Ordering::Relaxed);
    }
    /// Of a crowd's root: the first page.
    #[inline]
    pub fn first_page(self) -> u32 {
        half(self.0, 2)
    }
    #[inline]
    pub fn set_first_page(self, page: u32) {
        self.0[1].store(u64::from(page), Ordering::Relaxed);
    }
    /// Of a page: its key and the next page.
    #[inline]
    pub fn page_head(self) -> (u32, u32) {
        (half(self.0, 0), half(self.0, 1))
    }
    /// Makes an empty page.
    pub fn set_page(self, key: u32, next: u32) {
        self.0[0].store(u64::from(key) | u64::from(next) << 32, Ordering::Relaxed);
        self.page_bits().iter().for_each(|word| word.store(0, Ordering::Relaxed));
    }
    #[inline]
    pub fn set_next_page(self, next: u32) {
        self.0[0].store(u64::from(half(self.0, 0)) | u64::from(next) << 32, Ordering::Relaxed);
    }
    /// Of a page: its bits.
    #[inline]
    pub fn page_bits(self) -> &'a [AtomicU64] {
        &self.0[1..BLOCK - 1]
    }
}

/// The regions of one shard.
pub(crate) struct Arena {
    con: Region<AtomicU64>,
    eng: Region<AtomicU64>,
    own: Region<AtomicU32>,
    kid: Region<AtomicU8>,
    hdr: Region<AtomicU64>,
    ext: Region<AtomicU64>,
}

impl Arena {
    pub fn reserve(config: &IndexConfig, site: &mut Site) -> Result<Self, ConfigError> {
        // One page of granules more than asked for: the root's granule is on it.
        let together = if cfg!(loom) { 1 } else { 64 };
        let granules = (config.blocks_max.div_ceil(GRANULE * together) * together) as usize;
        let positions = granules * GRANULE as usize;
        Ok(Self {
            con: Region::reserve("content hashes", positions, site)?,
            eng: Region::reserve("engine hashes", positions, site)?,
            own: Region::reserve("granule owners", granules, site)?,
            kid: Region::reserve("child bits", granules, site)?,
            hdr: Region::reserve("run headers", config.runs_max as usize * HEADER, site)?,
            ext: Region::reserve("holder blocks", config.exts_max as usize * BLOCK, site)?,
        })
    }

    /// A run's header. The id may be a rumour: it is cut off at the region's capacity, a constant.
    #[inline]
    pub fn header(&self, run: u32) -> Header<'_> {
        Header(self.hdr.group(run as usize))
    }
    /// A holder block; the id may be a rumour, too.
    #[inline]
    pub fn block(&self, id: u32) -> Block<'_> {
        Block(self.ext.group(id as usize))
    }
    /// Content hashes from a position; cut off at the region's end.
    #[inline]
    pub fn contents(&self, from: u32, count: u32) -> &[AtomicU64] {
        self.con.clamped(from as usize, count as usize)
    }
    /// The first content of a granule, which may be a rumour.
    #[inline]
    pub fn first_content(&self, granule: u32) -> u64 {
        self.con.group::<{ GRANULE as usize }>(granule as usize)[0].load(Ordering::Relaxed)
    }
    /// Canonical names from a position; cut off at the region's end.
    #[inline]
    pub fn names(&self, from: u32, count: u32) -> &[AtomicU64] {
        self.eng.clamped(from as usize, count as usize)
    }
    /// The canonical name at a position the caller knows to be live.
    #[inline]
    pub fn name(&self, position: u32) -> u64 {
        self.eng.at(position as usize).load(Ordering::Relaxed)
    }
    /// The content at a position the caller knows to be live.
    #[inline]
    pub fn content(&self, position: u32) -> u64 {
        self.con.at(position as usize).load(Ordering::Relaxed)
    }
    /// Which run has the granule's lowest live position.
    #[inline]
    pub fn owner(&self, granule: u32) -> &AtomicU32 {
        self.own.at(granule as usize)
    }
    /// The child bits of a granule.
    #[inline]
    pub fn kids(&self, granule: u32) -> &AtomicU8 {
        self.kid.at(granule as usize)
    }
}
