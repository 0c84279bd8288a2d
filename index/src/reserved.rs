//! Reserved memory of plain words for one owner: the whole range is reserved at once and committed on touch, so a table grows
//! without moving and without a second table, and gives pages back when it shrinks. One thread at a time, through `&mut`.
#![cfg_attr(
    not(loom),
    expect(
        unsafe_code,
        reason = "views anonymous memory as a slice of plain words; everything goes through two functions"
    )
)]

use crate::error::ConfigError;
use crate::lane::alias::Granule;
use crate::lane::map::line::Line;
#[cfg(not(loom))]
use crate::pages::{Enrolled, whole_stretches};
use crate::place::Site;
use std::ops::{Deref, DerefMut};

/// Words that any memory is a valid value of, and whose zero is all zero bits.
pub(crate) trait Plain: Copy + 'static {
    /// All bits zero.
    const ZERO: Self;
}
impl Plain for Line {
    const ZERO: Self = Line::EMPTY;
}
impl Plain for Granule {
    const ZERO: Self = Granule::EMPTY;
}
impl Plain for u64 {
    const ZERO: Self = 0;
}

/// `len` words, all zero at first.
#[cfg(not(loom))]
pub(crate) struct Reserved<T> {
    /// Goes before the map does.
    pages: Enrolled,
    map: memmap2::MmapMut,
    len: usize,
    word: std::marker::PhantomData<T>,
}

#[cfg(not(loom))]
impl<T: Plain> Reserved<T> {
    /// Reserves address space where the site wants it; no memory is used until a word is touched. The reserved pool's pages are
    /// not asked for: all of them would be taken at once, for a table at its limit.
    pub fn new(name: &'static str, len: usize, site: &mut Site) -> Result<Self, ConfigError> {
        const { assert!(align_of::<T>() <= 4096, "a map begins on a page") };
        let bytes = len * size_of::<T>();
        let map = memmap2::MmapOptions::new()
            .len(whole_stretches(bytes))
            .no_reserve_swap()
            .map_anon()
            .map_err(|e| ConfigError::Reserve { region: name, bytes: bytes as u64, reason: e.to_string() })?;
        let pages = site.settle(&map, false);
        Ok(Self { pages, map, len, word: std::marker::PhantomData })
    }

    /// Zeroes a range and gives the whole pages in it back to the system.
    pub fn release(&mut self, from: usize, to: usize) {
        const PAGE: usize = 4096;
        let size = size_of::<T>();
        let (start, end) = ((from * size).next_multiple_of(PAGE), to * size / PAGE * PAGE);
        if start >= end {
            self[from..to].fill(T::ZERO);
            return;
        }
        // The pages' edges are zeroed by hand; a word may lie across one.
        self[from..start.div_ceil(size)].fill(T::ZERO);
        self[end / size..to].fill(T::ZERO);
        self.pages.gives_back(start, end - start);
        // SAFETY: the range is inside the private anonymous map, which reads as zero afterwards, a valid value of every word;
        // `&mut self` says that nobody looks at it.
        let given = unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, start, end - start) };
        debug_assert!(given.is_ok(), "advice on a mapped range");
    }
}

#[cfg(not(loom))]
impl<T: Plain> Deref for Reserved<T> {
    type Target = [T];
    #[inline]
    fn deref(&self) -> &[T] {
        let words = self.map.as_ptr().cast::<T>();
        // SAFETY: the map is page-aligned, holds `len` words and lives as long as `self`; any memory is a valid `Plain`.
        unsafe { std::slice::from_raw_parts(words, self.len) }
    }
}

#[cfg(not(loom))]
impl<T: Plain> DerefMut for Reserved<T> {
    #[inline]
    fn deref_mut(&mut self) -> &mut [T] {
        let words = self.map.as_mut_ptr().cast::<T>();
        // SAFETY: as in `deref`; `&mut self` makes it the only view.
        unsafe { std::slice::from_raw_parts_mut(words, self.len) }
    }
}

/// In the models a short vector stands in: they hold few names.
#[cfg(loom)]
pub(crate) struct Reserved<T>(Vec<T>);

#[cfg(loom)]
impl<T: Plain> Reserved<T> {
    pub fn new(_name: &'static str, len: usize, _site: &mut Site) -> Result<Self, ConfigError> {
        const MODEL_LEN_MAX: usize = 64;
        Ok(Self(vec![T::ZERO; len.min(MODEL_LEN_MAX)]))
    }
    pub fn release(&mut self, from: usize, to: usize) {
        self.0[from..to].fill(T::ZERO);
    }
}

#[cfg(loom)]
impl<T> Deref for Reserved<T> {
    type Target = [T];
    fn deref(&self) -> &[T] {
        &self.0
    }
}

#[cfg(loom)]
impl<T> DerefMut for Reserved<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}
