//! Where a servicer is.

use std::str::FromStr;

/// `smg://host:port`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SmgEndpoint {
    authority: String,
}

/// Not such an endpoint.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("`{0}`: expected smg://host:port")]
pub struct SmgEndpointError(String);

impl SmgEndpoint {
    /// Whether a text means to be one.
    pub fn is_meant(text: &str) -> bool {
        text.starts_with("smg://")
    }

    /// Where a channel connects to.
    pub fn uri(&self) -> String {
        format!("http://{}", self.authority)
    }
}

impl FromStr for SmgEndpoint {
    type Err = SmgEndpointError;

    fn from_str(text: &str) -> Result<Self, SmgEndpointError> {
        let error = || SmgEndpointError(text.into());
        let authority = text.strip_prefix("smg://").ok_or_else(error)?;
        let (host, port) = authority.rsplit_once(':').ok_or_else(error)?;
        let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        let wildcard = matches!(bare, "" | "*" | "::" | "0.0.0.0");
        let port: u16 = port.parse().map_err(|_| error())?;
        let endpoint = Self { authority: authority.into() };
        let usable = endpoint.uri().parse::<tonic::transport::Uri>().is_ok_and(|uri| uri.path() == "/");
        if wildcard || port == 0 || !usable { Err(error()) } else { Ok(endpoint) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_and_a_port_and_nothing_else() {
        for (text, uri) in [
            ("smg://127.0.0.1:50051", "http://127.0.0.1:50051"),
            ("smg://[::1]:1", "http://[::1]:1"),
            ("smg://pod-a.ns:50051", "http://pod-a.ns:50051"),
        ] {
            assert_eq!(text.parse::<SmgEndpoint>().map(|e| e.uri()), Ok(uri.into()));
        }
        for text in [
            "",
            "tcp://a:1",
            "smg://a",
            "smg://a:0",
            "smg://:1",
            "smg://*:1",
            "smg://0.0.0.0:1",
            "smg://a/b:1",
            "smg://a b:1",
        ] {
            assert!(text.parse::<SmgEndpoint>().is_err(), "{text}");
        }
    }
}
