//! HAMi's files in YAML as people write them, and files that are refused.

use super::*;
use crate::resource::ResourceNames;
use proptest::prelude::*;
use serde_json::json;

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap_or_else(|error| panic!("{error}"))
}

fn scaling(factor: f64) -> DeviceScaling {
    DeviceScaling::new(factor).unwrap()
}

/// A device YAML with the keys and values of HAMi's chart, with `nvidia` among other vendors.
const CHART: &str = "
nvidia:
  resourceCountName: nvidia.com/gpu
  resourceMemoryName: nvidia.com/gpumem
  resourceMemoryPercentageName: nvidia.com/gpumem-percentage
  resourceCoreName: nvidia.com/gpucores
  resourcePriorityName: nvidia.com/priority
  overwriteEnv: false
  defaultMemory: 0
  defaultCores: 0
  defaultGPUNum: 1
  memoryFactor: 1
  deviceSplitCount: 10
  deviceMemoryScaling: 1
  deviceCoreScaling: 1
  preConfiguredDeviceMemory: 0
  enableNumaTopology: false
  gpuCorePolicy: default
  libCudaLogLevel: \"1\"
  runtimeClassName: \"\"
  migProfileAllowlist:
  - models: [\"A30\"]
    profiles: [1g.6gb, 2g.12gb, 4g.24gb]
cambricon:
  resourceCountName: cambricon.com/vmlu
hygon:
  resourceCountName: hygon.com/dcunum
";

#[test]
fn the_file_of_hamis_chart_gives_the_defaults() {
    let (config, warnings) = read(&yaml(CHART)).unwrap();
    let a30 = MigAllowance {
        models: vec!["A30".into()],
        profiles: ["1g.6gb", "2g.12gb", "4g.24gb"].map(String::from).into(),
    };
    assert_eq!(config, DeviceConfig { mig_allowlist: vec![a30], ..DeviceConfig::default() });
    let shown: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        shown,
        [
            "cambricon: the agent does not handle devices of this vendor",
            "hygon: the agent does not handle devices of this vendor"
        ]
    );
}

#[test]
fn every_setting_is_followed_or_reported() {
    let text = "
nvidia:
  resourceCountName: example.com/gpu
  defaultMemory: 2000
  defaultCores: \"10\"
  defaultGPUNum: 0
  memoryFactor: 256
  deviceSplitCount: 4
  deviceMemoryScaling: 1.5
  deviceCoreScaling: 2
  preConfiguredDeviceMemory: 16384
  enableNumaTopology: \"true\"
  gpuCorePolicy: force
  libCudaLogLevel: 3
  disableCoreLimit: true
  runtimeClassName: nvidia
  overwriteEnv: true
  resourceCoreName: null
  knownMigGeometries: []
  devicesplitCounts: 3
";
    let (config, warnings) = read(&yaml(text)).unwrap();
    let names = ResourceNames { count: "example.com/gpu".into(), ..ResourceNames::default() };
    let rules =
        RequestRules { names, default_memory: Some(Mib(2000)), default_cores: CorePercent(10), memory_factor: 256 };
    let expected = DeviceConfig {
        rules,
        default_count: 0,
        overwrite_env: true,
        runtime_class: Some("nvidia".into()),
        slots: 4,
        memory_scaling: scaling(1.5),
        core_scaling: scaling(2.0),
        preconfigured_memory: Some(Mib(16_384)),
        numa_topology: true,
        core_policy: CorePolicy::Force,
        disable_core_limit: true,
        log_level: Some("3".into()),
        ..DeviceConfig::default()
    };
    assert_eq!(config, expected);
    let shown: Vec<&str> = warnings.iter().map(|warning| warning.path.as_str()).collect();
    assert_eq!(shown, ["nvidia.devicesplitCounts", "nvidia.knownMigGeometries"]);
}

#[test]
fn offered_amounts_are_scaled_and_rounded_down() {
    let scaled = |memory, cores| DeviceConfig {
        memory_scaling: DeviceScaling::new(memory).unwrap(),
        core_scaling: DeviceScaling::new(cores).unwrap(),
        ..DeviceConfig::default()
    };
    let total = Bytes(81_559 * Bytes::MIB + 5);
    assert_eq!(scaled(1.0, 1.0).offered_memory(total), Mib(81_559));
    assert_eq!(scaled(1.5, 1.0).offered_memory(total), Mib(122_338));
    assert_eq!(
        (scaled(1.0, 1.0).offered_cores(), scaled(1.0, 1.555).offered_cores()),
        (CorePercent(100), CorePercent(155))
    );
    assert_eq!(scaled(100.0, 100.0).offered_memory(Bytes(u64::MAX)), Mib(1_759_218_604_441_500), "no overflow");
    for factor in [0.0, -1.0, 100.1, f64::NAN, f64::INFINITY] {
        assert_eq!(DeviceScaling::new(factor), None);
    }
}

#[test]
fn the_entry_of_the_node_overrides_the_other_settings() {
    let file = json!({"nodeconfig": [
        {"name": "node-a", "devicesplitcount": 2},
        {"name": "node-b", "operatingmode": "mig", "deviceSplitCount": 4, "devicememoryscaling": 2.5, "devicecorescaling": 1,
         "preconfigureddevicememory": 100, "libcudaloglevel": "4", "enablenumatopology": true, "migstrategy": "none",
         "enablegetpreferredallocation": true, "colour": "red",
         "filterdevices": {"uuid": ["GPU-a"], "index": [3, 1], "name": []}},
    ], "later": 1});
    let mut config = DeviceConfig::default();
    let warnings = for_node(&file, "node-b", &mut config).unwrap();
    let expected = DeviceConfig {
        mode: "mig".into(),
        slots: 4,
        memory_scaling: scaling(2.5),
        preconfigured_memory: Some(Mib(100)),
        log_level: Some("4".into()),
        numa_topology: true,
        preferred_allocation: true,
        hidden_uuids: [GpuUuid::parse("GPU-a").unwrap()].into(),
        hidden_indexes: [1, 3].into(),
        ..DeviceConfig::default()
    };
    assert_eq!(config, expected);
    let shown: Vec<&str> = warnings.iter().map(|warning| warning.path.as_str()).collect();
    assert_eq!(
        shown,
        ["later", "nodeconfig[1].colour", "nodeconfig[1].filterdevices.name", "nodeconfig[1].migstrategy"],
        "one warning for each ignored setting, in order"
    );

    let mut other = DeviceConfig::default();
    assert_eq!(for_node(&file, "node-c", &mut other).unwrap().len(), 1);
    assert_eq!(other, DeviceConfig::default());
}

#[test]
fn an_impossible_value_is_reported_with_its_key() {
    for (text, what) in [
        ("{}", "is empty, or not a mapping of vendors"),
        ("[]", "is empty, or not a mapping of vendors"),
        ("nvidia: 3", "nvidia: is not a mapping of settings"),
        ("nvidia: {deviceSplitCount: ten}", "nvidia.deviceSplitCount: is not a whole number from 1 to 1000: \"ten\""),
        ("nvidia: {deviceSplitCount: 0}", "nvidia.deviceSplitCount: is not a whole number from 1 to 1000: 0"),
        ("nvidia: {deviceSplitCount: 1001}", "from 1 to 1000: 1001"),
        ("nvidia: {deviceSplitCount: 1.5}", "from 1 to 1000: 1.5"),
        ("nvidia: {deviceMemoryScaling: -1}", "nvidia.deviceMemoryScaling: is not a number above 0 and up to 100: -1"),
        ("nvidia: {deviceMemoryScaling: [1]}", "up to 100: a list"),
        ("nvidia: {overwriteEnv: 1}", "nvidia.overwriteEnv: is neither true nor false: 1"),
        ("nvidia: {gpuCorePolicy: never}", "nvidia.gpuCorePolicy: is not default, force or disable: \"never\""),
        ("nvidia: {resourceCountName: gpu}", "nvidia.resourceCountName: is not the name of a resource: \"gpu\""),
        ("nvidia: {resourceCountName: \"\"}", "is not the name of a resource: \"\""),
        (
            "nvidia: {resourceCountName: nvidia.com/gpumem}",
            "nvidia: \"nvidia.com/gpumem\" is the resource of both count and memory",
        ),
        ("nvidia: {runtimeClassName: {a: b}}", "nvidia.runtimeClassName: is not a text: a mapping"),
        ("nvidia: {migProfileAllowlist: [{models: 3}]}", "nvidia.migProfileAllowlist: [0]: is not a list: 3"),
        ("nvidia: {migProfileAllowlist: [{model: []}]}", "[0]: has \"model\", which is neither models nor profiles"),
        ("nvidia: {defaultCores: 101}", "nvidia.defaultCores: is not a whole number from 0 to 100: 101"),
    ] {
        let fault = read(&yaml(text)).unwrap_err();
        assert!(fault.what.contains(what), "{text}: {fault}");
    }
    for (file, what) in [
        (json!([]), "the node file is not a JSON object"),
        (json!({"nodeconfig": {}}), "nodeconfig: is not a list"),
        (json!({"nodeconfig": [3]}), "nodeconfig[0]: is not a mapping of settings"),
        (
            json!({"nodeconfig": [{"name": "n", "filterdevices": {"index": ["x"]}}]}),
            "nodeconfig[0].filterdevices: is not a whole",
        ),
        (json!({"nodeconfig": [{"name": "n", "filterdevices": {"uuid": ["a b"]}}]}), "not a GPU UUID"),
        (json!({"nodeconfig": vec![json!({}); 8193]}), "more than 8192 nodes"),
    ] {
        let fault = for_node(&file, "n", &mut DeviceConfig::default()).unwrap_err();
        assert!(fault.what.contains(what), "{fault}");
    }
}

#[test]
fn the_warnings_for_a_file_of_another_program_are_bounded() {
    let vendors: Map<String, Value> = (0..1000).map(|n| (format!("vendor{n:04}"), Value::Null)).collect();
    let (config, warnings) = read(&Value::Object(vendors)).unwrap();
    assert_eq!((config, warnings.len()), (DeviceConfig::default(), MAX_WARNINGS + 1));
    let (_, warnings) = read(&json!({"amd": {}})).unwrap();
    assert_eq!(warnings[1].to_string(), "nvidia: this section is missing, so every setting has its default");
}

proptest! {
    #[test]
    fn no_similar_input_causes_a_panic(text in "(nvidia|nodeconfig):\n(  (deviceSplitCount|name|defaultMemory|filterdevices|migProfileAllowlist): [\\[{\"a-z0-9.:-]{0,8}\n){0,4}") {
        if let Ok(value) = serde_saphyr::from_str::<Value>(&text) {
            let _ = read(&value);
            let _ = for_node(&value, "a", &mut DeviceConfig::default());
        }
    }

    #[test]
    fn accepted_settings_give_valid_offers(slots in 0..1100_u32, memory in -1.0..101.0, cores in -1.0..101.0, total: u64) {
        let value = json!({"nvidia": {"deviceSplitCount": slots, "deviceMemoryScaling": memory, "deviceCoreScaling": cores}});
        if let Ok((config, warnings)) = read(&value) {
            prop_assert!(warnings.is_empty() && (1..=1000).contains(&config.slots));
            prop_assert!(config.offered_cores().0 <= 10_000);
            let (whole, offered) = (Mib::within(Bytes(total)), config.offered_memory(Bytes(total)));
            let sound = if memory >= 1.0 { offered >= whole } else { offered <= whole };
            prop_assert!(sound);
        }
    }
}
