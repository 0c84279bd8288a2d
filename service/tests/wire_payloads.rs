//! Payloads taken literally from running engines, byte for byte.

#![allow(clippy::unwrap_used, reason = "tests, helpers among them, say with a panic what went wrong")]

use kvatlas_index::EngineHash;
use kvatlas_service::wire::{Batch, DecodeLimits, Event, FrameLimits, decode_batch, parse_live};

fn bytes(hex: &str) -> Vec<u8> {
    let digits: Vec<u8> = hex.bytes().filter(u8::is_ascii_hexdigit).collect();
    digits.chunks(2).map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn decode(payload: &[u8]) -> Batch<'_> {
    let batch = decode_batch(payload, &DecodeLimits::default()).unwrap();
    assert_eq!(batch.skipped, []);
    batch
}

/// vLLM 0.32.0: one removal as a map, with its frames.
#[test]
fn vllm_removal_as_a_map() {
    let payload = bytes(
        "93 cb 41dac33a7982476b 91 84 a4 74797065 ac 426c6f636b52656d6f766564 ac 626c6f636b5f686173686573 91
         cf 8a21e9e7d7eb6b9e a6 6d656469756d a3 475055 a9 67726f75705f696478 00 00",
    );
    assert_eq!(payload.len(), 76);
    let frames = [vec![], bytes("000000000000000f"), payload];
    let live = parse_live(&frames, &FrameLimits::default()).unwrap();
    assert_eq!((live.topic, live.sequence), (&b""[..], 15));
    let batch = decode(live.payload);
    assert!((batch.timestamp.unwrap() - 1_796_008_422.035_6).abs() < 1e-3);
    assert_eq!(batch.rank, Some(0));
    let [Event::Removed(removed)] = &batch.events[..] else { panic!("{batch:?}") };
    assert_eq!(removed.hashes.to_vec(), [EngineHash(9_953_493_833_434_753_950)]);
    assert_eq!((removed.medium, removed.group), (Some("GPU"), Some(0)));
}

/// SGLang 0.5.23: the clear that a publisher begins with.
#[test]
fn sglang_clear_as_a_map() {
    let payload = bytes("93 cb41dac33b3d41d1d6 91 81 a474797065 b0416c6c426c6f636b73436c6561726564 00");
    assert_eq!(payload.len(), 35);
    let batch = decode(&payload);
    let [Event::Cleared(cleared)] = &batch.events[..] else { panic!("{batch:?}") };
    assert_eq!(cleared.medium, None);
}

/// vLLM 0.23.0: a store as an array of 12 items, and a removal of 4. The token ids are invented, the rest is as recorded.
#[test]
fn vllm_arrays() {
    let tokens: String = (1..=32).map(|t| format!("{t:02x}")).collect();
    let stored = bytes(&format!(
        "93 cb41dac33ccbac78ad 91 9c ab 426c6f636b53746f726564 91 cf6485a431b0ebd809 cfdb0c24ee3bb0a1a4 dc0020 {tokens}
         20 c0 a3 475055 c0 91c0 00 ae 66756c6c5f617474656e74696f6e c0 00"
    ));
    let batch = decode(&stored);
    let [Event::Stored(s)] = &batch.events[..] else { panic!("{batch:?}") };
    assert_eq!(s.hashes.to_vec(), [EngineHash(0x6485_a431_b0eb_d809)]);
    assert_eq!(s.parent, Some(EngineHash(0xdb0c_24ee_3bb0_a1a4)));
    assert_eq!((s.tokens.len(), s.block_size, s.medium), (32, 32, Some("GPU")));
    assert_eq!((s.group, s.kind, s.sliding_window), (Some(0), Some("full_attention"), None));
    assert!(s.extra_keys.all_nil() && s.extra_keys.len() == 1);

    let removed = bytes("93 cb41dac33ccbacd681 91 94 ac426c6f636b52656d6f766564 91 cf11b01b7fde1d0f74 a3475055 00 00");
    assert_eq!(removed.len(), 41);
    let batch = decode(&removed);
    let [Event::Removed(r)] = &batch.events[..] else { panic!("{batch:?}") };
    assert_eq!((r.hashes.to_vec(), r.group), (vec![EngineHash(0x11b0_1b7f_de1d_0f74)], Some(0)));
}

/// SGLang: a parent as a negative integer is the same bits as the unsigned form.
#[test]
fn sglang_signed_parent() {
    let payload = bytes(
        "93 00 91 87 a474797065 ab426c6f636b53746f726564 ac626c6f636b5f686173686573 91 cf2283170d42ac636a
         b1706172656e745f626c6f636b5f68617368 d3df9a537d3530e439 a9746f6b656e5f696473 92 cca9 cd0ea3
         aa626c6f636b5f73697a65 02 a76c6f72615f6964 c0 a66d656469756d a3475055 00",
    );
    let batch = decode(&payload);
    let [Event::Stored(s)] = &batch.events[..] else { panic!("{batch:?}") };
    assert_eq!(s.parent, Some(EngineHash(0xdf9a_537d_3530_e439)));
    assert_eq!(s.tokens.to_vec(), [169, 3747]);
    assert_eq!((s.cache_salt, s.session_id, s.lora_name), (None, None, None));
}
