//! What a stream is made of besides its trace.

use serde::{Deserialize, Serialize};

/// How the workers of a fleet name the same block.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Names {
    /// Alike: SGLang, and vLLM with a pinned hash seed.
    Same,
    /// Each worker in its own way: vLLM with a random hash seed.
    Random,
}

/// How many workers hold a block, roughly.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Sharing {
    /// About 14: every prompt is served by many workers.
    High,
    /// About 3.
    Standard,
    /// About 1.2: conversations stay where they are.
    Low,
}

/// Parameters of a [`crate::Stream`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parameters {
    /// Seed of the mock fleet: contents, names, routing, random evictions.
    pub seed: u64,
    /// Workers of the fleet, at most 65,536.
    pub workers: u32,
    /// Blocks of a worker's pool.
    pub blocks_per_worker: u32,
    /// Tokens of a block; divides 512.
    pub block_tokens: u32,
    /// How often the trace's prompts and answers are as long as written.
    pub length_factor: u32,
    /// Copies of the trace that run at the same time, each with contents of its own.
    pub copies: u32,
    /// Workers that serve each prompt, at most all.
    pub replicas: u32,
    /// Of a thousand prompts, so many go to another worker than their conversation's.
    pub wander_per_mille: u32,
    /// The replicas of a prompt begin within this many milliseconds.
    pub replica_spread_ms: u32,
    /// How workers name blocks.
    pub names: Names,
    /// Blocks of one store event at most.
    pub store_blocks_max: u32,
    /// Names of one removal event at most: 1 is vLLM's form.
    pub removal_names_max: u32,
    /// Blocks of one decode event at most.
    pub decode_blocks_max: u32,
    /// Of a thousand evictions, so many take any block that is not in use instead of the least recently used: they leave holes.
    pub random_evictions_per_mille: u32,
    /// Tokens that a worker decodes in a second for one request.
    pub decode_tokens_per_s: u32,
}

/// Why parameters cannot be used.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field} is {value}, but must be {min} to {max}{more}")]
pub struct ParametersError {
    /// The parameter.
    pub field: &'static str,
    /// What was asked for.
    pub value: u64,
    /// Smallest allowed.
    pub min: u64,
    /// Largest allowed.
    pub max: u64,
    more: &'static str,
}

impl Default for Parameters {
    fn default() -> Self {
        Self::standard(128, Sharing::Standard, Names::Same)
    }
}

impl Parameters {
    /// The standard corpus of a block size (128, 16 or 1 tokens), sharing and naming.
    ///
    /// 128 workers of 2 million tokens each and stores of at most 8,192 tokens; with one-token blocks 16 workers of 1,048,576
    /// blocks, and a request's decode blocks in one event.
    pub fn standard(block_tokens: u32, sharing: Sharing, names: Names) -> Self {
        let single = block_tokens == 1;
        let (replicas, wander_per_mille) = match (sharing, single) {
            (Sharing::High, false) => (30, 0),
            (Sharing::High, true) => (3, 0),
            (Sharing::Standard, false) => (4, 100),
            (Sharing::Standard, true) => (2, 100),
            (Sharing::Low, _) => (1, 400),
        };
        Self {
            seed: 1,
            workers: if single { 16 } else { 128 },
            blocks_per_worker: if single { 1 << 20 } else { (1 << 21) / block_tokens.max(1) },
            block_tokens,
            length_factor: 1,
            copies: if sharing == Sharing::Low && !single { 8 } else { 1 },
            replicas,
            wander_per_mille,
            replica_spread_ms: 1000,
            names,
            store_blocks_max: 8192 / block_tokens.max(1),
            removal_names_max: 8192 / block_tokens.max(1),
            decode_blocks_max: if single { u32::MAX } else { 1 },
            random_evictions_per_mille: 0,
            decode_tokens_per_s: 40,
        }
    }

    /// Blocks of the whole fleet.
    pub fn capacity(&self) -> u64 {
        u64::from(self.workers) * u64::from(self.blocks_per_worker)
    }

    /// Checks every parameter against its range.
    pub fn check(&self) -> Result<(), ParametersError> {
        let range = |field, value: u32, min, max| {
            let value = u64::from(value);
            if (min..=max).contains(&value) {
                Ok(())
            } else {
                Err(ParametersError { field, value, min, max, more: "" })
            }
        };
        range("workers", self.workers, 1, 1 << 16)?;
        range("blocks_per_worker", self.blocks_per_worker, 16, 1 << 28)?;
        range("block_tokens", self.block_tokens, 1, 512)?;
        if 512 % self.block_tokens != 0 {
            let value = u64::from(self.block_tokens);
            return Err(ParametersError { field: "block_tokens", value, min: 1, max: 512, more: ", a divisor of 512" });
        }
        range("length_factor", self.length_factor, 1, 64)?;
        range("copies", self.copies, 1, 4096)?;
        range("replicas", self.replicas, 1, u64::from(self.workers))?;
        range("wander_per_mille", self.wander_per_mille, 0, 1000)?;
        range("replica_spread_ms", self.replica_spread_ms, 0, 1 << 24)?;
        range("store_blocks_max", self.store_blocks_max, 1, u64::from(u32::MAX))?;
        range("removal_names_max", self.removal_names_max, 1, u64::from(u32::MAX))?;
        range("decode_blocks_max", self.decode_blocks_max, 1, u64::from(u32::MAX))?;
        range("random_evictions_per_mille", self.random_evictions_per_mille, 0, 1000)?;
        range("decode_tokens_per_s", self.decode_tokens_per_s, 1, 1 << 20)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn standard_corpora_are_valid() {
        for tokens in [1, 16, 128] {
            for sharing in [Sharing::High, Sharing::Standard, Sharing::Low] {
                Parameters::standard(tokens, sharing, Names::Same).check().unwrap();
            }
        }
    }

    #[test]
    fn what_is_out_of_range_is_named() {
        let error = |change: fn(&mut Parameters)| {
            let mut parameters = Parameters::default();
            change(&mut parameters);
            parameters.check().unwrap_err().to_string()
        };
        assert_eq!(error(|p| p.replicas = 129), "replicas is 129, but must be 1 to 128");
        assert_eq!(error(|p| p.block_tokens = 48), "block_tokens is 48, but must be 1 to 512, a divisor of 512");
    }
}
