//! Where processor time goes: a signal after each 10 ms of it, process wide, to the thread that runs.
//!
//! ```text
//!   capture ─snapshots, every 10 ms─▶ record ─orders─▶ child ─▶ profile
//! ```

use super::capture::{self, SamplingTurn};
use super::order::{OrderBegin, OrderEnd, OrderStep, ProfileForm, ProfileValue, ThreadSnapshot};
use super::worker::{self, SymbolizeWorker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio_util::sync::CancellationToken;

/// Between two samples, in processor time: Go's 100 a second. The kernel's tick caps it at about 250.
pub const PERIOD: Duration = Duration::from_millis(10);

/// Between two looks at what was sampled.
const PAUSE: Duration = Duration::from_millis(10);

/// Between two looks at which files are in memory.
const MODULES_EVERY: Duration = Duration::from_secs(1);

/// Why there is no CPU profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sampler cannot be used.
    #[error(transparent)]
    Capture(#[from] capture::Error),
    /// The child failed.
    #[error(transparent)]
    Worker(#[from] worker::Error),
}

/// Samples for `length` and returns the profile. `started` is called once sampling has begun.
///
/// # Errors
/// When sampling cannot begin, the child fails, or the request is given up.
pub fn record(
    mut turn: SamplingTurn,
    length: Duration,
    given_up: &CancellationToken,
    started: impl FnOnce(),
) -> Result<Vec<u8>, Error> {
    let mut worker = SymbolizeWorker::start(begin(), given_up.clone())?;
    let from = Instant::now();
    turn.sample_every(PERIOD)?;
    started();
    let mut modules_told = from;
    while from.elapsed() < length && !given_up.is_cancelled() {
        std::thread::sleep(PAUSE.min(length.saturating_sub(from.elapsed())));
        if modules_told.elapsed() >= MODULES_EVERY {
            modules_told = Instant::now();
            worker.tell_modules()?;
        }
        forward(&mut turn, &mut worker)?;
    }
    let end = OrderEnd { duration_nanos: nanos(from.elapsed()), lost: turn.lost() };
    // The timer stops here; naming what was seen may take seconds.
    drop(turn);
    Ok(worker.finish(end)?)
}

fn forward(turn: &mut SamplingTurn, worker: &mut SymbolizeWorker) -> Result<(), Error> {
    let mut seen = Vec::new();
    turn.ready(|_, snapshot| seen.push(snapshot));
    for snapshot in seen {
        worker.order(OrderStep::Snapshot(ThreadSnapshot { values: vec![1, nanos(PERIOD)], ..snapshot }))?;
    }
    Ok(())
}

fn begin() -> OrderBegin {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    OrderBegin {
        form: ProfileForm::Profile.into(),
        values: vec![ProfileValue::new("samples", "count"), ProfileValue::new("cpu", "nanoseconds")],
        period_type: Some(ProfileValue::new("cpu", "nanoseconds")),
        period: nanos(PERIOD),
        time_nanos: nanos(now),
        title: "cpu".to_owned(),
        ..OrderBegin::default()
    }
}

/// Nanoseconds; 292 years fit.
#[must_use]
pub fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
