//! One connection of a SUB or DEALER socket: handshake, messages in, requests out.

use super::SocketError;
use super::endpoint::Endpoint;
use super::frame::{read_frame, write_frame};
use bytes::Bytes;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// What the socket is to its peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// Reads a publisher.
    Sub,
    /// Asks a router.
    Dealer,
}

/// Bounds of a connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SocketLimits {
    /// Bytes of a message, all frames together.
    pub message_bytes_max: usize,
    /// Time for connecting and the handshake together.
    pub handshake_max: Duration,
}

/// Frames of a message; a publisher's have 3, a router's at most 4.
pub(super) const FRAMES_MAX: usize = 8;
/// Bytes of a command: a handshake carries a few short properties.
pub(super) const COMMAND_BYTES_MAX: usize = 4096;
pub(super) const GREETING_BYTES: usize = 64;
const READ_BUFFER_BYTES: usize = 64 << 10;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// An open connection.
pub struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    limits: SocketLimits,
}

impl Connection {
    /// Connects and shakes hands.
    pub async fn open(endpoint: &Endpoint, role: Role, limits: SocketLimits) -> Result<Self, SocketError> {
        let open = async {
            let stream = connect(endpoint).await?;
            let mut connection = Self { stream: BufReader::with_capacity(READ_BUFFER_BYTES, stream), limits };
            connection.shake_hands(role).await?;
            Ok(connection)
        };
        timeout(limits.handshake_max, open).await.map_err(|_| SocketError::HandshakeTimeout)?
    }

    /// Subscribes to every topic that begins with `topic`.
    pub async fn subscribe(&mut self, topic: &str) -> Result<(), SocketError> {
        let body = [&[1], topic.as_bytes()].concat();
        self.send(&[body]).await
    }

    /// Sends one message.
    pub async fn send(&mut self, frames: &[Vec<u8>]) -> Result<(), SocketError> {
        let mut bytes = Vec::new();
        for (i, frame) in frames.iter().enumerate() {
            write_frame(false, i + 1 < frames.len(), frame, &mut bytes);
        }
        self.stream.write_all(&bytes).await?;
        Ok(self.stream.flush().await?)
    }

    /// Waits for the next message. Dropping the future loses what of it was read: then the connection has to go, too.
    pub async fn receive(&mut self) -> Result<Vec<Bytes>, SocketError> {
        let mut frames: Vec<Bytes> = Vec::with_capacity(4);
        let mut bytes = 0;
        loop {
            let room = self.limits.message_bytes_max - bytes;
            let frame = read_frame(&mut self.stream, room).await?;
            if frame.command {
                // Heartbeats are a later version's; anything else between messages means nothing to these sockets.
                continue;
            }
            bytes += frame.body.len();
            frames.push(frame.body);
            if !frame.more {
                return Ok(frames);
            }
            if frames.len() == FRAMES_MAX {
                return Err(SocketError::TooManyFrames { max: FRAMES_MAX });
            }
        }
    }

    async fn shake_hands(&mut self, role: Role) -> Result<(), SocketError> {
        self.stream.write_all(&greeting()).await?;
        let name = if role == Role::Sub { "SUB" } else { "DEALER" };
        let mut ready = Vec::new();
        write_frame(true, false, &ready_command(name), &mut ready);
        self.stream.write_all(&ready).await?;
        self.stream.flush().await?;
        let mut theirs = [0; GREETING_BYTES];
        self.stream.read_exact(&mut theirs).await?;
        check_greeting(&theirs)?;
        let answer = read_frame(&mut self.stream, COMMAND_BYTES_MAX).await?;
        let peer = peer_type(answer.command.then_some(&answer.body[..]))?;
        let fits = match role {
            Role::Sub => matches!(peer.as_str(), "PUB" | "XPUB"),
            Role::Dealer => matches!(peer.as_str(), "ROUTER" | "DEALER" | "REP"),
        };
        if fits { Ok(()) } else { Err(SocketError::WrongPeer(peer)) }
    }
}

async fn connect(endpoint: &Endpoint) -> Result<Box<dyn Stream>, SocketError> {
    match endpoint {
        Endpoint::Tcp { host, port } => {
            let stream = TcpStream::connect((host.as_str(), *port)).await?;
            stream.set_nodelay(true)?;
            Ok(Box::new(stream))
        }
        Endpoint::Ipc(path) => Ok(Box::new(UnixStream::connect(path).await?)),
    }
}

/// Signature, version 3.0, mechanism NULL, not a server.
pub(super) fn greeting() -> [u8; GREETING_BYTES] {
    let mut bytes = [0; GREETING_BYTES];
    bytes[0] = 0xff;
    bytes[9] = 0x7f;
    bytes[10] = 3;
    bytes[12..16].copy_from_slice(b"NULL");
    bytes
}

pub(super) fn check_greeting(bytes: &[u8; GREETING_BYTES]) -> Result<(), SocketError> {
    if bytes[0] != 0xff || bytes[9] != 0x7f {
        return Err(SocketError::Handshake("no ZMTP signature"));
    }
    if bytes[10] < 3 {
        return Err(SocketError::Handshake("older than ZMTP 3"));
    }
    let (name, rest) = bytes[12..32].split_at(4);
    if name != b"NULL" || rest.iter().any(|&b| b != 0) {
        return Err(SocketError::Handshake("a security mechanism other than NULL"));
    }
    Ok(())
}

pub(super) fn ready_command(socket_type: &str) -> Vec<u8> {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend((socket_type.len() as u32).to_be_bytes());
    body.extend(socket_type.as_bytes());
    body
}

/// The socket type out of a READY command.
pub(super) fn peer_type(body: Option<&[u8]>) -> Result<String, SocketError> {
    const BROKEN: SocketError = SocketError::Handshake("a broken READY command");
    let mut rest = body.and_then(|b| b.strip_prefix(b"\x05READY")).ok_or(SocketError::Handshake("no READY command"))?;
    while let Some((&len, tail)) = rest.split_first() {
        let (name, tail) = tail.split_at_checked(len as usize).ok_or(BROKEN)?;
        let (len, tail) = tail.split_first_chunk::<4>().ok_or(BROKEN)?;
        let (value, tail) = tail.split_at_checked(u32::from_be_bytes(*len) as usize).ok_or(BROKEN)?;
        if name.eq_ignore_ascii_case(b"Socket-Type") {
            return Ok(String::from_utf8_lossy(value).into_owned());
        }
        rest = tail;
    }
    Err(SocketError::Handshake("a READY command without a socket type"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn greetings_of_other_kinds_are_refused() {
        assert!(check_greeting(&greeting()).is_ok());
        let broken: [(usize, u8); 4] = [(0, 0), (9, 0), (10, 2), (12, b'C')];
        for (at, value) in broken {
            let mut bytes = greeting();
            bytes[at] = value;
            assert!(check_greeting(&bytes).is_err());
        }
    }

    #[test]
    fn the_socket_type_is_found_in_any_place_and_broken_commands_are_errors() {
        assert_eq!(peer_type(Some(&ready_command("XPUB"))).unwrap(), "XPUB");
        let mut with_identity = b"\x05READY\x08Identity\0\0\0\x01a".to_vec();
        with_identity.extend(&ready_command("ROUTER")[6..]);
        assert_eq!(peer_type(Some(&with_identity)).unwrap(), "ROUTER");
        assert!(peer_type(None).is_err());
        let whole = ready_command("PUB");
        for cut in 0..whole.len() {
            assert!(peer_type(Some(&whole[..cut])).is_err(), "cut at {cut}");
        }
    }
}
