//! Calls about the identity of one GPU. Each call is made under the heartbeat, and each failure is kept for the log.
//!
//! What must never happen here: the answer "there is none" counted as a failure, or a failure counted as that answer.

use crate::nvml::absence::ordinary;
use crate::nvml::heartbeat::{GpuKey, Heartbeat};
use model::physical_range::{ImplausibleValue, PhysicalRange};
use model::sample_value::BaseUnits;
use model::{Absence, Reading};
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeMap;

/// Calls that failed, with the reason: one entry for each call of a round, about fifteen.
pub(super) type Failed = BTreeMap<&'static str, Absence>;

/// One round of identity calls about one GPU.
#[derive(Debug)]
pub(super) struct PollRound<'a> {
    heartbeat: &'a Heartbeat,
    gpu: GpuKey,
    failed: Failed,
    implausible: Vec<ImplausibleValue>,
}

impl<'a> PollRound<'a> {
    pub(super) fn new(heartbeat: &'a Heartbeat, gpu: GpuKey) -> Self {
        PollRound { heartbeat, gpu, failed: Failed::new(), implausible: Vec::new() }
    }

    /// Sets the key of the GPU for the calls that follow.
    pub(super) fn set_key(&mut self, gpu: GpuKey) {
        self.gpu = gpu;
    }

    /// Makes the call named `name`.
    pub(super) fn call<T>(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, Absence> {
        let answer = self.heartbeat.call(Some(&self.gpu), call);
        if let Err(why) = &answer
            && !ordinary(*why)
        {
            self.failed.insert(name, *why);
        }
        answer
    }

    /// Makes the call named `name` about one index of a list; `None` if it answered with one of `nothing`.
    ///
    /// # Errors
    /// The reason for any other error: then it is unknown what this index holds.
    pub(super) fn call_optional<T>(
        &mut self,
        name: &'static str,
        nothing: &[Absence],
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<Option<T>, Absence> {
        match self.heartbeat.call(Some(&self.gpu), call) {
            Ok(value) => Ok(Some(value)),
            Err(why) if nothing.contains(&why) => Ok(None),
            Err(why) => {
                if !ordinary(why) {
                    self.failed.insert(name, why);
                }
                Err(why)
            }
        }
    }

    /// The value, if it is in the physical range of its reading. Any other value is kept for the GPU's counts.
    pub(super) fn within<T: BaseUnits + Copy>(
        &mut self,
        range: PhysicalRange,
        answer: Result<T, Absence>,
    ) -> Result<T, Absence> {
        range.accept(answer, |value| self.implausible.push(value))
    }

    /// The impossible values so far.
    pub(super) fn take_implausible(&mut self) -> Vec<ImplausibleValue> {
        std::mem::take(&mut self.implausible)
    }

    /// The calls that failed.
    pub(super) fn failed(self) -> Failed {
        self.failed
    }
}

/// For an identity, which does not change: the old value stays when the new value could not be read.
pub(super) fn settle<T: PartialEq>(old: Reading<T>, fresh: Reading<T>) -> Reading<T> {
    if matches!((&old, &fresh), (Reading::Measured(..), Reading::Absent(_))) { old } else { renew(old, fresh) }
}

/// For a value that may change: it is absent when it cannot be read. An equal value keeps its old time, so that an
/// unchanged GPU compares as unchanged.
pub(super) fn renew<T: PartialEq>(old: Reading<T>, fresh: Reading<T>) -> Reading<T> {
    let same = matches!((&old, &fresh), (Reading::Measured(was, _), Reading::Measured(is, _)) if was == is);
    if same { old } else { fresh }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Monotonic;

    #[test]
    fn an_identity_is_kept_when_a_read_fails_and_a_state_is_not() {
        let (old, lost) = (Reading::Measured(1, Monotonic(5)), Reading::Absent(Absence::GpuLost));
        assert_eq!(settle(old, lost), old);
        assert_eq!(renew(old, lost), lost);
        for keep in [settle, renew] {
            assert_eq!(keep(old, Reading::Measured(1, Monotonic(9))), old, "an equal value keeps its time");
            assert_eq!(keep(old, Reading::Measured(2, Monotonic(9))), Reading::Measured(2, Monotonic(9)));
            assert_eq!(keep(lost, old), old);
            assert_eq!(keep(lost, Reading::NOT_YET), Reading::NOT_YET, "the newest reason");
        }
    }
}
