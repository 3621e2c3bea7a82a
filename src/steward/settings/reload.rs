//! Reads the configuration file again on SIGHUP. Settings that can change while the agent runs are applied. For every
//! other changed setting, the log says that it needs a restart, with the old and the new value. A file with a mistake
//! changes nothing.

use super::layer::RawSettings;
use super::raw_value::RawValue;
use super::removed::IgnoredSetting;
use super::table::{Key, Reader};
use agent::settings::{ReadAgain, TakeOver};
use std::collections::BTreeMap;

/// The current settings, with which a new file is compared.
#[derive(Debug)]
struct CurrentSettings {
    raw: RawSettings,
    /// The values at the start, or of the last valid file. A setting that needs a restart keeps its value from the
    /// start.
    values: BTreeMap<&'static str, RawValue>,
}

/// The function that an agent with these settings calls on SIGHUP.
pub(crate) fn of_agent(raw: RawSettings, values: BTreeMap<&'static str, RawValue>) -> ReadAgain {
    let mut current = CurrentSettings { raw, values };
    Box::new(move |take_over| current.read_again(take_over))
}

impl CurrentSettings {
    /// Reads the file again, and lets the agent apply the settings that can change.
    fn read_again(&mut self, take_over: TakeOver<'_>) {
        let (settings, values) = match super::load(&self.raw) {
            Ok(read) => read,
            Err(problems) => {
                for problem in problems {
                    tracing::error!(%problem, "the configuration was not reloaded: the settings stay as they are");
                }
                return;
            }
        };
        if let Err(problem) = take_over(settings.live) {
            tracing::error!(problem, "the configuration was not reloaded: the settings stay as they are");
            return;
        }
        self.raw.layer().ignored.iter().for_each(IgnoredSetting::warn);
        let changed = self.compare(values);
        tracing::info!(changed, "configuration reloaded");
    }

    /// Logs each changed setting; returns the number of settings that change now, without a restart.
    fn compare(&mut self, mut values: BTreeMap<&'static str, RawValue>) -> usize {
        let mut changed = 0;
        for key in Key::of(Reader::Agent) {
            let (Some(old), Some(new)) = (self.values.get(key.name), values.remove(key.name)) else { continue };
            if old.text == new.text {
                continue;
            }
            let (old_text, new_text, origin) = (&*old.text, &*new.text, new.origin.to_string());
            if key.live {
                changed += 1;
                tracing::info!(key = key.name, old = old_text, new = new_text, origin, "setting changed");
                self.values.insert(key.name, new);
            } else {
                tracing::warn!(
                    key = key.name,
                    old = old_text,
                    new = new_text,
                    origin,
                    "setting needs a restart to change"
                );
            }
        }
        changed
    }
}
