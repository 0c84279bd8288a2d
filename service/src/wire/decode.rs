//! Payload to events, in one pass over the bytes. Only an event that is left out is read twice: up to the field at fault,
//! then stepped over.
//!
//! What costs the whole batch: msgpack that is cut off or invalid (the place of the next event cannot be found), something
//! that is no `[timestamp, events, ...]` at all, and more bytes or events than the limits allow. Everything else costs
//! the event in which it is.

use super::event::{Batch, Cleared, Event, Removed, Skip, SkipReason, Stored};
use super::fields::{self, EventError, Field, Fields};
use super::hashes::Hashes;
use super::limits::DecodeLimits;
use super::msgpack::{Cursor, Head, ReadError};
use super::token_room::TokenRoom;

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
///
/// Allocates the lists of events and of skips, nothing else but `remaining_copy_counts`; memory is bounded by
/// [`DecodeLimits::events_max`] and by a small multiple of the payload.
pub fn decode_batch<'a>(payload: &'a [u8], limits: &DecodeLimits) -> Result<Batch<'a>, DecodeError> {
    decode(payload, limits, &mut [])
}

/// Like [`decode_batch`], and writes the token ids into `room` as it reads them, as far as it goes: whoever hashes them need
/// not read the message again. What the events say is the same.
pub fn decode_batch_in<'a>(
    payload: &'a [u8],
    limits: &DecodeLimits,
    room: &'a mut TokenRoom,
) -> Result<Batch<'a>, DecodeError> {
    decode(payload, limits, room.for_payload(payload.len()))
}

fn decode<'a>(payload: &'a [u8], limits: &DecodeLimits, room: &'a mut [u8]) -> Result<Batch<'a>, DecodeError> {
    if payload.len() > limits.payload_bytes_max {
        return Err(DecodeError::TooLong { bytes: payload.len(), max: limits.payload_bytes_max });
    }
    let mut at = Cursor::new(payload);
    read_batch(&mut at, limits, room).map_err(|e| match e {
        BatchError::Broken => DecodeError::Broken { at: payload.len() - at.rest().len() },
        BatchError::Refused(e) => e,
    })
}

/// The shortest readable event: an array of one text, `AllBlocksCleared`. So that a count alone reserves nothing.
const EVENT_BYTES_MIN: usize = 18;

enum BatchError {
    Broken,
    Refused(DecodeError),
}

impl From<ReadError> for BatchError {
    fn from(e: ReadError) -> Self {
        match e {
            ReadError::Broken => BatchError::Broken,
            ReadError::WrongType => BatchError::Refused(DecodeError::NotABatch),
        }
    }
}

fn read_batch<'a>(at: &mut Cursor<'a>, limits: &DecodeLimits, mut room: &'a mut [u8]) -> Result<Batch<'a>, BatchError> {
    let elements = at.array()?;
    if elements < 2 {
        return Err(BatchError::Refused(DecodeError::NotABatch));
    }
    let mut batch = Batch { timestamp: read_timestamp(at)?, ..Batch::default() };
    let events = at.array()?;
    if events > limits.events_max {
        return Err(BatchError::Refused(DecodeError::TooManyEvents { events, max: limits.events_max }));
    }
    // One more than there can be: the event that is being read stands in the list already.
    batch.events.reserve_exact(events.min(at.rest().len() / EVENT_BYTES_MIN + 1));
    let mut left = *limits;
    for _ in 0..events {
        let start = *at;
        left.hashes_per_event_max = limits.hashes_per_event_max.min(left.hashes_per_batch_max);
        match read_event(at, &left, &mut room, &mut batch.events) {
            Ok(hashes) => left.hashes_per_batch_max -= hashes.min(left.hashes_per_batch_max),
            Err(EventError::Broken) => return Err(BatchError::Broken),
            Err(EventError::Skip(reason, field)) => {
                *at = start;
                at.skip()?;
                count_skip(&mut batch.skipped, reason, field);
            }
        }
    }
    if elements > 2 {
        batch.rank = read_rank(at)?;
    }
    // Later versions may append to the batch, and what follows it is nobody's: both are left unread.
    Ok(batch)
}

fn hashes(event: &Event<'_>) -> usize {
    match event {
        Event::Stored(stored) => stored.hashes.len(),
        Event::Removed(removed) => removed.hashes.len(),
        Event::Cleared(_) => 0,
    }
}

fn count_skip(skipped: &mut Vec<Skip>, reason: SkipReason, field: &'static str) {
    match skipped.iter_mut().find(|s| s.reason == reason && s.field == field) {
        Some(skip) => skip.count += 1,
        None => skipped.push(Skip { reason, field, count: 1 }),
    }
}

fn read_timestamp(at: &mut Cursor<'_>) -> Result<Option<f64>, ReadError> {
    let start = *at;
    Ok(match at.head()? {
        Head::Float(v) => Some(v).filter(|v| v.is_finite()),
        Head::Unsigned(v) => Some(v as f64),
        _ => {
            *at = start;
            at.skip()?;
            None
        }
    })
}

fn read_rank(at: &mut Cursor<'_>) -> Result<Option<u32>, ReadError> {
    Ok(match at.head()? {
        Head::Unsigned(v) => u32::try_from(v).ok(),
        _ => None,
    })
}

/// Reads one event in one pass to the end of the list and says how many hashes it has. On an error the list is as it was
/// and the cursor stands anywhere inside the event.
fn read_event<'a>(
    at: &mut Cursor<'a>,
    limits: &DecodeLimits,
    room: &mut &'a mut [u8],
    events: &mut Vec<Event<'a>>,
) -> Result<usize, EventError> {
    if let Some(removed) = read_usual_removal(at, limits) {
        let count = removed.hashes.len();
        events.push(Event::Removed(removed));
        return Ok(count);
    }
    let event = events.push_mut(Event::Stored(Stored::default()));
    match read_into(event, at, limits, room) {
        Ok(()) => Ok(hashes(event)),
        Err(e) => {
            events.pop();
            Err(e)
        }
    }
}

/// Reads a removal from the device that is written as the engines write it: every key and the medium in their order, nothing
/// else. The cursor stays where it was at any other event, also at one with a fault: the reader of all events says which.
#[inline(always)]
fn read_usual_removal<'a>(at: &mut Cursor<'a>, limits: &DecodeLimits) -> Option<Removed<'a>> {
    let with_group = match at.rest().first() {
        Some(0x83) => false,
        Some(0x84) => true,
        _ => return None,
    };
    let mut ahead = *at;
    ahead.advance(1);
    if limits.text_bytes_max < 3 || !ahead.literal(b"\xa4type\xacBlockRemoved\xacblock_hashes") {
        return None;
    }
    let len = ahead.array().ok().filter(|&len| len <= limits.hashes_per_event_max)?;
    let hashes = Hashes::read(&mut ahead, len).ok()?;
    if !ahead.literal(b"\xa6medium\xa3GPU") {
        return None;
    }
    let mut group = None;
    if with_group {
        if !ahead.literal(b"\xa9group_idx") {
            return None;
        }
        group = ahead.rest().first().filter(|&&marker| marker < 0x80).map(|&small| u64::from(small));
        group?;
        ahead.advance(1);
    }
    *at = ahead;
    Some(Removed { hashes, medium: Some("GPU"), group, locality: None, ownership: None, remaining_copy_counts: None })
}

/// Reads one event into the place where it will stand. A store, which nearly every event is, is written there field by
/// field; the others are made of what it has when their type is known.
#[inline(always)]
fn read_into<'a>(
    event: &mut Event<'a>,
    at: &mut Cursor<'a>,
    limits: &DecodeLimits,
    room: &mut &'a mut [u8],
) -> Result<(), EventError> {
    let not_an_event = EventError::Skip(SkipReason::NotAnEvent, "");
    let Event::Stored(stored) = event else { return Err(not_an_event) };
    let mut fields = Fields::new(stored);
    let tag = match at.head() {
        Ok(Head::Array(len)) => read_array(at, len, limits, room, &mut fields)?,
        Ok(Head::Map(pairs)) => read_map(at, pairs, limits, room, &mut fields)?,
        Ok(_) => return Err(not_an_event),
        Err(_) => return Err(EventError::Broken),
    };
    match tag {
        Tag::Stored => check_stored(&fields)?,
        Tag::Removed => *event = Event::Removed(removed(fields)?),
        Tag::AllCleared => *event = Event::Cleared(Cleared { medium: None }),
        Tag::TierCleared => {
            let medium = fields.stored.medium.ok_or(missing(Field::Medium))?;
            *event = Event::Cleared(Cleared { medium: Some(medium) });
        }
    }
    Ok(())
}

/// `[tag, field, ...]`.
fn read_array<'a>(
    at: &mut Cursor<'a>,
    len: usize,
    limits: &DecodeLimits,
    room: &mut &'a mut [u8],
    fields: &mut Fields<'_, 'a>,
) -> Result<Tag, EventError> {
    let not_an_event = EventError::Skip(SkipReason::NotAnEvent, "");
    if len == 0 {
        return Err(not_an_event);
    }
    let Head::Text(tag) = at.head().map_err(|_| EventError::Broken)? else {
        return Err(not_an_event);
    };
    let tag = Tag::parse(tag)?;
    for place in 0..len - 1 {
        match tag.places().get(place) {
            Some(&field) => fields.read(field, at, limits, room)?,
            None => at.skip().map_err(|_| EventError::Broken)?,
        }
    }
    Ok(tag)
}

/// `{"type": tag, field: value, ...}`, keys in any order.
fn read_map<'a>(
    at: &mut Cursor<'a>,
    pairs: usize,
    limits: &DecodeLimits,
    room: &mut &'a mut [u8],
    fields: &mut Fields<'_, 'a>,
) -> Result<Tag, EventError> {
    let mut tag = None;
    let usual = read_usual_pairs(at, pairs, limits, room, &mut tag, fields)?;
    for _ in usual..pairs {
        let key_start = *at;
        match at.head().map_err(|_| EventError::Broken)? {
            Head::Text(b"type") => match at.head().map_err(|_| EventError::Broken)? {
                Head::Text(text) => tag = Some(Tag::parse(text)?),
                _ => return Err(EventError::Skip(SkipReason::BadField, "type")),
            },
            Head::Text(key) => match field_named(tag, key) {
                Some(field) => fields.read(field, at, limits, room)?,
                None => at.skip().map_err(|_| EventError::Broken)?,
            },
            _ => {
                *at = key_start;
                at.skip().and_then(|()| at.skip()).map_err(|_| EventError::Broken)?;
            }
        }
    }
    tag.ok_or(EventError::Skip(SkipReason::MissingField, "type"))
}

/// Reads the pairs that a map begins with when it is written as the engines write it, in their order, and says how many.
/// Each is compared whole with what it would be: the result is the same as by name, only sooner.
#[inline(always)]
fn read_usual_pairs<'a>(
    at: &mut Cursor<'a>,
    pairs: usize,
    limits: &DecodeLimits,
    room: &mut &'a mut [u8],
    tag: &mut Option<Tag>,
    fields: &mut Fields<'_, 'a>,
) -> Result<usize, EventError> {
    let mut read = 0;
    if pairs == 0 {
        return Ok(0);
    }
    if at.literal(b"\xa4type\xabBlockStored") {
        *tag = Some(Tag::Stored);
    } else if at.literal(b"\xa4type\xacBlockRemoved") {
        *tag = Some(Tag::Removed);
    } else {
        return Ok(0);
    }
    read += 1;
    macro_rules! pair {
        ($key:literal, $field:expr) => {
            if read < pairs && at.literal($key) {
                fields.read($field, at, limits, room)?;
                read += 1;
            }
        };
    }
    pair!(b"\xacblock_hashes", Field::BlockHashes);
    if let Some(Tag::Stored) = tag {
        pair!(b"\xb1parent_block_hash", Field::ParentBlockHash);
        pair!(b"\xa9token_ids", Field::TokenIds);
        pair!(b"\xaablock_size", Field::BlockSize);
        pair!(b"\xa7lora_id", Field::LoraId);
    }
    pair!(b"\xa6medium", Field::Medium);
    if let Some(Tag::Stored) = tag {
        pair!(b"\xa9lora_name", Field::LoraName);
        pair!(b"\xaaextra_keys", Field::ExtraKeys);
    }
    pair!(b"\xa9group_idx", Field::GroupIdx);
    if let Some(Tag::Stored) = tag {
        pair!(b"\xb2kv_cache_spec_kind", Field::Kind);
    }
    Ok(read)
}

/// The field with this name, if the event of this type has it; before the type is known, if any event has it.
#[inline]
fn field_named(tag: Option<Tag>, key: &[u8]) -> Option<Field> {
    let fields = tag.map_or(STORED | REMOVED, Tag::field_set);
    Field::named(key).filter(|&field| fields & 1 << field as u32 != 0)
}

const STORED: u32 = fields::set_of(&fields::STORED);
const REMOVED: u32 = fields::set_of(&fields::REMOVED);

/// The known event types.
#[derive(Clone, Copy)]
enum Tag {
    Stored,
    Removed,
    AllCleared,
    TierCleared,
}

impl Tag {
    fn parse(text: &[u8]) -> Result<Self, EventError> {
        match text {
            b"BlockStored" => Ok(Tag::Stored),
            b"BlockRemoved" => Ok(Tag::Removed),
            b"AllBlocksCleared" => Ok(Tag::AllCleared),
            b"TierBlocksCleared" => Ok(Tag::TierCleared),
            _ => Err(EventError::Skip(SkipReason::UnknownTag, "type")),
        }
    }

    fn field_set(self) -> u32 {
        match self {
            Tag::Stored => STORED,
            Tag::Removed => REMOVED,
            Tag::AllCleared => 0,
            Tag::TierCleared => fields::set_of(&fields::TIER_CLEARED),
        }
    }

    /// The fields that have a place in arrays, in order.
    fn places(self) -> &'static [Field] {
        match self {
            Tag::Stored => &fields::STORED[..fields::STORED_PLACES],
            Tag::Removed => &fields::REMOVED[..fields::REMOVED_PLACES],
            Tag::AllCleared => &[],
            Tag::TierCleared => &fields::TIER_CLEARED,
        }
    }
}

fn missing(field: Field) -> EventError {
    EventError::Skip(SkipReason::MissingField, field.name())
}

/// A missing parent is not read as position 0: that would credit the blocks at the root.
fn check_stored(fields: &Fields<'_, '_>) -> Result<(), EventError> {
    fields.require(Field::BlockHashes)?;
    let stored = &*fields.stored;
    if !stored.extra_keys.is_empty() && stored.extra_keys.len() != stored.hashes.len() {
        return Err(EventError::Skip(SkipReason::BadField, Field::ExtraKeys.name()));
    }
    fields.require(Field::ParentBlockHash)?;
    fields.require(Field::TokenIds)?;
    fields.require(Field::BlockSize)
}

fn removed<'a>(fields: Fields<'_, 'a>) -> Result<Removed<'a>, EventError> {
    fields.require(Field::BlockHashes)?;
    let Fields { stored, remaining_copy_counts, .. } = fields;
    if remaining_copy_counts.as_ref().is_some_and(|counts| counts.len() != stored.hashes.len()) {
        return Err(EventError::Skip(SkipReason::BadField, Field::RemainingCopyCounts.name()));
    }
    Ok(Removed {
        hashes: stored.hashes,
        medium: stored.medium,
        group: stored.group,
        locality: stored.locality,
        ownership: stored.ownership,
        remaining_copy_counts,
    })
}
