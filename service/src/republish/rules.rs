//! Which ranks are republished, where and how.

use std::net::IpAddr;
use std::str::FromStr;
use std::time::Duration;

/// How replay replies look. The engines changed it once; consumers read one of the two, or both.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ReplayLayout {
    /// With the topic, as vLLM since 0.26 and SGLang since 0.5.22.
    #[default]
    WithTopic,
    /// Without, as before.
    WithoutTopic,
}

/// Not a layout.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0:?} is none of with_topic, without_topic")]
pub struct ReplayLayoutError(String);

impl FromStr for ReplayLayout {
    type Err = ReplayLayoutError;

    fn from_str(text: &str) -> Result<Self, ReplayLayoutError> {
        match text {
            "with_topic" => Ok(Self::WithTopic),
            "without_topic" => Ok(Self::WithoutTopic),
            other => Err(ReplayLayoutError(other.into())),
        }
    }
}

/// One rule: the workers that it is for, and where their ranks are served.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct WireRule {
    /// A worker's id; `*` stands for any text.
    pub worker: String,
    /// Address that both sockets bind to.
    pub host: IpAddr,
    /// Port of rank 0's live stream; rank `r` has the port plus `r`. 0: a free one for each rank.
    pub events_port: u16,
    /// Port of rank 0's replays, in the same way.
    pub replay_port: u16,
    /// Topic of every message; `{worker}` and `{model}` in it are filled in.
    pub topic: String,
    /// How replay replies look.
    pub layout: ReplayLayout,
}

impl WireRule {
    /// Whether the rule is for this worker.
    pub fn is_for(&self, worker: &str) -> bool {
        matches(&self.worker, worker)
    }

    /// The ports of a rank; `None` beyond 65535.
    pub fn ports(&self, rank: u32) -> Option<(u16, u16)> {
        let port = |base: u16| match base {
            0 => Some(0),
            base => u16::try_from(u32::from(base).checked_add(rank)?).ok(),
        };
        Some((port(self.events_port)?, port(self.replay_port)?))
    }

    /// The topic of a worker's ranks.
    pub fn topic_of(&self, worker: &str, model: &str) -> String {
        self.topic.replace("{worker}", worker).replace("{model}", model)
    }
}

/// Limits of every rank that is republished.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct WireLimits {
    /// `relay.wire_consumers_max`: connections of each of a rank's two sockets; further ones are closed at once.
    pub consumers_max: usize,
    /// `relay.wire_stall_max_ms`: time in which a consumer has to take something, and to shake hands.
    pub stall_max: Duration,
}

impl Default for WireLimits {
    fn default() -> Self {
        Self { consumers_max: 64, stall_max: Duration::from_secs(10) }
    }
}

/// Everything about it. The default republishes nothing.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct WireSettings {
    /// The rules; the first one that is for a worker holds.
    pub rules: Vec<WireRule>,
    /// The limits.
    pub limits: WireLimits,
}

impl WireSettings {
    /// The rule for a worker.
    pub fn rule(&self, worker: &str) -> Option<&WireRule> {
        self.rules.iter().find(|rule| rule.is_for(worker))
    }
}

/// Whether a text is what a pattern says, `*` being any text. Takes time in proportion to the two lengths multiplied.
fn matches(pattern: &str, text: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(head) else { return false };
    let Some((middle, tail)) = rest.rsplit_once('*') else { return text.ends_with(rest) };
    // Each part between two stars at its first place: that leaves the most for those that follow.
    for part in middle.split('*') {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
    }
    text.ends_with(tail)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(worker: &str, events_port: u16, replay_port: u16) -> WireRule {
        let (host, layout) = (IpAddr::from([127, 0, 0, 1]), ReplayLayout::default());
        WireRule { worker: worker.into(), host, events_port, replay_port, topic: "kv@{worker}@{model}".into(), layout }
    }

    #[test]
    fn a_pattern_is_what_it_looks_like() {
        for (pattern, yes, no) in [
            ("w", &["w"][..], &["", "ww", "aw"][..]),
            ("*", &["", "w", "http://w:8000"], &[]),
            ("w*", &["w", "wa"], &["", "aw"]),
            ("*w", &["w", "aw"], &["", "wa"]),
            ("a*b", &["ab", "axb", "abab"], &["a", "b", "aba", ""]),
            ("aa*aa", &["aaaa", "aabaa"], &["aa", "aaa"]),
            ("a*b*c", &["abc", "axbxc", "abbcc"], &["ac", "acb", "abcd"]),
            ("*a*a*", &["aa", "xaxax"], &["a", "xax"]),
            ("é*", &["éa"], &["e"]),
        ] {
            yes.iter().for_each(|text| assert!(matches(pattern, text), "{pattern} {text}"));
            no.iter().for_each(|text| assert!(!matches(pattern, text), "{pattern} {text}"));
        }
        let settings = WireSettings { rules: vec![rule("a*", 1, 2), rule("*", 3, 4)], limits: WireLimits::default() };
        assert_eq!(settings.rule("ab").map(|r| r.events_port), Some(1));
        assert_eq!(settings.rule("b").map(|r| r.events_port), Some(3));
        assert_eq!(WireSettings::default().rule("b"), None);
    }

    #[test]
    fn ranks_have_ports_in_a_row_and_topics_are_filled_in() {
        assert_eq!(rule("w", 5557, 5657).ports(3), Some((5560, 5660)));
        assert_eq!(rule("w", 0, 0).ports(3), Some((0, 0)));
        assert_eq!(rule("w", 0, 65_535).ports(1), None);
        assert_eq!(rule("w", 1, 1).ports(u32::MAX), None);
        assert_eq!(rule("w", 1, 2).topic_of("http://w:1", "m"), "kv@http://w:1@m");
        assert_eq!("without_topic".parse(), Ok(ReplayLayout::WithoutTopic));
        assert!("topic".parse::<ReplayLayout>().is_err());
    }
}
