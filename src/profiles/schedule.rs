//! When each series is analysed, and how much of that fits into a second.
//!
//! What must never happen here: all series due at one moment; a second in which the analyses take more than [`MOST_IN_A_SECOND`].

use model::time::Monotonic;
use std::time::Duration;

/// Upper bound on the time of the analyses in any second: 2 % of a core, so that no other thread of the agent waits noticeably.
pub const MOST_IN_A_SECOND: Duration = Duration::from_millis(20);
/// The planned part of it. The rest is for an analysis that takes longer than those before it.
const PLANNED: Duration = Duration::from_millis(14);
/// GPUs are analysed every 30 s, as Alnair's profiler does. A series of 900 points takes about a millisecond.
pub const GPU_EVERY: Duration = Duration::from_secs(30);
/// Pods every five minutes: every 30 s the 400 series of 100 pods would take 1.8 % of a core.
const POD_EVERY: Duration = Duration::from_secs(300);
/// The tier of minutes of a GPU and of a pod: it has one new value in a minute, and a forecast of an hour does not change faster.
pub const MINUTES_EVERY: [Duration; 2] = [Duration::from_secs(15 * 60), Duration::from_secs(30 * 60)];
/// The tier of quarters of an hour, in which a day is the shortest period that matters.
pub const QUARTERS_EVERY: Duration = Duration::from_secs(6 * 3600);
/// The first analyses of the long tiers, within this time after the start of the agent: their data is on disk.
const FIRST_MINUTES: Duration = Duration::from_secs(300);
const FIRST_QUARTERS: Duration = Duration::from_secs(1800);

/// The kinds of analysis of one series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AnalysisKind {
    /// The history in memory: short periods, forecasts of seconds and minutes.
    Near,
    /// Minutes of a day: periods of minutes and hours, forecasts of an hour.
    Minutes,
    /// Quarters of an hour of five weeks: days and weeks.
    Quarters,
    /// What Alnair's annotations say of a GPU.
    Job,
}

impl AnalysisKind {
    /// All kinds.
    pub const ALL: [AnalysisKind; 4] = [Self::Near, Self::Minutes, Self::Quarters, Self::Job];
}

/// When each kind of analysis of one series is due.
#[derive(Clone, Copy, Debug)]
pub struct DueTimes {
    due: [Monotonic; 4],
    every: [Duration; 4],
}

impl DueTimes {
    /// The times of the series with this number in the order in which series appeared. They are spread over their periods.
    #[must_use]
    pub fn new(number: u64, of_gpu: bool, now: Monotonic) -> DueTimes {
        let (near, minutes) = if of_gpu { (GPU_EVERY, MINUTES_EVERY[0]) } else { (POD_EVERY, MINUTES_EVERY[1]) };
        let part = |span: Duration| now.after(spread(number, span));
        // A GPU has four series and one job: the job follows its first series by half a period.
        let job = part(GPU_EVERY).after(GPU_EVERY / 2);
        DueTimes {
            due: [part(near), part(FIRST_MINUTES), part(FIRST_QUARTERS), job],
            every: [near, minutes, QUARTERS_EVERY, GPU_EVERY],
        }
    }

    /// How long this analysis has been due; `None` if it is not due yet.
    #[must_use]
    pub fn late(&self, kind: AnalysisKind, now: Monotonic) -> Option<Duration> {
        let due = self.due[kind as usize];
        (now >= due).then(|| now.since(due))
    }

    /// The analysis was made, or there was no reason for it. A late one does not move those that follow, unless it is a whole
    /// period late.
    pub fn done(&mut self, kind: AnalysisKind, now: Monotonic) {
        let (due, every) = (&mut self.due[kind as usize], self.every[kind as usize]);
        let next = due.after(every);
        *due = if next > now { next } else { now.after(every) };
    }
}

/// A part of a period that differs for neighbouring numbers and fills the period evenly: the fraction of number * golden ratio.
fn spread(number: u64, period: Duration) -> Duration {
    let fraction = number.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
    let nanos = period.as_nanos().saturating_mul(u128::from(fraction)) >> 32;
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// How much time the analyses may still take. It is renewed once a second.
#[derive(Clone, Copy, Debug, Default)]
pub struct AnalysisPace {
    spent: Duration,
    /// The time of the analyses in the current second, and the most in any second.
    in_second: Duration,
    busiest: Duration,
    /// The longest recent time of each kind of analysis.
    expected: [Duration; 4],
}

impl AnalysisPace {
    /// A second has begun. What was taken beyond the bound counts in it.
    pub fn renew(&mut self) {
        self.spent = self.spent.saturating_sub(MOST_IN_A_SECOND);
        self.in_second = Duration::ZERO;
    }

    /// The most time that analyses took in one second.
    #[must_use]
    pub fn busiest(&self) -> Duration {
        self.busiest
    }

    /// Whether an analysis of this kind may begin. The first one of a second always may.
    #[must_use]
    pub fn allows(&self, kind: AnalysisKind) -> bool {
        self.spent.is_zero() || self.spent + self.expected[kind as usize] <= PLANNED
    }

    /// An analysis took this time.
    pub fn took(&mut self, kind: AnalysisKind, time: Duration) {
        self.spent += time;
        self.in_second += time;
        self.busiest = self.busiest.max(self.in_second);
        let expected = &mut self.expected[kind as usize];
        // It follows a longer time at once, and a shorter one slowly.
        *expected = time.max(*expected - *expected / 16);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn at(seconds: u64) -> Monotonic {
        Monotonic(1_000_000_000_000).after(SECOND.saturating_mul(u32::try_from(seconds).unwrap()))
    }

    #[test]
    fn the_series_of_a_node_are_spread_over_their_periods() {
        for (of_gpu, count, period) in [(true, 32, 30), (false, 400, 300)] {
            let all: Vec<DueTimes> = (0..count).map(|number| DueTimes::new(number, of_gpu, at(0))).collect();
            let due = |second| all.iter().filter(|times| times.late(AnalysisKind::Near, at(second)).is_some()).count();
            let most = (0..period).map(|second| due(second + 1) - due(second)).max().unwrap();
            assert_eq!((due(0), due(period)), (1, all.len()));
            assert!(most <= 3, "{most} in one second");
        }
    }

    #[test]
    fn a_late_analysis_does_not_move_the_next_ones_and_none_is_made_up_for() {
        let mut times = DueTimes::new(0, true, at(0));
        assert_eq!(times.late(AnalysisKind::Near, at(5)), Some(SECOND * 5));
        times.done(AnalysisKind::Near, at(5));
        assert_eq!(times.late(AnalysisKind::Near, at(29)), None);
        assert_eq!(times.late(AnalysisKind::Near, at(30)), Some(Duration::ZERO));
        times.done(AnalysisKind::Near, at(1000));
        assert_eq!(times.late(AnalysisKind::Near, at(1029)), None);
        assert!(times.late(AnalysisKind::Near, at(1030)).is_some());
    }

    #[test]
    fn no_second_has_more_analysis_than_its_bound() {
        for cost in [1, 3, 7, 12, 19, 45] {
            let cost = Duration::from_millis(cost);
            let mut pace = AnalysisPace::default();
            let mut seconds = Vec::new();
            for _ in 0..100 {
                pace.renew();
                let mut spent = Duration::ZERO;
                while pace.allows(AnalysisKind::Near) {
                    pace.took(AnalysisKind::Near, cost);
                    spent += cost;
                }
                seconds.push(spent);
            }
            assert_eq!(Some(&pace.busiest()), seconds.iter().max(), "{cost:?}");
            let later = &seconds[1..];
            assert!(later.iter().all(|spent| *spent <= MOST_IN_A_SECOND.max(cost)), "{cost:?}: {later:?}");
            let all: Duration = later.iter().sum();
            assert!(all <= MOST_IN_A_SECOND * 100, "{cost:?}: {all:?}");
            assert!(all >= cost * 33, "{cost:?}: an analysis that is too long is still made, less often");
        }
    }
}
