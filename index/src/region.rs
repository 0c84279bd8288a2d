//! Reserved memory of atomics with stable addresses: the whole range is reserved at once and committed on touch, so the
//! arena grows without moving and a stale reader reads old or reused words, never unmapped ones.
#![cfg_attr(
    not(loom),
    expect(
        unsafe_code,
        reason = "views anonymous memory as atomics; every access goes through the two functions here"
    )
)]

use crate::error::ConfigError;
#[cfg(not(loom))]
use crate::pages::{Enrolled, whole_stretches};
use crate::place::Site;
#[cfg(not(loom))]
use crate::sync::Ordering;
use crate::sync::{AtomicU8, AtomicU32, AtomicU64};

/// Size of the pool's pages: 2 MiB, which x86-64 and 4-KiB Arm have.
#[cfg(not(loom))]
const HUGE_PAGE_BITS: u8 = 21;

/// Words a region can hold: atomics for which zeroed memory is a valid value.
pub(crate) trait Word: Sized + 'static {
    /// The word in loom's backing store, which cannot be zeroed memory.
    #[cfg(loom)]
    fn zero() -> Self;
    /// Zeroes the word.
    #[cfg(not(loom))]
    fn clear(&self);
}
macro_rules! word {
    ($($t:ty),*) => {$(
        impl Word for $t {
            #[cfg(loom)]
            fn zero() -> Self {
                <$t>::new(0)
            }
            #[cfg(not(loom))]
            fn clear(&self) {
                // Relaxed: as the zeros of a page that is new, these are ordered by nothing but what the caller publishes next.
                self.store(0, Ordering::Relaxed);
            }
        }
    )*};
}
word!(AtomicU8, AtomicU32, AtomicU64);

/// `len` words, all zero at first.
#[cfg(not(loom))]
pub(crate) struct Region<T> {
    /// Goes before the map does.
    pages: Enrolled,
    map: memmap2::MmapMut,
    len: usize,
    /// Made of the reserved pool's pages: they are there from the start and are not given back.
    explicit: bool,
    word: std::marker::PhantomData<T>,
}

#[cfg(not(loom))]
impl<T: Word> Region<T> {
    /// Reserves address space where the site wants it; no memory is used until a word is touched.
    pub fn reserve(name: &'static str, len: usize, site: &mut Site) -> Result<Self, ConfigError> {
        let bytes = len * size_of::<T>();
        let explicit = site.wants_explicit().then(|| reserve_explicit(bytes, site)).flatten();
        let is_explicit = explicit.is_some();
        let map = match explicit {
            Some(map) => map,
            None => memmap2::MmapOptions::new()
                .len(whole_stretches(bytes))
                .no_reserve_swap()
                .map_anon()
                .map_err(|e| ConfigError::Reserve { region: name, bytes: bytes as u64, reason: e.to_string() })?,
        };
        let pages = site.settle(&map, is_explicit);
        Ok(Self { pages, map, len, explicit: is_explicit, word: std::marker::PhantomData })
    }

    #[inline]
    fn words(&self) -> &[T] {
        let words = self.map.as_ptr().cast::<T>();
        // SAFETY: the map is page-aligned, holds `len` words and lives as long as `self`; zeroed or written memory is a
        // valid atomic, and all access to it is through shared references to atomics.
        unsafe { std::slice::from_raw_parts(words, self.len) }
    }

    /// Gives the memory of a range back to the system; it reads as zero afterwards. A reader inside it sees zeros.
    pub fn release(&self, from: usize, count: usize) {
        if self.explicit {
            // What the pool gave stays: it was taken at the start, and the kernel gives back whole huge pages only. The words
            // are zeroed instead, which readers cannot tell from a page that is new.
            self.clamped(from, count).iter().for_each(T::clear);
            return;
        }
        let size = size_of::<T>();
        self.pages.gives_back(from * size, count * size);
        // SAFETY: the range is inside the private anonymous map, and zero is a valid value of every word; readers that
        // overlap see old words or zeros, as after ordinary stores.
        let given =
            unsafe { self.map.unchecked_advise_range(memmap2::UncheckedAdvice::DontNeed, from * size, count * size) };
        debug_assert!(given.is_ok(), "advice on a mapped range");
    }
}

/// A mapping of the pool's pages, all of them taken now; `None` when the pool has not so many.
#[cfg(not(loom))]
fn reserve_explicit(bytes: usize, site: &mut Site) -> Option<memmap2::MmapMut> {
    // The system gives and takes whole huge pages.
    let bytes = bytes.next_multiple_of(1 << HUGE_PAGE_BITS);
    match memmap2::MmapOptions::new().len(bytes).huge(Some(HUGE_PAGE_BITS)).map_anon() {
        Ok(map) => {
            site.explicit_granted();
            Some(map)
        }
        Err(error) => {
            site.explicit_refused(&error);
            None
        }
    }
}

#[cfg(loom)]
pub(crate) struct Region<T> {
    all: Vec<T>,
    len: usize,
}

#[cfg(loom)]
impl<T: Word> Region<T> {
    pub fn reserve(_name: &'static str, len: usize, _site: &mut Site) -> Result<Self, ConfigError> {
        Ok(Self { all: (0..len).map(|_| T::zero()).collect(), len })
    }
    fn words(&self) -> &[T] {
        &self.all
    }
    pub fn release(&self, _from: usize, _count: usize) {}
}

impl<T: Word> Region<T> {
    /// The word at `i`, which the caller knows to be inside.
    #[inline]
    pub fn at(&self, i: usize) -> &T {
        &self.words()[i]
    }

    /// The `i`-th group of so many words; the last one in place of those that there are not.
    #[inline]
    pub fn group<const N: usize>(&self, i: usize) -> &[T; N] {
        let groups = self.words().as_chunks::<N>().0;
        &groups[i.min(groups.len() - 1)]
    }

    /// `count` words from `from`, cut off at the region's end: a reader's ids and lengths are rumours until confirmed.
    #[inline]
    pub fn clamped(&self, from: usize, count: usize) -> &[T] {
        let from = from.min(self.len);
        &self.words()[from..(from + count).min(self.len)]
    }
}
