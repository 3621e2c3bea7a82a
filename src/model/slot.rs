//! Slots: the numbered device ids of a GPU that the kubelet counts and allocates.

use crate::id::GpuUuid;
use std::fmt;

/// Upper bound on the slots of one GPU or MIG instance. HAMi's default is 10; time-slicing setups of 100 are known.
pub const MAX_SLOTS_PER_DEVICE: u16 = 1000;

/// One device id of the kubelet: a number on a GPU or MIG instance, written `<uuid>-<number>`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot {
    /// The GPU or MIG instance.
    pub device: GpuUuid,
    /// 0 to the device's number of slots minus one.
    pub number: u16,
}

impl Slot {
    /// Reads `<uuid>-<number>`. Any other text is the id of another plugin: `None`, not an error.
    #[must_use]
    pub fn parse(text: &str) -> Option<Slot> {
        let (device, number) = text.rsplit_once('-')?;
        // `-07` would be a second spelling of `-7`, and the kubelet compares ids as text.
        if number.len() > 1 && number.starts_with('0') || !number.bytes().all(|digit| digit.is_ascii_digit()) {
            return None;
        }
        // Another plugin writes `<uuid>-_-7`.
        if !device.ends_with(|last: char| last.is_ascii_alphanumeric()) {
            return None;
        }
        let number = number.parse().ok().filter(|number| *number < MAX_SLOTS_PER_DEVICE)?;
        Some(Slot { device: GpuUuid::parse(device).ok()?, number })
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.device, self.number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_has_one_spelling() {
        let uuid = "GPU-0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";
        let slot = Slot::parse(&format!("{uuid}-7")).unwrap();
        assert_eq!((slot.device.as_str(), slot.number), (uuid, 7));
        assert_eq!(slot.to_string(), format!("{uuid}-7"));
        for bad in [
            "",
            "GPU",
            "GPU-aa-07",
            "GPU-aa-1000",
            "GPU-aa-x",
            "GPU-aa-",
            "-1",
            "GPU aa-1",
            "GPU-aa::1",
            "GPU-aa-+1",
            "GPU-aa-_-1",
        ] {
            assert_eq!(Slot::parse(bad), None, "{bad}");
        }
    }
}
