//! Bytes of a rank frame: whose state follows, where it was cut, what goes with it.

use crate::ingest::{Engine, Trust};
use crate::seed::{Cut, Identity, Learned, PROOFS_MAX, Proof};

/// Longest text that is read.
const TEXT_BYTES_MAX: usize = 1 << 16;

/// Reads numbers and texts; what is not there, or means nothing, is an error in words.
pub(super) struct Input<'a>(pub(super) &'a [u8]);

impl<'a> Input<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], &'static str> {
        let (taken, rest) = self.0.split_at_checked(count).ok_or("its payload ends too early")?;
        self.0 = rest;
        Ok(taken)
    }

    pub(super) fn byte(&mut self) -> Result<u8, &'static str> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    pub(super) fn number(&mut self) -> Result<u64, &'static str> {
        let bytes = self.bytes(8)?;
        Ok(u64::from_le_bytes(bytes.try_into().expect("eight bytes were taken")))
    }

    pub(super) fn small(&mut self) -> Result<u32, &'static str> {
        let bytes = self.bytes(4)?;
        Ok(u32::from_le_bytes(bytes.try_into().expect("four bytes were taken")))
    }

    pub(super) fn end(&self) -> Result<(), &'static str> {
        if self.0.is_empty() { Ok(()) } else { Err("its payload goes on behind its end") }
    }

    fn flag(&mut self) -> Result<bool, &'static str> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err("a flag is neither 0 nor 1"),
        }
    }

    fn text(&mut self) -> Result<String, &'static str> {
        let length = self.small()? as usize;
        if length > TEXT_BYTES_MAX {
            return Err("a text is too long");
        }
        let bytes = self.bytes(length)?;
        std::str::from_utf8(bytes).map(str::to_owned).map_err(|_| "a text is not UTF-8")
    }

    fn optional<T>(
        &mut self,
        read: impl FnOnce(&mut Self) -> Result<T, &'static str>,
    ) -> Result<Option<T>, &'static str> {
        if self.flag()? { read(self).map(Some) } else { Ok(None) }
    }
}

/// What a rank frame says.
pub(super) struct RankFrame {
    pub(super) identity: Identity,
    pub(super) cut: Cut,
    pub(super) learned: Learned,
    pub(super) stores_frames: u32,
}

/// Appends a rank frame's payload.
pub(super) fn write_rank(rank: &RankFrame, out: &mut Vec<u8>) {
    let RankFrame { identity, cut, learned, stores_frames } = rank;
    text(&identity.worker, out);
    out.extend(identity.rank.to_le_bytes());
    text(&identity.model, out);
    out.extend(identity.block_size.to_le_bytes());
    out.push(match identity.engine {
        Engine::Auto => 0,
        Engine::Vllm => 1,
        Engine::Sglang => 2,
    });
    out.extend([identity.bigram, identity.report_mode_full].map(u8::from));
    optional(identity.hash_seed.as_deref(), out, text);
    optional(identity.hash_scheme.as_deref(), out, text);
    out.extend(cut.cursor.to_le_bytes());
    out.extend(cut.incarnation.to_le_bytes());
    out.push(match cut.trust {
        Trust::NeverSeen => 0,
        Trust::Bootstrapping => 1,
        Trust::Exact => 2,
        Trust::Partial => 3,
        Trust::Degraded => 4,
        Trust::Misconfigured => 5,
    });
    out.push(u8::try_from(cut.proofs.len()).unwrap_or(u8::MAX));
    for proof in &cut.proofs {
        out.extend(proof.sequence.to_le_bytes());
        out.extend(proof.payload_hash.to_le_bytes());
    }
    optional(learned.main_group, out, |group, out| out.extend(group.to_le_bytes()));
    out.extend([learned.size_agrees, learned.upper_bound].map(u8::from));
    out.extend(stores_frames.to_le_bytes());
}

/// Reads a rank frame's payload.
pub(super) fn read_rank(payload: &[u8]) -> Result<RankFrame, &'static str> {
    let mut input = Input(payload);
    let identity = Identity {
        worker: input.text()?,
        rank: input.small()?,
        model: input.text()?,
        block_size: input.small()?,
        engine: match input.byte()? {
            0 => Engine::Auto,
            1 => Engine::Vllm,
            2 => Engine::Sglang,
            _ => return Err("an engine is unknown"),
        },
        bigram: input.flag()?,
        report_mode_full: input.flag()?,
        hash_seed: input.optional(Input::text)?,
        hash_scheme: input.optional(Input::text)?,
    };
    let (cursor, incarnation) = (input.number()?, input.number()?);
    let trust = match input.byte()? {
        0 => Trust::NeverSeen,
        1 => Trust::Bootstrapping,
        2 => Trust::Exact,
        3 => Trust::Partial,
        4 => Trust::Degraded,
        5 => Trust::Misconfigured,
        _ => return Err("a trust is unknown"),
    };
    let count = usize::from(input.byte()?);
    if count > PROOFS_MAX {
        return Err("too many proofs");
    }
    let mut proofs = Vec::with_capacity(count);
    for _ in 0..count {
        proofs.push(Proof { sequence: input.number()?, payload_hash: input.number()? });
    }
    let cut = Cut { cursor, incarnation, trust, proofs };
    let main_group = input.optional(Input::number)?;
    let learned = Learned { main_group, size_agrees: input.flag()?, upper_bound: input.flag()? };
    let stores_frames = input.small()?;
    input.end()?;
    Ok(RankFrame { identity, cut, learned, stores_frames })
}

fn text(text: &str, out: &mut Vec<u8>) {
    out.extend((text.len() as u32).to_le_bytes());
    out.extend(text.as_bytes());
}

fn optional<T>(value: Option<T>, out: &mut Vec<u8>, write: impl FnOnce(T, &mut Vec<u8>)) {
    out.push(u8::from(value.is_some()));
    if let Some(value) = value {
        write(value, out);
    }
}
