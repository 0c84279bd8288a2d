//! The one door to atomics, fences and locks: std in the product, loom in the models (`--cfg loom`).
//!
//! The atomics are types of their own around std's or loom's: so clippy can refuse std's anywhere else in this crate
//! (`index/clippy.toml`), and loom sees every shared word. They add nothing at run time.

#[cfg(loom)]
use loom::sync::atomic as imp;
#[cfg(not(loom))]
use std::sync::atomic as imp;

pub use imp::Ordering;

macro_rules! atomics {
    ($($name:ident($value:ty)),* $(,)?) => {$(
        #[doc = concat!("A shared `", stringify!($value), "`.")]
        #[cfg_attr(not(loom), repr(transparent))]
        #[allow(clippy::disallowed_types, reason = "this module is the facade")]
        pub struct $name(imp::$name, #[cfg(loom)] crate::watch::Watched);

        impl Default for $name {
            fn default() -> Self {
                Self::new(0)
            }
        }

        #[allow(clippy::disallowed_types, reason = "this module is the facade")]
        impl $name {
            /// A word with this value.
            pub fn new(value: $value) -> Self {
                Self(imp::$name::new(value), #[cfg(loom)] Default::default())
            }
            /// Loads the value.
            #[inline]
            pub fn load(&self, order: Ordering) -> $value {
                let value = self.0.load(order);
                #[cfg(loom)]
                self.1.loaded();
                value
            }
            /// Stores a value.
            #[inline]
            pub fn store(&self, value: $value, order: Ordering) {
                self.0.store(value, order);
                #[cfg(loom)]
                self.1.stored();
            }
            /// Stores `new` if the value is `current`; says what it was.
            #[inline]
            pub fn compare_exchange(
                &self,
                current: $value,
                new: $value,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$value, $value> {
                let result = self.0.compare_exchange(current, new, success, failure);
                #[cfg(loom)]
                self.1.stored();
                result
            }
            /// Adds, wrapping; says what it was.
            #[inline]
            pub fn fetch_add(&self, value: $value, order: Ordering) -> $value {
                let before = self.0.fetch_add(value, order);
                #[cfg(loom)]
                self.1.stored();
                before
            }
            /// Subtracts, wrapping; says what it was.
            #[inline]
            pub fn fetch_sub(&self, value: $value, order: Ordering) -> $value {
                let before = self.0.fetch_sub(value, order);
                #[cfg(loom)]
                self.1.stored();
                before
            }
            /// Keeps the bits that are set in both; says what it was.
            #[inline]
            pub fn fetch_and(&self, value: $value, order: Ordering) -> $value {
                let before = self.0.fetch_and(value, order);
                #[cfg(loom)]
                self.1.stored();
                before
            }
            /// Sets bits; says what it was.
            #[inline]
            pub fn fetch_or(&self, value: $value, order: Ordering) -> $value {
                let before = self.0.fetch_or(value, order);
                #[cfg(loom)]
                self.1.stored();
                before
            }
        }
    )*};
}
atomics!(AtomicU8(u8), AtomicU32(u32), AtomicU64(u64));

/// A fence.
#[inline]
#[allow(clippy::disallowed_methods, reason = "this module is the facade")]
pub fn fence(order: Ordering) {
    imp::fence(order);
}

#[cfg(loom)]
use loom::sync as locks;
#[cfg(not(loom))]
use std::sync as locks;

/// A short lock between writers. Readers never take one. A panic of another lane inside it does not poison it: what it
/// guards (free lists, counts) is changed by single statements.
pub struct Mutex<T>(locks::Mutex<T>);

impl<T> Mutex<T> {
    /// A new lock around a value.
    pub fn new(value: T) -> Self {
        Self(locks::Mutex::new(value))
    }

    /// Blocks until the lock is taken.
    pub fn lock(&self) -> locks::MutexGuard<'_, T> {
        match self.0.lock() {
            Ok(guard) => guard,
            Err(poisoned) => poisoned.into_inner(),
        }
    }
}

/// One turn of a bounded wait: the first 64 turns spin, later ones give the processor away.
#[inline]
pub fn wait(turn: u32) {
    #[cfg(loom)]
    {
        let _ = turn;
        loom::thread::yield_now();
    }
    #[cfg(not(loom))]
    if turn < 64 {
        std::hint::spin_loop();
    } else {
        std::thread::yield_now();
    }
}
