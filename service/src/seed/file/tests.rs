use super::*;
use crate::ingest::{Engine, Trust};
use crate::ops::Op;
use crate::seed::{Cut, Identity, Learned, PROOFS_MAX, Proof, Seed, Stores};
use kvatlas_index::{ContentHash, EngineHash, StoreKind, Tier};
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::fs;
use std::path::Path;
use tempfile::TempDir;

const LIMIT: u64 = 1 << 30;

fn tier() -> impl Strategy<Value = Tier> {
    prop::sample::select(&Tier::ALL[..])
}

fn names() -> impl Strategy<Value = Vec<EngineHash>> {
    prop::collection::vec(any::<u64>().prop_map(EngineHash), 0..9)
}

fn op() -> impl Strategy<Value = Op> {
    let store = (tier(), any::<Option<u64>>(), prop::collection::vec(any::<(u64, u64)>(), 0..9), any::<bool>());
    prop_oneof![
        store.prop_map(|(tier, parent, blocks, announces)| Op::Store {
            tier,
            parent: parent.map(EngineHash),
            names: blocks.iter().map(|(name, _)| EngineHash(*name)).collect(),
            contents: blocks.iter().map(|(_, content)| ContentHash(*content)).collect(),
            kind: if announces { StoreKind::Announce } else { StoreKind::Copy },
        }),
        (tier(), names()).prop_map(|(tier, names)| Op::Adopt { tier, names }),
        (tier(), names()).prop_map(|(tier, names)| Op::Remove { tier, names }),
        (tier(), any::<u64>(), any::<u64>()).prop_map(|(tier, name, left)| Op::SetCopies {
            tier,
            name: EngineHash(name),
            left
        }),
        prop::option::of(tier()).prop_map(|tier| Op::Clear { tier }),
    ]
}

fn identity() -> impl Strategy<Value = Identity> {
    let engine = prop_oneof![Just(Engine::Auto), Just(Engine::Vllm), Just(Engine::Sglang)];
    let text = || prop::option::of(".{0,9}");
    (".{0,12}", any::<u32>(), ".{0,12}", any::<(u32, bool, bool)>(), engine, text(), text()).prop_map(
        |(worker, rank, model, (block_size, bigram, report_mode_full), engine, hash_seed, hash_scheme)| Identity {
            worker,
            rank,
            model,
            block_size,
            engine,
            bigram,
            report_mode_full,
            hash_seed,
            hash_scheme,
        },
    )
}

fn seed() -> impl Strategy<Value = Seed> {
    let trust = prop_oneof![
        Just(Trust::NeverSeen),
        Just(Trust::Bootstrapping),
        Just(Trust::Exact),
        Just(Trust::Partial),
        Just(Trust::Degraded),
        Just(Trust::Misconfigured)
    ];
    let proofs = prop::collection::vec(any::<(u64, u64)>(), 0..=PROOFS_MAX);
    let cut = (any::<(u64, u64)>(), trust, proofs).prop_map(|((cursor, incarnation), trust, proofs)| {
        let proofs = proofs.into_iter().map(|(sequence, payload_hash)| Proof { sequence, payload_hash }).collect();
        Cut { cursor, incarnation, trust, proofs }
    });
    let learned = any::<(Option<u64>, bool, bool)>().prop_map(|(main_group, size_agrees, upper_bound)| Learned {
        main_group,
        size_agrees,
        upper_bound,
    });
    let parts = prop::collection::vec(prop::collection::vec(op(), 0..5), 0..4);
    (identity(), cut, learned, parts).prop_map(|(identity, cut, learned, parts)| Seed {
        identity,
        cut,
        learned,
        stores: Stores::new(parts),
    })
}

fn write(path: &Path, seeds: &[Seed]) -> Result<Written, StateError> {
    let mut writer = StateWriter::create(path, LIMIT, 77)?;
    seeds.iter().try_for_each(|seed| writer.rank(seed.clone()))?;
    writer.finish()
}

fn read(path: &Path) -> Result<Vec<Seed>, StateError> {
    let file = StateFile::open(path, LIMIT)?.expect("the file is there");
    assert_eq!(file.written_at_ms(), 77);
    Ok(file.ranks().iter().map(|rank| file.seed(rank).expect("checked")).collect())
}

/// One seed that has everything, in a small file.
fn example() -> Seed {
    let blocks: Vec<u64> = (0..5).collect();
    let names: Vec<_> = blocks.iter().map(|b| EngineHash(b + 100)).collect();
    let contents = blocks.iter().map(|b| ContentHash(b + 900)).collect();
    Seed {
        identity: Identity {
            worker: "http://w:8000".into(),
            rank: 3,
            model: "m".into(),
            block_size: 16,
            engine: Engine::Vllm,
            bigram: false,
            report_mode_full: false,
            hash_seed: Some("0".into()),
            hash_scheme: None,
        },
        cut: Cut {
            cursor: 9,
            incarnation: 2,
            trust: Trust::Exact,
            proofs: vec![Proof { sequence: 9, payload_hash: 0xfeed }],
        },
        learned: Learned { main_group: Some(1), size_agrees: true, upper_bound: false },
        stores: Stores::new(vec![
            vec![Op::Store {
                tier: Tier::Host,
                parent: None,
                names: names.clone(),
                contents,
                kind: StoreKind::Announce,
            }],
            vec![Op::Remove { tier: Tier::Host, names }],
        ]),
    }
}

fn config() -> ProptestConfig {
    ProptestConfig {
        cases: 64,
        rng_seed: RngSeed::Fixed(20_261_130),
        failure_persistence: None,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn what_was_written_is_read_and_nothing_else_is(
        seeds in prop::collection::vec(seed(), 0..4),
        damage in prop::collection::vec((any::<prop::sample::Index>(), 1_u8..), 1..20),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 1..20),
        more in prop::collection::vec(any::<u8>(), 1..40),
    ) {
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("state");
        let written = write(&path, &seeds).unwrap();
        let good = fs::read(&path).unwrap();
        prop_assert_eq!((written.ranks, written.bytes), (seeds.len() as u64, good.len() as u64));
        prop_assert_eq!(read(&path).unwrap(), seeds);
        for (at, bits) in damage {
            let mut bad = good.clone();
            bad[at.index(good.len())] ^= bits;
            fs::write(&path, bad).unwrap();
            prop_assert!(StateFile::open(&path, LIMIT).is_err(), "byte {} ^ {bits:#x}", at.index(good.len()));
        }
        for at in cuts {
            fs::write(&path, &good[..at.index(good.len())]).unwrap();
            prop_assert!(StateFile::open(&path, LIMIT).is_err(), "cut at {}", at.index(good.len()));
        }
        fs::write(&path, [&good[..], &more].concat()).unwrap();
        let longer = StateFile::open(&path, LIMIT).unwrap_err().to_string();
        prop_assert!(longer.ends_with("the file goes on behind its end"), "{}", longer);
    }

    #[test]
    fn no_bytes_make_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..200), framed in any::<bool>()) {
        // As they are, and as the payload of a frame with a right checksum.
        for payload in [&bytes[..], &[1, 0, 0, 0]] {
            let _ = (codec::read_rank(payload).is_ok(), ops::check_ops(payload) == ops::read_ops(payload).map(drop));
        }
        let directory = TempDir::new().unwrap();
        let path = directory.path().join("state");
        write(&path, &[]).unwrap();
        let mut file = fs::read(&path).unwrap()[..HEADER_BYTES].to_vec();
        if framed {
            for kind in [RANK, STORES, END, 4] {
                file.extend([kind, bytes.len() as u32].map(u32::to_le_bytes).concat());
                file.extend(frame_checksum(kind, &bytes).to_le_bytes());
                file.extend(&bytes);
            }
        } else {
            file.extend(&bytes);
        }
        fs::write(&path, file).unwrap();
        prop_assert!(StateFile::open(&path, LIMIT).is_err());
    }
}

#[test]
fn every_byte_counts() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state");
    write(&path, &[example(), example()]).unwrap();
    let good = fs::read(&path).unwrap();
    for at in 0..good.len() {
        for bits in [1, 0x80, 0xff] {
            let mut bad = good.clone();
            bad[at] ^= bits;
            fs::write(&path, bad).unwrap();
            assert!(StateFile::open(&path, LIMIT).is_err(), "byte {at} ^ {bits:#x}");
        }
        fs::write(&path, &good[..at]).unwrap();
        assert!(StateFile::open(&path, LIMIT).is_err(), "cut at {at}");
    }
}

#[test]
fn refusals_say_where_and_what_was_expected() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state");
    assert!(StateFile::open(&path, LIMIT).unwrap().is_none(), "no file is no error");
    write(&path, &[example()]).unwrap();
    let good = fs::read(&path).unwrap();
    let refused = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        StateFile::open(&path, LIMIT).unwrap_err().to_string()
    };
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        bytes
    };
    for (bytes, words) in [
        (with(0, b'X'), "offset 0: no state file"),
        (with(8, 0), "format version 0, older than 1"),
        (with(8, 2), "format version 2, newer than 1"),
        (with(17, 9), "frame 0 at offset 0: damaged: expected checksum"),
        (with(60, 0xee), "frame 1 at offset 32: damaged: expected checksum"),
        (good[..20].to_vec(), "frame 0 at offset 0: the file is cut short: expected 32 more bytes, found 20"),
        (good[..40].to_vec(), "frame 1 at offset 32: the file is cut short: expected 16 more bytes, found 8"),
        (good[..good.len() - 40].to_vec(), "frame 4 at offset"),
        (Vec::new(), "expected 32 more bytes, found 0"),
    ] {
        let said = refused(&bytes);
        assert!(said.contains(words), "{said}");
    }
    let found = StateFile::open(&path, 10).map(drop);
    assert!(found.is_err());
    fs::write(&path, &good).unwrap();
    let said = StateFile::open(&path, good.len() as u64 - 1).unwrap_err().to_string();
    assert!(said.contains("state.file_bytes_max"), "{said}");
    assert!(StateFile::open(directory.path(), LIMIT).is_err(), "a directory is no file");
}

#[test]
fn an_unfinished_file_leaves_the_old_one_alone() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state");
    write(&path, &[example()]).unwrap();
    let alone = || fs::read_dir(directory.path()).unwrap().count() == 1;
    let mut unfinished = StateWriter::create(&path, LIMIT, 78).unwrap();
    unfinished.rank(example()).unwrap();
    assert!(!alone());
    drop(unfinished);
    assert!(alone() && read(&path).unwrap() == [example()]);
    // Too large for the limit, and nowhere to write.
    let mut large = StateWriter::create(&path, 100, 78).unwrap();
    assert!(matches!(large.rank(example()), Err(StateError::TooLarge { limit: 100, .. })));
    drop(large);
    assert!(alone() && read(&path).unwrap() == [example()]);
    let error = StateWriter::create(&directory.path().join("none/state"), LIMIT, 0).map(drop).unwrap_err();
    assert!(error.to_string().contains("none/state.unfinished"), "{error}");
    // What a killed run left behind is in nobody's way.
    fs::write(directory.path().join("state.unfinished"), vec![7; 10_000]).unwrap();
    write(&path, &[]).unwrap();
    assert!(alone() && read(&path).unwrap().is_empty());
}

#[test]
fn what_is_no_state_file_is_never_replaced() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("kvatlas.toml");
    for foreign in [&b"[[workers]]"[..], b"KVATLAS", b"x", &[0; 100]] {
        fs::write(&path, foreign).unwrap();
        let begun = StateWriter::create(&path, LIMIT, 78).map(drop);
        assert_eq!(begun.is_ok(), b"KVATLAST".starts_with(foreign), "{foreign:?}");
        assert_eq!(fs::read(&path).unwrap(), foreign);
    }
    // Nothing yet, and a damaged one of ours: both may be written over.
    for ours in [&b""[..], b"KVATLAST and no more"] {
        fs::write(&path, ours).unwrap();
        write(&path, &[]).unwrap();
        assert!(read(&path).unwrap().is_empty());
    }
}

#[test]
fn a_file_that_is_changed_in_place_gives_no_seed() {
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("state");
    write(&path, &[example()]).unwrap();
    let file = StateFile::open(&path, LIMIT).unwrap().unwrap();
    let mut bytes = fs::read(&path).unwrap();
    let name = bytes.windows(8).position(|word| word == 102_u64.to_le_bytes()).unwrap();
    bytes[name] ^= 1;
    fs::write(&path, &bytes).unwrap();
    assert_eq!(file.seed(&file.ranks()[0]), None);
}
