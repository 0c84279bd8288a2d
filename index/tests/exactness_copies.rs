//! Copies are counted: a name is held until as many removals as stores arrived.

mod common;

over_every_configuration!(copies);
