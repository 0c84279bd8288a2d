//! `[replicas]`: what was written, and what comes of it.

use super::limit::{millis, refused, to_millis};
use super::raw::ConfigError;
use crate::replica::ReplicaSettings;
use serde::{Deserialize, Serialize};
use tonic::transport::Endpoint;

/// Most peers that are asked.
const PEERS_MAX: usize = 64;

/// `[replicas]`: as [`ReplicaSettings`], durations in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `ReplicaSettings`")]
pub struct RawReplicas {
    /// As `host:port` or `http://host:port`.
    pub peers: Vec<String>,
    pub register_workers: bool,
    pub deadline_ms: u64,
    pub connect_max_ms: u64,
    pub silence_max_ms: u64,
    pub pause_min_ms: u64,
    pub pause_max_ms: u64,
    pub rank_bytes_max: usize,
}

impl Default for RawReplicas {
    fn default() -> Self {
        let settings = ReplicaSettings::default();
        Self {
            peers: settings.peers,
            register_workers: settings.register_workers,
            deadline_ms: to_millis(settings.deadline),
            connect_max_ms: to_millis(settings.connect_max),
            silence_max_ms: to_millis(settings.silence_max),
            pause_min_ms: to_millis(settings.pause_min),
            pause_max_ms: to_millis(settings.pause_max),
            rank_bytes_max: settings.rank_bytes_max,
        }
    }
}

impl RawReplicas {
    /// The settings, each in its range.
    pub(super) fn resolve(&self) -> Result<ReplicaSettings, ConfigError> {
        if self.peers.len() > PEERS_MAX {
            let reason = format!("{} peers, at most {PEERS_MAX}", self.peers.len());
            return Err(refused("replicas.peers", reason));
        }
        Ok(ReplicaSettings {
            peers: self.peers.iter().map(|peer| address(peer)).collect::<Result<_, _>>()?,
            register_workers: self.register_workers,
            deadline: millis("replicas.deadline_ms", self.deadline_ms)?,
            connect_max: millis("replicas.connect_max_ms", self.connect_max_ms.max(1))?,
            silence_max: millis("replicas.silence_max_ms", self.silence_max_ms.max(1))?,
            pause_min: millis("replicas.pause_min_ms", self.pause_min_ms.max(1))?,
            pause_max: millis("replicas.pause_max_ms", self.pause_max_ms.max(self.pause_min_ms).max(1))?,
            rank_bytes_max: self.rank_bytes_max,
        })
    }
}

fn address(peer: &str) -> Result<String, ConfigError> {
    let error = |reason: &str| refused("replicas.peers", reason);
    let uri = if peer.contains("://") { peer.to_owned() } else { format!("http://{peer}") };
    let endpoint = Endpoint::from_shared(uri.clone()).map_err(|_| error(&format!("{peer:?} is no address")))?;
    if endpoint.uri().scheme_str() != Some("http") || endpoint.uri().port_u16().is_none() {
        return Err(error(&format!("{peer:?} is neither host:port nor http://host:port")));
    }
    Ok(uri)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(peer: &str) -> RawReplicas {
        RawReplicas { peers: vec![peer.into()], ..RawReplicas::default() }
    }

    #[test]
    fn the_defaults_are_the_settings_own() {
        assert_eq!(RawReplicas::default().resolve().unwrap(), ReplicaSettings::default());
    }

    #[test]
    fn peers_are_addresses() {
        for peer in ["10.0.0.2:50071", "http://10.0.0.2:50071", "kvatlas-1.kvatlas:50071", "[::1]:50071"] {
            let resolved = with(peer).resolve().unwrap().peers;
            assert!(resolved[0].starts_with("http://") && resolved[0].ends_with(":50071"), "{resolved:?}");
        }
        for peer in ["", "10.0.0.2", "https://h:1", "tcp://h:1", "h:99999", "h:port", "a b:1"] {
            let error = with(peer).resolve().unwrap_err().to_string();
            assert!(error.contains("replicas.peers"), "{peer}: {error}");
        }
        let many = RawReplicas { peers: vec!["h:1".into(); PEERS_MAX + 1], ..RawReplicas::default() };
        assert!(many.resolve().unwrap_err().to_string().contains("at most"));
        let long = RawReplicas { deadline_ms: u64::MAX, ..RawReplicas::default() };
        assert!(long.resolve().unwrap_err().to_string().contains("replicas.deadline_ms"));
    }
}
