//! ZMTP frames: one flag byte, a length of one byte or eight, the body.

use super::SocketError;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt};

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;

/// A body is read in steps of at most this size, so that memory follows what has arrived, not what was announced.
const READ_STEP_BYTES: usize = 64 << 10;

pub(super) struct Frame {
    pub(super) command: bool,
    pub(super) more: bool,
    pub(super) body: Bytes,
}

/// Reads one frame of at most `bytes_max` bytes.
pub(super) async fn read_frame<R: AsyncRead + Unpin>(from: &mut R, bytes_max: usize) -> Result<Frame, SocketError> {
    let flags = from.read_u8().await?;
    let len = if flags & LONG != 0 { from.read_u64().await? } else { u64::from(from.read_u8().await?) };
    let Some(len) = usize::try_from(len).ok().filter(|&len| len <= bytes_max) else {
        return Err(SocketError::TooLarge { bytes: len, max: bytes_max });
    };
    let body = read_body(from, len).await?;
    Ok(Frame { command: flags & COMMAND != 0, more: flags & MORE != 0, body })
}

async fn read_body<R: AsyncRead + Unpin>(from: &mut R, len: usize) -> Result<Bytes, SocketError> {
    let mut body = BytesMut::with_capacity(len.min(READ_STEP_BYTES));
    while body.len() < len {
        let left = len - body.len();
        body.reserve(left.min(READ_STEP_BYTES.max(body.len())));
        let mut limited = (&mut *from).take(left as u64);
        if limited.read_buf(&mut body).await? == 0 {
            return Err(std::io::Error::from(std::io::ErrorKind::UnexpectedEof).into());
        }
    }
    Ok(body.freeze())
}

/// Appends a frame.
pub(super) fn write_frame(command: bool, more: bool, body: &[u8], out: &mut Vec<u8>) {
    let flags = if command { COMMAND } else { 0 } | if more { MORE } else { 0 };
    match u8::try_from(body.len()) {
        Ok(len) => out.extend([flags, len]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend(body);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_of_either_length_come_back() {
        for len in [0, 1, 255, 256, 200_000] {
            let body = vec![7; len];
            let mut wire = Vec::new();
            write_frame(false, true, &body, &mut wire);
            let frame = read_frame(&mut wire.as_slice(), 1 << 20).await.unwrap();
            assert!(!frame.command && frame.more && frame.body == body);
        }
    }

    #[tokio::test]
    async fn a_length_beyond_the_limit_is_refused_before_anything_is_stored() {
        for len in [1 << 20, u64::MAX, i64::MAX as u64] {
            let mut wire = vec![LONG];
            wire.extend(len.to_be_bytes());
            let refused = read_frame(&mut wire.as_slice(), 1000).await;
            assert!(matches!(refused, Err(SocketError::TooLarge { bytes, max: 1000 }) if bytes == len));
        }
    }

    #[tokio::test]
    async fn a_body_cut_short_is_an_error() {
        let mut wire = vec![0, 9];
        wire.extend([1, 2, 3]);
        assert!(matches!(read_frame(&mut wire.as_slice(), 1000).await, Err(SocketError::Io(_))));
    }
}
