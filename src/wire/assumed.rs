//! What the leading extender counts as taken of a node's GPUs (`hami.io/node-nvidia-assume`), for people and other programs. Nothing
//! in this product reads it.
//!
//! ```text
//!   {"devices":[{"id":"GPU-…","used":2,"usedmem":8192,"usedcores":50}],"more":3}
//! ```
//!
//! `used` counts containers, `usedmem` is in MiB, `usedcores` in percent of SM time. Devices of which nothing is taken are left out.
//! `more` counts devices for which there is no room. Equal meanings have equal texts. No pod is named, because anyone who may read
//! Nodes can read this.

use model::assumed::AssumedDevice;
use serde_json::Value;
use std::fmt::Write;

/// Maximum size in bytes. A node with 16 GPUs needs 1.5 KiB; a node with 112 MIG instances would need more than this.
pub const MAX_ASSUMED: usize = 8 * 1024;
/// Bytes that are kept free for the end of the text.
const END: usize = 32;

/// Writes the annotation's value; `None` if nothing is taken, so that the Node needs no annotation.
#[must_use]
pub fn encode(devices: &[AssumedDevice]) -> Option<String> {
    let mut text = "{\"devices\":[".to_owned();
    let mut more = devices.len();
    for device in devices {
        let AssumedDevice { device, containers, memory, cores } = device;
        let mib = memory.0.div_ceil(1 << 20);
        let id = Value::from(device.as_str());
        let entry = format!(r#"{{"id":{id},"used":{containers},"usedmem":{mib},"usedcores":{cores}}}"#);
        if text.len() + entry.len() + END > MAX_ASSUMED {
            break;
        }
        if more < devices.len() {
            text.push(',');
        }
        text.push_str(&entry);
        more -= 1;
    }
    text.push(']');
    if more > 0 {
        // Writing into a String does not fail.
        let _ = write!(text, ",\"more\":{more}");
    }
    text.push('}');
    (!devices.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::GpuUuid;
    use model::unit::Bytes;
    use proptest::prelude::*;
    use serde_json::json;

    fn device(uuid: &str, mib: u64) -> AssumedDevice {
        AssumedDevice { device: GpuUuid::parse(uuid).unwrap(), containers: 2, memory: Bytes(mib << 20), cores: 50 }
    }

    #[test]
    fn what_is_taken_is_written_and_nothing_is_written_for_nothing() {
        assert_eq!(encode(&[]), None);
        let text = encode(&[device("GPU-1", 8192), device("GPU-2", 1)]).unwrap();
        let expected = "{\"devices\":[{\"id\":\"GPU-1\",\"used\":2,\"usedmem\":8192,\"usedcores\":50},\
                        {\"id\":\"GPU-2\",\"used\":2,\"usedmem\":1,\"usedcores\":50}]}";
        assert_eq!(text, expected);
    }

    #[test]
    fn devices_without_room_are_counted_and_the_text_stays_json() {
        for count in [1, 60, 112, 10_000_u64] {
            let devices: Vec<AssumedDevice> =
                (0..count).map(|n| device(&format!("MIG-{n:08}-0000-0000-0000-000000000000"), 10_240)).collect();
            let text = encode(&devices).unwrap();
            assert!(text.len() <= MAX_ASSUMED, "{}", text.len());
            let shown: Value = serde_json::from_str(&text).unwrap();
            let (written, more) = (shown["devices"].as_array().unwrap(), shown["more"].as_u64().unwrap_or(0));
            assert_eq!(u64::try_from(written.len()).unwrap() + more, count);
            assert!(more == 0 || written.len() > 80, "{}", written.len());
            let first = json!({ "id": "MIG-00000000-0000-0000-0000-000000000000", "used": 2, "usedmem": 10_240, "usedcores": 50 });
            assert_eq!(written[0], first);
        }
    }

    proptest! {
        /// An agent chooses the UUIDs in its register.
        #[test]
        fn no_uuid_breaks_the_json_or_its_bound(uuids in prop::collection::vec("[!-~]{1,96}", 0..200)) {
            let devices: Vec<AssumedDevice> = uuids.iter().map(|uuid| device(uuid, u64::MAX >> 20)).collect();
            let Some(text) = encode(&devices) else { return Ok(()) };
            prop_assert!(text.len() <= MAX_ASSUMED);
            let shown: Value = serde_json::from_str(&text).unwrap();
            for (written, uuid) in shown["devices"].as_array().unwrap().iter().zip(&uuids) {
                prop_assert_eq!(written["id"].as_str(), Some(&**uuid));
            }
        }
    }
}
