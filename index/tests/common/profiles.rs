//! What the histories of each suite are made of. One generator reads these knobs.

/// Shares are per mille; weights are relative.
#[derive(Clone, Debug)]
pub struct Profile {
    pub name: &'static str,
    /// Operations of one history.
    pub steps: usize,
    /// Histories a configuration.
    pub histories: usize,
    /// Tiers that occur, 1 to 4.
    pub tiers: usize,
    /// Different contents that a block may have: few make forks and shared paths.
    pub alphabet: usize,
    /// Blocks of an ordinary store.
    pub store_blocks_max: usize,
    /// Stores of up to 900 blocks.
    pub long: usize,
    /// Ranks that hash with a seed of their own.
    pub foreign: usize,
    /// Blocks under a misbehaving name: twins, collisions, moves, other ranks' names, repeats.
    pub odd: usize,
    /// Stores that start in the middle of a path, whether its parent is held or not.
    pub orphans: usize,
    /// Stores that store again what a removal took last.
    pub heal: usize,
    /// Stores of blocks that the rank has already.
    pub again: usize,
    /// Stores that are announcements.
    pub announce: usize,
    /// Stores that must be refused.
    pub malformed: usize,
    /// Weights of the operations.
    pub store: usize,
    pub remove: usize,
    pub adopt: usize,
    pub set_copies: usize,
    pub clear_tier: usize,
    pub clear_rank: usize,
    pub close: usize,
}

const BASE: Profile = Profile {
    name: "base",
    steps: 1200,
    histories: 10,
    tiers: 1,
    alphabet: 3,
    store_blocks_max: 20,
    long: 0,
    foreign: 0,
    odd: 0,
    orphans: 0,
    heal: 0,
    again: 50,
    announce: 0,
    malformed: 15,
    store: 560,
    remove: 420,
    adopt: 0,
    set_copies: 0,
    clear_tier: 3,
    clear_rank: 6,
    close: 4,
};

/// Every profile. Together they make more than 100,000 operations a configuration.
pub const PROFILES: &[Profile] = &[
    Profile { name: "plain", ..BASE },
    Profile { name: "holes", heal: 300, remove: 500, store_blocks_max: 30, alphabet: 2, ..BASE },
    Profile {
        name: "cuts",
        heal: 350,
        remove: 520,
        store_blocks_max: 40,
        alphabet: 1,
        foreign: 80,
        odd: 5,
        clear_rank: 15,
        ..BASE
    },
    Profile { name: "foreign", foreign: 500, ..BASE },
    Profile { name: "copies", again: 500, announce: 150, set_copies: 60, foreign: 300, ..BASE },
    Profile { name: "names", steps: 1000, foreign: 300, odd: 60, alphabet: 2, store_blocks_max: 12, tiers: 2, ..BASE },
    Profile { name: "wild_names", steps: 1000, foreign: 300, odd: 400, alphabet: 2, store_blocks_max: 8, ..BASE },
    Profile { name: "orphans", orphans: 350, again: 0, odd: 10, tiers: 2, set_copies: 20, ..BASE },
    Profile { name: "tiers", tiers: 4, adopt: 150, foreign: 300, odd: 5, clear_tier: 15, orphans: 40, ..BASE },
    Profile { name: "long_chains", steps: 400, long: 300, odd: 2, foreign: 200, alphabet: 2, heal: 100, ..BASE },
    Profile { name: "recycling", clear_rank: 60, clear_tier: 30, close: 60, foreign: 400, tiers: 2, odd: 5, ..BASE },
];

/// Of one lane in the concurrent suite: everything at once, and workers that are replaced.
pub const CONCURRENT: Profile = Profile {
    name: "concurrent",
    tiers: 2,
    foreign: 300,
    odd: 20,
    orphans: 40,
    heal: 150,
    again: 100,
    adopt: 20,
    set_copies: 10,
    clear_tier: 10,
    clear_rank: 15,
    close: 25,
    ..BASE
};

impl Profile {
    /// The profile of this name.
    pub fn named(name: &str) -> Self {
        PROFILES.iter().find(|p| p.name == name).expect("a profile of the table").clone()
    }
}
