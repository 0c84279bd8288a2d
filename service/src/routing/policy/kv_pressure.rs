//! KV pressure of a fleet: when it is on, prefixes do not matter any more, and the least expected wait decides.

use crate::routing::view::View;

/// Whether the fullest KV pool is above the ceiling, or the fullest and the emptiest are too far apart. Only fresh records count; where
/// there is none, there is no pressure. Both off, as by default, no record is looked at.
pub(super) fn is_pressed(view: &View<'_>) -> bool {
    let settings = &view.settings.cache_aware;
    let (ceiling, spread) = (settings.overload_token_usage_threshold, settings.balance_token_usage_threshold);
    // Use is a share: nothing is above 1.
    if ceiling >= 1.0 && spread >= 1.0 {
        return false;
    }
    let (mut least, mut most) = (f64::INFINITY, f64::NEG_INFINITY);
    for slot in view.candidates.iter().copied().filter(|slot| !view.is_dark(*slot)) {
        let usage = view.columns.load[slot as usize].usage;
        (least, most) = (least.min(usage), most.max(usage));
    }
    most > ceiling || most - least > spread
}
