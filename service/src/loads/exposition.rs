//! Prometheus text, read line by line: names, labels, values. What cannot be read costs its line, not the rest. Pure.

/// A line of a text.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Sample<'a> {
    /// The metric's name.
    pub name: &'a str,
    /// What stands between the braces; empty without any.
    labels: &'a str,
    /// The value; may be NaN or infinite.
    pub value: f64,
}

impl<'a> Sample<'a> {
    /// The value of a label as it is written: escapes stay. `None`: there is none of this name, or the labels cannot be read up to it.
    pub fn label(&self, wanted: &str) -> Option<&'a str> {
        let mut rest = self.labels.trim_start_matches([',', ' ']);
        while !rest.is_empty() {
            let (name, after) = rest.split_once('=')?;
            let after = after.trim_start().strip_prefix('"')?;
            let end = closing_quote(after)?;
            if name.trim() == wanted {
                return Some(&after[..end]);
            }
            rest = after[end + 1..].trim_start_matches([',', ' ']);
        }
        None
    }
}

/// Where the quote is that no backslash stands before.
fn closing_quote(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|byte| {
        let closes = byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

/// Why a text is not read at all.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ExpositionError {
    /// It is not UTF-8.
    #[error("the text is not UTF-8")]
    Encoding,
}

/// A text.
#[derive(Clone, Copy, Debug)]
pub struct Exposition<'a> {
    text: &'a str,
}

impl<'a> Exposition<'a> {
    /// A text out of its bytes, whose number is the caller's to bound.
    pub fn new(bytes: &'a [u8]) -> Result<Self, ExpositionError> {
        std::str::from_utf8(bytes).map(|text| Self { text }).map_err(|_| ExpositionError::Encoding)
    }

    /// The samples that can be read.
    pub fn samples(self) -> impl Iterator<Item = Sample<'a>> {
        self.text.lines().filter_map(sample)
    }
}

fn sample(line: &str) -> Option<Sample<'_>> {
    let line = line.trim();
    if line.is_empty() || line.starts_with('#') {
        return None;
    }
    let name_end = line.find(|c: char| c == '{' || c.is_whitespace())?;
    let (name, rest) = line.split_at(name_end);
    let (labels, rest) = match rest.trim_start().strip_prefix('{') {
        Some(inside) => {
            let end = closing_brace(inside)?;
            (&inside[..end], &inside[end + 1..])
        }
        None => ("", rest),
    };
    // A time may follow.
    let value = rest.split_whitespace().next()?.parse().ok()?;
    (!name.is_empty()).then_some(Sample { name, labels, value })
}

/// Where the brace is that stands in no quotes.
fn closing_brace(text: &str) -> Option<usize> {
    let (mut quoted, mut escaped) = (false, false);
    text.bytes().position(|byte| {
        let closes = byte == b'}' && !quoted;
        quoted ^= byte == b'"' && !escaped;
        escaped = byte == b'\\' && !escaped;
        closes
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;

    fn samples(text: &str) -> Vec<Sample<'_>> {
        Exposition::new(text.as_bytes()).unwrap().samples().collect()
    }

    #[test]
    fn names_labels_and_values() {
        let text =
            "# HELP a Something.\n# TYPE a gauge\na 1\n\nb{x=\"1\", y=\"}\\\"{\",} 2.5e3 1700000000\n  c{} +Inf\nd NaN";
        let all = samples(text);
        assert_eq!(all.iter().map(|s| s.name).collect::<Vec<_>>(), ["a", "b", "c", "d"]);
        assert_eq!((all[1].value, all[1].label("x"), all[1].label("y")), (2500.0, Some("1"), Some("}\\\"{")));
        assert_eq!((all[1].label("z"), all[0].label("x")), (None, None));
        assert!(all[2].value.is_infinite() && all[3].value.is_nan());
    }

    #[test]
    fn a_line_that_cannot_be_read_costs_itself() {
        let all = samples("a{x=\"1\" 3\nb{x 4\n5\nc one\n{x=\"1\"} 2\nd{x=1} 6\ne 7");
        assert_eq!(all.iter().map(|s| (s.name, s.value)).collect::<Vec<_>>(), [("d", 6.0), ("e", 7.0)]);
        assert_eq!(all[0].label("x"), None);
        assert_eq!(Exposition::new(&[0xff, b'a']).err(), Some(ExpositionError::Encoding));
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2_000, rng_seed: RngSeed::Fixed(0x10ad), failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn no_text_is_too_strange(bytes in prop::collection::vec(prop_oneof![any::<u8>(), prop::sample::select(b"a{}=\",\\ 1.\n#".to_vec())], 0..200)) {
            if let Ok(text) = Exposition::new(&bytes) {
                for sample in text.samples() {
                    prop_assert!(!sample.name.is_empty());
                    let _ = sample.label("a");
                }
            }
        }
    }
}
