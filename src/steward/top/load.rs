//! The load of a GPU in a few characters: its last values, and the period of its cycles.

use crate::top::show::duration;
use model::workload_profile::{MAX_RECENT, ProfiledQuantity};
use wire::api::Snapshot;
use wire::api::profile::ProfileJson;

/// The signs for values from 0 to 1. Their height is the value.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];
/// Values beside the name of a GPU. With them, the name of most models fits into a screen of 80 columns.
const BESIDE_NAME: usize = 10;

/// The load of a GPU or MIG instance.
#[derive(Debug, Default)]
pub(crate) struct Load {
    /// The last values of its utilisation, from 0 to 1, oldest first; a gap is `None`.
    values: Vec<Option<f64>>,
    /// The period of the first of its quantities that has one; empty if none has.
    pub(crate) period: String,
}

// === impl Load ===

impl Load {
    /// The load of the GPU or MIG instance with this UUID.
    pub(crate) fn of(snapshot: &Snapshot, uuid: &str) -> Load {
        let is_utilization = |profile: &&ProfileJson| profile.quantity == ProfiledQuantity::Utilization.code();
        let utilization = snapshot.profiles_of(uuid).find(is_utilization);
        let period = snapshot.profiles_of(uuid).find_map(ProfileJson::period);
        Load {
            values: utilization.map(|profile| profile.recent.clone()).unwrap_or_default(),
            period: period.map(|period| duration(period.seconds)).unwrap_or_default(),
        }
    }

    /// The last values, at most [`MAX_RECENT`], as one line.
    pub(crate) fn line(&self) -> String {
        self.newest(MAX_RECENT)
    }

    /// Period and values behind the name of a GPU; empty if nothing is known.
    pub(crate) fn beside_name(&self) -> String {
        let period = if self.period.is_empty() { String::new() } else { format!(", period {}", self.period) };
        let line = self.newest(BESIDE_NAME);
        if line.is_empty() { period } else { format!("{period} {line}") }
    }

    fn newest(&self, most: usize) -> String {
        self.values.iter().skip(self.values.len().saturating_sub(most)).map(|value| value.map_or(' ', height)).collect()
    }
}

/// The sign for a value from 0 to 1.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded, from 0 to 7")]
fn height(value: f64) -> char {
    let place = (value.clamp(0.0, 1.0) * 7.0).round() as usize;
    HEIGHTS.get(place).copied().unwrap_or(' ')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::stage;

    #[test]
    fn values_become_heights_and_gaps_blanks() {
        let load =
            Load { values: vec![Some(0.0), Some(0.5), None, Some(1.0), Some(7.0), Some(-1.0)], period: String::new() };
        assert_eq!(load.line(), "▁▅ ██▁");
        assert_eq!(load.newest(2), "█▁");
        assert_eq!(load.beside_name(), " ▁▅ ██▁");
        assert_eq!(height(f64::NAN), '▁');
    }

    #[test]
    fn a_gpu_without_a_profile_has_no_load() {
        let mut snapshot = stage::snapshot();
        assert_eq!(Load::of(&snapshot, "GPU-0").period, "6.0 s");
        assert_eq!(Load::of(&snapshot, "GPU-2").beside_name(), "");
        snapshot.profile = None;
        assert_eq!(Load::of(&snapshot, "GPU-0").beside_name(), "");
    }
}
