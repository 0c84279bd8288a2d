//! Any bytes as a history of operations: the index answers as the oracle does, and its invariants hold.
//! `index/tests/common/bytes.rs` says what is played and compared; `index/tests/any_bytes.rs` runs the same.

#![no_main]
#![allow(dead_code, reason = "the suites share more than this target uses")]

#[path = "../../index/tests/common/mod.rs"]
mod common;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    if let Err(difference) = common::bytes::play(bytes) {
        panic!("{difference}");
    }
});
