//! What an entry is on the server: fields, written from what a subscription gives and read with every limit of a call.
//!
//! | field | what |
//! |---|---|
//! | `b` | a `kvatlas.v1.RelayedBatch`, as `EventService.Subscribe` sends it |
//! | `k` | tokens in a block, and after it `b` where the engine hashes pairs |
//! | `u` | there if answers about the rank may be too high |
//!
//! Whatever is in a stream was written by somebody: nothing of it is believed unchecked.

use crate::fleet::RankEntry;
use crate::grpc::{GrpcLimits, proto, push_batch, relayed_batch, trust_from_proto};
use crate::ingest::Trust;
use crate::log::{Entry, EntryError, Piece, Says};
use crate::ops::OpBatch;
use crate::relay::{Item, Life, Message, Part};
use crate::wire::HashMode;
use bytes::Bytes;
use prost::Message as _;

/// Field of the batch.
pub(super) const BATCH: &str = "b";
/// Field of the block size and hash mode.
pub(super) const KIND: &str = "k";
/// Field of the upper bound.
pub(super) const UPPER_BOUND: &str = "u";

/// The field that says how the rank's tokens are cut.
pub(super) fn kind(rank: &RankEntry) -> String {
    let bigram = if rank.mode == HashMode::Bigram { "b" } else { "" };
    format!("{}{bigram}", rank.block_size)
}

/// Writes what a subscription gave.
pub(super) fn write(rank: &RankEntry, message: Message) -> Piece {
    let (begins, ends) = match &message.item {
        Item::Snapshot { part, .. } => (part.chunk == 0, part.last),
        Item::Batch { reset, .. } => (*reset, *reset),
        Item::Trust => (false, false),
    };
    Piece { bytes: relayed_batch(rank, message).encode_to_vec().into(), begins, ends }
}

/// What a stream says when a subscription is over, before another one begins: until then nothing is known.
pub(super) fn last_word(rank: &RankEntry, life: Life) -> Bytes {
    write(rank, Message { life, trust: Some(Trust::Degraded), item: Item::Trust }).bytes
}

/// Reads the fields of an entry.
pub(super) fn read(
    rank: &RankEntry,
    fields: Fields<'_>,
    limits: &GrpcLimits,
    bytes_max: usize,
) -> Result<Entry, EntryError> {
    let (Some(bytes), Some(kind_told)) = (fields.batch, fields.kind) else { return Err(EntryError::Fields) };
    if bytes.len() > bytes_max {
        return Err(EntryError::TooLarge);
    }
    let relayed = proto::RelayedBatch::decode(bytes).map_err(|_| EntryError::Malformed)?;
    let (life, trust) = (Life(relayed.life), trust_from_proto(relayed.trust()));
    let says = match (relayed.batch, relayed.snapshot) {
        (None, None) => Says::Nothing,
        (None, Some(_)) => return Err(EntryError::Malformed),
        (Some(batch), _) if *batch.worker != *rank.worker || batch.rank != rank.rank => {
            return Err(EntryError::OtherRank);
        }
        (Some(batch), snapshot) => {
            let pushed = push_batch(rank, batch, limits).map_err(|_| EntryError::Malformed)?;
            let (header, ops) = (pushed.header, pushed.ops);
            match snapshot {
                Some(proto::SnapshotPart { chunk, last }) => {
                    Says::Part { part: Part { chunk, last }, sequence: header.sequence, ops }
                }
                None => {
                    let (sequence, lost_before) = (Some(header.sequence), header.lost_before && !header.reset);
                    let published_at = pushed.published_at;
                    let batch = OpBatch { sequence, published_at, ops, lost_before, ..OpBatch::default() };
                    Says::Batch { reset: header.reset, batch }
                }
            }
        }
    };
    let fits = kind_told == kind(rank).as_bytes();
    Ok(Entry { life, trust, upper_bound: fields.upper_bound, fits, bytes: bytes.len(), says })
}

/// The fields of an entry that mean something.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fields<'a> {
    /// The batch.
    pub(super) batch: Option<&'a [u8]>,
    /// Block size and hash mode.
    pub(super) kind: Option<&'a [u8]>,
    /// Whether the upper bound is there.
    pub(super) upper_bound: bool,
}
