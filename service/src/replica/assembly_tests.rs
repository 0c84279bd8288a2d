use super::*;
use crate::ingest::{Engine, HashChoice, WorkerSpec};
use crate::seed::Proof;
use kvatlas_index::{ContentHash, EngineHash, StoreKind, Tier};

pub(in crate::replica) fn identity(worker: &str, rank: u32) -> Identity {
    let spec = WorkerSpec {
        id: worker.into(),
        model: "m".into(),
        routing_group: String::new(),
        block_size: 16,
        engine: Engine::Auto,
        ranks: Vec::new(),
        topic: String::new(),
        report_mode_full: false,
        bigram: false,
        hash_check_every: 0,
        hash_seed: None,
        hash_scheme: HashChoice::default(),
        snapshots: None,
    };
    Identity::of(&spec, rank)
}

fn cut(cursor: u64) -> Cut {
    let proofs = vec![Proof { sequence: cursor, payload_hash: cursor * 3 }];
    Cut { cursor, incarnation: 1, trust: Trust::Exact, proofs }
}

pub(in crate::replica) fn head(worker: &str, rank: u32, first_chunk: u32) -> Piece {
    Piece::Head(Box::new(RankHead {
        identity: identity(worker, rank),
        trust: Trust::Exact,
        cut: Some(cut(9)),
        learned: Learned::default(),
        first_chunk,
    }))
}

pub(in crate::replica) fn not_exact(worker: &str, rank: u32) -> Piece {
    let Piece::Head(head) = head(worker, rank, 0) else { unreachable!() };
    Piece::Head(Box::new(RankHead { trust: Trust::Degraded, cut: None, ..*head }))
}

fn ops(name: u64) -> Vec<Op> {
    let (names, contents) = (vec![EngineHash(name), EngineHash(name + 1)], vec![ContentHash(1), ContentHash(2)]);
    vec![Op::Store { tier: Tier::Device, parent: None, names, contents, kind: StoreKind::Announce }]
}

pub(in crate::replica) fn chunk(number: u32) -> Piece {
    Piece::Chunk { number, ops: ops(u64::from(number) * 100) }
}

fn sum(chunks: u32) -> u64 {
    let mut sum = ChunksSum::default();
    (0..chunks).for_each(|number| sum.add(&ops(u64::from(number) * 100)));
    sum.value()
}

pub(in crate::replica) fn end(chunks: u32) -> Piece {
    Piece::End { chunks, blocks: u64::from(chunks) * 2, checksum: sum(chunks) }
}

pub(in crate::replica) const ALL: Piece = Piece::All { ranks: 0 };

/// Puts pieces, all of them wanted, up to the first that does not fit.
fn put(assembly: &mut Assembly, pieces: impl IntoIterator<Item = Piece>) -> Result<Vec<Put>, Misfit> {
    pieces.into_iter().map(|piece| assembly.put(piece, true)).collect()
}

fn seed(put: &Put) -> &Seed {
    let Put::Rank(seed) = put else { panic!("{put:?}") };
    seed
}

#[test]
fn a_rank_is_its_head_its_chunks_and_its_end() {
    let mut assembly = Assembly::new(1 << 20);
    assert_eq!(assembly.begin(), None);
    let puts = put(&mut assembly, [head("a", 0, 0), chunk(0), chunk(1), end(2), not_exact("a", 1), head("b", 0, 0)]);
    let puts = puts.unwrap();
    let whole = seed(&puts[3]);
    assert_eq!((whole.identity.worker.as_str(), whole.identity.rank, whole.cut.cursor), ("a", 0, 9));
    assert_eq!(whole.stores.clone().into_parts(), [ops(0), ops(100)]);
    assert!(matches!(puts[4], Put::NoState) && matches!(puts[5], Put::More));
    let puts = put(&mut assembly, [end(0), ALL]).unwrap();
    assert_eq!(seed(&puts[0]).stores.clone().into_parts(), Vec::<Vec<Op>>::new());
    assert!(matches!(puts[1], Put::All));
    assert_eq!(assembly.begin(), None, "the next copy begins with the first rank");
}

#[test]
fn what_does_not_fit_is_named() {
    let Piece::Head(exact) = head("b", 1, 0) else { unreachable!() };
    let with_state = Piece::Head(Box::new(RankHead { trust: Trust::Partial, ..(*exact).clone() }));
    let clear = Piece::Chunk { number: 0, ops: vec![Op::Clear { tier: None }] };
    let number = |expected, got| Misfit::Number { expected, got };
    let wrong_sum = Piece::End { chunks: 1, blocks: 2, checksum: sum(1) ^ 1 };
    let wrong_blocks = Piece::End { chunks: 1, blocks: 3, checksum: sum(1) };
    let cases: Vec<(Vec<Piece>, Misfit)> = vec![
        (vec![head("b", 1, 0), head("c", 0, 0)], Misfit::Unfinished),
        (vec![head("b", 1, 0), ALL], Misfit::Unfinished),
        (vec![not_exact("b", 1), not_exact("b", 1)], Misfit::Order),
        (vec![not_exact("b", 1), not_exact("b", 0)], Misfit::Order),
        (vec![not_exact("b", 1), not_exact("a", 7)], Misfit::Order),
        (vec![chunk(0)], Misfit::NoRank),
        (vec![end(0)], Misfit::NoRank),
        (vec![not_exact("b", 1), chunk(0)], Misfit::NoRank),
        (vec![head("b", 1, 0), chunk(1)], number(0, 1)),
        (vec![head("b", 1, 0), chunk(0), chunk(0)], number(1, 0)),
        (vec![head("b", 1, 5)], number(0, 5)),
        (vec![with_state], Misfit::State),
        (vec![head("b", 1, 0), chunk(0), end(2)], Misfit::Count),
        (vec![head("b", 1, 0), chunk(0), wrong_blocks], Misfit::Count),
        (vec![head("b", 1, 0), chunk(0), wrong_sum], Misfit::Checksum),
        (vec![head("b", 1, 0), clear], Misfit::Operation),
    ];
    for (pieces, misfit) in cases {
        let mut assembly = Assembly::new(1 << 20);
        assert_eq!(put(&mut assembly, pieces.clone()).unwrap_err(), misfit, "{}: {pieces:?}", misfit.label());
    }
}

#[test]
fn a_copy_goes_on_where_another_broke_off() {
    let mut assembly = Assembly::new(1 << 20);
    put(&mut assembly, [not_exact("a", 0), head("b", 1, 0), chunk(0), chunk(1)]).unwrap();
    let resume = |rank, chunks| Some(Resume { worker: "b".into(), rank, chunks, checksum: sum(chunks) });
    assert_eq!(assembly.begin(), resume(1, 2));
    // A call that brings nothing changes nothing.
    assert_eq!(assembly.begin(), resume(1, 2));
    let puts = put(&mut assembly, [head("b", 1, 2), chunk(2), end(3)]).unwrap();
    assert_eq!(seed(&puts[2]).stores.clone().into_parts(), [ops(0), ops(100), ops(200)]);
    // What is complete is not told again.
    assert_eq!(assembly.begin(), resume(2, 0));
    assert_eq!(assembly.begin(), resume(2, 0));

    // The rank moved on: it begins anew.
    put(&mut assembly, [head("b", 2, 0), chunk(0), chunk(1)]).unwrap();
    assert_eq!(assembly.begin(), resume(2, 2));
    let puts = put(&mut assembly, [head("b", 2, 0), chunk(0), end(1)]).unwrap();
    assert_eq!(seed(&puts[2]).stores.clone().into_parts(), [ops(0)]);

    // It is gone.
    put(&mut assembly, [head("b", 3, 0), chunk(0)]).unwrap();
    assert_eq!(assembly.begin(), resume(3, 1));
    let puts = put(&mut assembly, [head("c", 0, 0), end(0)]).unwrap();
    assert_eq!(seed(&puts[1]).stores.clone().into_parts(), Vec::<Vec<Op>>::new());
    // It is of another registration: nothing of the one before is kept.
    put(&mut assembly, [head("d", 0, 0), chunk(0)]).unwrap();
    assembly.begin();
    let Piece::Head(mut other) = head("d", 0, 1) else { unreachable!() };
    other.identity.block_size = 8;
    let misfit = put(&mut assembly, [Piece::Head(other)]).unwrap_err();
    assert_eq!(misfit, Misfit::Number { expected: 0, got: 1 });
}

#[test]
fn what_is_not_wanted_or_too_large_takes_no_memory() {
    let mut assembly = Assembly::new(3 * bytes(&ops(0)[0]));
    for piece in [head("a", 0, 0), chunk(0), chunk(1)] {
        assert!(matches!(assembly.put(piece, false), Ok(Put::More)));
    }
    assert!(assembly.telling.as_ref().unwrap().parts.is_empty());
    assert!(matches!(assembly.put(end(2), true), Ok(Put::LeftOut("ranks_not_wanted"))));
    let puts = put(&mut assembly, [head("b", 0, 0), chunk(0), chunk(1), chunk(2), chunk(3)]).unwrap();
    assert_eq!((puts.len(), assembly.telling.as_ref().unwrap().parts.len()), (5, 0));
    // Should the copy break off here, the next one tells it from its beginning, and nobody keeps it.
    assert_eq!(assembly.begin().map(|resume| (resume.worker, resume.chunks)), Some(("b".into(), 0)));
    let puts = put(&mut assembly, [head("b", 0, 0), chunk(0), chunk(1), chunk(2), chunk(3), end(4)]).unwrap();
    assert!(matches!(puts[5], Put::LeftOut("ranks_too_large")));
}
