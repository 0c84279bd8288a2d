//! Ordinary traffic: shared prefixes, forks inside runs, evictions in every order.

mod common;

over_every_configuration!(plain);
