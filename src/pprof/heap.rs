//! The heap profile: which code allocated memory, and how much of it is in use. jemalloc samples one allocation per 512
//! KiB on average, unless its option `lg_prof_sample` sets another mean.

use crate::cancel::CancelFlag;
use crate::cpu::nanos;
use crate::error::Error;
use crate::heap_dump::{self, HeapDump, HeapEstimate};
use crate::order::{CapturedStack, OrderBegin, OrderEnd, OrderStep, ProfileForm, ProfileValue};
use crate::worker::SymbolizeWorker;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::HashMap;
use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsRawFd;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use tikv_jemalloc_ctl::raw;

/// Maximum size of a dump in bytes: 100,000 stacks of depth 60 are about 110 MiB, a real dump is about 1 MiB.
const MAX_DUMP: u64 = 128 << 20;

/// Functions of the allocator. Every stack ends in them. The reader hides them and everything that they call.
const DROP_FRAMES: &str = "(_rjem_je_|je_)?prof_.*|_?(rjem_)?(je_)?(malloc|calloc|realloc|mallocx|rallocx|xallocx|aligned_alloc|\
    posix_memalign|memalign)(_default|_gen|_body|_slow.*)?|imalloc.*|(je_|_rjem_je_).*|_RNv.*___?rust_(re)?alloc.*|\
    __rust_(re)?alloc.*|__rdl_.*|__rg_.*|.*tikv_jemallocator::.*|<?alloc::alloc::.*|<?alloc::raw_vec::.*";

/// The value that is shown first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeapValue {
    /// Memory in use (`heap`).
    InUse,
    /// All memory ever allocated (`allocs`).
    Allocated,
}

/// Turns sampling on or off, so that a program that serves no profiles does not pay for it. Without `prof:true` at the
/// start this does nothing.
#[expect(unsafe_code, reason = "`prof.active` is not among the typed settings")]
pub fn set_heap_sampling(active: bool) {
    if is_compiled_and_started() {
        // SAFETY: `prof.active` is a bool (jemalloc(3)).
        let _ = unsafe { raw::write(b"prof.active\0", active) };
    }
}

/// Makes jemalloc take one sample in 2^`log` allocated bytes on average, and discards all earlier samples. With a short
/// interval, a program that allocates hundreds of KiB for each request would walk its stack several times for each
/// request. Without `prof:true` at the start this does nothing.
#[expect(unsafe_code, reason = "`prof.reset` is not among the typed settings")]
pub fn set_heap_sample_interval(log: usize) {
    if is_compiled_and_started() {
        // SAFETY: `prof.reset` is a size_t (jemalloc(3)).
        let _ = unsafe { raw::write(b"prof.reset\0", log) };
    }
}

#[expect(unsafe_code, reason = "`opt.prof` is not among the typed settings")]
fn is_compiled_and_started() -> bool {
    // SAFETY: `opt.prof` is a bool (jemalloc(3)).
    unsafe { raw::read::<bool>(b"opt.prof\0") }.unwrap_or(false)
}

/// Returns a compressed profile for `go tool pprof`: which code allocated the memory that jemalloc has sampled so far.
/// The profile has all four kinds of values; the reader shows the kind `shown` first.
///
/// # Errors
/// [`Error::HeapSamplingOff`]; [`Error::Cancelled`]; or the reason why jemalloc's dump or the child failed.
pub fn heap_profile(shown: HeapValue, cancel: &CancelFlag) -> Result<Vec<u8>, Error> {
    profile(&dump()?, None, shown, ProfileForm::Profile, cancel)
}

/// The samples of jemalloc so far.
///
/// # Errors
/// If jemalloc does not sample, or its dump cannot be made or read.
#[expect(unsafe_code, reason = "`prof.dump` is not among the typed settings")]
pub(crate) fn dump() -> Result<HeapDump, Error> {
    if !is_compiled_and_started() {
        return Err(Error::HeapSamplingOff);
    }
    let file = memfd_create("heap-profile", MemfdFlags::CLOEXEC).map_err(|error| Error::HeapDumpFile(error.into()))?;
    let path = format!("/proc/self/fd/{}\0", file.as_raw_fd());
    // SAFETY: `prof.dump` takes a pointer to a C string, which lives through the call.
    unsafe { raw::write(b"prof.dump\0", path.as_ptr()) }.map_err(|error| Error::HeapDumpRefused(error.to_string()))?;
    let mut file = File::from(file);
    let mut text = Vec::new();
    file.rewind().map_err(Error::HeapDumpFile)?;
    file.take(MAX_DUMP).read_to_end(&mut text).map_err(Error::HeapDumpFile)?;
    Ok(heap_dump::parse(&text)?)
}

/// The profile of a dump, or of the change since an earlier dump.
///
/// # Errors
/// If the child fails or the request is cancelled.
pub(crate) fn profile(
    now: &HeapDump,
    earlier: Option<(&HeapDump, Duration)>,
    shown: HeapValue,
    form: ProfileForm,
    cancel: &CancelFlag,
) -> Result<Vec<u8>, Error> {
    let mut worker = SymbolizeWorker::start(begin(now.rate, shown, form), cancel.clone())?;
    let stacks = match earlier {
        Some((earlier, _)) => now.since(earlier),
        None => now.estimates(),
    };
    send(&mut worker, stacks)?;
    let duration_nanos = earlier.map_or(0, |(_, elapsed)| nanos(elapsed));
    worker.finish(OrderEnd { duration_nanos, lost: 0 })
}

fn send(worker: &mut SymbolizeWorker, stacks: HashMap<Vec<u64>, HeapEstimate>) -> Result<(), Error> {
    for (addresses, estimate) in stacks {
        worker.order(OrderStep::Stack(CapturedStack {
            // All addresses are return addresses: one less is an address inside the call.
            addresses: addresses.into_iter().map(|address| address.saturating_sub(1)).collect(),
            values: vec![estimate.all_objects, estimate.all_bytes, estimate.live_objects, estimate.live_bytes],
            ..CapturedStack::default()
        }))?;
    }
    Ok(())
}

fn begin(rate: u64, shown: HeapValue, form: ProfileForm) -> OrderBegin {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let (shown, title) = match shown {
        HeapValue::InUse => ("inuse_space", "heap"),
        HeapValue::Allocated => ("alloc_space", "allocs"),
    };
    OrderBegin {
        form: form.into(),
        values: vec![
            ProfileValue::new("alloc_objects", "count"),
            ProfileValue::new("alloc_space", "bytes"),
            ProfileValue::new("inuse_objects", "count"),
            ProfileValue::new("inuse_space", "bytes"),
        ],
        shown: shown.to_owned(),
        period_type: Some(ProfileValue::new("space", "bytes")),
        period: i64::try_from(rate).unwrap_or(i64::MAX),
        time_nanos: nanos(now),
        drop_frames: DROP_FRAMES.to_owned(),
        title: title.to_owned(),
    }
}
