//! Admission tokens that were used: each is good for one lease, and comes back only where nothing was dispatched.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;
use xxhash_rust::xxh3::xxh3_128;

/// A token, hashed to 128 bits: records keep no caller's secret.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub struct TokenHash(u64, u64);

impl TokenHash {
    /// Of a token's bytes.
    pub fn of(token: &str) -> Self {
        let hash = xxh3_128(token.as_bytes());
        Self((hash >> 64) as u64, hash as u64)
    }
}

/// Used tokens and when each was used. At most as many as the limit says; then no further one can be used, rather than an old one
/// again.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
#[serde(from = "Vec<(TokenHash, Duration)>", into = "Vec<(TokenHash, Duration)>")]
pub struct Tokens(BTreeMap<TokenHash, Duration>);

/// Why a token cannot be used.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum TokenRefused {
    /// It was used before.
    Used,
    /// As many as allowed are remembered.
    Full,
}

impl Tokens {
    /// Whether a token could be used.
    pub(super) fn check(&self, token: TokenHash, limit: usize) -> Result<(), TokenRefused> {
        match self.0.contains_key(&token) {
            true => Err(TokenRefused::Used),
            false if self.0.len() >= limit => Err(TokenRefused::Full),
            false => Ok(()),
        }
    }

    pub(super) fn take(&mut self, now: Duration, token: TokenHash) {
        self.0.insert(token, now);
    }

    pub(super) fn refund(&mut self, token: TokenHash) {
        self.0.remove(&token);
    }

    /// Forgets what no token lives as long as.
    pub(super) fn forget(&mut self, now: Duration, lifetime: Duration) {
        self.0.retain(|_, used| used.saturating_add(lifetime) > now);
    }

    /// Tokens remembered.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<Vec<(TokenHash, Duration)>> for Tokens {
    fn from(all: Vec<(TokenHash, Duration)>) -> Self {
        Self(all.into_iter().collect())
    }
}

impl From<Tokens> for Vec<(TokenHash, Duration)> {
    fn from(tokens: Tokens) -> Self {
        tokens.0.into_iter().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_used_once_and_the_table_is_bounded() {
        let (mut tokens, lifetime) = (Tokens::default(), Duration::from_secs(10));
        let [a, b, c] = ["a", "b", "c"].map(TokenHash::of);
        for token in [a, b] {
            assert_eq!(tokens.check(token, 2), Ok(()));
            tokens.take(Duration::from_secs(1), token);
        }
        assert_eq!(tokens.check(a, 2), Err(TokenRefused::Used));
        assert_eq!(tokens.check(c, 2), Err(TokenRefused::Full));
        tokens.refund(a);
        assert_eq!(tokens.check(a, 2), Ok(()));
        tokens.forget(Duration::from_secs(10), lifetime);
        assert_eq!(tokens.len(), 1, "b is still remembered");
        tokens.forget(Duration::from_secs(11), lifetime);
        assert!(tokens.is_empty());
    }
}
