//! The registers of other vendors' devices on a Node. gpu-steward places NVIDIA's GPUs only.

use model::nvidia::REGISTER;
use model::other_vendors::{OtherVendor, RealtimeDevices};
use std::collections::{BTreeMap, BTreeSet};

/// Registers of vendors that HAMi's design of the real-time check does not name.
const FIXED: [(&str, &str); 3] = [
    ("hami.io/node-amd-register", "AMD GPU devices"),
    ("hami.io/node-biren-register", "Biren GPU devices"),
    ("hami.io/node-va-register", "Vastai devices"),
];
/// The start of the keys that end in the name of a chip. An unknown chip is named as it is.
const BY_CHIP: &str = "hami.io/node-register-";
/// Maximum number of registers of one Node that are named: a Node has at most a few kinds of devices.
const MAX_NAMED: usize = 8;

/// The vendors, other than NVIDIA, that have registered devices in these annotations.
pub(crate) fn of(annotations: &BTreeMap<String, String>) -> BTreeSet<String> {
    annotations.keys().filter_map(|key| vendor(key)).take(MAX_NAMED).collect()
}

fn vendor(key: &str) -> Option<String> {
    if key == REGISTER {
        return None;
    }
    let family = OtherVendor::of_register(key).map(|vendor| vendor.family());
    let family = family.or_else(|| FIXED.iter().find(|(fixed, _)| *fixed == key).map(|(_, family)| *family));
    family.or_else(|| key.strip_prefix(BY_CHIP)).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_registers_of_other_vendors_are_known_by_their_keys() {
        let keys = [
            "hami.io/node-nvidia-register",
            "hami.io/node-handshake-dcu",
            "hami.io/node-dcu-register",
            "hami.io/node-register-xpu",
            "hami.io/node-register-Ascend910B",
            "hami.io/node-biren-register",
            "hami.io/node-register-MR-V100",
        ];
        let annotations = keys.into_iter().map(|key| (key.to_owned(), "x".to_owned())).collect();
        let found: Vec<String> = of(&annotations).into_iter().collect();
        assert_eq!(
            found,
            ["Ascend NPU devices", "Biren GPU devices", "Hygon DCU devices", "Kunlun XPU devices", "MR-V100"]
        );
    }
}
