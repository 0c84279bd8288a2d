//! Namespaces: two requests share blocks only inside one.
//!
//! A namespace is a LoRA name and a cache salt, as one 64-bit value that seeds the content hash of the first block. Every
//! later block stands below that first block on its content path, so a child of a salted chain is under the salted parent
//! whether or not its own event repeats the salt.
//!
//! Definition. No LoRA name and no salt: 0. Otherwise XXH3-64, seed 1337, over `P(lora) || P(salt)`, where `P` of an absent
//! text is the byte 0, and of any other the byte 1, its length in bytes as little-endian `u64`, and its UTF-8 bytes. An
//! empty text counts as absent. A value of 0 becomes 1.
//!
//! vLLM before 0.14 says of an adapter only its process-local number. What was computed with one is not the base model's, and no
//! request can name it: in place of `P(lora)` stand the byte 2 and the number as little-endian `i64`.

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
        let mut hasher = hasher();
        prefixed(&mut hasher, lora);
        Self::salted(hasher, salt)
    }

    /// The namespace of an adapter of which only the number is known. Nobody's question is in it.
    fn unnamed(lora_id: i64, cache_salt: Option<&str>) -> Self {
        let mut hasher = hasher();
        hasher.update(&[2]);
        hasher.update(&lora_id.to_le_bytes());
        Self::salted(hasher, cache_salt.filter(|s| !s.is_empty()))
    }

    fn salted(mut hasher: Xxh3, salt: Option<&str>) -> Self {
        prefixed(&mut hasher, salt);
        Namespace(hasher.digest().max(1))
    }
}

fn hasher() -> Xxh3 {
    Xxh3Builder::new().with_seed(super::content::CONTENT_SEED).build()
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
        return of_store(stored, stored.lora_name, stored.cache_salt);
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
    of_store(stored, lora, salt)
}

/// A name says more than the number.
fn of_store(stored: &Stored<'_>, lora: Option<&str>, salt: Option<&str>) -> Namespace {
    match stored.lora_id {
        Some(id) if lora.is_none_or(str::is_empty) && stored.has_unnamed_adapter() => Namespace::unnamed(id, salt),
        _ => Namespace::new(lora, salt),
    }
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

    /// vLLM 0.11: blocks of adapter 3 were credited to prompts of the base model.
    #[test]
    fn blocks_of_an_adapter_without_a_name_are_nobodys() {
        let of = |lora_id, lora_name, cache_salt| {
            store_namespace(&Stored { lora_id, lora_name, cache_salt, ..Stored::default() })
        };
        let unnamed = [of(Some(3), None, None), of(Some(4), Some(""), None), of(Some(3), None, Some("s"))];
        for (i, namespace) in unnamed.iter().enumerate() {
            assert!(!unnamed[..i].contains(namespace), "{i}");
            for lora in [None, Some("3"), Some("4")] {
                for salt in [None, Some("s")] {
                    assert_ne!(*namespace, Namespace::new(lora, salt), "{i} {lora:?} {salt:?}");
                }
            }
        }
        assert_eq!(of(Some(3), Some("a"), None), Namespace::new(Some("a"), None));
        assert_eq!(of(Some(0), None, None), Namespace::NONE);
    }
}
