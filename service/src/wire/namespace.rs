//! Namespaces: two requests share blocks only inside one.
//!
//! A namespace is a LoRA name and a cache salt, as one 64-bit value that seeds the content hash of the first block. Every
//! later block stands below that first block on its content path, so a child of a salted chain is under the salted parent
//! whether or not its own event repeats the salt.
//!
//! Definition. No LoRA name and no salt: 0. Otherwise XXH3-64, seed 1337, over `P(lora) || P(salt)`, where `P` of an absent
//! text is the byte 0, and of any other the byte 1, its length in bytes as little-endian `u64`, and its UTF-8 bytes. An
//! empty text counts as absent. A value of 0 becomes 1.

use super::event::Stored;
use super::extras::Extra;
use xxhash_rust::xxh3::{Xxh3, Xxh3Builder};

/// What separates requests whose tokens are equal.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Namespace(pub u64);

impl Namespace {
    /// No LoRA adapter, no salt.
    pub const NONE: Namespace = Namespace(0);

    /// The namespace of a request. Empty texts count as absent. Allocates nothing.
    pub fn new(lora_name: Option<&str>, cache_salt: Option<&str>) -> Self {
        let lora = lora_name.filter(|s| !s.is_empty());
        let salt = cache_salt.filter(|s| !s.is_empty());
        if lora.is_none() && salt.is_none() {
            return Self::NONE;
        }
        let mut hasher = Xxh3Builder::new().with_seed(super::content::CONTENT_SEED).build();
        prefixed(&mut hasher, lora);
        prefixed(&mut hasher, salt);
        Namespace(hasher.digest().max(1))
    }
}

fn prefixed(hasher: &mut Xxh3, text: Option<&str>) {
    match text {
        None => hasher.update(&[0]),
        Some(text) => {
            hasher.update(&[1]);
            hasher.update(&(text.len() as u64).to_le_bytes());
            hasher.update(text.as_bytes());
        }
    }
}

/// The namespace that a store names: its LoRA name, and its salt from the field of its own or from the first block's extra
/// keys. Of a store with a parent only the LoRA name is sure to be there; its content path has the rest.
pub fn store_namespace(stored: &Stored<'_>) -> Namespace {
    if stored.extra_keys.all_nil() {
        return Namespace::new(stored.lora_name, stored.cache_salt);
    }
    let (mut lora, mut salt) = (stored.lora_name, stored.cache_salt);
    let first_block = stored.parent.is_none();
    for entry in stored.extra_keys.iter().take(1) {
        for extra in entry.items(stored.lora_name.unwrap_or(""), first_block) {
            match extra {
                Extra::Lora(name) => lora = lora.or(Some(name)),
                Extra::Salt(text) => salt = salt.or(Some(text)),
                Extra::Item { .. } | Extra::Embeds(_) | Extra::Opaque(_) => {}
            }
        }
    }
    Namespace::new(lora, salt)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pair_of_texts_is_a_namespace_of_its_own() {
        let texts = [None, Some("a"), Some("b"), Some("ab"), Some("bc"), Some("c")];
        let mut seen = std::collections::BTreeMap::new();
        for lora in texts {
            for salt in texts {
                let before = seen.insert(Namespace::new(lora, salt), (lora, salt));
                assert_eq!(before, None, "{lora:?} {salt:?}");
            }
        }
        assert_eq!(Namespace::new(Some(""), None), Namespace::NONE);
    }
}
