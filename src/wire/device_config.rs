//! HAMi's device configuration: the device YAML that HAMi's scheduler and device plugins share, and the node file of
//! the plugin. The agent reads both as they are.
//!
//! ```text
//!   nvidia:                                   {"nodeconfig":[{"name":"node-a","devicesplitcount":4,
//!     resourceCountName: nvidia.com/gpu          "filterdevices":{"uuid":["GPU-…"],"index":[3]}}]}
//!     deviceSplitCount: 10                         │
//!     deviceMemoryScaling: 1.5                     │
//!         └──────────── read ──▶ DeviceConfig ◀── for_node
//! ```
//!
//! The caller parses the text into a [`serde_json::Value`], because this crate has no YAML parser, and bounds its
//! length by [`MAX_BYTES`]. An unknown key gives a [`ConfigWarning`] and changes nothing. A value of the wrong type or
//! out of range is a [`DecodeError`]. A caller that does not use one of the settings must warn about that itself.
//!
//! What must never happen here: a setting that is ignored without a warning.

pub mod setting;
mod value;

pub use setting::{CorePolicy, DeviceScaling, MigAllowance};

use crate::decode_error::{DecodeError, shown};
use crate::resource::RequestRules;
use model::id::GpuUuid;
use model::nvidia::CONFIG_SECTION;
use model::unit::{Bytes, CorePercent, Mib};
use serde_json::{Map, Value};
use std::collections::BTreeSet;
use std::fmt;

/// Maximum size of a file in bytes: it comes from a ConfigMap, which holds at most 1 MiB.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of slots of one GPU: 64 GPUs with this many slots each still fit into one message to kubelet (4 MiB).
const MAX_SLOTS: u64 = 1000;
/// Maximum number of warnings for one file; a file with more warnings is probably not a device configuration.
const MAX_WARNINGS: usize = 64;
/// Name of the files in errors.
const KEY: &str = "device configuration";

/// All settings, including the settings of the node's own entry.
#[derive(Clone, Debug, PartialEq)]
pub struct DeviceConfig {
    /// How resource amounts become requests.
    pub rules: RequestRules,
    /// Number of GPUs of a container that requests memory or cores, but no number of GPUs. HAMi's webhook uses it.
    pub default_count: u32,
    /// Whether containers without a GPU get a variable that hides all GPUs. HAMi's webhook uses it.
    pub overwrite_env: bool,
    /// The runtime class for pods with GPUs. HAMi's webhook uses it.
    pub runtime_class: Option<String>,
    /// Slots of one GPU: the number of containers that may share it.
    pub slots: u32,
    /// Scaling of the memory that a GPU offers.
    pub memory_scaling: DeviceScaling,
    /// Scaling of the SM time that a GPU offers.
    pub core_scaling: DeviceScaling,
    /// Memory of GPUs for which NVML reports no memory.
    pub preconfigured_memory: Option<Mib>,
    /// Whether the agent reports the NUMA nodes of the GPUs to kubelet.
    pub numa_topology: bool,
    /// How the limiter enforces the limit of SM time.
    pub core_policy: CorePolicy,
    /// Whether the limiter does not limit SM time at all.
    pub disable_core_limit: bool,
    /// Log level of the limiter.
    pub log_level: Option<String>,
    /// MIG profiles that may be created, by GPU model.
    pub mig_allowlist: Vec<MigAllowance>,
    /// Sharing mode: `hami-core` or `mig`.
    pub mode: String,
    /// GPUs that the agent does not offer, by UUID.
    pub hidden_uuids: BTreeSet<GpuUuid>,
    /// GPUs that the agent does not offer, by index.
    pub hidden_indexes: BTreeSet<u32>,
    /// Whether HAMi's plugin answers `GetPreferredAllocation`.
    pub preferred_allocation: bool,
}

impl Default for DeviceConfig {
    fn default() -> Self {
        DeviceConfig {
            rules: RequestRules::default(),
            default_count: 1,
            overwrite_env: false,
            runtime_class: None,
            slots: 10,
            memory_scaling: DeviceScaling::NONE,
            core_scaling: DeviceScaling::NONE,
            preconfigured_memory: None,
            numa_topology: false,
            core_policy: CorePolicy::Default,
            disable_core_limit: false,
            log_level: Some("1".into()),
            mig_allowlist: Vec::new(),
            mode: "hami-core".into(),
            hidden_uuids: BTreeSet::new(),
            hidden_indexes: BTreeSet::new(),
            preferred_allocation: false,
        }
    }
}

impl DeviceConfig {
    /// Memory that a GPU with `total` bytes offers: its whole MiB, scaled, and rounded down to whole MiB again.
    #[must_use]
    pub fn offered_memory(&self, total: Bytes) -> Mib {
        Mib(self.memory_scaling.of(Mib::within(total).0))
    }

    /// SM time that a GPU offers.
    #[must_use]
    pub fn offered_cores(&self) -> CorePercent {
        CorePercent(u32::try_from(self.core_scaling.of(100)).unwrap_or(u32::MAX))
    }
}

/// A setting that the agent ignores.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigWarning {
    /// Path of the setting in the file: `nvidia.someKey`.
    pub path: String,
    /// The reason.
    pub what: String,
}

impl fmt::Display for ConfigWarning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.what)
    }
}

/// Collects at most [`MAX_WARNINGS`] warnings, and one warning for all others.
#[derive(Default)]
struct Warnings(Vec<ConfigWarning>);

impl Warnings {
    fn add(&mut self, path: &str, what: impl Into<String>) {
        if self.0.len() < MAX_WARNINGS {
            self.0.push(ConfigWarning { path: path.to_owned(), what: what.into() });
        } else if self.0.len() == MAX_WARNINGS {
            self.0.push(ConfigWarning { path: "…".into(), what: "further settings of the file are ignored".into() });
        }
    }
}

fn fault(what: String) -> DecodeError {
    DecodeError::new(KEY, 0, what)
}

/// Reads the device YAML.
///
/// # Errors
/// [`DecodeError`] for an empty file, or a value of the wrong type or out of range.
pub fn read(document: &Value) -> Result<(DeviceConfig, Vec<ConfigWarning>), DecodeError> {
    let sections = document.as_object().filter(|sections| !sections.is_empty());
    let sections = sections.ok_or_else(|| fault("is empty, or not a mapping of vendors".into()))?;
    let mut config = DeviceConfig::default();
    let mut warnings = Warnings::default();
    for (name, section) in sections {
        if name == CONFIG_SECTION {
            let settings = match section {
                Value::Null => &Map::new(),
                Value::Object(settings) => settings,
                _ => return Err(fault(format!("{CONFIG_SECTION}: is not a mapping of settings"))),
            };
            for (key, value) in settings.iter().filter(|(_, value)| !value.is_null()) {
                let path = format!("{CONFIG_SECTION}.{}", bare(key));
                vendor_setting(&mut config, key, value, &path, &mut warnings)
                    .map_err(|what| fault(format!("{path}: {what}")))?;
            }
        } else {
            warnings.add(&bare(name), "the agent does not handle devices of this vendor");
        }
    }
    if !sections.contains_key(CONFIG_SECTION) {
        warnings.add(CONFIG_SECTION, "this section is missing, so every setting has its default");
    }
    config.rules.names.distinct().map_err(|why| fault(format!("{CONFIG_SECTION}: {why}")))?;
    Ok((config, warnings.0))
}

/// A key from the file as part of a path in a message: short and printable.
fn bare(key: &str) -> String {
    shown(key).trim_matches('"').to_owned()
}

fn vendor_setting(
    config: &mut DeviceConfig,
    key: &str,
    value: &Value,
    path: &str,
    warnings: &mut Warnings,
) -> Result<(), String> {
    let names = &mut config.rules.names;
    match key {
        "resourceCountName" => names.count = value::resource(value)?,
        "resourceMemoryName" => names.memory = value::resource(value)?,
        "resourceMemoryPercentageName" => names.memory_percentage = value::resource(value)?,
        "resourceCoreName" => names.cores = value::resource(value)?,
        "resourcePriorityName" => names.priority = value::resource(value)?,
        "overwriteEnv" => config.overwrite_env = value::flag(value)?,
        "defaultMemory" => config.rules.default_memory = value::memory(value)?,
        "defaultCores" => config.rules.default_cores = CorePercent(value::number(value, 0, 100)?),
        "defaultGPUNum" => config.default_count = value::number(value, 0, i32::MAX.unsigned_abs().into())?,
        "memoryFactor" => config.rules.memory_factor = value::number(value, 1, i32::MAX.unsigned_abs().into())?,
        "gpuCorePolicy" => config.core_policy = value::core_policy(value)?,
        "disableCoreLimit" => config.disable_core_limit = value::flag(value)?,
        "runtimeClassName" => config.runtime_class = value::text(value)?,
        "migProfileAllowlist" => config.mig_allowlist = value::allowances(value)?,
        "knownMigGeometries" => warnings.add(path, "a setting of HAMi up to 2.9, which is ignored"),
        _ if !of_node(config, &key.to_ascii_lowercase(), value)? => warnings.add(path, "unknown setting"),
        _ => {}
    }
    Ok(())
}

/// Reads a setting that both the cluster section and a node entry may have. `false` for any other key.
fn of_node(config: &mut DeviceConfig, key: &str, value: &Value) -> Result<bool, String> {
    match key {
        "devicesplitcount" => config.slots = value::number(value, 1, MAX_SLOTS)?,
        "devicememoryscaling" => config.memory_scaling = value::scaling(value)?,
        "devicecorescaling" => config.core_scaling = value::scaling(value)?,
        "preconfigureddevicememory" => config.preconfigured_memory = value::memory(value)?,
        "libcudaloglevel" => config.log_level = value::text(value)?,
        "enablenumatopology" => config.numa_topology = value::flag(value)?,
        _ => return Ok(false),
    }
    Ok(true)
}

/// Reads the plugin's node file. The entry of `node`, if there is one, overrides `config`. Keys are read in upper or
/// lower case, as in HAMi.
///
/// # Errors
/// [`DecodeError`] for another format, and for a value in the entry of `node` of the wrong type or out of range.
pub fn for_node(document: &Value, node: &str, config: &mut DeviceConfig) -> Result<Vec<ConfigWarning>, DecodeError> {
    let Some(file) = document.as_object() else { return Err(fault("the node file is not a JSON object".into())) };
    let mut warnings = Warnings::default();
    for (key, value) in file.iter().filter(|(_, value)| !value.is_null()) {
        if !key.eq_ignore_ascii_case("nodeconfig") {
            warnings.add(&bare(key), "unknown setting");
            continue;
        }
        let entries = value.as_array().ok_or_else(|| fault("nodeconfig: is not a list".into()))?;
        if entries.len() > value::MAX_LIST {
            return Err(DecodeError::too_many(KEY, 0, "nodes", value::MAX_LIST));
        }
        for (number, entry) in entries.iter().enumerate() {
            let Some(entry) = entry.as_object() else {
                return Err(fault(format!("nodeconfig[{number}]: is not a mapping of settings")));
            };
            let name =
                entry.iter().find(|(key, _)| key.eq_ignore_ascii_case("name")).and_then(|(_, name)| name.as_str());
            if name == Some(node) {
                node_entry(config, entry, number, &mut warnings)?;
            }
        }
    }
    Ok(warnings.0)
}

fn node_entry(
    config: &mut DeviceConfig,
    entry: &Map<String, Value>,
    number: usize,
    warnings: &mut Warnings,
) -> Result<(), DecodeError> {
    for (key, value) in entry.iter().filter(|(_, value)| !value.is_null()) {
        let path = format!("nodeconfig[{number}].{}", bare(key));
        let place = |what: String| fault(format!("{path}: {what}"));
        match key.to_ascii_lowercase().as_str() {
            "name" => {}
            "operatingmode" => config.mode = value::text(value).map_err(place)?.unwrap_or_else(|| config.mode.clone()),
            "enablegetpreferredallocation" => config.preferred_allocation = value::flag(value).map_err(place)?,
            "filterdevices" => hide(config, value, &path, warnings).map_err(place)?,
            "migstrategy" => warnings.add(&path, "HAMi ignores this setting, too"),
            other if !of_node(config, other, value).map_err(place)? => {
                warnings.add(&path, "unknown setting");
            }
            _ => {}
        }
    }
    Ok(())
}

fn hide(config: &mut DeviceConfig, value: &Value, path: &str, warnings: &mut Warnings) -> Result<(), String> {
    let lists = value.as_object().ok_or("is not a mapping of uuid and index")?;
    for (key, list) in lists.iter().filter(|(_, list)| !list.is_null()) {
        match key.to_ascii_lowercase().as_str() {
            "uuid" => {
                for uuid in value::texts(list)? {
                    config.hidden_uuids.insert(GpuUuid::parse(uuid.trim()).map_err(|error| error.to_string())?);
                }
            }
            "index" => {
                for index in value::list(list)? {
                    config.hidden_indexes.insert(value::number(index, 0, u64::from(u32::MAX))?);
                }
            }
            _ => warnings.add(&format!("{path}.{}", bare(key)), "unknown setting"),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
