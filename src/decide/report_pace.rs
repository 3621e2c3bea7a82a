//! When an agent sends which message to the leader.
//!
//! ```text
//!   first                                   everything
//!   something has changed                   the changes, a second after the last message at the earliest
//!   the phase has changed                   the changes at once: the leader must stop binding
//!   nothing has changed for ten seconds     a heartbeat
//! ```

use model::agent_stream::{AgentMessage, AgentReport, REPORT_LEAST, REPORT_MOST};
use model::time::Monotonic;

/// The pace of one stream. A new stream begins with a new pace.
#[derive(Clone, Debug, Default)]
pub struct ReportPace {
    /// The report that the leader has, and when the last message was sent.
    sent: Option<(AgentReport, Monotonic)>,
}

impl ReportPace {
    /// The message to send now, if one is due.
    pub fn due(&mut self, now: Monotonic, report: &AgentReport) -> Option<AgentMessage> {
        let Some((known, at)) = &mut self.sent else {
            self.sent = Some((report.clone(), now));
            return Some(AgentMessage::Full(report.clone()));
        };
        let silent = now.since(*at);
        if silent < REPORT_LEAST && known.phase == report.phase {
            return None;
        }
        let change = report.changes_since(known);
        let nothing = change.is_empty(known);
        if nothing && silent < REPORT_MOST {
            return None;
        }
        *at = now;
        if nothing {
            return Some(AgentMessage::Beat);
        }
        // The report that the leader has now, without the amounts that changed too little to be sent. A report never exceeds
        // the bounds, so the change is not refused.
        if known.apply(change.clone()).is_err() {
            *known = report.clone();
            return Some(AgentMessage::Full(report.clone()));
        }
        Some(AgentMessage::Change(change))
    }

    /// When the next message is due if nothing more changes. It is soon if a change came too early to be sent.
    #[must_use]
    pub fn next_at(&self, report: &AgentReport) -> Option<Monotonic> {
        let (known, at) = self.sent.as_ref()?;
        let nothing = report.changes_since(known).is_empty(known);
        Some(at.after(if nothing { REPORT_MOST } else { REPORT_LEAST }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::agent_stream::{AgentPhase, ReportedGpu};
    use model::id::{GpuUuid, NodeName};
    use model::reported_reading::{ReadingAge, ReportedReading};
    use model::unit::Bytes;

    fn report(mib: u64) -> AgentReport {
        let mut report = AgentReport::of(NodeName::parse("n1").unwrap());
        let gpu = ReportedGpu {
            healthy: true,
            memory_total: ReportedReading::UNKNOWN,
            memory_used: ReportedReading::Measured(Bytes(mib << 20), None),
            memory_listed: ReportedReading::UNKNOWN,
            memory_unattributed: ReportedReading::UNKNOWN,
            processes: ReportedReading::UNKNOWN,
            ..ReportedGpu::default()
        };
        report.gpus.insert(GpuUuid::parse("GPU-0").unwrap(), gpu);
        report
    }

    fn at(ms: u64) -> Monotonic {
        Monotonic(ms * 1_000_000)
    }

    #[test]
    fn everything_first_then_changes_at_most_once_a_second_and_a_beat_after_ten() {
        let mut pace = ReportPace::default();
        assert_eq!(pace.due(at(0), &report(0)), Some(AgentMessage::Full(report(0))));
        assert_eq!(pace.due(at(999), &report(500)), None, "too early");
        assert_eq!(pace.next_at(&report(500)), Some(at(1000)));
        let Some(AgentMessage::Change(change)) = pace.due(at(1000), &report(500)) else { panic!("a change is due") };
        assert_eq!(change.gpus.len(), 1);
        assert_eq!(pace.due(at(2500), &report(563)), None, "less than 64 MiB");
        assert_eq!(pace.due(at(10_999), &report(563)), None);
        assert_eq!(pace.next_at(&report(563)), Some(at(11_000)));
        assert_eq!(pace.due(at(11_000), &report(563)), Some(AgentMessage::Beat));
        // The amount is compared with what was sent, not with what was seen last.
        assert!(matches!(pace.due(at(12_000), &report(564)), Some(AgentMessage::Change(_))));
    }

    #[test]
    fn a_reading_that_only_grows_older_is_not_sent() {
        let aged = |age| {
            let mut report = report(7);
            let gpu = report.gpus.values_mut().next().unwrap();
            gpu.memory_used = ReportedReading::Measured(Bytes(7 << 20), Some(ReadingAge(age)));
            report
        };
        let mut pace = ReportPace::default();
        assert_eq!(pace.due(at(0), &aged(10)), Some(AgentMessage::Full(aged(10))));
        assert_eq!(pace.due(at(5000), &aged(5010)), None);
        assert_eq!(pace.due(at(10_000), &aged(10_010)), Some(AgentMessage::Beat));
    }

    #[test]
    fn a_new_phase_does_not_wait() {
        let mut pace = ReportPace::default();
        let _ = pace.due(at(0), &report(0));
        let mut leaving = report(0);
        leaving.phase = AgentPhase::Leaving;
        let Some(AgentMessage::Change(change)) = pace.due(at(1), &leaving) else { panic!("a change is due") };
        assert_eq!(change.phase, AgentPhase::Leaving);
        assert_eq!(pace.due(at(2), &leaving), None);
    }
}
