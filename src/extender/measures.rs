//! Counts what the extender does, for `/metrics`.

use decide::cluster::{CheckCounts, RefusalSummary};
use decide::placement::RefusalReason;
use model::histogram::Histogram;
use parking_lot::Mutex;
use std::time::Duration;

/// A verb of kube-scheduler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Filter,
    Prioritize,
    Bind,
    Preempt,
}

impl Verb {
    /// All verbs, in the order of their metrics.
    pub(super) const ALL: [Verb; 4] = [Verb::Filter, Verb::Prioritize, Verb::Bind, Verb::Preempt];

    /// The verb's path without the slash, which is also its name in metrics.
    pub(super) fn word(self) -> &'static str {
        match self {
            Verb::Filter => "filter",
            Verb::Prioritize => "prioritize",
            Verb::Bind => "bind",
            Verb::Preempt => "preempt",
        }
    }
}

/// The counts.
#[derive(Debug, Default)]
pub(super) struct Measures {
    counts: Mutex<MeasuredCounts>,
}

/// The counts of one moment.
#[derive(Clone, Debug, Default)]
pub(super) struct MeasuredCounts {
    /// Time of each answer, by verb.
    pub(super) answers: [Histogram; Verb::ALL.len()],
    /// Calls without an answer, by verb, because there was no leader or the body could not be read.
    pub(super) unanswered: [u64; Verb::ALL.len()],
    /// Pods for which the filter refused every node, because their requests could not be read or because they have
    /// scheduling gates.
    pub(super) refused_pods: u64,
    /// Requests for an unknown path, such as a verb that this program does not have, or with the wrong method.
    pub(super) unknown_paths: u64,
    /// Requests for metrics that were refused because too many waited.
    pub(super) refused_scrapes: u64,
    /// Nodes that were refused, by reason.
    pub(super) refusals: [u64; RefusalReason::ALL.len()],
    /// Nodes of filter calls by the result of the real-time check.
    pub(super) checks: CheckCounts,
    /// Filter calls for which the check has refused a node.
    pub(super) changed_by_strict: u64,
    /// Number of filter calls in which the check has put a node last.
    pub(super) changed_by_warning: u64,
}

impl Measures {
    /// A call was answered after this time.
    pub(super) fn answered(&self, verb: Verb, took: Duration) {
        if let Some(histogram) = self.counts.lock().answers.get_mut(verb as usize) {
            if let Some(count) = histogram.counts.get_mut(Histogram::bucket(took)) {
                *count += 1;
            }
            histogram.sum += took;
        }
    }

    /// A call was not answered.
    pub(super) fn unanswered(&self, verb: Verb) {
        if let Some(count) = self.counts.lock().unanswered.get_mut(verb as usize) {
            *count += 1;
        }
    }

    /// The filter refused every node because of the pod itself.
    pub(super) fn refused_pod(&self) {
        self.counts.lock().refused_pods += 1;
    }

    /// A request had an unknown path, or a method that the path does not support.
    pub(super) fn unknown_path(&self) {
        self.counts.lock().unknown_paths += 1;
    }

    /// A request for metrics was refused because too many waited.
    pub(super) fn refused_scrape(&self) {
        self.counts.lock().refused_scrapes += 1;
    }

    /// The filter refused these nodes.
    pub(super) fn refused(&self, summary: &RefusalSummary) {
        let mut counts = self.counts.lock();
        for (reason, nodes, _) in &summary.reasons {
            if let Some(count) = counts.refusals.get_mut(*reason as usize) {
                *count += *nodes as u64;
            }
        }
    }

    /// What the real-time check has found in a filter call.
    pub(super) fn checked(&self, found: &CheckCounts) {
        let mut counts = self.counts.lock();
        counts.checks.passed += found.passed;
        counts.checks.refused += found.refused;
        counts.checks.warned += found.warned;
        counts.checks.fallback += found.fallback;
        counts.changed_by_strict += u64::from(found.refused > 0);
        counts.changed_by_warning += u64::from(found.warned > 0);
    }

    /// The current counts.
    pub(super) fn counts(&self) -> MeasuredCounts {
        self.counts.lock().clone()
    }
}
