//! ZeroMQ messages of a publisher: the live stream, and the replay endpoint's requests and replies.
//!
//! ```text
//! live message     topic | sequence (8 bytes, big-endian) | payload
//! replay request   "" | first sequence (8 bytes)                        as a DEALER sends it
//! replay reply     "" | [topic |] sequence | payload                    as a DEALER receives it
//! state request    "" | "snapshot"                                      where it is offered; answered by batches of one sequence
//! replay end       "" | [""    |] ff ff ff ff ff ff ff ff | ""
//! ```
//!
//! Newer engines put the topic into replies, older ones do not, so replies are read from the end.

/// Limits of what a peer may send as one message. Reaching one is a [`FrameError`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct FrameLimits {
    /// Bytes of a topic.
    pub topic_bytes_max: usize,
    /// Bytes of a payload.
    pub payload_bytes_max: usize,
}

impl Default for FrameLimits {
    fn default() -> Self {
        Self { topic_bytes_max: 1024, payload_bytes_max: super::limits::DecodeLimits::default().payload_bytes_max }
    }
}

/// Why a message is none of a publisher's.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum FrameError {
    /// The wrong number of frames.
    #[error("message of {frames} frames")]
    FrameCount {
        /// As received.
        frames: usize,
    },
    /// The sequence frame has not 8 bytes.
    #[error("sequence frame of {bytes} bytes")]
    SequenceLength {
        /// As received.
        bytes: usize,
    },
    /// The sequence that marks the end of a replay, on something else.
    #[error("the end marker's sequence on a message that is none")]
    ReservedSequence,
    /// A reply does not begin with the empty delimiter.
    #[error("reply without a delimiter")]
    Delimiter,
    /// A topic beyond the limit.
    #[error("topic of {bytes} bytes, at most {max} are read")]
    TopicTooLong {
        /// As received.
        bytes: usize,
        /// [`FrameLimits::topic_bytes_max`].
        max: usize,
    },
    /// A payload beyond the limit.
    #[error("payload of {bytes} bytes, at most {max} are read")]
    PayloadTooLong {
        /// As received.
        bytes: usize,
        /// [`FrameLimits::payload_bytes_max`].
        max: usize,
    },
}

impl FrameError {
    /// The label in metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            FrameError::FrameCount { .. } => "frame_count",
            FrameError::SequenceLength { .. } => "sequence_length",
            FrameError::ReservedSequence => "reserved_sequence",
            FrameError::Delimiter => "delimiter",
            FrameError::TopicTooLong { .. } => "topic_too_long",
            FrameError::PayloadTooLong { .. } => "payload_too_long",
        }
    }
}

/// Sequence of the end marker; no batch has it.
const END_SEQUENCE: u64 = u64::MAX;

/// A message of the live stream.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LiveMessage<'a> {
    /// The publisher's topic: opaque bytes, often empty.
    pub topic: &'a [u8],
    /// Batches published before this one in the publisher's life.
    pub sequence: u64,
    /// The batch, for [`super::decode_batch`].
    pub payload: &'a [u8],
}

/// One message from a replay endpoint.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplayReply<'a> {
    /// A batch, byte for byte as it was live.
    Batch {
        /// Its sequence.
        sequence: u64,
        /// The batch.
        payload: &'a [u8],
    },
    /// No more follow.
    End,
}

/// Reads a message of the live stream.
pub fn parse_live<'a, F: AsRef<[u8]>>(frames: &'a [F], limits: &FrameLimits) -> Result<LiveMessage<'a>, FrameError> {
    let [topic, sequence, payload] = frames else {
        return Err(FrameError::FrameCount { frames: frames.len() });
    };
    let sequence = parse_sequence(sequence.as_ref())?;
    if sequence == END_SEQUENCE {
        return Err(FrameError::ReservedSequence);
    }
    let (topic, payload) = (topic.as_ref(), payload.as_ref());
    check_lengths(topic, payload, limits)?;
    Ok(LiveMessage { topic, sequence, payload })
}

/// Reads a replay reply as a DEALER socket receives it, of either layout.
pub fn parse_replay<'a, F: AsRef<[u8]>>(frames: &'a [F], limits: &FrameLimits) -> Result<ReplayReply<'a>, FrameError> {
    let (delimiter, topic, sequence, payload) = match frames {
        [delimiter, sequence, payload] => (delimiter, &[][..], sequence, payload),
        [delimiter, topic, sequence, payload] => (delimiter, topic.as_ref(), sequence, payload),
        _ => return Err(FrameError::FrameCount { frames: frames.len() }),
    };
    if !delimiter.as_ref().is_empty() {
        return Err(FrameError::Delimiter);
    }
    let sequence = parse_sequence(sequence.as_ref())?;
    let payload = payload.as_ref();
    check_lengths(topic, payload, limits)?;
    match sequence {
        END_SEQUENCE if payload.is_empty() => Ok(ReplayReply::End),
        END_SEQUENCE => Err(FrameError::ReservedSequence),
        _ => Ok(ReplayReply::Batch { sequence, payload }),
    }
}

/// The frames that ask for every buffered batch from `first_sequence` on, for a DEALER socket.
pub fn replay_request(first_sequence: u64) -> [Vec<u8>; 2] {
    [Vec::new(), first_sequence.to_be_bytes().to_vec()]
}

/// The frames that ask for a publisher's state where it offers that, for a DEALER socket. One that does not takes the word for a
/// sequence beyond its newest, and answers with the end marker alone.
pub fn snapshot_request() -> [Vec<u8>; 2] {
    [Vec::new(), b"snapshot".to_vec()]
}

fn parse_sequence(frame: &[u8]) -> Result<u64, FrameError> {
    let bytes = frame.try_into().map_err(|_| FrameError::SequenceLength { bytes: frame.len() })?;
    Ok(u64::from_be_bytes(bytes))
}

fn check_lengths(topic: &[u8], payload: &[u8], limits: &FrameLimits) -> Result<(), FrameError> {
    if topic.len() > limits.topic_bytes_max {
        return Err(FrameError::TopicTooLong { bytes: topic.len(), max: limits.topic_bytes_max });
    }
    if payload.len() > limits.payload_bytes_max {
        return Err(FrameError::PayloadTooLong { bytes: payload.len(), max: limits.payload_bytes_max });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const END: [u8; 8] = [0xff; 8];

    fn live(frames: &[&[u8]]) -> Result<(u64, usize), FrameError> {
        parse_live(frames, &FrameLimits::default()).map(|m| (m.sequence, m.payload.len()))
    }

    #[test]
    fn live_messages() {
        assert_eq!(live(&[b"kv", &15_u64.to_be_bytes(), b"abc"]), Ok((15, 3)));
        assert_eq!(live(&[b"", &0_u64.to_be_bytes(), b""]), Ok((0, 0)));
        assert_eq!(live(&[b"kv", b"abc"]), Err(FrameError::FrameCount { frames: 2 }));
        assert_eq!(live(&[]), Err(FrameError::FrameCount { frames: 0 }));
        assert_eq!(live(&[b"", &[0; 7], b""]), Err(FrameError::SequenceLength { bytes: 7 }));
        assert_eq!(live(&[b"", &END, b"x"]), Err(FrameError::ReservedSequence));
        assert_eq!(live(&[&[0; 1025], &[0; 8], b""]), Err(FrameError::TopicTooLong { bytes: 1025, max: 1024 }));
        let limits = FrameLimits { payload_bytes_max: 2, ..FrameLimits::default() };
        let frames: [&[u8]; 3] = [b"", &[0; 8], b"abc"];
        assert_eq!(parse_live(&frames, &limits), Err(FrameError::PayloadTooLong { bytes: 3, max: 2 }));
    }

    #[test]
    fn replies_of_both_layouts_read_alike() {
        let limits = FrameLimits::default();
        let seven = 7_u64.to_be_bytes();
        let want = Ok(ReplayReply::Batch { sequence: 7, payload: b"p" });
        assert_eq!(parse_replay::<&[u8]>(&[b"", &seven, b"p"], &limits), want);
        assert_eq!(parse_replay::<&[u8]>(&[b"", b"kv@a", &seven, b"p"], &limits), want);
        assert_eq!(parse_replay::<&[u8]>(&[b"", &END, b""], &limits), Ok(ReplayReply::End));
        assert_eq!(parse_replay::<&[u8]>(&[b"", b"", &END, b""], &limits), Ok(ReplayReply::End));
        assert_eq!(parse_replay::<&[u8]>(&[b"", &END, b"p"], &limits), Err(FrameError::ReservedSequence));
        assert_eq!(parse_replay::<&[u8]>(&[b"x", &seven, b"p"], &limits), Err(FrameError::Delimiter));
        assert_eq!(parse_replay::<&[u8]>(&[&seven, b"p"], &limits), Err(FrameError::FrameCount { frames: 2 }));
        assert_eq!(
            parse_replay::<&[u8]>(&[b"", b"a", b"b", &seven, b"p"], &limits),
            Err(FrameError::FrameCount { frames: 5 })
        );
    }

    #[test]
    fn a_request_is_the_delimiter_and_the_sequence() {
        assert_eq!(replay_request(258), [vec![], vec![0, 0, 0, 0, 0, 0, 1, 2]]);
    }
}
