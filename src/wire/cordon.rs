//! The cordon of a node (`hami.io/device-cordon`): UUIDs of GPUs that get no new containers, separated by commas.
//! Operators write the list by hand, so white space and empty items are allowed.

use crate::annotation_keys::{CORDON, MAX_ANNOTATION};
use crate::decode_error::DecodeError;
use model::id::GpuUuid;
use std::collections::BTreeSet;

/// Maximum number of UUIDs: 64 GPUs of 7 MIG instances fit.
const MAX_ITEMS: usize = 1024;

/// Reads the annotation's value.
///
/// # Errors
/// [`DecodeError`] if an item is not a UUID. The list is then refused as a whole: a typing error must not lead to
/// new containers on a GPU that the operator wanted to cordon.
pub fn decode(text: &str) -> Result<BTreeSet<GpuUuid>, DecodeError> {
    if text.len() > MAX_ANNOTATION {
        return Err(DecodeError::too_long(CORDON, text.len(), MAX_ANNOTATION));
    }
    let mut cordoned = BTreeSet::new();
    let mut at = 0;
    for item in text.split(',') {
        let name = item.trim();
        if !name.is_empty() {
            if cordoned.len() == MAX_ITEMS {
                return Err(DecodeError::too_many(CORDON, at, "GPUs", MAX_ITEMS));
            }
            cordoned.insert(GpuUuid::parse(name).map_err(|error| DecodeError::new(CORDON, at, error.to_string()))?);
        }
        at += item.len() + 1;
    }
    Ok(cordoned)
}

/// Writes the list: ordered, without white space.
#[must_use]
pub fn encode(cordoned: &BTreeSet<GpuUuid>) -> String {
    cordoned.iter().map(GpuUuid::as_str).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn set(uuids: &[&str]) -> BTreeSet<GpuUuid> {
        uuids.iter().map(|uuid| GpuUuid::parse(uuid).unwrap()).collect()
    }

    #[test]
    fn white_space_and_empty_items_are_ignored() {
        assert_eq!(decode(" GPU-b, ,GPU-a,,GPU-b\n").unwrap(), set(&["GPU-a", "GPU-b"]));
        assert_eq!(decode("").unwrap(), set(&[]));
        assert_eq!(encode(&set(&["GPU-b", "GPU-a"])), "GPU-a,GPU-b");
    }

    #[test]
    fn an_invalid_uuid_is_reported_with_its_position() {
        let fault = decode("GPU-a,GPU b").unwrap_err();
        assert_eq!(fault.to_string(), "hami.io/device-cordon, byte 6: not a GPU UUID: \"GPU b\"");
        assert!(decode(&",".repeat(MAX_ANNOTATION + 1)).is_err());
        let many: Vec<String> = (0..=MAX_ITEMS).map(|n| format!("GPU-{n}")).collect();
        assert!(decode(&many.join(",")).unwrap_err().what.contains("more than 1024"));
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(text in "\\PC{0,100}") {
            let _ = decode(&text);
        }

        #[test]
        fn encoded_values_are_decoded_unchanged(uuids in prop::collection::btree_set("[!-+.-~]{1,12}", 0..9)) {
            let uuids = uuids.iter().map(|uuid| GpuUuid::parse(uuid).unwrap()).collect();
            prop_assert_eq!(decode(&encode(&uuids)).unwrap(), uuids);
        }
    }
}
