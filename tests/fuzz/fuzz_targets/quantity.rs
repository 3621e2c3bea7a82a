//! Quantities, and the request of a container with them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let text = String::from_utf8_lossy(bytes);
    if let Ok(quantity) = wire::quantity::parse(&text) {
        assert!(quantity.integer().is_none_or(|whole| whole == quantity.ceil()));
    }
    let rules = wire::resource::RequestRules::default();
    let names = ["nvidia.com/gpu", "nvidia.com/gpumem", "nvidia.com/gpumem-percentage", "nvidia.com/gpucores"];
    let limits = names.into_iter().map(str::to_owned).zip(text.split(',').map(str::to_owned)).collect();
    if let Ok(Some(request)) = wire::resource::request(&rules, &limits, &wire::resource::ResourceAmounts::new()) {
        assert!(request.count > 0 && request.cores.0 <= 100);
    }
});
