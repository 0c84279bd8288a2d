//! `[lease]`: what was written, and what comes of it.

use super::limit::{at_most, millis, refused, size, some_millis, to_millis};
use super::raw::ConfigError;
use crate::lease::{EtcdSettings, LeaseSettings, StoreSettings};
use serde::{Deserialize, Serialize};

/// Most replicas' watches, partitions and prefixes that are worth a table.
const TABLE_MAX: usize = 1 << 20;

/// `[lease]`: as [`LeaseSettings`], durations in milliseconds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
#[allow(missing_docs, reason = "each setting is documented at `LeaseSettings`")]
pub struct RawLease {
    /// Members of an etcd cluster, as `http://host:port`. Empty: records are kept in this process, for one replica.
    pub etcd_endpoints: Vec<String>,
    /// First word of every key there.
    pub etcd_prefix: String,
    /// Longest time to an answer from there.
    pub etcd_response_max_ms: u64,
    pub ttl_ms: u64,
    pub renewal_ms: u64,
    pub hold_max_ms: u64,
    pub cooldown_committed_ms: u64,
    pub cooldown_failed_ms: u64,
    pub skew_max_ms: u64,
    pub owners_max: usize,
    pub partitions_max: usize,
    pub prefixes_max: usize,
    pub prefix_bytes_max: usize,
    pub prefix_blocks_max: usize,
    pub tombstones_max: usize,
    pub tokens_max: usize,
    pub token_lifetime_ms: u64,
    pub name_bytes_max: usize,
    pub finish_reasons: Vec<String>,
    pub prompt_slack_blocks: u32,
    pub sweep_period_ms: u64,
    pub swept_prefixes_max: usize,
    pub watches_max: usize,
    pub watch_poll_ms: u64,
    pub attempts_max: u32,
}

impl Default for RawLease {
    fn default() -> Self {
        let own = LeaseSettings::default();
        let etcd = EtcdSettings::default();
        Self {
            etcd_endpoints: etcd.endpoints,
            etcd_prefix: etcd.prefix,
            etcd_response_max_ms: to_millis(etcd.response_max),
            ttl_ms: to_millis(own.ttl),
            renewal_ms: to_millis(own.renewal),
            hold_max_ms: to_millis(own.hold_max),
            cooldown_committed_ms: to_millis(own.cooldown_committed),
            cooldown_failed_ms: to_millis(own.cooldown_failed),
            skew_max_ms: to_millis(own.skew_max),
            owners_max: own.owners_max,
            partitions_max: own.partitions_max,
            prefixes_max: own.prefixes_max,
            prefix_bytes_max: own.prefix_bytes_max,
            prefix_blocks_max: own.prefix_blocks_max,
            tombstones_max: own.tombstones_max,
            tokens_max: own.tokens_max,
            token_lifetime_ms: to_millis(own.token_lifetime),
            name_bytes_max: own.name_bytes_max,
            finish_reasons: own.finish_reasons,
            prompt_slack_blocks: own.prompt_slack_blocks,
            sweep_period_ms: to_millis(own.sweep_period),
            swept_prefixes_max: own.swept_prefixes_max,
            watches_max: own.watches_max,
            watch_poll_ms: to_millis(own.watch_poll),
            attempts_max: own.attempts_max,
        }
    }
}

impl RawLease {
    /// The settings, each in its range.
    pub(super) fn resolve(&self) -> Result<LeaseSettings, ConfigError> {
        let time = |setting: &str, ms: u64| some_millis(&name(setting), ms);
        let table = |setting: &str, value: usize| at_most(TABLE_MAX, &name(setting), size(&name(setting), value)?);
        let settings = LeaseSettings {
            ttl: time("ttl_ms", self.ttl_ms)?,
            renewal: time("renewal_ms", self.renewal_ms)?,
            hold_max: time("hold_max_ms", self.hold_max_ms)?,
            cooldown_committed: millis(&name("cooldown_committed_ms"), self.cooldown_committed_ms)?,
            cooldown_failed: millis(&name("cooldown_failed_ms"), self.cooldown_failed_ms)?,
            skew_max: millis(&name("skew_max_ms"), self.skew_max_ms)?,
            owners_max: table("owners_max", self.owners_max)?,
            partitions_max: table("partitions_max", self.partitions_max)?,
            prefixes_max: table("prefixes_max", self.prefixes_max)?,
            prefix_bytes_max: table("prefix_bytes_max", self.prefix_bytes_max)?,
            prefix_blocks_max: table("prefix_blocks_max", self.prefix_blocks_max)?,
            tombstones_max: table("tombstones_max", self.tombstones_max)?,
            tokens_max: table("tokens_max", self.tokens_max)?,
            token_lifetime: time("token_lifetime_ms", self.token_lifetime_ms)?,
            name_bytes_max: table("name_bytes_max", self.name_bytes_max)?,
            finish_reasons: self.finish_reasons.clone(),
            prompt_slack_blocks: self.prompt_slack_blocks,
            sweep_period: time("sweep_period_ms", self.sweep_period_ms)?,
            swept_prefixes_max: table("swept_prefixes_max", self.swept_prefixes_max)?,
            watches_max: table("watches_max", self.watches_max)?,
            watch_poll: time("watch_poll_ms", self.watch_poll_ms)?,
            attempts_max: size(&name("attempts_max"), self.attempts_max as usize)? as u32,
            store: self.store()?,
        };
        if settings.renewal >= settings.ttl {
            return Err(refused(&name("renewal_ms"), "shorter than lease.ttl_ms"));
        }
        if settings.token_lifetime <= settings.hold_max {
            return Err(refused(&name("token_lifetime_ms"), "longer than lease.hold_max_ms"));
        }
        Ok(settings)
    }

    fn store(&self) -> Result<StoreSettings, ConfigError> {
        if self.etcd_endpoints.is_empty() {
            return Ok(StoreSettings::Embedded);
        }
        if !cfg!(feature = "etcd") {
            return Err(refused(&name("etcd_endpoints"), "this binary was built without the feature `etcd`"));
        }
        if self.etcd_prefix.is_empty() || self.etcd_prefix.contains(|c: char| c.is_whitespace() || c.is_control()) {
            return Err(refused(&name("etcd_prefix"), "one word"));
        }
        if let Some(other) = self.etcd_endpoints.iter().find(|endpoint| !endpoint.starts_with("http://")) {
            return Err(refused(&name("etcd_endpoints"), format!("{other:?} is not http://host:port")));
        }
        Ok(StoreSettings::Etcd(EtcdSettings {
            endpoints: self.etcd_endpoints.clone(),
            prefix: self.etcd_prefix.clone(),
            response_max: some_millis(&name("etcd_response_max_ms"), self.etcd_response_max_ms)?,
        }))
    }
}

fn name(setting: &str) -> String {
    format!("lease.{setting}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_defaults_are_the_settings_own() {
        assert_eq!(RawLease::default().resolve().unwrap(), LeaseSettings::default());
    }

    #[test]
    fn values_out_of_range_are_named() {
        type Change = fn(&mut RawLease);
        let cases: [(Change, &str); 7] = [
            (|lease| lease.ttl_ms = 0, "lease.ttl_ms"),
            (|lease| lease.hold_max_ms = u64::MAX, "lease.hold_max_ms"),
            (|lease| lease.renewal_ms = 5_000, "lease.renewal_ms"),
            (|lease| lease.token_lifetime_ms = 120_000, "lease.token_lifetime_ms"),
            (|lease| lease.owners_max = 0, "lease.owners_max"),
            (|lease| lease.partitions_max = usize::MAX, "lease.partitions_max"),
            (|lease| lease.attempts_max = 0, "lease.attempts_max"),
        ];
        for (change, expected) in cases {
            let mut raw = RawLease::default();
            change(&mut raw);
            let error = raw.resolve().unwrap_err().to_string();
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn a_cluster_needs_the_feature() {
        let raw = |endpoint: &str| RawLease { etcd_endpoints: vec![endpoint.into()], ..RawLease::default() };
        let resolved = raw("http://h:2379").resolve();
        assert_eq!(resolved.is_ok(), cfg!(feature = "etcd"));
        assert!(raw("h:2379").resolve().unwrap_err().to_string().contains("lease.etcd_endpoints"));
    }
}
