//! `[[relay.wire]]`: what was written, and what comes of it.

use super::limit::refused;
use super::raw::ConfigError;
use crate::republish::{ReplayLayout, ReplayLayoutError, WireRule};
use serde::{Deserialize, Serialize};

/// Bytes of a topic as written.
const TOPIC_BYTES_MAX: usize = 256;

/// `[[relay.wire]]`: workers whose ranks are republished on the engines' own wire.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RawWire {
    /// The worker's id; `*` in it stands for any text.
    pub worker: String,
    /// Address that both sockets bind to.
    pub host: String,
    /// Port of rank 0's live stream; rank `r` is at the port plus `r`. 0 takes a free one for each rank (`kvatlas workers --json`
    /// shows it), which several workers need.
    pub events_port: u16,
    /// Port of rank 0's replays; rank `r` is at the port plus `r`.
    pub replay_port: u16,
    /// Topic of every message; `{worker}` and `{model}` in it are filled in.
    pub topic: String,
    /// Replies with the topic (`with_topic`), as the engines have sent them since vLLM 0.26 and SGLang 0.5.22, or
    /// `without_topic`, as before.
    pub replay_layout: String,
}

impl Default for RawWire {
    fn default() -> Self {
        Self {
            worker: "*".into(),
            host: "127.0.0.1".into(),
            events_port: 0,
            replay_port: 0,
            topic: String::new(),
            replay_layout: "with_topic".into(),
        }
    }
}

impl RawWire {
    /// The rule, each value in its range.
    pub(super) fn resolve(&self) -> Result<WireRule, ConfigError> {
        let error = |field: &str, reason: String| refused(&format!("relay.wire[{}].{field}", self.worker), reason);
        let host = self.host.parse().map_err(|_| error("host", format!("{:?} is not an address", self.host)))?;
        if self.events_port == self.replay_port && self.events_port != 0 {
            return Err(error("replay_port", "the same as events_port".into()));
        }
        if self.topic.len() > TOPIC_BYTES_MAX {
            return Err(error("topic", format!("{} bytes, at most {TOPIC_BYTES_MAX}", self.topic.len())));
        }
        let layout: Result<ReplayLayout, ReplayLayoutError> = self.replay_layout.parse();
        Ok(WireRule {
            worker: self.worker.clone(),
            host,
            events_port: self.events_port,
            replay_port: self.replay_port,
            topic: self.topic.clone(),
            layout: layout.map_err(|reason| error("replay_layout", reason.to_string()))?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Flags, Raw};
    use figment::Jail;

    #[test]
    #[allow(clippy::result_large_err, reason = "the closure's type is figment's")]
    fn rules_come_from_the_environment_and_from_files() {
        Jail::expect_with(|jail| {
            jail.set_env("KVATLAS_RELAY__WIRE", r#"[{worker="*",events_port=6557,replay_port=6657}]"#);
            let raw = Raw::load(&Flags::default()).unwrap();
            let rule = RawWire { events_port: 6557, replay_port: 6657, ..RawWire::default() };
            assert_eq!(raw.relay.wire, std::slice::from_ref(&rule));
            jail.create_file("again.toml", &raw.to_toml())?;
            jail.clear_env();
            let again = Raw::load(&Flags { file: Some("again.toml".into()), ..Flags::default() }).unwrap();
            assert_eq!(again.relay.wire, [rule]);
            Ok(())
        });
    }

    #[test]
    fn mistakes_are_named() {
        let raw = RawWire { events_port: 6557, replay_port: 6657, ..RawWire::default() };
        assert_eq!(raw.resolve().unwrap().ports(1), Some((6558, 6658)));
        for (raw, expected) in [
            (RawWire { host: "localhost".into(), ..RawWire::default() }, "relay.wire[*].host"),
            (RawWire { events_port: 1, replay_port: 1, ..RawWire::default() }, "replay_port"),
            (RawWire { topic: "t".repeat(257), ..RawWire::default() }, "topic"),
            (RawWire { replay_layout: "old".into(), worker: "w".into(), ..raw }, "relay.wire[w].replay_layout"),
        ] {
            let error = raw.resolve().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }
}
