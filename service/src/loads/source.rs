//! Where a worker's load is polled.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;
use tonic::codegen::http::Uri;

/// Where and how often.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct MetricsSource {
    uri: Uri,
    /// Time between two polls; `None`: as configured for all.
    pub every: Option<Duration>,
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
    /// The address.
    pub fn uri(&self) -> &Uri {
        &self.uri
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
    }
}
