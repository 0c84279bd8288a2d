//! Clears, departing workers and new ones on their places: ids, slots and positions are used again.

mod common;

over_every_configuration!(recycling);
