//! Removed settings, and removed values of settings. One release accepts and ignores them, and logs a warning with
//! advice. The next release drops their rows, and refuses them like any unknown name.

use super::raw_value::RawValue;
use super::table::{Key, variable_of};
use std::collections::BTreeMap;
use std::fmt;

/// One removed setting, or one removed value of a setting.
#[derive(Debug)]
pub(crate) struct Removed {
    /// The name of the setting. It is also the flag, the key in the file and, in capitals, the environment variable.
    pub name: &'static str,
    /// The removed value; `None`: the whole setting was removed.
    pub value: Option<&'static str>,
    /// What the program does now, and what the user has to change.
    pub advice: &'static str,
}

const fn setting(name: &'static str, advice: &'static str) -> Removed {
    Removed { name, value: None, advice }
}

/// All removed settings and values. The command `agent` used to read them.
#[rustfmt::skip]
static REMOVED: &[Removed] = &[
    setting("registration", "the agent always registers with kubelet by the call Register; remove this setting"),
    setting("binding", "a container always gets its devices at its start, which needs CDI in the container runtime; remove this setting"),
    setting("device-strategy", "the agent finds out itself how devices get into containers; remove this setting"),
    setting("allow-unisolated-gpus", "the agent offers no GPU where it cannot isolate containers; remove this setting, and enable CDI in the container runtime"),
];

/// The removed settings. A row whose setting exists has no effect.
pub(crate) fn settings() -> impl Iterator<Item = &'static Removed> {
    REMOVED.iter().filter(|row| row.value.is_none() && Key::named(row.name).is_none())
}

/// The removed setting of this name.
pub(crate) fn named(name: &str) -> Option<&'static Removed> {
    settings().find(|row| row.name == name)
}

impl Removed {
    /// The name of the setting's environment variable.
    pub(crate) fn variable(&self) -> String {
        variable_of(self.name)
    }
}

/// A removed setting or value that is still set. It is ignored.
#[derive(Clone, Debug)]
pub(crate) struct IgnoredSetting {
    /// The removed setting or value.
    pub row: &'static Removed,
    /// The text that is set, and where.
    pub given: RawValue,
}

impl fmt::Display for IgnoredSetting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Removed { name, value, advice }, origin) = (self.row, &self.given.origin);
        match value {
            None => write!(f, "the setting {name} (from {origin}) is ignored")?,
            Some(value) => {
                write!(f, "the value {value} of {name} (from {origin}) is ignored, and its default applies")?
            }
        }
        write!(f, ": {advice}. The next release will refuse it")
    }
}

/// Replaces each removed value by the default of its setting, and returns the values that were replaced.
pub(crate) fn replace_values(values: &mut BTreeMap<&'static str, RawValue>) -> Vec<IgnoredSetting> {
    replace_values_of(REMOVED, values)
}

fn replace_values_of(table: &'static [Removed], values: &mut BTreeMap<&'static str, RawValue>) -> Vec<IgnoredSetting> {
    let mut ignored = Vec::new();
    for row in table {
        let (Some(gone), Some(key), Some(value)) = (row.value, Key::named(row.name), values.get_mut(row.name)) else {
            continue;
        };
        if value.text == gone {
            ignored.push(IgnoredSetting { row, given: std::mem::replace(value, key.default_value()) });
        }
    }
    ignored
}

#[cfg(test)]
mod tests {
    use super::super::layer::{Origin, RawSettings};
    use super::*;

    #[test]
    fn a_setting_that_has_gone_is_ignored_wherever_it_is_set_and_named_with_what_to_do() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, "v: 2\nregistration: watcher\n").unwrap();
        let raw = RawSettings {
            flags: [("registration", "classic".to_owned())].into(),
            file: Some(path.clone()),
            environment: [("GPU_STEWARD_REGISTRATION".into(), "auto".into())].into(),
        };
        let layers = raw.layer();
        assert!(layers.faults.is_empty() && layers.complete, "{:?}", layers.faults);
        assert!(!layers.values.contains_key("registration"));
        let texts: Vec<String> = layers.ignored.iter().map(ToString::to_string).collect();
        let origins = ["flag".to_owned(), "GPU_STEWARD_REGISTRATION".to_owned(), format!("{}:2", path.display())];
        for (text, origin) in texts.iter().zip(&origins) {
            let begin = format!("the setting registration (from {origin}) is ignored: the agent always registers");
            assert!(text.starts_with(&begin) && text.contains("remove this setting"), "{text}");
        }
        assert_eq!(texts.len(), origins.len());
        assert!(raw.unknown_variables().is_empty());
    }

    #[test]
    fn a_value_that_has_gone_is_replaced_by_the_default() {
        static TABLE: &[Removed] = &[Removed { name: "gpus", value: Some("mock"), advice: "write simulated" }];
        let of = |text: &str| -> BTreeMap<&'static str, RawValue> {
            [("gpus", RawValue { text: text.into(), origin: Origin::Flag })].into()
        };
        let mut values = of("mock");
        let ignored = replace_values_of(TABLE, &mut values);
        assert_eq!(values["gpus"], RawValue { text: "nvml".into(), origin: Origin::Default });
        let text = ignored[0].to_string();
        assert!(
            text.starts_with("the value mock of gpus (from flag) is ignored, and its default applies: write"),
            "{text}"
        );
        let mut values = of("none");
        assert!(replace_values_of(TABLE, &mut values).is_empty());
        assert_eq!(values, of("none"));
    }
}
