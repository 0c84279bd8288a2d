//! How many tokens of a prompt an engine says it would reuse, given which blocks are resident: the engines' documented rules.
//! Pure.
//!
//! - Raw hit: leading blocks that are resident. vLLM with window groups beside a full group: the longest prefix that the
//!   full group has whole and of which each window group has the last `ceil((window - 1) / block)` blocks.
//! - vLLM never reuses a whole prompt: at most the blocks of its first `n - 1` tokens count.
//! - SGLang matches all tokens but the last, for the same reason; host residency is what lies beyond the device's, in the
//!   device or host tier.

/// One position of a prompt: where its block is resident.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Position {
    /// In the full group on the device.
    pub device: bool,
    /// In the host tier.
    pub host: bool,
    /// In each window group on the device.
    pub windows: Vec<bool>,
}

/// A prompt over the blocks that are resident.
#[derive(Clone, Debug)]
pub struct Residency {
    /// Tokens in a block.
    pub block_size: u64,
    /// Blocks that each window group needs before the end of a hit.
    pub window_blocks: Vec<u64>,
    /// The positions, as far as the content is known.
    pub positions: Vec<Position>,
}

impl Residency {
    /// Leading blocks on the device.
    pub fn device(&self) -> u64 {
        leading(&self.positions, |p| p.device)
    }

    /// Leading blocks on the device or the host.
    pub fn device_or_host(&self) -> u64 {
        leading(&self.positions, |p| p.device || p.host)
    }

    /// What vLLM answers to a prompt of `tokens` tokens: capped, raw.
    pub fn vllm(&self, tokens: u64) -> [u64; 2] {
        [self.vllm_hit(tokens.saturating_sub(1)), self.vllm_hit(tokens)]
    }

    /// What SGLang answers: device capped, device raw, host capped, host raw.
    pub fn sglang(&self, tokens: u64) -> [u64; 4] {
        let (device, both) = (self.device(), self.device_or_host());
        let match_of = |tokens: u64| {
            let cap = tokens / self.block_size;
            let device = device.min(cap);
            (device * self.block_size, (both.min(cap) - device) * self.block_size)
        };
        let (capped, raw) = (match_of(tokens.saturating_sub(1)), match_of(tokens));
        [capped.0, raw.0, capped.1, raw.1]
    }

    /// The longest hit within so many tokens.
    fn vllm_hit(&self, tokens: u64) -> u64 {
        let blocks_max = self.device().min(tokens / self.block_size);
        let hit = (0..=blocks_max).rev().find(|&end| self.windows_cover(end));
        hit.unwrap_or(0) * self.block_size
    }

    fn windows_cover(&self, end: u64) -> bool {
        self.window_blocks.iter().enumerate().all(|(group, &needed)| {
            let from = end.saturating_sub(needed);
            self.positions[from as usize..end as usize].iter().all(|p| p.windows.get(group) == Some(&true))
        })
    }
}

/// Blocks before the end of a hit that a window of so many tokens still looks at.
pub fn window_blocks(window: u64, block_size: u64) -> u64 {
    window.saturating_sub(1).div_ceil(block_size)
}

fn leading(positions: &[Position], resident: impl Fn(&Position) -> bool) -> u64 {
    positions.iter().take_while(|p| resident(p)).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn residency(window_blocks: &[u64], positions: &[(bool, bool, bool)]) -> Residency {
        let position = |&(device, host, window): &(bool, bool, bool)| Position { device, host, windows: vec![window] };
        Residency {
            block_size: 4,
            window_blocks: window_blocks.to_vec(),
            positions: positions.iter().map(position).collect(),
        }
    }

    const D: (bool, bool, bool) = (true, false, false);
    const H: (bool, bool, bool) = (false, true, false);
    const W: (bool, bool, bool) = (true, false, true);

    #[test]
    fn vllm_never_reuses_the_whole_prompt() {
        let r = residency(&[], &[D, D, D]);
        assert_eq!(r.vllm(12), [8, 12]);
        assert_eq!(r.vllm(13), [12, 12]);
        assert_eq!(r.vllm(4), [0, 4]);
        assert_eq!(r.vllm(0), [0, 0]);
    }

    #[test]
    fn a_window_group_needs_its_last_blocks_only() {
        assert_eq!(residency(&[2], &[D, D, W, W, D]).vllm(99), [16, 16]);
        assert_eq!(residency(&[2], &[D, D, D, W, D]).vllm(99), [0, 0]);
        assert_eq!(residency(&[2], &[W, D, D]).vllm(99), [4, 4]);
        // The cap comes before the search: the hit ends where the window still covers it.
        assert_eq!(residency(&[2], &[W, D, W, W]).vllm(16), [4, 16]);
        assert_eq!(
            (window_blocks(96, 32), window_blocks(1, 32), window_blocks(97, 32), window_blocks(98, 32)),
            (3, 0, 3, 4)
        );
    }

    #[test]
    fn sglang_host_is_what_lies_beyond_the_device() {
        assert_eq!(residency(&[], &[D, H, D, H]).sglang(16), [4, 4, 8, 12]);
        assert_eq!(residency(&[], &[H, H]).sglang(99), [0, 0, 8, 8]);
        assert_eq!(residency(&[], &[D, D]).sglang(8), [4, 8, 0, 0]);
    }
}
