//! The CPU profile: after each 10 ms of processor time of the process, a signal interrupts the running thread.
//!
//! ```text
//!   capture ─snapshots, every 10 ms─▶ record ─orders─▶ child ─▶ profile
//! ```

use crate::cancel::CancelFlag;
use crate::capture::SamplingTurn;
use crate::error::Error;
use crate::order::{OrderBegin, OrderEnd, OrderStep, ProfileForm, ProfileValue, ThreadSnapshot};
use crate::worker::SymbolizeWorker;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Processor time between two samples: 100 samples a second, as in Go. The kernel's tick limits it to about 250.
pub(crate) const PERIOD: Duration = Duration::from_millis(10);

/// Pause between two reads of the samples.
const PAUSE: Duration = Duration::from_millis(10);

/// How often the list of loaded files is read again.
const MODULES_EVERY: Duration = Duration::from_secs(1);

/// Returns a compressed profile for `go tool pprof`: where the process spends its CPU time during `length`. Blocks for
/// `length`, and then for the time that the child needs.
///
/// # Errors
/// [`Error::Busy`] while another CPU profile runs; [`Error::Cancelled`]; or the reason why the sampler or the child
/// failed.
pub fn cpu_profile(length: Duration, cancel: &CancelFlag) -> Result<Vec<u8>, Error> {
    record(SamplingTurn::take()?, length, cancel, || {})
}

/// Samples for `length` and returns the profile. Calls `started` when sampling has begun.
///
/// # Errors
/// If sampling cannot begin, the child fails, or the request is cancelled.
pub(crate) fn record(
    mut turn: SamplingTurn,
    length: Duration,
    cancel: &CancelFlag,
    started: impl FnOnce(),
) -> Result<Vec<u8>, Error> {
    let mut worker = SymbolizeWorker::start(begin(), cancel.clone())?;
    let from = Instant::now();
    turn.sample_every(PERIOD)?;
    started();
    let mut modules_told = from;
    while from.elapsed() < length && !cancel.is_cancelled() {
        std::thread::sleep(PAUSE.min(length.saturating_sub(from.elapsed())));
        if modules_told.elapsed() >= MODULES_EVERY {
            modules_told = Instant::now();
            worker.send_modules()?;
        }
        forward(&mut turn, &mut worker)?;
    }
    let end = OrderEnd { duration_nanos: nanos(from.elapsed()), lost: turn.lost() };
    // The timer stops here; finding the names of the functions may take seconds.
    drop(turn);
    worker.finish(end)
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
pub(crate) fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}
