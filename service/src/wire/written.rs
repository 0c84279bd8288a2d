//! The few msgpack forms that engines write, each in its shortest encoding, as theirs are.

use kvatlas_index::EngineHash;

/// What was written so far.
#[derive(Debug, Default)]
pub(crate) struct Msgpack {
    pub(crate) bytes: Vec<u8>,
}

impl Msgpack {
    /// `nil`.
    pub(crate) fn nil(&mut self) {
        self.bytes.push(0xc0);
    }

    /// A float of 64 bits.
    pub(crate) fn float(&mut self, value: f64) {
        self.bytes.push(0xcb);
        self.bytes.extend(value.to_be_bytes());
    }

    /// An unsigned integer in its shortest form.
    pub(crate) fn uint(&mut self, value: u64) {
        match value {
            0..=0x7f => self.bytes.push(value as u8),
            0x80..=0xff => self.bytes.extend([0xcc, value as u8]),
            0x100..=0xffff => self.wide(0xcd, &(value as u16).to_be_bytes()),
            0x1_0000..=0xffff_ffff => self.wide(0xce, &(value as u32).to_be_bytes()),
            _ => self.wide(0xcf, &value.to_be_bytes()),
        }
    }

    /// An integer in its shortest form.
    pub(crate) fn int(&mut self, value: i64) {
        match value {
            0.. => self.uint(value as u64),
            -32..0 => self.bytes.push(value as u8),
            -0x80..-32 => self.wide(0xd0, &(value as i8).to_be_bytes()),
            -0x8000..-0x80 => self.wide(0xd1, &(value as i16).to_be_bytes()),
            -0x8000_0000..-0x8000 => self.wide(0xd2, &(value as i32).to_be_bytes()),
            _ => self.wide(0xd3, &value.to_be_bytes()),
        }
    }

    fn wide(&mut self, head: u8, value: &[u8]) {
        self.bytes.push(head);
        self.bytes.extend(value);
    }

    /// A string.
    pub(crate) fn text(&mut self, text: &str) {
        match text.len() {
            len @ 0..=31 => self.bytes.push(0xa0 | len as u8),
            len @ 32..=255 => self.bytes.extend([0xd9, len as u8]),
            len => self.wide(0xdb, &(len as u32).to_be_bytes()),
        }
        self.bytes.extend(text.as_bytes());
    }

    /// The head of an array.
    pub(crate) fn array(&mut self, len: usize) {
        match len {
            0..=15 => self.bytes.push(0x90 | len as u8),
            16..=0xffff => self.wide(0xdc, &(len as u16).to_be_bytes()),
            _ => self.wide(0xdd, &(len as u32).to_be_bytes()),
        }
    }

    /// A map of at most 15 entries.
    pub(crate) fn map(&mut self, len: usize) {
        debug_assert!(len < 16, "an event has few fields");
        self.bytes.push(0x80 | len as u8);
    }

    /// A key and its value.
    pub(crate) fn entry(&mut self, key: &str, value: impl FnOnce(&mut Self)) {
        self.text(key);
        value(self);
    }

    /// Token ids.
    pub(crate) fn tokens(&mut self, tokens: &[u32]) {
        self.array(tokens.len());
        tokens.iter().for_each(|&t| self.uint(t.into()));
    }

    /// A name as vLLM writes it.
    pub(crate) fn unsigned(&mut self, name: EngineHash) {
        self.uint(name.0);
    }

    /// A name as SGLang writes it.
    pub(crate) fn signed(&mut self, name: EngineHash) {
        self.int(name.0 as i64);
    }

    /// Names, one after the other.
    pub(crate) fn names(&mut self, names: &[EngineHash], one: fn(&mut Self, EngineHash)) {
        self.array(names.len());
        names.iter().for_each(|&name| one(self, name));
    }

    /// A name or nil.
    pub(crate) fn optional(&mut self, name: Option<EngineHash>, one: fn(&mut Self, EngineHash)) {
        match name {
            Some(name) => one(self, name),
            None => self.nil(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_take_their_shortest_form() {
        let int = |v| {
            let mut out = Msgpack::default();
            out.int(v);
            out.bytes
        };
        assert_eq!(int(-1), [0xff]);
        assert_eq!(int(-33), [0xd0, 0xdf]);
        assert_eq!(int(127), [0x7f]);
        assert_eq!(int(256), [0xcd, 1, 0]);
        assert_eq!(int(i64::MIN)[0], 0xd3);
        assert_eq!(int(i64::MAX)[0], 0xcf);
    }
}
