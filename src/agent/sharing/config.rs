//! The device configuration of this node: HAMi's device YAML as it is, overridden by the agent's own settings.

use crate::settings::SharingSettings;
use model::id::NodeName;
use sources::device_config;
use wire::device_config::{ConfigWarning, DeviceConfig};

/// Reads the configuration of this node, and logs the keys that the agent does not follow. It is read once, even if GPUs are not
/// shared: a file that a setting names must exist, and all parts of the agent must use the same names of resources.
///
/// # Errors
/// A message that names the file.
pub(crate) fn read(settings: &SharingSettings, node: &NodeName) -> Result<DeviceConfig, String> {
    let read = device_config::read(&settings.device_config, node);
    let (mut config, mut warnings) = read.map_err(|why| format!("device configuration {why}"))?;
    warnings.extend(not_followed(&config));
    if let Some(count) = settings.split_count {
        config.slots = count;
    }
    if let Some(factor) = settings.memory_scaling {
        config.memory_scaling = factor;
    }
    if let Some(factor) = settings.core_scaling {
        config.core_scaling = factor;
    }
    settings.resources.replace(&mut config.rules.names)?;
    for warning in warnings {
        tracing::warn!(files = ?settings.device_config, "device configuration: {warning}");
    }
    Ok(config)
}

/// Warnings about keys that the agent can parse and that differ from their default, but that it does not follow.
fn not_followed(config: &DeviceConfig) -> Vec<ConfigWarning> {
    const WEBHOOK: &str = "is for the admission webhook; a device plugin does not use it";
    let usual = DeviceConfig::default();
    let rows = [
        (config.default_count != usual.default_count, "defaultGPUNum", WEBHOOK),
        (config.overwrite_env != usual.overwrite_env, "overwriteEnv", WEBHOOK),
        (config.runtime_class != usual.runtime_class, "runtimeClassName", WEBHOOK),
        (
            config.mode != usual.mode,
            "operatingmode",
            "every GPU is shared as in mode hami-core; existing MIG instances are shared, and none is created or destroyed",
        ),
        (
            config.mig_allowlist != usual.mig_allowlist,
            "migProfileAllowlist",
            "the agent creates no MIG instances, and shares existing ones whatever their profile",
        ),
        (
            config.preferred_allocation != usual.preferred_allocation,
            "enablegetpreferredallocation",
            "the scheduler's claim applies even if kubelet allocates ids of another GPU",
        ),
    ];
    let warning = |(_, key, what): (bool, &str, &str)| ConfigWarning { path: key.into(), what: what.into() };
    rows.into_iter().filter(|(set, ..)| *set).map(warning).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use wire::resource::{ResourceNames, ResourceOverrides};

    fn warned(yaml: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("device-config.yaml");
        std::fs::write(&path, yaml).unwrap();
        let (config, mut warnings) = device_config::read(&[path], &NodeName::parse("node-1").unwrap()).unwrap();
        warnings.extend(not_followed(&config));
        warnings.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_key_that_the_agent_does_not_follow_gives_a_warning() {
        for (yaml, key) in [
            ("nvidia: {defaultGPUNum: 2}", "defaultGPUNum"),
            ("nvidia: {overwriteEnv: true}", "overwriteEnv"),
            ("nvidia: {runtimeClassName: nvidia}", "runtimeClassName"),
            ("nvidia: {migProfileAllowlist: [{models: [A100], profiles: [1g.10gb]}]}", "migProfileAllowlist"),
            ("nvidia: {}\nnodeconfig: [{name: node-1, operatingmode: mig}]", "operatingmode"),
            (
                "nvidia: {}\nnodeconfig: [{name: node-1, enablegetpreferredallocation: true}]",
                "enablegetpreferredallocation",
            ),
        ] {
            let warnings = warned(yaml);
            assert!(warnings.iter().any(|line| line.starts_with(&format!("{key}: "))), "{yaml}: {warnings:?}");
        }
    }

    #[test]
    fn resource_names_of_our_settings_override_the_file_and_stay_distinct() {
        let own = |memory: &str, cores: Option<&str>| ResourceOverrides {
            count: None,
            memory: Some(memory.into()),
            memory_percentage: Some("example.com/share".into()),
            cores: cores.map(str::to_owned),
            priority: Some("example.com/rank".into()),
        };
        let mut names = ResourceNames { cores: "example.com/of-file".into(), ..ResourceNames::default() };
        own("example.com/mib", None).replace(&mut names).unwrap();
        let ResourceNames { count, memory, memory_percentage, cores, priority } = &names;
        assert_eq!((&**count, &**memory), ("nvidia.com/gpu", "example.com/mib"));
        assert_eq!((&**memory_percentage, &**cores), ("example.com/share", "example.com/of-file"));
        assert_eq!(&**priority, "example.com/rank");
        let why = own("example.com/one", Some("example.com/one")).replace(&mut names).unwrap_err();
        assert!(why.contains("both memory and cores") && why.contains("--resource-name"), "{why}");
    }

    #[test]
    fn a_file_without_such_keys_gives_no_warning() {
        let yaml = "nvidia: {resourceCountName: nvidia.com/gpu, deviceSplitCount: 4, deviceMemoryScaling: 1.5, \
                    overwriteEnv: false, defaultGPUNum: 1, gpuCorePolicy: force, libCudaLogLevel: 3, defaultMemory: 0}";
        assert_eq!(warned(yaml), Vec::<String>::new());
    }
}
