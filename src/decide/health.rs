//! From readings to a word: may one trust this GPU with work?

use model::gpu::{GpuSample, RecoveryAction};
use model::reading::{Absence, Reading};
use model::view::Health;

/// Why a GPU does not answer, if it does not. One reading that fails is a gap; these reasons are about the card as a whole.
#[must_use]
pub fn silence(sample: &GpuSample) -> Option<Absence> {
    [sample.memory_used.absence(), sample.utilization.absence(), sample.temperature.absence(), sample.power.absence()]
        .into_iter()
        .flatten()
        .find(|why| {
            matches!(
                why,
                Absence::GpuLost
                    | Absence::CallHangs
                    | Absence::ResetRequired
                    | Absence::DriverNotLoaded
                    | Absence::LibraryNotFound
            )
        })
}

/// Health as the readings tell it. XIDs do not enter here: which of them are fatal is a policy, and NVML's own recovery
/// action follows from those that are.
#[must_use]
pub fn judge(sample: &GpuSample) -> Health {
    if silence(sample).is_some() {
        return Health::Unhealthy;
    }
    let advised = !matches!(sample.recovery.get(), None | Some(RecoveryAction::None));
    let remapping = sample.remapped.pending.get() == Some(true) || sample.remapped.failed.get() == Some(true);
    if advised || remapping {
        return Health::Degraded;
    }
    let nothing_yet = sample.memory_used == Reading::NOT_YET
        && sample.utilization == Reading::NOT_YET
        && sample.temperature == Reading::NOT_YET;
    if nothing_yet { Health::Unknown } else { Health::Healthy }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Monotonic;
    use model::unit::Celsius;

    fn well() -> GpuSample {
        GpuSample { temperature: Reading::Measured(Celsius(40), Monotonic(1)), ..GpuSample::default() }
    }

    #[test]
    fn each_state_follows_from_its_reading() {
        assert_eq!(judge(&GpuSample::default()), Health::Unknown);
        assert_eq!(judge(&well()), Health::Healthy);
        assert_eq!(judge(&GpuSample::absent(Absence::GpuLost)), Health::Unhealthy);
        assert_eq!(judge(&GpuSample::absent(Absence::CallHangs)), Health::Unhealthy);
        let mut advised = well();
        advised.recovery = Reading::Measured(RecoveryAction::DrainAndReset, Monotonic(1));
        assert_eq!(judge(&advised), Health::Degraded);
        let mut pending = well();
        pending.remapped.pending = Reading::Measured(true, Monotonic(1));
        assert_eq!(judge(&pending), Health::Degraded);
    }

    #[test]
    fn a_card_without_a_power_sensor_is_well() {
        let mut card = well();
        card.power = Reading::Absent(Absence::NotSupported);
        card.memory_used = Reading::Absent(Absence::NotSupported);
        assert_eq!(judge(&card), Health::Healthy);
    }
}
