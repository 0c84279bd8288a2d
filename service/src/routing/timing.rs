//! The engine's own timing: what a prefill takes, how much decoding requests slow it down, and the file that the constants come from.

use super::settings::Timing;
use serde::{Deserialize, Serialize};

/// Most bytes of a timing file.
pub const TIMING_FILE_BYTES_MAX: usize = 64 << 10;
/// Most bytes of a text in it.
const TEXT_BYTES_MAX: usize = 1024;
/// Largest of the five constants, seconds.
const CONSTANT_MAX: f64 = 1.0;
/// Largest count in it.
const COUNT_MAX: u32 = 1 << 30;

/// The timing of a model with about eight billion parameters on one accelerator: [`Timing::CLASS_8B`] as a file.
pub const CLASS_8B_FILE: &str = include_str!("../../timing/class-8b.json");

impl Timing {
    /// Seconds that an idle engine takes for a prompt, of which so many tokens are cached. Something is always computed, and each
    /// pass of the budget costs its base.
    pub fn prefill_seconds(&self, tokens: f64, cached: f64) -> f64 {
        let new = (tokens - cached).max(1.0);
        let passes = (new / self.token_budget).ceil();
        self.kp * new + self.ka * new * (cached + new / 2.0) + passes * self.base
    }

    /// Seconds for so many tokens that are outstanding, of this many requests of equal length: no more is known of them. Passes are
    /// shared.
    pub fn outstanding_seconds(&self, tokens: f64, requests: f64) -> f64 {
        let tokens = tokens.max(0.0);
        let attention = self.ka * tokens * tokens / (2.0 * requests.max(1.0));
        self.kp * tokens + attention + (tokens / self.token_budget).ceil() * self.base
    }

    /// How many times as long a prefill takes beside so many decoding requests with so many tokens of context: the part of a full
    /// pass that is not prefill, over the part that is.
    pub fn inflation(&self, decodes: f64, context: f64) -> f64 {
        1.0 + (self.base + self.kd * decodes + self.kc * context) / (self.kp * self.token_budget)
    }

    /// Whether something can be priced with these constants; the error names the first that makes no sense.
    pub fn check(&self) -> Result<(), TimingError> {
        constant("base", self.base)?;
        constant("kp", self.kp)?;
        constant("ka", self.ka)?;
        constant("kd", self.kd)?;
        constant("kc", self.kc)?;
        // Everything is measured in prefill: without a price it has none.
        if self.kp < f64::MIN_POSITIVE {
            return Err(TimingError::field("kp", self.kp, "above 0"));
        }
        let count = |field, value: f64| {
            let fits = (1.0..=f64::from(COUNT_MAX) * f64::from(COUNT_MAX)).contains(&value);
            if fits { Ok(()) } else { Err(TimingError::field(field, value, "at least 1")) }
        };
        count("token_budget", self.token_budget)?;
        count("pool_tokens", self.pool_tokens)
    }
}

/// Why a timing is refused.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TimingError {
    /// The file is larger than a timing file is.
    #[error("timing file: {bytes} bytes, at most {TIMING_FILE_BYTES_MAX}")]
    TooLarge {
        /// Its bytes.
        bytes: usize,
    },
    /// It is no JSON, lacks a field or has one too many.
    #[error("timing file: {0}")]
    Syntax(String),
    /// A field is out of its range.
    #[error("timing: {field} is {value}, must be {limit}")]
    Field {
        /// The field.
        field: &'static str,
        /// What it is.
        value: String,
        /// What it may be.
        limit: &'static str,
    },
}

impl TimingError {
    fn field(field: &'static str, value: impl std::fmt::Display, limit: &'static str) -> Self {
        Self::Field { field, value: value.to_string(), limit }
    }
}

/// How far measured passes are from the formula.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimingFit {
    /// Passes that were measured.
    pub samples: u64,
    /// Mean distance, seconds.
    pub mean: f64,
    /// Distance that one pass in a hundred exceeds, seconds.
    pub p99: f64,
}

/// A timing file: JSON, one object with these fields. What each means stands in `timing/README.md`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimingFile {
    /// What model was measured.
    pub model: String,
    /// On what.
    pub device: String,
    /// Seconds a pass.
    pub base: f64,
    /// Seconds a prompt token.
    pub kp: f64,
    /// Seconds a prompt token and token before it.
    pub ka: f64,
    /// Seconds a decoding request.
    pub kd: f64,
    /// Seconds a token of decoding context.
    pub kc: f64,
    /// Blocks of the KV pool.
    pub pool_blocks: u32,
    /// Tokens in a block.
    pub block_size: u32,
    /// Tokens of a pass.
    pub token_budget: u32,
    /// Requests that run at once.
    pub seats: u32,
    /// How well the constants fit. Absent: nothing was fitted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fit: Option<TimingFit>,
    /// Fingerprint of the machine that was measured. Absent: none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<String>,
}

impl TimingFile {
    /// Reads and checks a file's bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, TimingError> {
        if bytes.len() > TIMING_FILE_BYTES_MAX {
            return Err(TimingError::TooLarge { bytes: bytes.len() });
        }
        let file: Self = serde_json::from_slice(bytes).map_err(|error| TimingError::Syntax(error.to_string()))?;
        file.check()?;
        Ok(file)
    }

    /// The constants that decisions are made with.
    pub fn timing(&self) -> Timing {
        let Self { base, kp, ka, kd, kc, .. } = *self;
        let token_budget = f64::from(self.token_budget);
        let pool_tokens = f64::from(self.pool_blocks) * f64::from(self.block_size);
        Timing { base, kp, ka, kd, kc, token_budget, pool_tokens }
    }

    fn check(&self) -> Result<(), TimingError> {
        text("model", &self.model)?;
        text("device", &self.device)?;
        text("host", self.host.as_deref().unwrap_or_default())?;
        count("pool_blocks", self.pool_blocks)?;
        count("block_size", self.block_size)?;
        count("token_budget", self.token_budget)?;
        count("seats", self.seats)?;
        if let Some(fit) = self.fit {
            constant("fit.mean", fit.mean)?;
            constant("fit.p99", fit.p99)?;
        }
        self.timing().check()
    }
}

fn constant(field: &'static str, value: f64) -> Result<(), TimingError> {
    let fits = (0.0..=CONSTANT_MAX).contains(&value);
    if fits { Ok(()) } else { Err(TimingError::field(field, value, "from 0 to 1 second")) }
}

fn count(field: &'static str, value: u32) -> Result<(), TimingError> {
    let fits = (1..=COUNT_MAX).contains(&value);
    if fits { Ok(()) } else { Err(TimingError::field(field, value, "from 1 to 1073741824")) }
}

fn text(field: &'static str, value: &str) -> Result<(), TimingError> {
    let bytes = value.len();
    if bytes <= TEXT_BYTES_MAX {
        return Ok(());
    }
    Err(TimingError::field(field, format_args!("{bytes} bytes long"), "at most 1024 bytes long"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn with(field: &str, value: Value) -> Result<TimingFile, TimingError> {
        let mut file: Value = serde_json::from_str(CLASS_8B_FILE).unwrap();
        file[field] = value;
        TimingFile::parse(file.to_string().as_bytes())
    }

    #[test]
    fn the_documented_file_is_the_calibration_of_the_simulations() {
        let file = TimingFile::parse(CLASS_8B_FILE.as_bytes()).unwrap();
        assert_eq!((file.timing(), file.seats, file.fit), (Timing::CLASS_8B, 256, None));
        let again = serde_json::to_vec(&file).unwrap();
        assert_eq!(TimingFile::parse(&again).unwrap(), file);
    }

    #[test]
    fn a_field_out_of_its_range_is_named_with_its_limit() {
        let rows = [
            ("base", json!(-0.001), "base is -0.001, must be from 0 to 1 second"),
            ("kp", json!(0.0), "kp is 0, must be above 0"),
            ("kp", json!(1e-310), "must be above 0"),
            ("ka", json!(1.5), "ka is 1.5, must be from 0 to 1 second"),
            ("kd", json!(2), "kd is 2"),
            ("kc", json!(-1), "kc is -1"),
            ("pool_blocks", json!(0), "pool_blocks is 0, must be from 1 to 1073741824"),
            ("block_size", json!(0), "block_size is 0"),
            ("token_budget", json!(u32::MAX), "token_budget is 4294967295"),
            ("seats", json!(0), "seats is 0"),
            ("model", json!("m".repeat(1025)), "model is 1025 bytes long, must be at most 1024 bytes long"),
            ("host", json!("h".repeat(1025)), "host is 1025 bytes long"),
            ("fit", json!({"samples": 1, "mean": -1.0, "p99": 0.0}), "fit.mean is -1"),
        ];
        for (field, value, message) in rows {
            let error = with(field, value).unwrap_err();
            assert!(matches!(error, TimingError::Field { .. }) && error.to_string().contains(message), "{error}");
        }
    }

    #[test]
    fn what_is_no_timing_file_is_refused_whole() {
        for (field, value) in [("kp", json!("fast")), ("seats", json!(-1)), ("kpp", json!(1)), ("fit", json!({}))] {
            assert!(matches!(with(field, value), Err(TimingError::Syntax(_))), "{field}");
        }
        for bytes in [b"".as_slice(), b"{", b"[]", b"{\"base\": 0}", b"{\"base\": 1e999}", &[0xff; 9]] {
            assert!(matches!(TimingFile::parse(bytes), Err(TimingError::Syntax(_))));
        }
        let large = vec![b' '; TIMING_FILE_BYTES_MAX + 1];
        assert_eq!(TimingFile::parse(&large), Err(TimingError::TooLarge { bytes: large.len() }));
    }

    #[test]
    fn constants_that_came_another_way_are_checked_as_well() {
        assert_eq!(Timing::CLASS_8B.check(), Ok(()));
        for wrong in [
            Timing { kp: f64::NAN, ..Timing::CLASS_8B },
            Timing { base: f64::INFINITY, ..Timing::CLASS_8B },
            Timing { token_budget: 0.0, ..Timing::CLASS_8B },
            Timing { pool_tokens: f64::NAN, ..Timing::CLASS_8B },
        ] {
            assert!(matches!(wrong.check(), Err(TimingError::Field { .. })), "{wrong:?}");
        }
    }

    #[test]
    fn prefills_are_priced_by_the_formula() {
        let timing = Timing { base: 0.01, kp: 1e-4, ka: 1e-8, kd: 1e-3, kc: 1e-6, ..Timing::CLASS_8B };
        let near = |is: f64, expected: f64| assert!((is - expected).abs() < 1e-12, "{is} {expected}");
        near(timing.prefill_seconds(4096.0, 0.0), 0.4096 + 1e-8 * 4096.0 * 2048.0 + 0.02);
        near(timing.prefill_seconds(4096.0, 2047.0), 0.2049 + 1e-8 * 2049.0 * (2047.0 + 1024.5) + 0.02);
        // The last token of a prompt that is cached whole is computed again.
        near(timing.prefill_seconds(4096.0, 4096.0), 1e-4 + 1e-8 * 4096.5 + 0.01);
        near(timing.outstanding_seconds(4096.0, 1.0), timing.prefill_seconds(4096.0, 0.0));
        near(timing.outstanding_seconds(4096.0, 4.0), 0.4096 + 1e-8 * 4096.0 * 512.0 + 0.02);
        near(timing.outstanding_seconds(0.0, 0.0), 0.0);
        near(timing.inflation(10.0, 20_000.0), 1.0 + (0.01 + 0.01 + 0.02) / 0.2048);
    }
}
