//! The one random-operation generator: it draws operations for a profile and remembers what it has stored, so that parents,
//! removals and queries mostly hit something. It knows nothing of the index or the oracle.

use super::operation::{Above, Op};
use super::profiles::Profile;
use super::rng::{Rng, mix};
use kvatlas_index::{ContentHash, EngineHash, StoreKind, Tier};
use std::sync::Arc;

/// Paths that every rank likes to store, so that runs get many holders.
const POPULAR: usize = 3;
const POPULAR_BLOCKS: usize = 40;
/// Paths to follow, of all ranks.
const POOL_MAX: usize = 60;
/// Blocks remembered of one rank.
const KNOWN_MAX: usize = 400;
const WOUNDS_MAX: usize = 12;
/// The longest stored chain.
const LONG_BLOCKS: usize = 900;

/// A stored block: the name, and the path of which it is the last block.
#[derive(Clone)]
struct Known {
    tier: Tier,
    name: EngineHash,
    path: Arc<Vec<ContentHash>>,
    len: usize,
}

#[derive(Clone, Default)]
struct RankMemory {
    open: bool,
    seed: u64,
    known: Vec<Known>,
    wounds: Vec<Known>,
}

/// The generator: [`Generator::draw`] does not change it, [`Generator::note`] does.
#[derive(Clone)]
pub struct Generator {
    profile: Profile,
    ranks: Vec<RankMemory>,
    pool: Vec<Arc<Vec<ContentHash>>>,
    noted: usize,
}

impl std::fmt::Debug for Generator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Generator({} after {} operations)", self.profile.name, self.noted)
    }
}

impl Generator {
    /// A generator for so many ranks, all closed.
    pub fn new(profile: &Profile, ranks: usize, seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        let memory = |rng: &mut Rng, number: usize| {
            let seed = if rng.chance(profile.foreign) { 1000 + number as u64 } else { 7 };
            RankMemory { seed, ..RankMemory::default() }
        };
        let ranks = (0..ranks).map(|number| memory(&mut rng, number)).collect();
        let popular = |rng: &mut Rng| (0..POPULAR_BLOCKS).map(|_| content(profile.alphabet, rng)).collect();
        let pool = (0..POPULAR).map(|_| Arc::new(popular(&mut rng))).collect();
        Self { profile: profile.clone(), ranks, pool, noted: 0 }
    }

    /// The next operation.
    pub fn draw(&self, rng: &mut Rng) -> Op {
        let rank = rng.below(self.ranks.len());
        if !self.ranks[rank].open {
            return Op::Open { rank };
        }
        let p = &self.profile;
        let weights = [p.store, p.remove, p.adopt, p.set_copies, p.clear_tier, p.clear_rank, p.close];
        let mut dice = rng.below(weights.iter().sum());
        let mut kind = 0;
        while dice >= weights[kind] {
            dice -= weights[kind];
            kind += 1;
        }
        match kind {
            0 if rng.chance(p.malformed) => self.malformed(rank, rng),
            0 => self.store(rank, rng),
            1 => self.remove(rank, rng),
            2 => Op::Adopt { rank, tier: self.tier(rng), names: self.some_names(rank, rng) },
            3 => {
                let name = self.some_names(rank, rng)[0];
                let tier = self.tier_of(rank, name).unwrap_or_else(|| self.tier(rng));
                Op::SetCopies { rank, tier, name, left: rng.below(4) as u64 }
            }
            4 => Op::Clear { rank, tier: Some(self.tier(rng)) },
            5 => Op::Clear { rank, tier: None },
            _ => Op::Close { rank },
        }
    }

    /// A store of the first popular path, mostly in full, from its start.
    pub fn draw_shared(&self, rank: usize, rng: &mut Rng) -> Op {
        let blocks = if rng.chance(800) { POPULAR_BLOCKS } else { 1 + rng.below(POPULAR_BLOCKS) };
        let contents = self.pool[0][..blocks].to_vec();
        let (tier, names) = (self.tier(rng), self.names_of(rank, &contents, 0));
        Op::Store { rank, tier, parent: None, names, contents, kind: StoreKind::Copy, above: Above::default() }
    }

    /// The first popular path: equal for generators of the same profile, rank count and seed.
    pub fn shared_path(&self) -> &[ContentHash] {
        &self.pool[0]
    }

    /// A content path to ask for: one that was stored, a prefix, a fork, an extension or a miss.
    pub fn query(&self, rng: &mut Rng) -> Vec<ContentHash> {
        let memory = &self.ranks[rng.below(self.ranks.len())];
        let mut query = match rng.pick(&memory.known) {
            Some(known) if rng.chance(500) => known.path.to_vec(),
            _ => self.pool[rng.below(self.pool.len())].to_vec(),
        };
        if rng.chance(300) {
            query.truncate(rng.below(query.len() + 1));
        }
        if rng.chance(300) && !query.is_empty() {
            let at = rng.below(query.len());
            query[at] = content(self.profile.alphabet, rng);
        }
        while rng.chance(250) {
            query.push(content(self.profile.alphabet, rng));
        }
        if rng.chance(20) {
            query.insert(0, ContentHash(rng.next()));
        }
        query
    }

    /// Remembers an operation as done.
    pub fn note(&mut self, op: &Op) {
        self.noted += 1;
        match op {
            Op::Store { rank, tier, names, contents, above, .. } if names.len() == contents.len() => {
                let path: Vec<_> = above.0.iter().chain(contents).copied().collect();
                let path = Arc::new(path);
                let memory = &mut self.ranks[*rank];
                for (i, &name) in names.iter().enumerate() {
                    let len = above.0.len() + i + 1;
                    memory.known.push(Known { tier: *tier, name, path: path.clone(), len });
                }
                if memory.known.len() > KNOWN_MAX + LONG_BLOCKS {
                    let extra = memory.known.len() - KNOWN_MAX;
                    memory.known.drain(..extra);
                }
                if !path.is_empty() {
                    self.pool.push(path);
                }
                if self.pool.len() > POOL_MAX {
                    let at = POPULAR + self.noted % (POOL_MAX - POPULAR);
                    self.pool.swap_remove(at);
                }
            }
            Op::Remove { rank, tier, names, .. } => self.note_removal(*rank, *tier, names),
            Op::Clear { rank, tier } => {
                let gone = |k: &Known| tier.is_none_or(|t| t == k.tier);
                self.ranks[*rank].known.retain(|k| !gone(k));
            }
            Op::Close { rank } => {
                self.ranks[*rank].open = false;
                self.ranks[*rank].known.clear();
            }
            Op::Open { rank } => self.ranks[*rank].open = true,
            _ => {}
        }
    }

    /// Forgets most removed names (some are kept, so that copies go down and unknown names come), and remembers the place
    /// of the last one for a healing store.
    fn note_removal(&mut self, rank: usize, tier: Tier, names: &[EngineHash]) {
        let memory = &mut self.ranks[rank];
        let hit = |k: &Known| k.tier == tier && names.contains(&k.name);
        if let Some(known) = memory.known.iter().find(|k| hit(k)) {
            memory.wounds.push(known.clone());
            if memory.wounds.len() > WOUNDS_MAX {
                memory.wounds.remove(0);
            }
        }
        if !self.noted.is_multiple_of(3) {
            memory.known.retain(|k| !hit(k));
        }
    }

    fn tier(&self, rng: &mut Rng) -> Tier {
        if rng.chance(500) { Tier::Device } else { Tier::ALL[rng.below(self.profile.tiers)] }
    }

    fn tier_of(&self, rank: usize, name: EngineHash) -> Option<Tier> {
        self.ranks[rank].known.iter().rev().find(|k| k.name == name).map(|k| k.tier)
    }

    /// The name that this rank's engine gives to the last block of a path.
    fn name_of(&self, rank: usize, path: &[ContentHash]) -> EngineHash {
        EngineHash(path.iter().fold(self.ranks[rank].seed, |a, c| mix(a, c.0)))
    }

    /// Names of the blocks of `path` from `from` on.
    fn names_of(&self, rank: usize, path: &[ContentHash], from: usize) -> Vec<EngineHash> {
        let mut chain = self.ranks[rank].seed;
        let names = path.iter().map(|c| {
            chain = mix(chain, c.0);
            EngineHash(chain)
        });
        names.skip(from).collect()
    }

    fn store(&self, rank: usize, rng: &mut Rng) -> Op {
        let p = &self.profile;
        let memory = &self.ranks[rank];
        let mut tier = self.tier(rng);
        let mut blocks = 1 + rng.below(p.store_blocks_max);
        if rng.chance(p.long) {
            blocks = 1 + rng.below(LONG_BLOCKS);
        }
        let (mut parent, mut above, mut along) = (None, Vec::new(), None);
        if let (true, Some(wound)) = (rng.chance(p.heal), rng.pick(&memory.wounds)) {
            above = wound.path[..wound.len - 1].to_vec();
            along = Some(wound.path.clone());
            (parent, tier) = (self.parent_at(rank, &above), wound.tier);
        } else if let (true, Some(known)) = (rng.chance(p.again), rng.pick(&memory.known)) {
            above = known.path[..rng.below(known.len)].to_vec();
            along = Some(known.path.clone());
            (parent, tier) = (self.parent_at(rank, &above), known.tier);
        } else if rng.chance(p.orphans) {
            let path = self.pool[rng.below(self.pool.len())].clone();
            above = path[..rng.below(path.len())].to_vec();
            along = Some(path);
            parent = self.parent_at(rank, &above);
        } else if let (true, Some(known)) = (rng.chance(600), rng.pick(&memory.known)) {
            above = known.path[..known.len].to_vec();
            parent = Some(known.name);
            if rng.chance(700) {
                tier = known.tier;
            }
        }
        if along.is_none() && rng.chance(750) {
            let popular = if rng.chance(400) { POPULAR } else { self.pool.len() };
            along = Some(self.pool[rng.below(popular)].clone());
        }
        let (names, contents) = self.blocks(rank, &above, along.as_ref().map(|a| &a[..]), blocks, rng);
        let kind = if rng.chance(p.announce) { StoreKind::Announce } else { StoreKind::Copy };
        Op::Store { rank, tier, parent, names, contents, kind, above: Above(Arc::new(above)) }
    }

    fn parent_at(&self, rank: usize, above: &[ContentHash]) -> Option<EngineHash> {
        (!above.is_empty()).then(|| self.name_of(rank, above))
    }

    /// Contents that go on along a path as long as it fits, and their names, some of them misbehaving.
    fn blocks(
        &self,
        rank: usize,
        above: &[ContentHash],
        along: Option<&[ContentHash]>,
        blocks: usize,
        rng: &mut Rng,
    ) -> (Vec<EngineHash>, Vec<ContentHash>) {
        let mut along = along.filter(|a| a.starts_with(above));
        let mut path = above.to_vec();
        for _ in 0..blocks {
            let next = along.and_then(|a| a.get(path.len())).copied();
            let fork = next.is_none() || rng.chance(10);
            if fork {
                along = None;
            }
            path.push(if fork { content(self.profile.alphabet, rng) } else { next.unwrap_or_default() });
        }
        let mut names = self.names_of(rank, &path, above.len());
        for i in 0..names.len() {
            if rng.chance(self.profile.odd) {
                names[i] = self.odd_name(rank, &names, i, rng);
            }
        }
        (names, path.split_off(above.len()))
    }

    /// A name that breaks an assumption somebody may have made.
    fn odd_name(&self, rank: usize, names: &[EngineHash], at: usize, rng: &mut Rng) -> EngineHash {
        let of_rank = |rank: usize, rng: &mut Rng| rng.pick(&self.ranks[rank].known).map(|k| k.name);
        let other = rng.below(self.ranks.len());
        let odd = match rng.below(6) {
            0 => Some(EngineHash(rng.below(40) as u64)),
            1 => Some(EngineHash(mix(names[at].0, 1 + rng.below(2) as u64))),
            2 => of_rank(rank, rng),
            3 => of_rank(other, rng),
            4 => Some(names[rng.below(names.len())]),
            _ => Some(EngineHash([0, 1, 1 << 31, 1 << 63, u64::MAX, u64::MAX - 1][rng.below(6)])),
        };
        odd.unwrap_or(names[at])
    }

    fn malformed(&self, rank: usize, rng: &mut Rng) -> Op {
        let Op::Store { rank, tier, mut parent, mut names, mut contents, kind, above } = self.store(rank, rng) else {
            return Op::Clear { rank, tier: None };
        };
        match rng.below(4) {
            0 => drop(names.pop()),
            1 => contents.push(ContentHash(rng.next())),
            2 => parent = names.first().copied(),
            _ => {
                names.push(names[names.len() - 1]);
                contents.push(content(self.profile.alphabet, rng));
            }
        }
        Op::Store { rank, tier, parent, names, contents, kind, above }
    }

    /// Up to a handful of names, mostly of this rank.
    fn some_names(&self, rank: usize, rng: &mut Rng) -> Vec<EngineHash> {
        let known = &self.ranks[rank].known;
        let mut names: Vec<_> = match rng.pick(known) {
            Some(k) if rng.chance(500) => {
                let mut stretch = self.names_of(rank, &k.path[..k.len], 0);
                stretch.drain(..rng.below(stretch.len()));
                stretch
            }
            _ => (0..1 + rng.below(4)).filter_map(|_| rng.pick(known).map(|k| k.name)).collect(),
        };
        if names.is_empty() || rng.chance(120) {
            names.push(EngineHash(rng.next()));
        }
        names
    }

    fn remove(&self, rank: usize, rng: &mut Rng) -> Op {
        let known = &self.ranks[rank].known;
        let mut tier = self.tier(rng);
        let mut names = Vec::new();
        if let Some(&Known { tier: its, ref path, len, .. }) = rng.pick(known) {
            tier = its;
            match rng.below(10) {
                // A stretch in the order of arrival, which may span several chains.
                0..=3 => {
                    let hi = rng.below(known.len());
                    let lo = hi.saturating_sub(rng.below(2 * self.profile.store_blocks_max));
                    names.extend(known[lo..=hi].iter().map(|k| k.name));
                    tier = known[hi].tier;
                }
                // A stretch of one chain, down from some block: the tail, the middle or all.
                4..=7 => {
                    names = self.names_of(rank, &path[..len], 0);
                    if rng.chance(600) {
                        names.drain(..rng.below(names.len()));
                    }
                    if rng.chance(300) {
                        names.truncate(1 + rng.below(names.len()));
                    }
                }
                _ => names = self.some_names(rank, rng),
            }
        }
        match rng.below(10) {
            0..=5 => names.reverse(),
            6 | 7 if !names.is_empty() => {
                let middle = rng.below(names.len());
                names.rotate_left(middle);
            }
            _ => {}
        }
        if names.is_empty() || rng.chance(100) {
            names.push(EngineHash(rng.next()));
        }
        if rng.chance(30) {
            names.push(names[0]);
        }
        Op::Remove { rank, tier, names, each: rng.chance(300) }
    }
}

/// A content hash of a small alphabet; 0 and the largest are among them, as tables like to give those a meaning.
fn content(alphabet: usize, rng: &mut Rng) -> ContentHash {
    ContentHash(match rng.below(alphabet + 1) {
        0 => 0,
        1 => u64::MAX,
        n => mix(n as u64, 99),
    })
}
