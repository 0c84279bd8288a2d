//! Another replica's copy of everything, for one that starts: which peer is asked, what is taken of its answer, and when to stop.
//!
//! There is no leader. A replica that starts follows its engines at once, and beside that asks its peers in turn for what they hold.
//! Each rank of a copy becomes a seed ([`crate::seed`]), which the rank's own cursor believes only if the publisher proves it. So a
//! copy can make a rank exact sooner, and never wrong; where no peer has one, the engines' replays do what they can.
//!
//! [`Bootstrap`] is the state machine, [`Assembly`] puts one rank together, [`ChunksSum`] is the checksum of both sides. All pure. Not
//! here: connections and protobuf (`grpc/peers.rs`), and the server's side (`grpc/copies.rs`).

mod assembly;
mod bootstrap;
mod checksum;
mod progress;
#[cfg(test)]
mod property;
mod settings;

pub use assembly::{Assembly, Misfit, Piece, Put, RankHead, Resume};
pub use bootstrap::{Bootstrap, Failure, Input, Outcome, Output};
pub use checksum::ChunksSum;
pub use progress::{Progress, ProgressReport};
pub use settings::ReplicaSettings;
