//! Asking for cache lines ahead of their use. A hint only: it reads nothing, faults never, and orders nothing.
#![cfg_attr(
    all(not(loom), any(target_arch = "x86_64", target_arch = "aarch64")),
    expect(unsafe_code, reason = "the prefetch instruction has no safe form on stable")
)]

/// Asks for the line of `place`, to be read soon.
#[inline(always)]
#[cfg(all(not(loom), target_arch = "x86_64"))]
pub(crate) fn read_soon<T>(place: &T) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch accesses no memory in the program's sense, and SSE is part of every x86_64 target; the reference is
    // valid besides.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(core::ptr::from_ref(place).cast::<i8>()) }
}

/// Asks for the line of `place`, to be read soon.
#[inline(always)]
#[cfg(all(not(loom), target_arch = "aarch64"))]
pub(crate) fn read_soon<T>(place: &T) {
    // SAFETY: `prfm` accesses no memory in the program's sense and cannot fault; it changes no register and no flag.
    unsafe {
        core::arch::asm!(
            "prfm pldl1keep, [{}]",
            in(reg) core::ptr::from_ref(place),
            options(nostack, preserves_flags, readonly)
        );
    }
}

/// Does nothing: this target has no prefetch that stable Rust can name, or loom is at work.
#[inline(always)]
#[cfg(any(loom, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
pub(crate) fn read_soon<T>(_place: &T) {}
