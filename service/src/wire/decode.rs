//! Payload to events, in one pass over the bytes.

use super::event::Batch;
use super::limits::DecodeLimits;

/// Why a whole payload could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum DecodeError {
    /// Longer than the limit.
    #[error("payload of {bytes} bytes, at most {max} are read")]
    TooLong {
        /// As received.
        bytes: usize,
        /// [`DecodeLimits::payload_bytes_max`].
        max: usize,
    },
    /// The msgpack is cut off or invalid at this byte; what comes after cannot be found.
    #[error("broken msgpack at byte {at}")]
    Broken {
        /// Bytes that were readable.
        at: usize,
    },
    /// Well-formed, but not `[timestamp, events, ...]`.
    #[error("not an event batch")]
    NotABatch,
    /// More events than the limit.
    #[error("batch of {events} events, at most {max} are read")]
    TooManyEvents {
        /// As announced.
        events: usize,
        /// [`DecodeLimits::events_max`].
        max: usize,
    },
}

impl DecodeError {
    /// The label in metrics.
    pub const fn label(&self) -> &'static str {
        match self {
            DecodeError::TooLong { .. } => "payload_too_long",
            DecodeError::Broken { .. } => "broken_msgpack",
            DecodeError::NotABatch => "not_a_batch",
            DecodeError::TooManyEvents { .. } => "too_many_events",
        }
    }
}

/// Decodes one payload. Events borrow from it.
pub fn decode_batch<'a>(payload: &'a [u8], limits: &DecodeLimits) -> Result<Batch<'a>, DecodeError> {
    if payload.len() > limits.payload_bytes_max {
        return Err(DecodeError::TooLong { bytes: payload.len(), max: limits.payload_bytes_max });
    }
    Err(DecodeError::NotABatch)
}
