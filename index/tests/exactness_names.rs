//! Names that differ between ranks, twins, collisions, moves, repeats: content decides, names only address.

mod common;

over_every_configuration!(foreign, names, wild_names);
