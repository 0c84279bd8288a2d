//! The other side: a connection that was accepted, as a PUB or ROUTER socket has them.

use super::SocketError;
use super::connection::{COMMAND_BYTES_MAX, FRAMES_MAX, GREETING_BYTES, SocketLimits};
use super::connection::{check_greeting, greeting, peer_type, ready_command};
use super::frame::{read_frame, write_frame};
use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::time::timeout;

/// A consumer says little: a topic, a sequence.
const READ_BUFFER_BYTES: usize = 1 << 10;

/// What an accepted connection is to its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Serves {
    /// Publishes to SUB sockets.
    Pub,
    /// Answers REQ and DEALER sockets.
    Router,
}

impl Serves {
    fn socket_type(self) -> &'static str {
        match self {
            Serves::Pub => "PUB",
            Serves::Router => "ROUTER",
        }
    }

    fn takes(self, peer: &str) -> bool {
        match self {
            Serves::Pub => matches!(peer, "SUB" | "XSUB"),
            Serves::Router => matches!(peer, "REQ" | "DEALER" | "ROUTER"),
        }
    }
}

/// What a peer sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Incoming {
    /// All frames of a message.
    Message(Vec<Bytes>),
    /// The body of a command.
    Command(Bytes),
}

/// The reading half of an accepted connection.
#[derive(Debug)]
pub struct Incomings {
    from: BufReader<OwnedReadHalf>,
    message_bytes_max: usize,
}

/// Shakes hands with whoever connected.
pub async fn accept(
    stream: TcpStream,
    serves: Serves,
    limits: SocketLimits,
) -> Result<(Incomings, OwnedWriteHalf), SocketError> {
    let shake = async {
        stream.set_nodelay(true)?;
        let (read, mut write) = stream.into_split();
        let mut from = BufReader::with_capacity(READ_BUFFER_BYTES, read);
        let mut ours = greeting().to_vec();
        write_frame(true, false, &ready_command(serves.socket_type()), &mut ours);
        write.write_all(&ours).await?;
        let mut theirs = [0; GREETING_BYTES];
        from.read_exact(&mut theirs).await?;
        check_greeting(&theirs)?;
        let answer = read_frame(&mut from, COMMAND_BYTES_MAX).await?;
        let peer = peer_type(answer.command.then_some(&answer.body[..]))?;
        if !serves.takes(&peer) {
            return Err(SocketError::WrongPeer(peer));
        }
        Ok((Incomings { from, message_bytes_max: limits.message_bytes_max }, write))
    };
    timeout(limits.handshake_max, shake).await.map_err(|_| SocketError::HandshakeTimeout)?
}

impl Incomings {
    /// Waits for the next message or command. Dropping the future loses what of it was read: then the connection has to go, too.
    pub async fn next(&mut self) -> Result<Incoming, SocketError> {
        let mut frames: Vec<Bytes> = Vec::new();
        let mut bytes = 0;
        loop {
            let frame = read_frame(&mut self.from, self.message_bytes_max - bytes).await?;
            if frame.command {
                // Within a message there is none from a peer in its right mind.
                if frames.is_empty() {
                    return Ok(Incoming::Command(frame.body));
                }
                continue;
            }
            bytes += frame.body.len();
            frames.push(frame.body);
            if !frame.more {
                return Ok(Incoming::Message(frames));
            }
            if frames.len() == FRAMES_MAX {
                return Err(SocketError::TooManyFrames { max: FRAMES_MAX });
            }
        }
    }
}

/// Appends one message of at least one frame.
pub fn append_message(frames: &[&[u8]], out: &mut Vec<u8>) {
    for (i, frame) in frames.iter().enumerate() {
        write_frame(false, i + 1 < frames.len(), frame, out);
    }
}

/// The answer to a PING command, which repeats its context; `None` if the command is another one.
pub fn pong(command: &[u8]) -> Option<Vec<u8>> {
    const TTL_BYTES: usize = 2;
    const CONTEXT_BYTES_MAX: usize = 16;
    let context = command.strip_prefix(b"\x04PING")?.get(TTL_BYTES..)?;
    let body = [&b"\x04PONG"[..], &context[..context.len().min(CONTEXT_BYTES_MAX)]].concat();
    let mut out = Vec::new();
    write_frame(true, false, &body, &mut out);
    Some(out)
}

#[cfg(test)]
mod tests {
    use super::super::{Connection, Endpoint, Role};
    use super::*;
    use std::time::Duration;
    use tokio::net::TcpListener;

    const LIMITS: SocketLimits = SocketLimits { message_bytes_max: 100, handshake_max: Duration::from_secs(10) };

    async fn pair(role: Role, serves: Serves) -> (Result<Connection, SocketError>, Result<Incomings, SocketError>) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let endpoint = Endpoint::Tcp { host: "127.0.0.1".into(), port };
        let near = Connection::open(&endpoint, role, LIMITS);
        let far = async { accept(listener.accept().await.unwrap().0, serves, LIMITS).await.map(|(read, _)| read) };
        tokio::join!(near, far)
    }

    #[tokio::test]
    async fn a_subscriber_and_a_dealer_are_taken_each_by_its_socket() {
        let (near, far) = pair(Role::Sub, Serves::Pub).await;
        near.unwrap().subscribe("kv").await.unwrap();
        assert_eq!(far.unwrap().next().await.unwrap(), Incoming::Message(vec![Bytes::from_static(b"\x01kv")]));
        let (near, far) = pair(Role::Dealer, Serves::Router).await;
        near.unwrap().send(&[vec![], vec![7; 8]]).await.unwrap();
        let frames = vec![Bytes::new(), Bytes::from_static(&[7; 8])];
        assert_eq!(far.unwrap().next().await.unwrap(), Incoming::Message(frames));
        let (_, far) = pair(Role::Sub, Serves::Router).await;
        assert!(matches!(far.unwrap_err(), SocketError::WrongPeer(peer) if peer == "SUB"));
    }

    #[tokio::test]
    async fn a_message_beyond_the_limit_ends_the_connection() {
        let (near, far) = pair(Role::Dealer, Serves::Router).await;
        near.unwrap().send(&[vec![0; 60], vec![0; 60]]).await.unwrap();
        assert!(matches!(far.unwrap().next().await.unwrap_err(), SocketError::TooLarge { max: 40, .. }));
        let (near, far) = pair(Role::Dealer, Serves::Router).await;
        near.unwrap().send(&vec![vec![]; FRAMES_MAX + 1]).await.unwrap();
        assert!(matches!(far.unwrap().next().await.unwrap_err(), SocketError::TooManyFrames { .. }));
    }

    #[test]
    fn a_ping_is_answered_with_its_context() {
        assert_eq!(pong(b"\x04PING\0\x0aabc"), Some(b"\x04\x08\x04PONGabc".to_vec()));
        assert_eq!(pong(b"\x04PING\0"), None);
        assert_eq!(pong(b"\x05ERROR"), None);
    }
}
