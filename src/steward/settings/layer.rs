//! Merges the sources of settings. A flag overrides the environment, which overrides the file, which overrides the
//! default. Each value keeps its origin.

use super::file::{self, MAX_BYTES};
pub(crate) use super::raw_value::{Origin, RawValue};
use super::removed::{self, IgnoredSetting, Removed};
use super::table::{KEYS, Key, PREFIX, is_service_variable, nearest};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The configuration file if neither `--config` nor [`FILE_VARIABLE`] names one.
pub(crate) const DEFAULT_FILE: &str = "/etc/gpu-steward/config.yaml";
/// The environment variable that names another configuration file.
pub(crate) const FILE_VARIABLE: &str = "GPU_STEWARD_CONFIG";

/// A mistake in the settings.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Problem {
    /// The file cannot be read.
    #[error("cannot read configuration file {path}: {why}", path = .path.display())]
    Unreadable {
        /// The path of the file.
        path: PathBuf,
        /// The error of the operating system.
        why: String,
    },
    /// The file contains a mistake.
    #[error("{path}:{line}{column}: {what}", path = .path.display(), column = .column.map_or_else(String::new, |at| format!(":{at}")))]
    Fault {
        /// The path of the file.
        path: PathBuf,
        /// Line, from 1.
        line: u64,
        /// Column, from 1, if known.
        column: Option<u64>,
        /// The text of the error.
        what: String,
    },
    /// A value is wrong.
    #[error("invalid value {text:?} for {name} (from {origin}): {why}")]
    Value {
        /// The setting.
        name: &'static str,
        /// The text of the value.
        text: String,
        /// Where the setting was set.
        origin: Origin,
        /// Why the value is not valid.
        why: String,
    },
    /// Settings that contradict each other.
    #[error("{0}")]
    Together(String),
    /// The code reads a setting that the table of settings does not have.
    #[error("the code reads the setting {0:?}, which does not exist: this is a bug in gpu-steward")]
    NotASetting(&'static str),
}

/// One value for each setting, and the mistakes in the configuration file.
#[derive(Clone, Debug, Default)]
pub(crate) struct Layers {
    /// The values. A line of the file with a mistake is left out.
    pub values: BTreeMap<&'static str, RawValue>,
    /// The mistakes in the file.
    pub faults: Vec<Problem>,
    /// The removed settings that are still set.
    pub ignored: Vec<IgnoredSetting>,
    /// Whether the file was parsed to its end, or does not exist. Only then is it known which settings are missing from
    /// it.
    pub complete: bool,
}

/// The settings from the command line and the environment, and the path of the file. The command line and the
/// environment do not change while the program runs, so a reload reads only the file again.
#[derive(Clone, Debug, Default)]
pub(crate) struct RawSettings {
    /// The texts of the flags, by setting.
    pub flags: BTreeMap<&'static str, String>,
    /// `--config`.
    pub file: Option<PathBuf>,
    /// The environment.
    pub environment: BTreeMap<String, String>,
}

impl RawSettings {
    /// The path of the file, and whether the file must exist: it must exist if `--config` or the environment names
    /// it.
    fn file(&self) -> (PathBuf, bool) {
        let named = self.file.clone().or_else(|| self.environment.get(FILE_VARIABLE).map(PathBuf::from));
        match named {
            Some(path) => (path, true),
            None => (DEFAULT_FILE.into(), false),
        }
    }

    /// Reads the file and merges all sources. Mistakes in the file do not hide mistakes in flags and variables, so
    /// the program can report all of them at once.
    pub(crate) fn layer(&self) -> Layers {
        let (path, must_exist) = self.file();
        let fault = |file::Fault { line, column, what }| Problem::Fault { path: path.clone(), line, column, what };
        let (entries, faults, complete) = match read(&path) {
            Ok(bytes) => match file::parse(&bytes) {
                Ok(file::Contents { entries, faults }) => (entries, faults.into_iter().map(fault).collect(), true),
                Err(one) => (Vec::new(), vec![fault(one)], false),
            },
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_exist => (Vec::new(), Vec::new(), true),
            Err(error) => {
                let why = error.to_string();
                (Vec::new(), vec![Problem::Unreadable { path: path.clone(), why }], false)
            }
        };
        let path: Arc<Path> = path.into();
        // The values that the sources give a setting; the first value counts.
        let given = |name: &str, variable: String, known_as: Option<&str>| {
            let flag = self.flags.get(name).map(|text| RawValue { text: text.clone(), origin: Origin::Flag });
            let environment =
                [Some(variable), known_as.map(str::to_owned)].into_iter().flatten().find_map(|variable| {
                    let text = self.environment.get(&variable)?.clone();
                    Some(RawValue { text, origin: Origin::Environment(variable) })
                });
            let entry = entries.iter().find(|entry| entry.key == name);
            let from_file = entry.map(|entry| RawValue {
                text: entry.text.clone(),
                origin: Origin::File { path: path.clone(), line: entry.line },
            });
            [flag, environment, from_file].into_iter().flatten()
        };
        let effective = |key: &'static Key| {
            let set = given(key.name, key.variable(), key.known_as).next();
            (key.name, set.unwrap_or_else(|| key.default_value()))
        };
        let mut values = KEYS.iter().map(effective).collect();
        let of = |row: &'static Removed| {
            given(row.name, row.variable(), None).map(move |given| IgnoredSetting { row, given })
        };
        let mut ignored: Vec<IgnoredSetting> = removed::settings().flat_map(of).collect();
        ignored.extend(removed::replace_values(&mut values));
        Layers { values, faults, ignored, complete }
    }

    /// A sentence about each variable of another project that has no effect, because a flag or the variable with [`PREFIX`] gives
    /// the setting another value.
    pub(crate) fn overruled_variables(&self) -> Vec<String> {
        let values = self.layer().values;
        let overruled = |key: &'static Key| {
            let (variable, effective) = (key.known_as?, values.get(key.name)?);
            let text = self.environment.get(variable).filter(|text| **text != effective.text)?;
            let (name, origin) = (key.name, &effective.origin);
            Some(format!("{variable}={text:?} does not count: {name} is {:?} (from {origin})", effective.text))
        };
        KEYS.iter().filter_map(overruled).collect()
    }

    /// Environment variables that have the prefix but are not settings, each with the variable of the nearest
    /// setting.
    pub(crate) fn unknown_variables(&self) -> Vec<(String, Option<String>)> {
        let unknown = |name: &&String| {
            name.starts_with(PREFIX)
                && name.as_str() != FILE_VARIABLE
                && !is_service_variable(name)
                && !KEYS.iter().any(|key| key.variable() == **name)
                && !removed::settings().any(|row| row.variable() == **name)
        };
        let near = |name: &String| {
            let setting = nearest(&name.trim_start_matches(PREFIX).to_lowercase())?;
            Key::named(setting).map(Key::variable)
        };
        self.environment.keys().filter(unknown).map(|name| (name.clone(), near(name))).collect()
    }
}

/// Reads the bytes of the file, at most [`MAX_BYTES`].
fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MAX_BYTES + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > MAX_BYTES {
        return Err(std::io::Error::other(format!("longer than {} KiB", MAX_BYTES / 1024)));
    }
    Ok(bytes)
}

impl IgnoredSetting {
    /// Logs a warning about it.
    pub(crate) fn warn(&self) {
        tracing::warn!(setting = self.row.name, "{self}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flag_overrides_a_variable_and_a_variable_overrides_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("config.yaml");
        std::fs::write(&path, "v: 2\nperiod: 2s\n\nslow-period: 9s\n").unwrap();
        let raw = RawSettings {
            flags: [("v", "5".to_owned())].into(),
            file: Some(path.clone()),
            environment: [("GPU_STEWARD_V", "4"), ("GPU_STEWARD_PERIOD", "3s")]
                .map(|(k, v)| (k.into(), v.into()))
                .into(),
        };
        let Layers { values, faults, complete, .. } = raw.layer();
        assert!(faults.is_empty() && complete, "{faults:?}");
        let file = Origin::File { path: path.as_path().into(), line: 4 };
        for (name, text, origin) in [
            ("v", "5", Origin::Flag),
            ("period", "3s", Origin::Environment("GPU_STEWARD_PERIOD".into())),
            ("slow-period", "9s", file),
            ("gpus", "nvml", Origin::Default),
        ] {
            assert_eq!(values[name], RawValue { text: text.into(), origin }, "{name}");
        }
    }

    #[test]
    fn a_variable_of_another_project_sets_a_setting_and_a_line_says_where_it_does_not_count() {
        let raw = |flags: &[(&'static str, &str)], variables: &[(&str, &str)]| RawSettings {
            flags: flags.iter().map(|(name, text)| (*name, (*text).to_owned())).collect(),
            file: None,
            environment: variables.iter().map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect(),
        };
        let hamis = [("HAMI_ENABLE_REALTIME_CHECK", "false"), ("HAMI_REALTIME_CHECK_MODE", "warning")];
        let alone = raw(&[], &hamis);
        let values = alone.layer().values;
        let origin = |variable: &str| Origin::Environment(variable.into());
        for (name, (variable, text)) in ["enable-realtime-check", "realtime-check-mode"].into_iter().zip(hamis) {
            assert_eq!(values[name], RawValue { text: text.into(), origin: origin(variable) }, "{name}");
        }
        assert!(alone.overruled_variables().is_empty() && alone.unknown_variables().is_empty());
        let own = ("GPU_STEWARD_REALTIME_CHECK_MODE", "strict");
        let both = raw(&[("enable-realtime-check", "true")], &[hamis[0], hamis[1], own]);
        assert_eq!(
            both.overruled_variables(),
            [
                "HAMI_ENABLE_REALTIME_CHECK=\"false\" does not count: enable-realtime-check is \"true\" (from flag)",
                "HAMI_REALTIME_CHECK_MODE=\"warning\" does not count: realtime-check-mode is \"strict\" (from \
                 GPU_STEWARD_REALTIME_CHECK_MODE)",
            ]
        );
        let same = raw(&[("enable-realtime-check", "false")], &hamis);
        assert!(same.overruled_variables().is_empty(), "both say the same");
    }

    #[test]
    fn a_named_file_must_exist() {
        let raw = RawSettings { file: Some("/nowhere/x.yaml".into()), ..RawSettings::default() };
        let layers = raw.layer();
        let fault = layers.faults[0].to_string();
        assert!(fault.starts_with("cannot read configuration file /nowhere/x.yaml: No such file"), "{fault}");
        assert!(!layers.complete);
    }

    #[test]
    fn a_misspelt_variable_is_reported_and_variables_of_a_service_are_not() {
        let environment = ["GPU_STEWARD_PERIODS", "GPU_STEWARD_PORT", "GPU_STEWARD_SERVICE_HOST", "HOME"];
        let environment = environment.map(|name| (name.to_owned(), "x".to_owned())).into();
        let raw = RawSettings { environment, ..RawSettings::default() };
        let near = Some("GPU_STEWARD_PERIOD".to_owned());
        assert_eq!(raw.unknown_variables(), [("GPU_STEWARD_PERIODS".to_owned(), near)]);
    }
}
