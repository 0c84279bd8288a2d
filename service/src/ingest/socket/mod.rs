//! The two sockets that a rank needs, SUB and DEALER, as a bounded reader of ZMTP 3, and the two that they connect to, as we serve
//! them to others.
//!
//! The `zeromq` crate would do, but for one thing: it reserves whatever length a peer announces, so nine bytes from a hostile
//! peer end the process. Here a message has a limit that is checked before a byte of it is stored, a connection's beginning
//! and end are events (a restart hides behind them), and reading can be stopped at any point by dropping the future.
//!
//! Only what these sockets use: the NULL mechanism, one connection at a time. Peers may be libzmq of any version since 4.0.

mod accepted;
mod connection;
mod endpoint;
mod frame;

pub use accepted::{Incoming, Incomings, Serves, accept, append_message, pong};
pub use connection::{Connection, Role, SocketLimits};
pub use endpoint::{Endpoint, EndpointError};

/// Why a connection could not be made, or ended.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// The transport failed, or the peer closed.
    #[error("connection: {0}")]
    Io(#[from] std::io::Error),
    /// The worker was given up, and this connection of it with it.
    #[error("hung up: the worker cannot be reached")]
    HungUp,
    /// Connecting and the handshake took too long.
    #[error("no handshake in time")]
    HandshakeTimeout,
    /// The peer does not speak ZMTP 3 with the NULL mechanism.
    #[error("not a ZMTP 3 peer: {0}")]
    Handshake(&'static str),
    /// The peer is a socket of another kind than expected.
    #[error("the peer is a {0} socket")]
    WrongPeer(String),
    /// A message or command larger than the limit.
    #[error("message of {bytes} bytes or more, at most {max} are read")]
    TooLarge {
        /// Bytes announced so far.
        bytes: u64,
        /// The limit.
        max: usize,
    },
    /// A message of more frames than the limit.
    #[error("message of more than {max} frames")]
    TooManyFrames {
        /// The limit.
        max: usize,
    },
}

impl SocketError {
    /// Whether the peer sent a message that was not read because of its size: its content is lost.
    pub const fn refused_a_message(&self) -> bool {
        matches!(self, SocketError::TooLarge { .. } | SocketError::TooManyFrames { .. })
    }

    /// The label in metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            SocketError::Io(_) => "socket_io",
            SocketError::HungUp => "socket_hung_up",
            SocketError::HandshakeTimeout => "socket_handshake_timeout",
            SocketError::Handshake(_) => "socket_bad_handshake",
            SocketError::WrongPeer(_) => "socket_wrong_peer",
            SocketError::TooLarge { .. } => "socket_message_too_large",
            SocketError::TooManyFrames { .. } => "socket_too_many_frames",
        }
    }
}
