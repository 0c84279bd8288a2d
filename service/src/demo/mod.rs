//! `kvatlas demo`: mock engines on real wires, the service that follows them, and a client, in one process.

mod encode;
mod engine;
mod names;
mod pool;
mod publisher;
mod random;
mod traffic;
