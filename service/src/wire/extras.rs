//! vLLM's extra keys: what besides its tokens a block depends on.
//!
//! One entry a block hash, nil or a list. The wire is untagged: a bare text is the LoRA name or the cache salt, `[text, n]`
//! a multimodal item and its offset from the block's first token, bytes the digest of prompt embeddings. Tagged forms, as the
//! engine hashes them, are taken as well. In order they are LoRA, items, salt (first block only), embeddings.
//!
//! A bare text is told apart so: one equal to the event's LoRA name is that, once. Of what is left on the first block of a
//! chain the last is the salt; any other is an item without an offset (vLLM 0.17 and 0.18 sent no offsets). So a lone
//! identifier on the first block of such an engine reads as a salt: its blocks are found by no lookup rather than by a
//! wrong one.

use super::msgpack::{Cursor, Head, ReadError};
use core::fmt;

/// One thing that a block depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Extra<'a> {
    /// The adapter.
    Lora(&'a str),
    /// The cache salt.
    Salt(&'a str),
    /// A multimodal item that overlaps the block.
    Item {
        /// What the engine calls it, a digest of the content as a rule.
        identifier: &'a str,
        /// Its first token relative to the block's first; negative where it began in an earlier block.
        offset: Option<i64>,
    },
    /// Digest of prompt embeddings.
    Embeds(&'a [u8]),
    /// Something that this version does not know, as raw msgpack: it still sets blocks apart.
    Opaque(&'a [u8]),
}

/// Marker of nil: nearly every entry is one.
const NIL: u8 = 0xc0;

/// The extra keys of one event.
#[derive(Clone, Copy, Default)]
pub struct ExtraKeys<'a> {
    raw: &'a [u8],
    len: usize,
    all_nil: bool,
}

impl<'a> ExtraKeys<'a> {
    /// Reads `len` entries that a head announced; each must be nil or a list.
    pub(crate) fn read(at: &mut Cursor<'a>, len: usize) -> Result<Self, ReadError> {
        let start = *at;
        let mut all_nil = true;
        let nils = at.rest().iter().take(len).take_while(|&&marker| marker == NIL).count();
        at.advance(nils);
        for _ in nils..len {
            let entry = *at;
            match at.head()? {
                Head::Nil => {}
                Head::Array(n) => {
                    all_nil &= n == 0;
                    *at = entry;
                    at.skip()?;
                }
                _ => return Err(ReadError::WrongType),
            }
        }
        Ok(Self { raw: start.until(at), len, all_nil })
    }

    /// Entries; 0 if the event has no such field.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the event has no entries.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether no block depends on anything but its tokens.
    pub fn all_nil(&self) -> bool {
        self.len == 0 || self.all_nil
    }

    /// The entries, one a block.
    pub fn iter(&self) -> impl Iterator<Item = Entry<'a>> + 'a {
        let mut at = Cursor::new(self.raw);
        (0..self.len).map_while(move |_| {
            let start = at;
            at.skip().ok()?;
            Some(Entry { raw: start.until(&at) })
        })
    }
}

impl PartialEq for ExtraKeys<'_> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.raw == other.raw
    }
}

impl fmt::Debug for ExtraKeys<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.iter().map(|e| e.items("", false).collect::<Vec<_>>())).finish()
    }
}

/// What one block depends on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry<'a> {
    raw: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The entry's parts. `lora_name` is the event's (empty for none), `first_block` whether the block is at position 0.
    pub fn items(&self, lora_name: &'a str, first_block: bool) -> impl Iterator<Item = Extra<'a>> + 'a {
        let mut at = Cursor::new(self.raw);
        let mut left = at.array().unwrap_or(0);
        let mut lora_left = !lora_name.is_empty();
        core::iter::from_fn(move || {
            left = left.checked_sub(1)?;
            let start = at;
            at.skip().ok()?;
            Some(match read_item(start) {
                Some(Extra::Lora(name)) => {
                    lora_left = false;
                    Extra::Lora(name)
                }
                Some(Extra::Salt(text)) if lora_left && text == lora_name => {
                    lora_left = false;
                    Extra::Lora(text)
                }
                Some(Extra::Salt(text)) if !is_bare(start) || (first_block && !bare_follows(at, left)) => {
                    Extra::Salt(text)
                }
                Some(Extra::Salt(text)) => Extra::Item { identifier: text, offset: None },
                Some(other) => other,
                None => Extra::Opaque(start.until(&at)),
            })
        })
    }
}

fn is_bare(at: Cursor<'_>) -> bool {
    matches!(at.clone().head(), Ok(Head::Text(_)))
}

fn bare_follows(mut at: Cursor<'_>, left: usize) -> bool {
    (0..left).any(|_| {
        let bare = is_bare(at);
        at.skip().is_ok() && bare
    })
}

fn text<'a>(at: &mut Cursor<'a>) -> Option<&'a str> {
    at.expect(|h| if let Head::Text(t) = h { core::str::from_utf8(t).ok() } else { None }).ok()
}

fn number(at: &mut Cursor<'_>) -> Option<i64> {
    at.expect(|h| match h {
        Head::Unsigned(v) => i64::try_from(v).ok(),
        Head::Signed(v) => Some(v),
        _ => None,
    })
    .ok()
}

/// Reads one part by its form alone; a bare text comes back as a salt.
fn read_item(mut at: Cursor<'_>) -> Option<Extra<'_>> {
    let before = at;
    match at.head().ok()? {
        Head::Text(t) => core::str::from_utf8(t).ok().map(Extra::Salt),
        Head::Bytes(b) => Some(Extra::Embeds(b)),
        Head::Map(1) if text(&mut at)? == "cache_salt" => text(&mut at).map(Extra::Salt),
        Head::Array(n) => {
            at = before;
            at.array().ok()?;
            read_tuple(at, n)
        }
        _ => None,
    }
}

/// `[identifier, offset]` or a tagged form.
fn read_tuple(mut at: Cursor<'_>, len: usize) -> Option<Extra<'_>> {
    let head = text(&mut at)?;
    if len == 2
        && let Some(offset) = number(&mut at)
    {
        return Some(Extra::Item { identifier: head, offset: Some(offset) });
    }
    match (head, len) {
        ("lora", 2 | 3) => text(&mut at).map(Extra::Lora),
        ("cache_salt", 2) => text(&mut at).map(Extra::Salt),
        ("mm", 2) => Some(Extra::Item { identifier: text(&mut at)?, offset: None }),
        ("mm", 3) => Some(Extra::Item { identifier: text(&mut at)?, offset: Some(number(&mut at)?) }),
        ("prompt_embeds", 2) => at.expect(|h| if let Head::Bytes(b) = h { Some(Extra::Embeds(b)) } else { None }).ok(),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text_bytes(s: &str) -> Vec<u8> {
        [&[0xa0 | s.len() as u8][..], s.as_bytes()].concat()
    }

    fn entry(parts: &[Vec<u8>]) -> Vec<u8> {
        [vec![0x90 | parts.len() as u8], parts.concat()].concat()
    }

    fn read<'a>(raw: &'a [u8], lora: &'a str, first: bool) -> Vec<Extra<'a>> {
        let keys = ExtraKeys::read(&mut Cursor::new(raw), 1).unwrap();
        keys.iter().next().unwrap().items(lora, first).collect()
    }

    #[test]
    fn lora_is_subtracted_once_then_the_last_text_of_the_first_block_is_the_salt() {
        let raw = entry(&[text_bytes("sql"), text_bytes("sql")]);
        assert_eq!(read(&raw, "sql", true), [Extra::Lora("sql"), Extra::Salt("sql")]);
        let raw = entry(&[text_bytes("img"), text_bytes("t1")]);
        let bare = Extra::Item { identifier: "img", offset: None };
        assert_eq!(read(&raw, "", true), [bare, Extra::Salt("t1")]);
        let raw = entry(&[text_bytes("img")]);
        assert_eq!(read(&raw, "", false), [bare]);
        assert_eq!(read(&raw, "img", false), [Extra::Lora("img")]);
    }

    #[test]
    fn items_embeddings_and_unknown_parts() {
        let item = [vec![0x92], text_bytes("img"), vec![0xfe]].concat();
        let raw = entry(&[item, vec![0xc4, 2, 7, 8], vec![0xc3], text_bytes("s")]);
        let want = [
            Extra::Item { identifier: "img", offset: Some(-2) },
            Extra::Embeds(&[7, 8]),
            Extra::Opaque(&[0xc3]),
            Extra::Salt("s"),
        ];
        assert_eq!(read(&raw, "", true), want);
    }

    #[test]
    fn tagged_forms() {
        let raw = entry(&[
            [vec![0x93], text_bytes("lora"), text_bytes("a"), text_bytes("/p")].concat(),
            [vec![0x93], text_bytes("mm"), text_bytes("i"), vec![3]].concat(),
            [vec![0x92], text_bytes("cache_salt"), text_bytes("s")].concat(),
            [vec![0x92], text_bytes("prompt_embeds"), vec![0xc4, 1, 9]].concat(),
            [vec![0x81], text_bytes("cache_salt"), text_bytes("m")].concat(),
        ]);
        let want = [
            Extra::Lora("a"),
            Extra::Item { identifier: "i", offset: Some(3) },
            Extra::Salt("s"),
            Extra::Embeds(&[9]),
            Extra::Salt("m"),
        ];
        assert_eq!(read(&raw, "a", true), want);
    }

    #[test]
    fn an_entry_is_nil_or_a_list() {
        let keys = ExtraKeys::read(&mut Cursor::new(&[0xc0, 0x90]), 2).unwrap();
        assert!(keys.all_nil());
        assert_eq!(keys.iter().count(), 2);
        assert_eq!(ExtraKeys::read(&mut Cursor::new(&[1]), 1), Err(ReadError::WrongType));
    }
}
