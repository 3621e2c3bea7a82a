//! Takes the registers and a copy of the stack of a thread; the thread itself does this in a signal handler.
//!
//! ```text
//!   handler   free slot ─▶ registers, thread, copy of up to 64 KiB of stack ─▶ ready slot     (no lock, no allocation)
//!   reader    ready slot ─▶ snapshot ─▶ free slot
//! ```
//!
//! The handler copies the stack with `pread` of `/proc/self/mem`. The kernel copies only the bytes that exist, so no
//! address can cause a fault. The child process unwinds the copies, so this process needs no unwind tables. A signal
//! may therefore interrupt a thread while it allocates, panics, starts a thread or loads a library.

use crate::error::Error;
use crate::order::{StackLabel, ThreadSnapshot};
use std::cell::UnsafeCell;
use std::fs::File;
use std::io;
use std::os::fd::IntoRawFd;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Maximum number of stack bytes that are copied. The frames of deep call chains of a Tokio server take less than half.
pub(crate) const STACK_BYTES: usize = 64 << 10;

/// Number of slots for the samples between two reads: 64 samples in 10 ms mean 64 busy cores. The slots take 4 MiB of
/// address space; only profiles touch it, and only the parts that they need.
const SLOTS: usize = 64;

/// Time limit for a thread's answer. On a busy node an interrupted thread was seen to wait for a processor for more
/// than 50 ms; a thread that blocks the signal never answers.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The right to sample; only one exists. Dropping it turns the timer off and frees the right.
#[derive(Debug)]
pub(crate) struct SamplingTurn(());

static TAKEN: AtomicBool = AtomicBool::new(false);

impl SamplingTurn {
    /// Takes the right, if it is free.
    ///
    /// # Errors
    /// [`Error::Busy`], or an error if the handler cannot be installed.
    pub(crate) fn take() -> Result<Self, Error> {
        if TAKEN.swap(true, Ordering::AcqRel) {
            return Err(Error::Busy);
        }
        let mut turn = SamplingTurn(());
        prepare()?;
        // Drops snapshots that a late handler of the last profile left.
        turn.ready(|_, _| {});
        LOST.store(0, Ordering::Relaxed);
        Ok(turn)
    }

    /// From now on, interrupts the running thread after each `interval` of processor time.
    ///
    /// # Errors
    /// If the timer cannot be set.
    pub(crate) fn sample_every(&mut self, interval: Duration) -> Result<(), Error> {
        ARMED.store(true, Ordering::Release);
        set_timer(i64::from(interval.subsec_micros()))
            .map_err(|source| Error::Setup { what: "setitimer(ITIMER_PROF)", source })
    }

    /// Passes each ready snapshot and the id of its thread to `sink`. The snapshots have no values yet.
    pub(crate) fn ready(&mut self, mut sink: impl FnMut(i32, ThreadSnapshot)) {
        RING.iter().filter_map(Slot::take_ready).for_each(|(thread, snapshot)| sink(thread, snapshot));
    }

    /// The number of samples that found no free slot.
    #[must_use]
    pub(crate) fn lost(&self) -> u64 {
        LOST.load(Ordering::Relaxed)
    }

    /// Interrupts one thread and waits for its snapshot; `None` if it does not answer in time. The system call in which
    /// the thread sleeps returns `EINTR` unless it restarts, so use this only for threads that tolerate `EINTR`.
    pub(crate) fn of_thread(&mut self, thread: i32) -> Option<ThreadSnapshot> {
        ARMED.store(true, Ordering::Release);
        let mut found = None;
        if interrupt(thread) {
            let deadline = Instant::now() + ANSWER_WITHIN;
            while found.is_none() && Instant::now() < deadline {
                std::thread::sleep(Duration::from_micros(200));
                self.ready(|of_thread, snapshot| found = (of_thread == thread).then_some(snapshot));
            }
        }
        ARMED.store(false, Ordering::Release);
        found
    }
}

impl Drop for SamplingTurn {
    fn drop(&mut self) {
        ARMED.store(false, Ordering::Release);
        // Fails only for an invalid timer or interval.
        let _ = set_timer(0);
        TAKEN.store(false, Ordering::Release);
    }
}

// === shared by the handler and the reader ===

const FREE: u32 = 0;
const WRITING: u32 = 1;
const READY: u32 = 2;

static ARMED: AtomicBool = AtomicBool::new(false);
static LOST: AtomicU64 = AtomicU64::new(0);
static NEXT: AtomicUsize = AtomicUsize::new(0);
/// `/proc/self/mem`, opened once and kept open: the handler must not open files.
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

#[expect(unsafe_code, reason = "a slot is handed from the handler to the reader and back by its state")]
// SAFETY: `state` gives `body` to one side at a time. The handler uses it from FREE -> WRITING (compare-exchange) until
// READY (release). The reader uses it from READY (acquire) until FREE (release).
unsafe impl Sync for Slot {}

impl Slot {
    const fn new() -> Self {
        let registers = Registers { pc: 0, sp: 0, fp: 0, lr: 0 };
        let body = Body { registers, thread: 0, length: 0, stack: [0; STACK_BYTES] };
        Slot { state: AtomicU32::new(FREE), body: UnsafeCell::new(body) }
    }

    #[expect(unsafe_code, reason = "reads what the handler has filled")]
    fn take_ready(&self) -> Option<(i32, ThreadSnapshot)> {
        if self.state.load(Ordering::Acquire) != READY {
            return None;
        }
        // SAFETY: READY was read with acquire, and only the one reader (the holder of `SamplingTurn`) moves a slot from
        // READY.
        let body = unsafe { &*self.body.get() };
        let Registers { pc, sp, fp, lr } = body.registers;
        let stack = body.stack[..body.length.min(STACK_BYTES)].to_vec();
        let labels = vec![StackLabel::new("thread", &thread_name(body.thread))];
        let taken = (body.thread, ThreadSnapshot { pc, sp, fp, lr, stack, labels, values: Vec::new() });
        self.state.store(FREE, Ordering::Release);
        Some(taken)
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

/// The handler stays installed: the default action of a late SIGPROF would end the program.
#[expect(unsafe_code, reason = "sigaction has no safe wrapper for a handler that reads registers")]
fn install() -> io::Result<()> {
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_sigprof;
    // SAFETY: all-zero is a valid sigaction; its fields are then set as sigaction(2) requires for SA_SIGINFO, and
    // `handler` does only what signal-safety(7) allows.
    let result = unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as libc::sighandler_t;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART | libc::SA_ONSTACK;
        libc::sigemptyset(&raw mut action.sa_mask);
        libc::sigaction(libc::SIGPROF, &raw const action, std::ptr::null_mut())
    };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[expect(unsafe_code, reason = "a signal to one thread of our own; rustix has no tgkill")]
fn interrupt(thread: i32) -> bool {
    // SAFETY: the call takes three integers; for a thread that has ended it returns an error.
    unsafe { libc::syscall(libc::SYS_tgkill, std::process::id(), thread, libc::SIGPROF) == 0 }
}

#[expect(unsafe_code, reason = "setitimer is not in rustix")]
fn set_timer(microseconds: i64) -> io::Result<()> {
    let interval = libc::timeval { tv_sec: 0, tv_usec: microseconds };
    let timer = libc::itimerval { it_interval: interval, it_value: interval };
    // SAFETY: `timer` lives through the call; the old value is not requested.
    let result = unsafe { libc::setitimer(libc::ITIMER_PROF, &raw const timer, std::ptr::null_mut()) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs on the interrupted thread, at any instruction: uses only atomics, `gettid` and `pread`.
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
    // SAFETY: the buffer is `STACK_BYTES` long and ours; an unmapped address ends the copy, not the program.
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
    fn only_one_sampling_turn_exists_and_it_takes_a_snapshot_of_a_thread() {
        let turn = SamplingTurn::take().unwrap();
        assert!(matches!(SamplingTurn::take(), Err(Error::Busy)));
        drop(turn);
        let mut turn = SamplingTurn::take().unwrap();
        // SAFETY: gettid takes nothing and cannot fail.
        #[expect(unsafe_code, reason = "the number of this thread")]
        let this_thread = unsafe { libc::gettid() };
        let snapshot = turn.of_thread(this_thread).expect("this thread answers at once");
        assert!(snapshot.pc != 0 && snapshot.stack.len() >= 64, "{} bytes", snapshot.stack.len());
        assert!(turn.of_thread(i32::MAX).is_none());
    }
}
