//! Log lines that follow one pod from its filter call until the watch shows it bound. Only `-v 5` shows them: each pod has about ten,
//! and a leader places hundreds of pods a second.

use model::id::PodRef;
use serve::log::level::POD_STEPS;
use std::fmt::Arguments;

/// Logs one step of a pod.
pub(super) fn log(pod: &PodRef, step: Arguments<'_>) {
    tracing::trace!(target: POD_STEPS, %pod, "pod {pod}: {step}");
}
