//! The NVLinks of a GPU: whether each is up, and its error counts.
//!
//! NVML has three interfaces for these counts, and a GPU supports one or two interfaces: one call for each kind of
//! error (Pascal to Ampere), fields with the same counts (Hopper), and fields with other counts (Blackwell and later).
//!
//! What must never happen here: a kind of error that the driver did not count is shown as 0 errors.

use crate::nvml::absence::{INVALID_ARGUMENT, lasting, reason};
use crate::nvml::polled_gpu::{PolledGpu, of_field};
use crate::nvml::raw;
use model::hardware::{LinkError, MAX_NVLINKS, NvLink};
use model::physical_range::PhysicalRange as Range;
use model::time::Monotonic;
use model::unit::Count;
use model::{Absence, Reading};
use nvml_wrapper::error::NvmlError;
use nvml_wrapper_sys::bindings::field_id::{
    NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS,
    NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, NVML_FI_DEV_NVLINK_ERROR_DL_CRC,
    NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY,
};
use std::sync::Arc;

/// Fields that count errors of one link. One field counts recoveries up to Hopper, another from Blackwell on.
const FIELDS: [(u32, LinkError); 7] = [
    (NVML_FI_DEV_NVLINK_ERROR_DL_CRC, LinkError::Crc),
    (NVML_FI_DEV_NVLINK_ERROR_DL_REPLAY, LinkError::Replay),
    (NVML_FI_DEV_NVLINK_ERROR_DL_RECOVERY, LinkError::Recovery),
    (NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS, LinkError::Recovery),
    (NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS, LinkError::RecoveryFailed),
    (NVML_FI_DEV_NVLINK_COUNT_RCV_ERRORS, LinkError::Received),
    (NVML_FI_DEV_NVLINK_COUNT_SYMBOL_ERRORS, LinkError::Symbol),
];

/// Kinds of errors that the older call counts, with NVML's number of each kind.
const COUNTERS: [(&str, u32, LinkError); 4] = [
    ("nvlink replays", 0, LinkError::Replay),
    ("nvlink recoveries", 1, LinkError::Recovery),
    ("nvlink crc of flits", 2, LinkError::CrcFlit),
    ("nvlink crc of data", 3, LinkError::CrcData),
];

/// Reads all links, or the reason why there are no links.
pub(super) fn read(gpu: &mut PolledGpu, at: Monotonic) -> Reading<Arc<[NvLink]>> {
    let device = &gpu.known.device;
    let states = gpu.asker.ask("nvlink states", || {
        let mut states = Vec::new();
        for number in 0..MAX_NVLINKS {
            match device.link_wrapper_for(number).is_active() {
                Ok(up) => states.push(up),
                // The first missing link ends the list; if that is link 0, the GPU has no NVLinks.
                Err(error) if number == 0 => return Err(error),
                Err(error) => match reason(error) {
                    Absence::NotSupported | INVALID_ARGUMENT => break,
                    why => return Err(nvml_error(why)),
                },
            }
        }
        Ok(states)
    });
    let states = match states {
        Ok(states) => states,
        Err(why) => return Reading::Absent(why),
    };
    let mut links: Vec<NvLink> = (0..).zip(states).map(|(number, up)| unread(number, up)).collect();
    by_fields(gpu, &mut links, at);
    by_counters(gpu, &mut links, at);
    Reading::Measured(links.into(), at)
}

fn unread(number: u32, up: bool) -> NvLink {
    NvLink { number, up, errors: [Reading::Absent(Absence::NotSupported); LinkError::ALL.len()] }
}

fn by_fields(gpu: &mut PolledGpu, links: &mut [NvLink], at: Monotonic) {
    let (mut ids, mut kinds) = (Vec::new(), Vec::new());
    for (id, kind) in FIELDS {
        match gpu.asker.unknown_link_field(id) {
            Some(why) => links.iter_mut().for_each(|link| settle(link, kind, Reading::Absent(why))),
            None => {
                ids.push(id);
                kinds.push(kind);
            }
        }
    }
    if ids.is_empty() {
        return;
    }
    let device = &gpu.known.device;
    let results = gpu.asker.ask("nvlink error fields", || {
        each(links, |link| {
            let values = raw::field_list(device, &ids, link)?;
            let values: Vec<_> =
                values.into_iter().map(|value| value.map_err(|error| reason(of_field(error)))).collect();
            // A GPU without these fields answers the call, and refuses each field.
            match values.first() {
                Some(Err(why)) if values.iter().all(|value| value.is_err_and(unknown)) => Err(nvml_error(*why)),
                _ => Ok(values),
            }
        })
    });
    for (index, id) in ids.iter().enumerate() {
        let why = match &results {
            Ok(links) => unknown_to_all(links, index),
            Err(why) => Some(*why).filter(|why| unknown(*why)),
        };
        if let Some(why) = why {
            gpu.asker.link_field_is_unknown(*id, why);
        }
    }
    let asker = &mut gpu.asker;
    assign(links, results, |link, results: Result<Vec<Result<u64, Absence>>, Absence>| match results {
        Ok(values) => {
            for (kind, value) in kinds.iter().zip(values) {
                settle(link, *kind, Reading::from_result(asker.within(Range::NVLINK_ERRORS, value.map(Count)), at));
            }
        }
        Err(why) => kinds.iter().for_each(|kind| settle(link, *kind, Reading::Absent(why))),
    });
}

/// Whether a field that is refused for this reason stays refused until the library is reopened.
fn unknown(why: Absence) -> bool {
    matches!(why, Absence::NotSupported | Absence::NotInThisDriver)
}

/// The lasting reason for which every link that answered refuses the field at this place, if there is one.
fn unknown_to_all(links: &[Result<Vec<Result<u64, Absence>>, Absence>], index: usize) -> Option<Absence> {
    let mut answers = links.iter().filter_map(|link| link.as_ref().ok()?.get(index)).peekable();
    let first = answers.peek()?.err()?;
    answers.all(|answer| answer.is_err_and(unknown)).then_some(first)
}

fn by_counters(gpu: &mut PolledGpu, links: &mut [NvLink], at: Monotonic) {
    let device = &gpu.known.device;
    for (name, number, kind) in COUNTERS {
        // A field has already given the same count.
        if links.iter().any(|link| link.errors(kind).value().is_some()) {
            continue;
        }
        let results = gpu.asker.ask(name, || each(links, |link| raw::link_errors(device, link, number)));
        let asker = &mut gpu.asker;
        assign(links, results, |link, count| {
            settle(link, kind, Reading::from_result(asker.within(Range::NVLINK_ERRORS, count.map(Count)), at));
        });
    }
}

/// Sets a count. A count replaces any reading; a reason replaces only "not supported".
fn settle(link: &mut NvLink, kind: LinkError, now: Reading<Count>) {
    if let Some(before) = link.errors.get_mut(kind as usize)
        && (now.value().is_some() || before.absence() == Some(Absence::NotSupported))
    {
        *before = now;
    }
}

/// Reads each link. A link that refuses gets its reason. If all refuse, the result is an error: the GPU has no such
/// counter, or it fails.
fn each<T>(links: &[NvLink], read: impl Fn(u32) -> Result<T, NvmlError>) -> Result<Vec<Result<T, Absence>>, NvmlError> {
    let mut answers = Vec::with_capacity(links.len());
    let mut refused = None;
    for link in links {
        match read(link.number) {
            Ok(answer) => answers.push(Ok(answer)),
            Err(error) => {
                let why = reason(error);
                // The other seventeen links do not have the counter either, so they are not read.
                if link.up && lasting(why) && answers.iter().all(Result::is_err) {
                    return Err(nvml_error(why));
                }
                refused = Some(why);
                answers.push(Err(why));
            }
        }
    }
    match refused {
        Some(why) if answers.iter().all(Result::is_err) => Err(nvml_error(why)),
        _ => Ok(answers),
    }
}

/// Gives each link its answer, or the reason why there is no answer.
fn assign<T>(
    links: &mut [NvLink],
    results: Result<Vec<Result<T, Absence>>, Absence>,
    mut take: impl FnMut(&mut NvLink, Result<T, Absence>),
) {
    match results {
        Ok(answers) => links.iter_mut().zip(answers).for_each(|(link, answer)| take(link, answer)),
        Err(why) => links.iter_mut().for_each(|link| take(link, Err(why))),
    }
}

/// The NVML error for a reason: `GpuCaller` remembers refusals by their error.
fn nvml_error(why: Absence) -> NvmlError {
    match why {
        Absence::NotSupported => NvmlError::NotSupported,
        Absence::NoPermission => NvmlError::NoPermission,
        Absence::GpuLost => NvmlError::GpuLost,
        Absence::ResetRequired => NvmlError::ResetRequired,
        Absence::NotInThisDriver => NvmlError::FunctionNotFound,
        Absence::Nvml(code) => NvmlError::from(code),
        _ => NvmlError::Unknown,
    }
}
