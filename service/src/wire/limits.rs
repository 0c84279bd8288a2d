//! How much of a message the decoder is willing to read.

/// Limits of [`super::decode_batch`]. Reaching a limit of the batch is a [`super::DecodeError`]; reaching a limit of one
/// event costs that event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DecodeLimits {
    /// Bytes of a payload.
    pub payload_bytes_max: usize,
    /// Events of a batch, read or skipped. Bounds the decoder's own memory: an event is a few hundred bytes.
    pub events_max: usize,
    /// Block hashes of one event.
    pub hashes_per_event_max: usize,
    /// Block hashes of a batch, all its events together: what is made of them is many times larger than their bytes. Events
    /// beyond it are left out.
    pub hashes_per_batch_max: usize,
    /// Token ids (or bigrams) of one event.
    pub tokens_per_event_max: usize,
    /// Bytes of any one text: names, salts, multimodal identifiers.
    pub text_bytes_max: usize,
}

impl Default for DecodeLimits {
    /// Room for a 4,000,000-token store, and for a batch of one-token events as long as a whole prompt.
    fn default() -> Self {
        Self {
            payload_bytes_max: 32 << 20,
            events_max: 1 << 18,
            hashes_per_event_max: 1 << 22,
            hashes_per_batch_max: 1 << 22,
            tokens_per_event_max: 1 << 22,
            text_bytes_max: 4096,
        }
    }
}
