//! Limits of the gRPC face.

use crate::lookup::ItemLimits;

/// Every limit of the gRPC face. Reaching one is a status that names it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct GrpcLimits {
    /// Bytes of one received message. More is OUT_OF_RANGE.
    pub message_bytes_max: usize,
    /// Lookups worked on at once, over all connections (a batch counts as one). More is RESOURCE_EXHAUSTED.
    pub lookups_in_flight_max: usize,
    /// Lookups of one batch.
    pub lookups_per_batch_max: usize,
    /// Events of one batch.
    pub events_per_batch_max: usize,
    /// Blocks of one event.
    pub event_blocks_max: usize,
    /// Multimodal items of a batch's stores.
    pub items: ItemLimits,
    /// Ranks that one call explains.
    pub explain_ranks_max: usize,
    /// Streams of one connection.
    pub streams_per_connection_max: u32,
    /// Answers of a stream that may wait for a slow client; then its requests wait.
    pub stream_answers_max: usize,
    /// Copies of everything on their way to peers at once. More is RESOURCE_EXHAUSTED.
    pub copies_in_flight_max: usize,
}

impl Default for GrpcLimits {
    fn default() -> Self {
        Self {
            message_bytes_max: 16 << 20,
            lookups_in_flight_max: 1024,
            lookups_per_batch_max: 1024,
            events_per_batch_max: 65_536,
            event_blocks_max: 1 << 20,
            items: ItemLimits::default(),
            explain_ranks_max: 1024,
            streams_per_connection_max: 256,
            stream_answers_max: 16,
            copies_in_flight_max: 4,
        }
    }
}
