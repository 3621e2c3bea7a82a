//! HAMi's device configuration, as YAML and as the JSON of a node.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    if let Ok(value) = serde_saphyr::from_str::<serde_json::Value>(text) {
        let mut config = wire::device_config::read(&value).map(|(config, _)| config).unwrap_or_default();
        let _ = wire::device_config::for_node(&value, "a", &mut config);
        assert!(config.slots > 0 && config.offered_cores().0 <= 10_000);
        let _ = wire::cdi::of_value(value);
    }
});
