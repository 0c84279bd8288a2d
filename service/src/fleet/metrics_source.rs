//! Where a worker's load is polled.

use http::Uri;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Longest time between two polls.
const EVERY_MAX: Duration = Duration::from_secs(3600);

/// Where and how often.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetricsSource {
    uri: Uri,
    every: Option<Duration>,
}

/// Why a text names no place to poll.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum MetricsSourceError {
    /// It is no URL.
    #[error("{0:?} is no URL")]
    Malformed(String),
    /// Another scheme.
    #[error("{0:?}: only http:// is polled")]
    Scheme(String),
    /// Without a host.
    #[error("{0:?} has no host")]
    NoHost(String),
    /// With a user or a password, which would be shown wherever the worker is.
    #[error("a URL with a user or a password is not taken")]
    Credentials,
    /// A time between two polls of nothing, or beyond its bound.
    #[error("{0} ms between two polls: from 1 to {max}", max = EVERY_MAX.as_millis())]
    Every(u64),
    /// A time, but no place.
    #[error("without metrics")]
    NoPlace,
}

impl MetricsSourceError {
    /// The setting that it is about.
    pub const fn field(&self) -> &'static str {
        match self {
            MetricsSourceError::Every(_) | MetricsSourceError::NoPlace => "load_poll_ms",
            _ => "metrics",
        }
    }
}

impl FromStr for MetricsSource {
    type Err = MetricsSourceError;

    /// Reads `http://host:port/path`; without a path, `/metrics` is meant.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let uri: Uri = text.parse().map_err(|_| MetricsSourceError::Malformed(text.to_owned()))?;
        if uri.scheme_str() != Some("http") {
            return Err(MetricsSourceError::Scheme(text.to_owned()));
        }
        let authority = uri.authority().filter(|a| !a.host().is_empty() && a.port_u16() != Some(0));
        let authority = authority.ok_or_else(|| MetricsSourceError::NoHost(text.to_owned()))?;
        if authority.as_str().contains('@') {
            return Err(MetricsSourceError::Credentials);
        }
        let path = uri.path_and_query().map_or("/", |path| path.as_str());
        let path = if path == "/" { "/metrics" } else { path };
        let uri = Uri::builder().scheme("http").authority(authority.clone()).path_and_query(path).build();
        Ok(Self { uri: uri.map_err(|_| MetricsSourceError::Malformed(text.to_owned()))?, every: None })
    }
}

impl fmt::Display for MetricsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.uri.fmt(f)
    }
}

impl MetricsSource {
    /// A worker's settings `metrics` and `load_poll_ms`.
    pub fn from_setting(place: Option<&str>, every_ms: Option<u64>) -> Result<Option<Self>, MetricsSourceError> {
        match (place, every_ms) {
            (None, None) => Ok(None),
            (None, Some(_)) => Err(MetricsSourceError::NoPlace),
            (Some(place), every_ms) => place.parse::<Self>()?.polled_every(every_ms).map(Some),
        }
    }

    /// The address.
    pub fn uri(&self) -> &Uri {
        &self.uri
    }

    /// Time between two polls; `None`: as configured for all.
    pub fn every(&self) -> Option<Duration> {
        self.every
    }

    /// The same place, polled so often, in milliseconds.
    fn polled_every(self, every_ms: Option<u64>) -> Result<Self, MetricsSourceError> {
        let Some(ms) = every_ms else { return Ok(Self { every: None, ..self }) };
        let every = Duration::from_millis(ms);
        if every.is_zero() || every > EVERY_MAX {
            return Err(MetricsSourceError::Every(ms));
        }
        Ok(Self { every: Some(every), ..self })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_read_and_a_path_added_where_there_is_none() {
        let read = |text: &str| text.parse::<MetricsSource>().map(|source| source.to_string());
        assert_eq!(read("http://w:8000").unwrap(), "http://w:8000/metrics");
        assert_eq!(read("http://[::1]:8000/").unwrap(), "http://[::1]:8000/metrics");
        assert_eq!(read("http://w/prom?x=1").unwrap(), "http://w/prom?x=1");
    }

    #[test]
    fn what_is_not_polled_says_why() {
        let refused = |text: &str| text.parse::<MetricsSource>().unwrap_err().to_string();
        for (text, expected) in [
            ("", "no URL"),
            ("https://w:8000/metrics", "only http://"),
            ("w:8000", "only http://"),
            ("/metrics", "only http://"),
            ("http://w:0", "no host"),
            ("http://user:secret@w", "user or a password"),
            ("http://w\n:1", "no URL"),
        ] {
            assert!(refused(text).contains(expected), "{text:?}: {}", refused(text));
        }
        assert!(!refused("http://user:secret@w").contains("secret"));
        let every = |ms| "http://w".parse::<MetricsSource>().unwrap().polled_every(ms).map(|source| source.every());
        assert_eq!(every(Some(250)), Ok(Some(Duration::from_millis(250))));
        assert_eq!((every(None), every(Some(0))), (Ok(None), Err(MetricsSourceError::Every(0))));
        assert_eq!(every(Some(3_600_001)), Err(MetricsSourceError::Every(3_600_001)));
    }
}
