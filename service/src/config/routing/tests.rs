use super::*;
use crate::config::{Flags, Raw};
use clap::{Args, FromArgMatches};
use figment::providers::{Format, Serialized, Toml};
use figment::{Figment, Jail};
use std::fmt::Write;
use toml::{Table, Value};

/// The default section, as printed.
fn printed() -> Table {
    let whole: Table = toml::from_str(&Raw::default().to_toml()).unwrap();
    whole["routing"].as_table().unwrap().clone()
}

/// Every setting of a section: its dotted name and its default.
fn leaves(prefix: &str, table: &Table) -> Vec<(String, Value)> {
    let leaf = |(key, value): (&String, &Value)| match value {
        Value::Table(inner) => leaves(&format!("{prefix}.{key}"), inner),
        value => vec![(format!("{prefix}.{key}"), value.clone())],
    };
    table.iter().flat_map(leaf).collect()
}

/// A configuration file with one setting in it, loaded and resolved. Without the environment, which other tests change.
fn with(setting: &str, value: &str) -> Result<RoutingSettings, ConfigError> {
    let (section, key) = setting.rsplit_once('.').unwrap();
    let file = Toml::string(&format!("[{section}]\n{key} = {value}\n"));
    let raw: Raw = Figment::from(Serialized::defaults(Raw::default())).merge(file).extract().map_err(Box::new)?;
    raw.routing.resolve()
}

#[test]
fn the_defaults_are_the_settings_own() {
    assert_eq!(RawRouting::default().resolve().unwrap(), RoutingSettings::default());
}

#[test]
fn a_printed_section_says_the_same_again() {
    let text = toml::to_string(&RawRouting::default()).unwrap();
    assert_eq!(toml::from_str::<RawRouting>(&text).unwrap(), RawRouting::default());
    let off = RawOverload { waiting_requests: "off".parse().unwrap(), ..RawOverload::default() };
    let text = toml::to_string(&off).unwrap();
    assert!(text.contains("waiting_requests = \"off\""), "{text}");
    assert_eq!(toml::from_str::<RawOverload>(&text).unwrap(), off);
}

/// Whatever the setting is: what is no number, negative, or beyond every use is refused, and the message names it.
#[test]
fn every_number_has_bounds_and_the_message_names_the_setting() {
    let mut numbers = 0;
    for (setting, default) in leaves("routing", &printed()) {
        let wrong: &[&str] = match default {
            Value::Float(_) => &["nan", "inf", "-inf", "-1.0", "1e300", "\"much\""],
            Value::Integer(_) => &["-1", "9223372036854775807", "1.5", "\"much\"", "nan"],
            Value::Boolean(_) => &["1", "\"maybe\""],
            Value::String(_) => &["\"no such word\"", "1"],
            Value::Array(_) => &["[0]", "[-1]", "[4294967295]", "1"],
            other => panic!("{setting} = {other}"),
        };
        for value in wrong {
            let error = with(&setting, value).expect_err(&format!("{setting} = {value}")).to_string();
            assert!(error.contains(&setting), "{setting} = {value}: {error}");
        }
        numbers += usize::from(matches!(default, Value::Float(_) | Value::Integer(_)));
    }
    assert!(numbers > 50, "{numbers} settings looked at");
}

#[test]
fn the_message_names_the_bound() {
    for (setting, value, bound) in [
        ("routing.policy", "\"best\"", "round_robin, random, power_of_two"),
        ("routing.near_tie", "1.5", "between 0 and 1"),
        ("routing.load.mean_prefill_tokens", "0.5", "between 1 and"),
        ("routing.load.poll_interval_ms", "0", "at least 1"),
        ("routing.load.ack_delay_ms", "86400001", "longer than a day"),
        ("routing.cache_aware.event_min_overlap_blocks", "0", "at least 1"),
        ("routing.cache_aware.balance_rel_threshold", "0.9", "between 1 and"),
        ("routing.hash_mode.heads_max", "0", "at least 1"),
        ("routing.overload.waiting_requests", "0", "at least 1"),
        ("routing.overload.waiting_requests", "\"on\"", "a number or \"off\""),
        ("routing.overload.token_usage", "0.0", "between 0.001 and 1"),
        ("routing.expected_ttft.pool_share", "0", "between 0.001 and 1"),
        ("routing.bookings.bookings_max", "0", "at least 1"),
    ] {
        let error = with(setting, value).unwrap_err().to_string();
        assert!(error.contains(setting) && error.contains(bound), "{error}");
    }
}

#[test]
fn boundaries_are_sorted_and_told_once() {
    let settings = with("routing.hash_mode.boundaries", "[1024, 256, 1024]").unwrap();
    assert_eq!(settings.hash_mode.boundaries, [256, 1024]);
    let many: Vec<_> = (1..=65).map(|n| n.to_string()).collect();
    let error = with("routing.hash_mode.boundaries", &format!("[{}]", many.join(","))).unwrap_err().to_string();
    assert!(error.contains("65 of them are more than 64"), "{error}");
}

/// The flags of a command line.
fn flags(line: &str) -> RoutingFlags {
    let command = RoutingFlags::augment_args(clap::Command::new("kvatlas").no_binary_name(true));
    RoutingFlags::from_arg_matches(&command.get_matches_from(line.split_whitespace())).unwrap()
}

/// What is written of overload, and the effective triple (waiting, usage, enabled).
struct Parity {
    /// Settings of `[routing.overload]` and their values.
    written: &'static [(&'static str, &'static str)],
    waiting: Option<i64>,
    usage: Option<f64>,
    enabled: bool,
}

const PARITY: [Parity; 8] = [
    Parity { written: &[], waiting: Some(8), usage: Some(0.8), enabled: true },
    Parity { written: &[("waiting_requests", "4")], waiting: Some(4), usage: Some(0.8), enabled: true },
    Parity { written: &[("token_usage", "0.9")], waiting: Some(8), usage: Some(0.9), enabled: true },
    Parity {
        written: &[("enabled", "true"), ("waiting_requests", "2"), ("token_usage", "0.5")],
        waiting: Some(2),
        usage: Some(0.5),
        enabled: true,
    },
    Parity { written: &[("enabled", "false")], waiting: Some(8), usage: Some(0.8), enabled: false },
    Parity {
        written: &[("enabled", "false"), ("waiting_requests", "4"), ("token_usage", "0.9")],
        waiting: Some(4),
        usage: Some(0.9),
        enabled: false,
    },
    Parity { written: &[("waiting_requests", "off")], waiting: None, usage: Some(0.8), enabled: true },
    Parity { written: &[("token_usage", "off")], waiting: Some(8), usage: None, enabled: true },
];

impl Parity {
    fn on_the_command_line(&self) -> Flags {
        let flag = |setting| match setting {
            "enabled" => "--overload",
            "waiting_requests" => "--overload-waiting",
            _ => "--overload-usage",
        };
        let words = self.written.iter().map(|(setting, value)| format!("{} {value}", flag(setting)));
        Flags { routing: flags(&words.collect::<Vec<_>>().join(" ")), ..Flags::default() }
    }

    fn in_the_environment(&self, jail: &mut Jail) {
        for (setting, value) in self.written {
            jail.set_env(format!("KVATLAS_ROUTING__OVERLOAD__{}", setting.to_uppercase()), value);
        }
    }

    fn in_a_file(&self) -> String {
        let mut text = "[routing.overload]\n".to_owned();
        for (setting, value) in self.written {
            let value = if *value == "off" { "\"off\"" } else { value };
            writeln!(text, "{setting} = {value}").unwrap();
        }
        text
    }

    fn check(&self, front_end: &str, flags: &Flags) {
        let overload = Raw::load(flags).unwrap().routing.resolve().unwrap().overload;
        let effective = (overload.waiting_requests, overload.token_usage, overload.enabled);
        assert_eq!(effective, (self.waiting, self.usage, self.enabled), "{front_end}: {:?}", self.written);
    }
}

#[test]
#[allow(clippy::result_large_err, reason = "the closure's type is figment's")]
fn launcher_parity() {
    Jail::expect_with(|jail| {
        for row in &PARITY {
            row.check("command line", &row.on_the_command_line());
            row.in_the_environment(jail);
            row.check("environment", &Flags::default());
            jail.clear_env();
            jail.create_file("kvatlas.toml", &row.in_a_file())?;
            row.check("file", &Flags { file: Some("kvatlas.toml".into()), ..Flags::default() });
        }
        Ok(())
    });
}

/// A switch that another front end wrote as an older default had it, beside a threshold: the last one who wrote the switch counts,
/// and a threshold alone never turns anything off.
#[test]
#[allow(clippy::result_large_err, reason = "the closure's type is figment's")]
fn launcher_parity_over_sources() {
    Jail::expect_with(|jail| {
        jail.create_file("off.toml", "[routing.overload]\nenabled = false\n")?;
        let file = Some(std::path::PathBuf::from("off.toml"));
        let overload = |line: &str| {
            let flags = Flags { file: file.clone(), routing: flags(line), ..Flags::default() };
            Raw::load(&flags).unwrap().routing.resolve().unwrap().overload
        };
        assert!(!overload("--overload-waiting 4").enabled, "an explicit disable wins over thresholds");
        assert!(overload("--overload on --overload-waiting 4").enabled);
        Ok(())
    });
}

#[test]
fn flags_win_over_everything() {
    let flags = flags(
        "--policy least_load --overload off --overload-waiting 3 --overload-usage off --shed on --warmup off --credit shadow --hold on",
    );
    let mut raw = RawRouting::default();
    flags.apply(&mut raw);
    let settings = raw.resolve().unwrap();
    assert_eq!(settings.policy, PolicyName::LeastLoad);
    let overload = &settings.overload;
    assert_eq!(
        (overload.enabled, overload.waiting_requests, overload.token_usage, overload.shed),
        (false, Some(3), None, true)
    );
    assert!(!settings.warmup.enabled && settings.hold.enabled);
    assert_eq!(settings.credit.mode, crate::routing::CreditMode::Shadow);
}
