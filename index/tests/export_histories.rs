//! Exports in the middle of random histories: into the oracle, into a new index and into another rank of the same index; then
//! the history goes on with the original and its copies, which must not differ in anything.

mod common;

use common::configurations::{CONFIGURATIONS, Configuration};
use common::copies::{Told, export_of, import, play, same_answers, same_state};
use common::generator::Generator;
use common::operation::Op;
use common::pair::{Difference, Pair, same};
use common::profiles::{CONCURRENT, PROFILES, Profile};
use common::rng::{Rng, mix};
use kvatlas_index::{RankFilter, RankKey, Tier};

/// Ranks that are copied in a history.
const COPIED: usize = 2;
/// Operations before the export, and after it.
const STEPS: (usize, usize) = (350, 120);
const HISTORIES: u64 = 3;

/// How often what makes an export hard came up.
#[derive(Default, Debug)]
struct Met {
    exports: u64,
    blocks: u64,
    copies: u64,
    removals: u64,
    parked: u64,
    full: u64,
}

struct History {
    pair: Pair,
    /// The copies in other indexes, made of the index's export and of the oracle's.
    others: [Pair; 2],
    generator: Generator,
    rng: Rng,
    ranks: usize,
    copied: Vec<usize>,
    filter: RankFilter,
    met: Met,
}

impl History {
    fn new(profile: &Profile, configuration: &Configuration, seed: u64) -> Self {
        let ranks = configuration.ranks;
        let seats = |ranks| Configuration { ranks, ..configuration.clone() };
        let mut rng = Rng::new(seed);
        let first = rng.below(ranks);
        let copied = (0..COPIED).map(|i| (first + i) % ranks).collect();
        Self {
            pair: Pair::new(&seats(2 * ranks)),
            others: std::array::from_fn(|_| Pair::new(&seats(ranks))),
            generator: Generator::new(profile, ranks, seed),
            rng,
            ranks,
            copied,
            filter: (0..4 * ranks as u32).filter(|r| r % 3 != 1).map(RankKey).collect(),
            met: Met::default(),
        }
    }

    /// The next operation; mostly of a rank that is copied.
    fn draw(&mut self) -> Op {
        let wanted = self.rng.chance(800);
        let mut op = self.generator.draw(&mut self.rng);
        for _ in 0..if wanted { 4 * self.ranks } else { 0 } {
            if self.copied.contains(&op.rank()) {
                break;
            }
            op = self.generator.draw(&mut self.rng);
        }
        self.generator.note(&op);
        op
    }

    fn play(&mut self) -> Result<(), Difference> {
        for rank in 0..self.ranks {
            let op = Op::Open { rank };
            self.generator.note(&op);
            play(&mut self.pair, rank, &op)?;
        }
        for rank in 0..if self.ranks > 64 { self.ranks } else { 0 } {
            let op = self.generator.draw_shared(rank, &mut self.rng);
            self.generator.note(&op);
            play(&mut self.pair, rank, &op)?;
        }
        for _ in 0..STEPS.0 {
            let op = self.draw();
            play(&mut self.pair, op.rank(), &op)?;
        }
        for rank in self.copied.clone() {
            self.copy(rank)?;
        }
        self.check()?;
        for step in 0..STEPS.1 {
            let op = self.draw();
            self.play_on_all(&op).map_err(|difference| format!("{step} after the export, {op:?}: {difference}"))?;
        }
        self.check()?;
        self.pair.finish()?;
        self.others.iter_mut().try_for_each(Pair::finish)
    }

    fn check(&self) -> Result<(), Difference> {
        self.pair.check()?;
        self.others.iter().try_for_each(Pair::check)
    }

    /// Exports a rank in steps, between which others go on, and makes its three copies.
    fn copy(&mut self, rank: usize) -> Result<(), Difference> {
        let Some((lane, at)) = self.pair.holder(rank, Tier::Device) else {
            self.copied.retain(|&copied| copied != rank);
            return Ok(());
        };
        let mut told: Vec<Told> = Vec::new();
        let mut export = self.pair.lanes[lane].export(at.rank).map_err(|e| e.to_string())?;
        let units = 1 + self.rng.below(300) as u32;
        let mut see = |piece: kvatlas_index::Exported<'_>| told.push(piece.into());
        while !self.pair.lanes[lane].export_some(&mut export, units, &mut see).map_err(|e| e.to_string())? {
            let op = self.generator.draw(&mut self.rng);
            if op.rank() != rank && !self.copied.contains(&op.rank()) && self.rng.chance(300) {
                self.generator.note(&op);
                play(&mut self.pair, op.rank(), &op)?;
            }
        }
        self.meet(rank, &told);
        let of_oracle = export_of(&self.pair.oracle, self.pair.key(rank));
        self.pair.open(self.ranks + rank)?;
        let mut room = import(&mut self.pair, self.ranks + rank, &told)?;
        for (other, told) in self.others.iter_mut().zip([&told, &of_oracle]) {
            other.open(rank)?;
            room &= import(other, rank, told)?;
        }
        if !room {
            self.met.full += 1;
            self.copied.retain(|&copied| copied != rank);
            return Ok(());
        }
        self.compare(rank)
    }

    fn meet(&mut self, rank: usize, told: &[Told]) {
        self.met.exports += 1;
        self.met.parked += self.pair.oracle.parked(self.pair.key(rank));
        for piece in told {
            match piece {
                Told::Store { names, .. } => self.met.blocks += names.len() as u64,
                Told::Copies { .. } => self.met.copies += 1,
                Told::Remove { names, .. } => self.met.removals += names.len() as u64,
            }
        }
    }

    fn compare(&mut self, rank: usize) -> Result<(), Difference> {
        let query = self.generator.query(&mut self.rng);
        self.pair.compare_lookup(&query, &self.filter)?;
        let original = (&self.pair.oracle, self.pair.key(rank));
        let again = (&self.pair.oracle, self.pair.key(self.ranks + rank));
        same_state(original.0, original.1, again.0, again.1)?;
        same_answers(&query, original, again)?;
        for other in &mut self.others {
            other.compare_lookup(&query, &self.filter)?;
            let copy = (&other.oracle, other.key(rank));
            same_state(original.0, original.1, copy.0, copy.1)?;
            same_answers(&query, original, copy)?;
        }
        Ok(())
    }

    /// Plays an operation on a rank and on its copies, and compares all there is to compare.
    fn play_on_all(&mut self, op: &Op) -> Result<(), Difference> {
        let rank = op.rank();
        let full = |history: &Self| {
            history.pair.full_errors + history.others.iter().map(|other| other.full_errors).sum::<u64>()
        };
        let before = full(self);
        let did = play(&mut self.pair, rank, op)?;
        if !self.copied.contains(&rank) {
            return Ok(());
        }
        let mut dids = vec![play(&mut self.pair, self.ranks + rank, op)?];
        for other in &mut self.others {
            dids.push(play(other, rank, op)?);
        }
        if full(self) > before {
            // One of them was cleared, the others were not: they go ways of their own.
            self.copied.retain(|&copied| copied != rank);
            return Ok(());
        }
        for again in dids {
            same("what the copy answered", again, did.clone())?;
        }
        self.compare(rank)
    }
}

fn over(profile: &Profile, configuration: &Configuration, met: &mut Met) {
    let shift = std::env::var("KVATLAS_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or(0u64);
    for number in 0..HISTORIES {
        let text = profile.name.bytes().chain(configuration.name.bytes());
        let seed = text.fold(mix(shift, number), |a, b| mix(a, b.into()));
        let mut history = History::new(profile, configuration, seed);
        if let Err(difference) = history.play() {
            panic!("profile {} configuration {} seed {seed:#x}: {difference}", profile.name, configuration.name);
        }
        met.exports += history.met.exports;
        met.blocks += history.met.blocks;
        met.copies += history.met.copies;
        met.removals += history.met.removals;
        met.parked += history.met.parked;
        met.full += history.met.full;
    }
}

fn all_profiles(configuration: &str) {
    let mut met = Met::default();
    for profile in PROFILES.iter().chain([&CONCURRENT]) {
        over(profile, &Configuration::named(configuration), &mut met);
    }
    println!("{configuration}: {met:?}");
    let hard = [met.exports, met.blocks, met.copies, met.removals, met.parked];
    assert!(hard.iter().all(|&times| times > 10), "{met:?}");
}

macro_rules! over_configurations {
    ($($name:ident)+) => {
        $(#[test]
        fn $name() {
            all_profiles(stringify!($name));
        })+

        #[test]
        fn every_configuration_is_here() {
            assert_eq!([$(stringify!($name)),+].map(String::from).to_vec(), CONFIGURATIONS.iter().map(|c| c.name).collect::<Vec<_>>());
        }
    };
}

over_configurations! {
    one_lane two_lanes eight_lanes two_shards runs_of_1 runs_of_3 runs_of_8 ranks_200 ranks_320 tiny
}
