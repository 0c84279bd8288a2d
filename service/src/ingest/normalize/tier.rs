//! What engines call the places where blocks live.

use kvatlas_index::Tier;

/// The tier of a medium; `None` for a name that is not known. No name at all is the device: engines had one tier before they
/// named it. Letter case does not matter. Allocates nothing.
pub fn tier_of(medium: Option<&str>) -> Option<Tier> {
    const NAMES: [(&str, Tier); 15] = [
        ("GPU", Tier::Device),
        ("DEVICE", Tier::Device),
        ("CPU", Tier::Host),
        ("CPU_PINNED", Tier::Host),
        ("CPU_TIER1", Tier::Host),
        ("DISK", Tier::Disk),
        ("NVME", Tier::Disk),
        ("STORAGE", Tier::Disk),
        ("CPU_TIER2", Tier::Disk),
        ("FS", Tier::Disk),
        ("OBJ", Tier::External),
        ("EXTERNAL", Tier::External),
        ("NETWORK", Tier::External),
        ("REMOTE", Tier::External),
        ("SHARED", Tier::External),
    ];
    let Some(medium) = medium else { return Some(Tier::Device) };
    // What nearly every event says, letter for letter.
    if medium == "GPU" {
        return Some(Tier::Device);
    }
    NAMES.iter().find(|(name, _)| name.eq_ignore_ascii_case(medium)).map(|&(_, tier)| tier)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_in_use_has_its_tier_and_no_other_is_the_device() {
        assert_eq!(tier_of(None), Some(Tier::Device));
        assert_eq!(tier_of(Some("gpu")), Some(Tier::Device));
        assert_eq!(tier_of(Some("CPU_PINNED")), Some(Tier::Host));
        assert_eq!(tier_of(Some("STORAGE")), Some(Tier::Disk));
        assert_eq!(tier_of(Some("EXTERNAL")), Some(Tier::External));
        for unknown in ["HBM3X", "", "GPU ", "G"] {
            assert_eq!(tier_of(Some(unknown)), None);
        }
    }
}
