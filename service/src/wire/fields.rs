//! The fields of events: their names in maps, their places in arrays, how each is read.
//!
//! An array's length says which version wrote it: every field that the version knows is there, unset ones as nil. The
//! places are the same in all versions, so one table serves; only SGLang 0.5.18 puts a map with the salt where vLLM has the
//! LoRA name, which its type tells.

use super::event::{SkipReason, Stored};
use super::extras::ExtraKeys;
use super::hashes::{Hashes, WireHash, read_hash};
use super::limits::DecodeLimits;
use super::msgpack::{Cursor, Head, ReadError};
use super::tokens::{TokenError, Tokens};

/// Why an event could not be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum EventError {
    /// Nothing after this place can be read.
    Broken,
    /// This event is left out.
    Skip(SkipReason, &'static str),
}

/// A field of some event.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Field {
    BlockHashes,
    ParentBlockHash,
    TokenIds,
    BlockSize,
    LoraId,
    Medium,
    LoraName,
    ExtraKeys,
    GroupIdx,
    Kind,
    SlidingWindow,
    Locality,
    Ownership,
    SessionId,
    Lookahead,
    CacheSalt,
    Origin,
    RemainingCopyCounts,
}

/// `BlockStored`: places after the tag, then the fields that only maps have.
pub(crate) const STORED: [Field; 17] = [
    Field::BlockHashes,
    Field::ParentBlockHash,
    Field::TokenIds,
    Field::BlockSize,
    Field::LoraId,
    Field::Medium,
    Field::LoraName,
    Field::ExtraKeys,
    Field::GroupIdx,
    Field::Kind,
    Field::SlidingWindow,
    Field::Locality,
    Field::Ownership,
    Field::SessionId,
    Field::Lookahead,
    Field::CacheSalt,
    Field::Origin,
];
/// Fields of `STORED` that have a place in arrays.
pub(crate) const STORED_PLACES: usize = 15;

/// `BlockRemoved`, likewise.
pub(crate) const REMOVED: [Field; 6] =
    [Field::BlockHashes, Field::Medium, Field::GroupIdx, Field::Locality, Field::Ownership, Field::RemainingCopyCounts];
/// Fields of `REMOVED` that have a place in arrays.
pub(crate) const REMOVED_PLACES: usize = 5;

/// `TierBlocksCleared`.
pub(crate) const TIER_CLEARED: [Field; 1] = [Field::Medium];

/// Fields as a set of bits.
pub(crate) const fn set_of(fields: &[Field]) -> u32 {
    let (mut set, mut i) = (0, 0);
    while i < fields.len() {
        set |= 1 << fields[i] as u32;
        i += 1;
    }
    set
}

impl Field {
    /// The field with this name on the wire. A match on constants: their lengths tell most of them apart.
    #[inline]
    pub(crate) fn named(name: &[u8]) -> Option<Self> {
        Some(match name {
            b"block_hashes" => Field::BlockHashes,
            b"parent_block_hash" => Field::ParentBlockHash,
            b"token_ids" => Field::TokenIds,
            b"block_size" => Field::BlockSize,
            b"lora_id" => Field::LoraId,
            b"medium" => Field::Medium,
            b"lora_name" => Field::LoraName,
            b"extra_keys" => Field::ExtraKeys,
            b"group_idx" => Field::GroupIdx,
            b"kv_cache_spec_kind" => Field::Kind,
            b"kv_cache_spec_sliding_window" => Field::SlidingWindow,
            b"locality" => Field::Locality,
            b"ownership" => Field::Ownership,
            b"session_id" => Field::SessionId,
            b"lookahead_token_ids" => Field::Lookahead,
            b"cache_salt" => Field::CacheSalt,
            b"origin" => Field::Origin,
            b"remaining_copy_counts" => Field::RemainingCopyCounts,
            _ => return None,
        })
    }

    /// The name on the wire.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Field::BlockHashes => "block_hashes",
            Field::ParentBlockHash => "parent_block_hash",
            Field::TokenIds => "token_ids",
            Field::BlockSize => "block_size",
            Field::LoraId => "lora_id",
            Field::Medium => "medium",
            Field::LoraName => "lora_name",
            Field::ExtraKeys => "extra_keys",
            Field::GroupIdx => "group_idx",
            Field::Kind => "kv_cache_spec_kind",
            Field::SlidingWindow => "kv_cache_spec_sliding_window",
            Field::Locality => "locality",
            Field::Ownership => "ownership",
            Field::SessionId => "session_id",
            Field::Lookahead => "lookahead_token_ids",
            Field::CacheSalt => "cache_salt",
            Field::Origin => "origin",
            Field::RemainingCopyCounts => "remaining_copy_counts",
        }
    }
}

/// What was read of one event so far, of whatever type: it is written where the event will stand, so that a store is
/// never moved.
pub(crate) struct Fields<'e, 'a> {
    /// The fields of a store, which has all of the others' but one.
    pub(crate) stored: &'e mut Stored<'a>,
    /// The one that only removals have.
    pub(crate) remaining_copy_counts: Option<Vec<u64>>,
    /// Which were there, as a set of bits.
    seen: u32,
}

impl<'e, 'a> Fields<'e, 'a> {
    /// Nothing was read yet: `stored` is a fresh one.
    pub(crate) fn new(stored: &'e mut Stored<'a>) -> Self {
        Self { stored, remaining_copy_counts: None, seen: 0 }
    }

    /// An error unless the field was there.
    #[inline]
    pub(crate) fn require(&self, field: Field) -> Result<(), EventError> {
        if self.seen & 1 << field as u32 == 0 {
            return Err(EventError::Skip(SkipReason::MissingField, field.name()));
        }
        Ok(())
    }

    /// Reads the value of a field.
    #[inline(always)]
    pub(crate) fn read(
        &mut self,
        field: Field,
        at: &mut Cursor<'a>,
        limits: &DecodeLimits,
        room: &mut &'a mut [u8],
    ) -> Result<(), EventError> {
        let reader = Reader { field, limits };
        let stored = &mut *self.stored;
        match field {
            Field::BlockHashes => stored.hashes = reader.hashes(at)?,
            Field::ParentBlockHash => {
                let parent = reader.parent(at)?;
                stored.parent = parent.map(WireHash::name);
                stored.parent_digest = parent.and_then(WireHash::digest);
            }
            Field::TokenIds => stored.tokens = reader.tokens(at, room)?,
            Field::BlockSize => stored.block_size = reader.number(at)?.ok_or(reader.bad())?,
            Field::LoraId => stored.lora_id = reader.lora_id(at)?,
            Field::Medium => stored.medium = reader.text(at)?,
            Field::LoraName => self.lora_name_or_salt(reader, at)?,
            Field::ExtraKeys => stored.extra_keys = reader.extra_keys(at)?,
            Field::GroupIdx => stored.group = reader.number(at)?,
            Field::Kind => stored.kind = reader.text(at)?,
            Field::SlidingWindow => stored.sliding_window = reader.number(at)?,
            Field::Locality => stored.locality = reader.text(at)?,
            Field::Ownership => stored.ownership = reader.text(at)?,
            Field::SessionId => stored.session_id = reader.attribution(at)?,
            Field::Lookahead => stored.has_lookahead = reader.presence(at)?,
            Field::CacheSalt => stored.cache_salt = reader.text(at)?,
            Field::Origin => stored.origin = reader.text(at)?,
            Field::RemainingCopyCounts => self.remaining_copy_counts = reader.counts(at)?,
        }
        self.seen |= 1 << field as u32;
        Ok(())
    }

    /// A name, or SGLang's `{"cache_salt": text}` in its place.
    fn lora_name_or_salt(&mut self, reader: Reader<'_>, at: &mut Cursor<'a>) -> Result<(), EventError> {
        let before = *at;
        let Head::Map(pairs) = at.head().map_err(|e| reader.error(e))? else {
            *at = before;
            self.stored.lora_name = reader.text(at)?;
            return Ok(());
        };
        for _ in 0..pairs {
            if at.head().map_err(|e| reader.error(e))? == Head::Text(b"cache_salt") {
                self.stored.cache_salt = reader.text(at)?;
            } else {
                return Err(reader.bad());
            }
        }
        Ok(())
    }
}

/// Reads one field's value and names the field in errors.
#[derive(Clone, Copy)]
struct Reader<'l> {
    field: Field,
    limits: &'l DecodeLimits,
}

impl Reader<'_> {
    fn skip(self, reason: SkipReason) -> EventError {
        EventError::Skip(reason, self.field.name())
    }

    fn bad(self) -> EventError {
        self.skip(SkipReason::BadField)
    }

    fn error(self, e: ReadError) -> EventError {
        match e {
            ReadError::Broken => EventError::Broken,
            ReadError::WrongType => self.bad(),
        }
    }

    /// The length of an array, under its limit.
    #[inline]
    fn length(self, at: &mut Cursor<'_>, max: usize) -> Result<usize, EventError> {
        let len = at.array().map_err(|e| self.error(e))?;
        if len > max { Err(self.skip(SkipReason::OverLimit)) } else { Ok(len) }
    }

    fn hashes<'a>(self, at: &mut Cursor<'a>) -> Result<Hashes<'a>, EventError> {
        let len = self.length(at, self.limits.hashes_per_event_max)?;
        Hashes::read(at, len).map_err(|e| self.error(e))
    }

    fn parent<'a>(self, at: &mut Cursor<'a>) -> Result<Option<WireHash<'a>>, EventError> {
        if self.nil(at)? {
            return Ok(None);
        }
        read_hash(at).map(Some).map_err(|e| self.error(e))
    }

    fn tokens<'a>(self, at: &mut Cursor<'a>, room: &mut &'a mut [u8]) -> Result<Tokens<'a>, EventError> {
        let len = self.length(at, self.limits.tokens_per_event_max)?;
        Tokens::read(at, len, room).map_err(|e| match e {
            TokenError::Read(e) => self.error(e),
            TokenError::OutOfRange => self.skip(SkipReason::TokenOutOfRange),
            TokenError::BrokenBigrams => self.skip(SkipReason::BrokenBigrams),
        })
    }

    fn extra_keys<'a>(self, at: &mut Cursor<'a>) -> Result<ExtraKeys<'a>, EventError> {
        if self.nil(at)? {
            return Ok(ExtraKeys::default());
        }
        let len = self.length(at, self.limits.hashes_per_event_max)?;
        ExtraKeys::read(at, len).map_err(|e| self.error(e))
    }

    /// Whether the next value is nil, which is then read.
    #[inline]
    fn nil(self, at: &mut Cursor<'_>) -> Result<bool, EventError> {
        match at.rest().first() {
            Some(0xc0) => {
                at.advance(1);
                Ok(true)
            }
            Some(_) => Ok(false),
            None => Err(EventError::Broken),
        }
    }

    #[inline]
    fn number(self, at: &mut Cursor<'_>) -> Result<Option<u64>, EventError> {
        if self.nil(at)? {
            return Ok(None);
        }
        if let Some(&small @ ..0x80) = at.rest().first() {
            at.advance(1);
            return Ok(Some(u64::from(small)));
        }
        match at.head().map_err(|e| self.error(e))? {
            Head::Unsigned(v) => Ok(Some(v)),
            _ => Err(self.bad()),
        }
    }

    fn text<'a>(self, at: &mut Cursor<'a>) -> Result<Option<&'a str>, EventError> {
        // What nearly every text field is: nil, the device, the host, or the kind of the one group.
        if self.nil(at)? {
            return Ok(None);
        }
        if self.limits.text_bytes_max >= 3 && at.literal(b"\xa3GPU") {
            return Ok(Some("GPU"));
        }
        if self.limits.text_bytes_max >= 10 && at.literal(b"\xaaCPU_PINNED") {
            return Ok(Some("CPU_PINNED"));
        }
        if self.limits.text_bytes_max >= 14 && at.literal(b"\xaefull_attention") {
            return Ok(Some("full_attention"));
        }
        match at.head().map_err(|e| self.error(e))? {
            Head::Text(t) if t.len() > self.limits.text_bytes_max => Err(self.skip(SkipReason::OverLimit)),
            Head::Text(t) => core::str::from_utf8(t).map(Some).map_err(|_| self.bad()),
            _ => Err(self.bad()),
        }
    }

    /// A text that no answer depends on: anything else, or too long a one, counts as absent.
    fn attribution<'a>(self, at: &mut Cursor<'a>) -> Result<Option<&'a str>, EventError> {
        let before = *at;
        match self.text(at) {
            Err(EventError::Skip(..)) => {
                *at = before;
                at.skip().map_err(|e| self.error(e))?;
                Ok(None)
            }
            read => read,
        }
    }

    /// Deprecated and process-local: it only keeps an adapter apart whose name the engine does not say.
    #[inline]
    fn lora_id(self, at: &mut Cursor<'_>) -> Result<Option<i64>, EventError> {
        if self.nil(at)? {
            return Ok(None);
        }
        let before = *at;
        match at.head().map_err(|e| self.error(e))? {
            Head::Unsigned(v) => Ok(i64::try_from(v).ok()),
            Head::Signed(v) => Ok(Some(v)),
            _ => {
                *at = before;
                at.skip().map_err(|e| self.error(e))?;
                Ok(None)
            }
        }
    }

    /// Whether the value is anything but nil.
    fn presence(self, at: &mut Cursor<'_>) -> Result<bool, EventError> {
        let absent = self.nil(at)?;
        if !absent {
            at.skip().map_err(|e| self.error(e))?;
        }
        Ok(!absent)
    }

    fn counts(self, at: &mut Cursor<'_>) -> Result<Option<Vec<u64>>, EventError> {
        if self.nil(at)? {
            return Ok(None);
        }
        let len = self.length(at, self.limits.hashes_per_event_max)?;
        // Each count is at least a byte, and the array's head was checked against the bytes left.
        let counts = (0..len).map(|_| at.unsigned().map_err(|e| self.error(e)));
        counts.collect::<Result<_, _>>().map(Some)
    }
}
