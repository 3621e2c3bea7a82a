//! The failures of a source that comes and goes: logs when it begins to fail and when it works again, and spaces the
//! retries out.

use model::backoff::Backoff;
use model::observation::ErrorCounter;
use std::fmt::Display;
use std::time::Duration;

/// First pause after a failure; each further failure doubles it.
const FIRST: Duration = Duration::from_secs(1);
/// Longest pause: a source that appears is found within a minute.
const LONGEST: Duration = Duration::from_secs(60);

/// How bad a failure is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FailureSeverity {
    /// The source does not exist. On a machine without Kubernetes that is normal.
    Absent,
    /// The source exists and does not answer as it should.
    Broken,
}

/// The texts with which the log names a source, and how its failures count.
#[derive(Debug)]
pub(crate) struct SourceName {
    /// The source's name for people.
    pub(crate) what: &'static str,
    /// What is lost without the source, as a sentence.
    pub(crate) lost: &'static str,
    /// What to do if the source does exist.
    pub(crate) advice: &'static str,
    /// The counter of the source's failures.
    pub(crate) counter: Option<ErrorCounter>,
    /// Whether a setting names the source, or it has existed before. Then its absence is a failure.
    pub(crate) required: bool,
}

/// The failures of one source since it last worked.
#[derive(Debug)]
pub(crate) struct SourceFailures {
    source: SourceName,
    count: u32,
    backoff: Backoff,
    logged: Option<FailureSeverity>,
}

impl SourceFailures {
    pub(crate) fn of(source: SourceName) -> Self {
        SourceFailures { source, count: 0, backoff: Backoff::new(FIRST, LONGEST), logged: None }
    }

    /// Records a failure, and logs it if it is new. Returns the counter to increase and the pause before the next try.
    pub(crate) fn failed(&mut self, failure: FailureSeverity, error: &dyn Display) -> (Option<ErrorCounter>, Duration) {
        self.count = self.count.saturating_add(1);
        let is_new = self.logged != Some(failure) && self.logged != Some(FailureSeverity::Broken);
        let SourceName { what, lost, advice, counter, required } = self.source;
        let expected = failure == FailureSeverity::Absent && !required;
        if is_new {
            self.logged = Some(failure);
            if expected {
                let found = format!("{what} not found: {error}; {lost}; retried at least once a minute; {advice}");
                tracing::info!(source = what, %error, lost, advice, "{found}");
            } else {
                let failed = format!("{what} failed: {error}; {lost}; retried at least once a minute; {advice}");
                tracing::warn!(source = what, %error, lost, advice, "{failed}");
            }
        }
        (counter.filter(|_| !expected), self.backoff.pause())
    }

    /// Records a success, and logs it after a failure.
    pub(crate) fn worked(&mut self) {
        if self.logged.take().is_some() {
            let (source, failures) = (self.source.what, self.count);
            tracing::info!(source, failures, "{source} answered, after {failures} failed tries");
        }
        self.count = 0;
        self.backoff.reset();
        self.source.required = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failures() -> SourceFailures {
        SourceFailures::of(SourceName {
            what: "test",
            lost: "",
            advice: "",
            counter: Some(ErrorCounter::CriFailed),
            required: false,
        })
    }

    #[test]
    fn pauses_double_and_start_again_after_a_success() {
        let mut failures = failures();
        let pauses: Vec<u64> = (0..3).map(|_| failures.failed(FailureSeverity::Broken, &"x").1.as_secs()).collect();
        assert_eq!(pauses, [1, 2, 4]);
        failures.worked();
        assert_eq!(failures.failed(FailureSeverity::Broken, &"x").1, FIRST);
    }

    #[test]
    fn a_missing_source_counts_only_if_it_is_required_or_existed_before() {
        let mut optional = failures();
        assert_eq!(optional.failed(FailureSeverity::Absent, &"x").0, None);
        assert_eq!(optional.failed(FailureSeverity::Broken, &"x").0, Some(ErrorCounter::CriFailed));
        optional.worked();
        assert_eq!(optional.failed(FailureSeverity::Absent, &"x").0, Some(ErrorCounter::CriFailed));
        let mut required_source = failures();
        required_source.source.required = true;
        assert_eq!(required_source.failed(FailureSeverity::Absent, &"x").0, Some(ErrorCounter::CriFailed));
    }
}
