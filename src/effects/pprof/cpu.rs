//! Where processor time goes: SIGPROF after each 10 ms of it, process wide.
//!
//! ```text
//!   handler   free slot ─▶ registers, thread, copy of up to 64 KiB of stack ─▶ ready slot     (no lock, no allocation)
//!   recorder  ready slot ─▶ order to the child ─▶ free slot                                   (every 10 ms)
//! ```
//!
//! The handler copies the stack with `pread` of `/proc/self/mem`: the kernel says how much of it is there, so no address
//! can fault. Nothing is unwound in this process, so nothing has to be prepared before the first signal, and a thread may
//! allocate, panic, spawn or load a library while it is interrupted.

use super::order::{Begin, End, Form, Snapshot, Step, Tag, Value};
use super::worker::{self, Worker};
use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio_util::sync::CancellationToken;

/// Samples for each second of processor time: Go's number. The kernel's tick caps it at about 250.
pub const HZ: i64 = 100;

/// Bytes of stack copied at most. Frames of the agent's deepest call chains add up to less than half of it.
pub const STACK_BYTES: usize = 64 << 10;

/// Samples between two looks of the recorder: 64 in [`PAUSE`] are 64 cores, all busy. 4 MiB that are touched only by
/// profiles, and only as far as they are needed.
const SLOTS: usize = 64;

/// Between two looks.
const PAUSE: Duration = Duration::from_millis(10);

/// Between two looks at which files are in memory.
const MODULES_EVERY: Duration = Duration::from_secs(1);

/// Why there is no CPU profile.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// One at a time: there is one timer.
    #[error("another CPU profile is being taken; only one can be, try again when it has ended")]
    Busy,
    /// The sampler could not be set up.
    #[error("setting up the CPU sampler: {what}")]
    Setup {
        /// What was tried.
        what: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The child failed.
    #[error(transparent)]
    Worker(#[from] worker::Error),
}

/// The right to sample. There is one; dropped, it is free again and the timer is off.
#[derive(Debug)]
pub struct Turn(());

static TAKEN: AtomicBool = AtomicBool::new(false);

impl Turn {
    /// Takes the right, if nobody has it.
    ///
    /// # Errors
    /// [`Error::Busy`].
    pub fn take() -> Result<Self, Error> {
        if TAKEN.swap(true, Ordering::AcqRel) { Err(Error::Busy) } else { Ok(Turn(())) }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        ARMED.store(false, Ordering::Release);
        // Only fails for an invalid timer or interval.
        let _ = set_timer(0);
        TAKEN.store(false, Ordering::Release);
    }
}

/// Samples for `length` and returns the profile. `started` is called once sampling has begun.
///
/// # Errors
/// When sampling cannot begin, the child fails, or the request is given up.
pub fn record(
    turn: Turn,
    length: Duration,
    given_up: &CancellationToken,
    started: impl FnOnce(),
) -> Result<Vec<u8>, Error> {
    let mut worker = Worker::start(begin(), given_up.clone())?;
    prepare()?;
    let mut sink = Vec::new();
    // What a handler of the profile before left behind.
    drain(&mut sink);
    sink.clear();
    LOST.store(0, Ordering::Relaxed);
    let from = Instant::now();
    ARMED.store(true, Ordering::Release);
    set_timer(1_000_000 / HZ).map_err(|source| Error::Setup { what: "setitimer(ITIMER_PROF)", source })?;
    started();
    let mut modules_told = from;
    while from.elapsed() < length && !given_up.is_cancelled() {
        std::thread::sleep(PAUSE.min(length.saturating_sub(from.elapsed())));
        if modules_told.elapsed() >= MODULES_EVERY {
            modules_told = Instant::now();
            worker.tell_modules()?;
        }
        forward(&mut sink, &mut worker)?;
    }
    let duration = from.elapsed();
    drop(turn);
    forward(&mut sink, &mut worker)?;
    let end = End { duration_nanos: nanos(duration), lost: LOST.load(Ordering::Relaxed) };
    Ok(worker.finish(end)?)
}

fn begin() -> Begin {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Begin {
        form: Form::Profile.into(),
        values: vec![Value::new("samples", "count"), Value::new("cpu", "nanoseconds")],
        period_type: Some(Value::new("cpu", "nanoseconds")),
        period: 1_000_000_000 / HZ,
        time_nanos: nanos(now),
        title: "cpu".to_owned(),
        ..Begin::default()
    }
}

/// Nanoseconds; 292 years fit.
#[must_use]
pub fn nanos(duration: Duration) -> i64 {
    i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX)
}

fn forward(sink: &mut Vec<Snapshot>, worker: &mut Worker) -> Result<(), Error> {
    drain(sink);
    for snapshot in sink.drain(..) {
        worker.order(Step::Snapshot(snapshot))?;
    }
    Ok(())
}

// === what the handler and the recorder share ===

const FREE: u32 = 0;
const WRITING: u32 = 1;
const READY: u32 = 2;

static ARMED: AtomicBool = AtomicBool::new(false);
static LOST: AtomicU64 = AtomicU64::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// `/proc/self/mem`, opened once and kept: the handler must not open files.
static MEMORY: AtomicI32 = AtomicI32::new(-1);
static RING: [Slot; SLOTS] = [const { Slot::new() }; SLOTS];

struct Slot {
    state: AtomicU32,
    body: UnsafeCell<Body>,
}

#[derive(Clone, Copy)]
struct Body {
    registers: Registers,
    thread: i32,
    length: usize,
    stack: [u8; STACK_BYTES],
}

#[derive(Clone, Copy)]
struct Registers {
    pc: u64,
    sp: u64,
    fp: u64,
    lr: u64,
}

#[expect(unsafe_code, reason = "a slot is handed from the handler to the recorder and back by its state")]
// SAFETY: `body` is touched only by who moved `state` away from where the other side may touch it: the handler between
// FREE -> WRITING (compare-exchange) and READY (release), the recorder between READY (acquire) and FREE (release).
unsafe impl Sync for Slot {}

impl Slot {
    const fn new() -> Self {
        let registers = Registers { pc: 0, sp: 0, fp: 0, lr: 0 };
        let body = Body { registers, thread: 0, length: 0, stack: [0; STACK_BYTES] };
        Slot { state: AtomicU32::new(FREE), body: UnsafeCell::new(body) }
    }
}

#[expect(unsafe_code, reason = "reads the slots that the handler has filled")]
fn drain(sink: &mut Vec<Snapshot>) {
    for slot in &RING {
        if slot.state.load(Ordering::Acquire) != READY {
            continue;
        }
        // SAFETY: READY was read with acquire, and only the one recorder (the holder of `Turn`) moves a slot from READY.
        let body = unsafe { &*slot.body.get() };
        let snapshot = Snapshot {
            pc: body.registers.pc,
            sp: body.registers.sp,
            fp: body.registers.fp,
            lr: body.registers.lr,
            stack: body.stack[..body.length.min(STACK_BYTES)].to_vec(),
            values: vec![1, 1_000_000_000 / HZ],
            labels: vec![Tag::new("thread", &thread_name(body.thread))],
        };
        slot.state.store(FREE, Ordering::Release);
        sink.push(snapshot);
    }
}

fn thread_name(thread: i32) -> String {
    match std::fs::read(format!("/proc/self/task/{thread}/comm")) {
        Ok(name) => String::from_utf8_lossy(&name).trim_end().to_owned(),
        Err(_) => "(ended)".to_owned(),
    }
}

// === the handler ===

fn prepare() -> Result<(), Error> {
    static INSTALLED: OnceLock<()> = OnceLock::new();
    if INSTALLED.get().is_some() {
        return Ok(());
    }
    let memory = File::open("/proc/self/mem")
        .map_err(|source| Error::Setup { what: "opening /proc/self/mem, which stacks are read from", source })?;
    MEMORY.store(memory.into_raw_fd(), Ordering::Release);
    install().map_err(|source| Error::Setup { what: "installing the SIGPROF handler", source })?;
    let _ = INSTALLED.set(());
    Ok(())
}

/// The handler stays for good: the default action of a late SIGPROF would end the program.
#[expect(unsafe_code, reason = "sigaction has no safe wrapper for a handler that reads registers")]
fn install() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigprof;
    // SAFETY: all-zero is a valid sigaction; its fields are then set as sigaction(2) asks for SA_SIGINFO, and `handler`
    // does only what signal-safety(7) allows.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[expect(unsafe_code, reason = "setitimer is not in rustix")]
fn set_timer(microseconds: i64) -> io::Result<()> {
    let interval = libc::timeval { tv_sec: 0, tv_usec: microseconds };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: `timer` lives through the call; the old value is not asked for.
    let result = unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs on whatever thread was interrupted, at any instruction: atomics, `gettid`, `pread` and nothing else.
#[expect(unsafe_code, reason = "a signal handler")]
extern "C" fn on_sigprof(_: libc::c_int, _: *mut libc::siginfo_t, context: *mut libc::c_void) {
    if !ARMED.load(Ordering::Acquire) || context.is_null() {
        return;
    }
    // SAFETY: errno is this thread's own; it is put back because the interrupted code may be about to read it.
    let errno = unsafe { *libc::__errno_location() };
    // SAFETY: with SA_SIGINFO the kernel passes a ucontext_t that lives until the handler returns.
    take(registers(unsafe { &*context.cast::<libc::ucontext_t>() }));
    // SAFETY: as above.
    unsafe { *libc::__errno_location() = errno };
}

#[expect(unsafe_code, reason = "fills a slot that it has taken for itself, by system calls")]
fn take(registers: Registers) {
    let first = NEXT.fetch_add(1, Ordering::Relaxed);
    let free = (0..SLOTS)
        .map(|step| &RING[first.wrapping_add(step) % SLOTS])
        .find(|slot| slot.state.compare_exchange(FREE, WRITING, Ordering::Acquire, Ordering::Relaxed).is_ok());
    let Some(slot) = free else {
        LOST.fetch_add(1, Ordering::Relaxed);
        return;
    };
    // SAFETY: the compare-exchange made this slot ours until it is READY.
    let body = unsafe { &mut *slot.body.get() };
    let offset = registers.sp.cast_signed();
    // SAFETY: the buffer is `STACK_BYTES` long and ours; an address that is not there ends the copy, not the program.
    let read =
        unsafe { libc::pread64(MEMORY.load(Ordering::Acquire), body.stack.as_mut_ptr().cast(), STACK_BYTES, offset) };
    body.length = usize::try_from(read).unwrap_or(0);
    body.registers = registers;
    // SAFETY: gettid takes nothing and cannot fail.
    body.thread = unsafe { libc::gettid() };
    slot.state.store(READY, Ordering::Release);
}

#[cfg(target_arch = "x86_64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let word =
        |register: libc::c_int| usize::try_from(register).map_or(0, |at| context.uc_mcontext.gregs[at].cast_unsigned());
    Registers { pc: word(libc::REG_RIP), sp: word(libc::REG_RSP), fp: word(libc::REG_RBP), lr: 0 }
}

#[cfg(target_arch = "aarch64")]
fn registers(context: &libc::ucontext_t) -> Registers {
    let machine = &context.uc_mcontext;
    Registers { pc: machine.pc, sp: machine.sp, fp: machine.regs[29], lr: machine.regs[30] }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_has_the_turn_and_giving_it_back_frees_it() {
        let turn = Turn::take().unwrap();
        assert!(matches!(Turn::take(), Err(Error::Busy)));
        drop(turn);
        drop(Turn::take().unwrap());
    }
}
