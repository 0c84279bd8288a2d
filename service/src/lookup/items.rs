//! Limits of multimodal items. Each is folded into every block that it overlaps, so many long ones over a long prompt, small
//! as the request is, would be work without an end.

use super::question::{LookupError, NamespaceText};

/// Limits of the items of one lookup, or of all stores of one pushed batch. Reaching one is [`LookupError::TooLong`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ItemLimits {
    /// Items of one prompt.
    pub items_max: usize,
    /// Blocks that items overlap, summed over the items.
    pub item_blocks_max: usize,
}

impl Default for ItemLimits {
    /// Items of a real prompt hardly overlap each other: twice the longest prompt is room enough.
    fn default() -> Self {
        Self { items_max: 4096, item_blocks_max: 2 << 20 }
    }
}

impl ItemLimits {
    /// Checks the items of a prompt of so many blocks. `so_far` blocks were counted before; returns the new sum.
    pub fn check(
        &self,
        namespace: &NamespaceText,
        blocks: usize,
        block_size: u32,
        so_far: usize,
    ) -> Result<usize, LookupError> {
        let check = |field, len, setting, limit| {
            if len <= limit { Ok(len) } else { Err(LookupError::TooLong { field, len, setting, limit }) }
        };
        check("namespace.multimodal", namespace.items.len(), "limits.lookup_items_max", self.items_max)?;
        let size = block_size.max(1) as usize;
        let overlapped = namespace.items.iter().map(|item| {
            let end = item.offset_tokens.saturating_add(item.length_tokens).div_ceil(size).min(blocks);
            end.saturating_sub(item.offset_tokens / size)
        });
        let sum = overlapped.fold(so_far, usize::saturating_add);
        check("namespace.multimodal (blocks overlapped)", sum, "limits.lookup_item_blocks_max", self.item_blocks_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lookup::ItemText;

    #[test]
    fn what_is_counted_is_the_blocks_overlapped() {
        let item = |offset_tokens, length_tokens| ItemText {
            identifier: "i".into(),
            offset_tokens,
            length_tokens,
            at_offset: true,
        };
        let limits = ItemLimits { items_max: 3, item_blocks_max: 10 };
        let sum = |items: &[ItemText], so_far| {
            let namespace = NamespaceText { items: items.to_vec(), ..NamespaceText::default() };
            limits.check(&namespace, 5, 4, so_far).ok()
        };
        assert_eq!(sum(&[], 0), Some(0));
        assert_eq!(sum(&[item(3, 2)], 0), Some(2));
        assert_eq!(sum(&[item(0, usize::MAX), item(1, usize::MAX)], 0), Some(10));
        assert_eq!(sum(&[item(0, usize::MAX), item(1, usize::MAX)], 1), None);
        assert_eq!(sum(&[item(usize::MAX, usize::MAX), item(20, 4)], 0), Some(0));
        assert_eq!(sum(&vec![item(0, 1); 4], 0), None);
    }
}
