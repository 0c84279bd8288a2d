//! Any bytes as a payload and as frames: no panic, output bounded by input, contents equal on both sides.
//! `service/tests/exercise` says what is checked; the mutation test of the service runs the same.

#![no_main]

#[path = "../../service/tests/exercise/mod.rs"]
mod exercise;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    exercise::any_bytes(bytes);
});
