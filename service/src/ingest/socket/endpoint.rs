//! Where a socket connects to.

use std::path::PathBuf;
use std::str::FromStr;

/// A checked endpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// Host (a name or an address) and port.
    Tcp {
        /// Host, without the brackets of an IPv6 address.
        host: String,
        /// Port.
        port: u16,
    },
    /// Path of a Unix socket.
    Ipc(PathBuf),
}

/// Why a text is no endpoint to connect to.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum EndpointError {
    /// Neither `tcp://` nor `ipc://`.
    #[error("`{0}`: only tcp:// and ipc:// can be followed")]
    Scheme(String),
    /// No host, no port, or port 0.
    #[error("`{0}`: expected tcp://host:port")]
    Address(String),
    /// A wildcard names no peer.
    #[error("`{0}`: a wildcard is for the side that binds; name the worker's host")]
    Wildcard(String),
    /// No path, or an abstract one.
    #[error("`{0}`: expected ipc://path")]
    Path(String),
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        if let Some(path) = text.strip_prefix("ipc://") {
            return match path.is_empty() || path.starts_with('@') || path == "*" {
                true => Err(EndpointError::Path(text.into())),
                false => Ok(Endpoint::Ipc(path.into())),
            };
        }
        let Some(address) = text.strip_prefix("tcp://") else { return Err(EndpointError::Scheme(text.into())) };
        let Some((host, port)) = address.rsplit_once(':') else { return Err(EndpointError::Address(text.into())) };
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if matches!(host, "*" | "::" | "0.0.0.0") {
            return Err(EndpointError::Wildcard(text.into()));
        }
        match port.parse() {
            Ok(port) if port != 0 && !host.is_empty() => Ok(Endpoint::Tcp { host: host.into(), port }),
            _ => Err(EndpointError::Address(text.into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_can_be_connected_to() {
        let tcp = |host: &str, port| Ok(Endpoint::Tcp { host: host.into(), port });
        assert_eq!("tcp://127.0.0.1:5557".parse(), tcp("127.0.0.1", 5557));
        assert_eq!("tcp://[::1]:1".parse(), tcp("::1", 1));
        assert_eq!("tcp://pod-a.ns:5557".parse(), tcp("pod-a.ns", 5557));
        assert_eq!("ipc:///run/kv".parse(), Ok(Endpoint::Ipc("/run/kv".into())));
    }

    #[test]
    fn what_cannot() {
        for text in ["", "http://a:1", "tcp://a", "tcp://a:0", "tcp://:5", "tcp://a:70000", "ipc://", "ipc://@x"] {
            assert!(text.parse::<Endpoint>().is_err(), "{text}");
        }
        for text in ["tcp://*:5557", "tcp://0.0.0.0:5557", "tcp://[::]:5557"] {
            assert_eq!(text.parse::<Endpoint>(), Err(EndpointError::Wildcard(text.into())));
        }
    }
}
