//! The CPU profile: after each 10 ms of processor time of the process, a signal interrupts the running thread.
//!
//! ```text
//!   capture ─snapshots, every 10 ms─▶ record ─orders─▶ child ─▶ profile
//! ```

use super::capture::{self, SamplingTurn};
use super::order::{OrderBegin, OrderEnd, OrderStep, ProfileForm, ProfileValue, ThreadSnapshot};
use super::worker::{self, SymbolizeWorker};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio_util::sync::CancellationToken;

/// Processor time between two samples: 100 samples a second, as in Go. The kernel's tick limits it to about 250.
pub const PERIOD: Duration = Duration::from_millis(10);

/// Pause between two reads of the samples.
const PAUSE: Duration = Duration::from_millis(10);

/// How often the list of loaded files is read again.
const MODULES_EVERY: Duration = Duration::from_secs(1);

/// The reason why there is no CPU profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The sampler cannot be used.
    #[error(transparent)]
    Capture(#[from] capture::Error),
    /// The child failed.
    #[error(transparent)]
    Worker(#[from] worker::Error),
}

/// Samples for `length` and returns the profile. Calls `started` when sampling has begun.
///
/// # Errors
/// If sampling cannot begin, the child fails, or the request is given up.
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
    // The timer stops here; finding the names of the functions may take seconds.
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
