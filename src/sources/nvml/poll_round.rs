//! One look at who a GPU is: every call under the heartbeat, and what failed is kept to be said.
//!
//! What must never happen here: an answer that says "there is none" taken for a failure, or a failure for that answer.

use crate::nvml::absence::ordinary;
use crate::nvml::heartbeat::{GpuKey, Heartbeat};
use model::{Absence, Reading};
use nvml_wrapper::error::NvmlError;
use std::collections::BTreeMap;

/// Calls that failed in a look, and why: one entry for each call that the look makes, some fifteen.
pub(super) type Failed = BTreeMap<&'static str, Absence>;

/// One look at one GPU.
#[derive(Debug)]
pub(super) struct PollRound<'a> {
    pulse: &'a Heartbeat,
    gpu: GpuKey,
    failed: Failed,
}

impl<'a> PollRound<'a> {
    pub(super) fn new(pulse: &'a Heartbeat, gpu: GpuKey) -> Self {
        PollRound { pulse, gpu, failed: Failed::new() }
    }

    /// From now on the GPU has this name.
    pub(super) fn name(&mut self, gpu: GpuKey) {
        self.gpu = gpu;
    }

    /// Makes the call named `name`.
    pub(super) fn ask<T>(
        &mut self,
        name: &'static str,
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<T, Absence> {
        let answer = self.pulse.call(Some(&self.gpu), call);
        if let Err(why) = &answer
            && !ordinary(*why)
        {
            self.failed.insert(name, *why);
        }
        answer
    }

    /// Makes the call named `name` about one place of a list; `None`: it answered that `nothing` is there.
    ///
    /// # Errors
    /// What any other error means: then it is not known what is there.
    pub(super) fn place<T>(
        &mut self,
        name: &'static str,
        nothing: &[Absence],
        call: impl FnOnce() -> Result<T, NvmlError>,
    ) -> Result<Option<T>, Absence> {
        match self.pulse.call(Some(&self.gpu), call) {
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

    /// What failed.
    pub(super) fn failed(self) -> Failed {
        self.failed
    }
}

/// An identity does not change because it could not be read this time.
pub(super) fn settle<T: PartialEq>(old: Reading<T>, fresh: Reading<T>) -> Reading<T> {
    if matches!((&old, &fresh), (Reading::Measured(..), Reading::Absent(_))) { old } else { renew(old, fresh) }
}

/// What may change at any time is absent when it cannot be read. One that says the same keeps its time, so that a GPU on
/// which nothing changed compares as unchanged.
pub(super) fn renew<T: PartialEq>(old: Reading<T>, fresh: Reading<T>) -> Reading<T> {
    let same = matches!((&old, &fresh), (Reading::Measured(was, _), Reading::Measured(is, _)) if was == is);
    if same { old } else { fresh }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Monotonic;

    #[test]
    fn an_identity_outlives_a_look_that_failed_and_a_state_does_not() {
        let (old, lost) = (Reading::Measured(1, Monotonic(5)), Reading::Absent(Absence::GpuLost));
        assert_eq!(settle(old, lost), old);
        assert_eq!(renew(old, lost), lost);
        for keep in [settle, renew] {
            assert_eq!(keep(old, Reading::Measured(1, Monotonic(9))), old, "keeps its time while it says the same");
            assert_eq!(keep(old, Reading::Measured(2, Monotonic(9))), Reading::Measured(2, Monotonic(9)));
            assert_eq!(keep(lost, old), old);
            assert_eq!(keep(lost, Reading::NOT_YET), Reading::NOT_YET, "the newest reason");
        }
    }
}
