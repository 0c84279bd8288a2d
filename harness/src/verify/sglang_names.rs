//! What SGLang itself would call the blocks of a prompt without an `extra_key`, from its documented hash: SHA-256 chained over
//! the tokens as little-endian `u32`, names the first 8 bytes. In format `dynamo` a salted prompt's names are hashed once more
//! with the namespace; a plain prompt's are not. This tells the blocks of such a prompt from those of other namespaces.

use sha2::{Digest, Sha256};

/// Names of the full pages of `tokens`.
pub fn names(tokens: &[u32], page_size: usize, salt: Option<&str>, dynamo: bool) -> Vec<u64> {
    let mut before: Option<[u8; 32]> = salt.map(|salt| sha256(&[b"sglang-cache-salt-v1\0", salt.as_bytes()]));
    let pages = tokens.chunks_exact(page_size).map(|page| {
        let words: Vec<u8> = page.iter().flat_map(|t| t.to_le_bytes()).collect();
        let digest = match before {
            Some(before) => sha256(&[&before, &words]),
            None => sha256(&[&words]),
        };
        before = Some(digest);
        first_eight(&digest)
    });
    match salt {
        Some(salt) if dynamo => {
            let seed = sha256(&[b"sglang-kv-event-namespace-v1", &[0], &prefixed(salt)]);
            pages.map(|name| first_eight(&sha256(&[&seed, &name.to_be_bytes()]))).collect()
        }
        _ => pages.collect(),
    }
}

fn prefixed(text: &str) -> Vec<u8> {
    [&[1][..], &(text.len() as u64).to_le_bytes(), text.as_bytes()].concat()
}

fn sha256(parts: &[&[u8]]) -> [u8; 32] {
    let mut hasher = Sha256::new();
    parts.iter().for_each(|part| hasher.update(part));
    hasher.finalize().into()
}

fn first_eight(digest: &[u8; 32]) -> u64 {
    u64::from_be_bytes(*digest.first_chunk().expect("a digest has 32 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_chain_has_the_names_of_the_engine() {
        let tokens: Vec<u32> = (1..=12).collect();
        let want = [-3488128144981237669i64, 5674439469042975057, -1307369107475853156].map(|n| n as u64);
        assert_eq!(names(&tokens, 4, None, false), want);
        assert_eq!(names(&tokens, 4, None, true), want);
        assert_ne!(names(&tokens, 4, Some("s"), true), names(&tokens, 4, Some("s"), false));
    }
}
