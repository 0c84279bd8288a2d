//! Histories read from seeded random bytes: what the fuzz target `operations` checks, in every test run.

mod common;

use common::bytes::play;
use common::rng::Rng;

#[test]
fn seeded_strings_play_alike() {
    for seed in 0..400 {
        let mut rng = Rng::new(seed);
        let len = 1 + rng.below(3000);
        let mut bytes: Vec<u8> = (0..len).map(|_| rng.below(256) as u8).collect();
        // Small bytes make few names, one rank and long stretches: collisions of another kind.
        if seed % 3 == 0 {
            bytes.iter_mut().for_each(|b| *b &= 0x37);
        }
        if let Err(difference) = play(&bytes) {
            panic!("seed {seed}: {difference}");
        }
    }
}
