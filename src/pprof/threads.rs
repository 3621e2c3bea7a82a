//! The profile of this process's threads, which takes the place of a Go program's goroutines.
//!
//! A thread that sleeps in `futex` or `epoll_wait` is interrupted and takes a snapshot of itself, as for a CPU sample:
//! callers of both calls must expect them to return early. A thread that sleeps elsewhere, perhaps in a driver that
//! treats `EINTR` as a failure, is not interrupted: `/proc/self/task/<id>/syscall` has its program counter and stack
//! pointer, and its stack is copied from outside; without the frame pointer the stack may end early. A running thread
//! shows only its name.

use crate::cancel::CancelFlag;
use crate::capture::{STACK_BYTES, SamplingTurn};
use crate::cpu::nanos;
use crate::error::Error;
use crate::order::{
    CapturedStack, OrderBegin, OrderEnd, OrderStep, ProfileForm, ProfileValue, StackLabel, ThreadSnapshot,
};
use crate::syscall_file;
use crate::worker::SymbolizeWorker;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Maximum number of threads; a Tokio server has about twenty.
const MAX_THREADS: usize = 1_024;

/// A thread profile interrupts threads for this long, and copies the stacks of the remaining threads from outside. Ten
/// threads that never answer use up this time, and even then a profile ends within eleven seconds.
const INTERRUPT_FOR: Duration = Duration::from_secs(10);

#[cfg(target_arch = "x86_64")]
const HARMLESS: [libc::c_long; 4] =
    [libc::SYS_futex, libc::SYS_epoll_wait, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];

#[cfg(not(target_arch = "x86_64"))]
const HARMLESS: [libc::c_long; 3] = [libc::SYS_futex, libc::SYS_epoll_pwait, libc::SYS_epoll_pwait2];

/// The kind of a thread profile.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ThreadProfileKind {
    /// Each thread with its stack.
    Stacks,
    /// The number of threads of each name.
    Names,
}

/// The threads of the process: a compressed profile, as `go tool pprof` reads it.
///
/// # Errors
/// [`Error::Cancelled`], or the reason why the child failed.
pub fn thread_profile(kind: ThreadProfileKind, cancel: &CancelFlag) -> Result<Vec<u8>, Error> {
    profile(kind, ProfileForm::Profile, cancel)
}

/// Makes the profile of all threads.
///
/// # Errors
/// If the child fails or the request is cancelled.
pub(crate) fn profile(kind: ThreadProfileKind, form: ProfileForm, cancel: &CancelFlag) -> Result<Vec<u8>, Error> {
    let mut worker = SymbolizeWorker::start(begin(kind, form), cancel.clone())?;
    let memory = File::open("/proc/self/mem").ok();
    // While a CPU profile uses the sampler, all stacks are copied from outside.
    let mut turn = SamplingTurn::take().ok();
    let begun = Instant::now();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten().take(MAX_THREADS);
    for task in tasks {
        // A thread that has ended since has no files any more and is left out.
        let turn = turn.as_mut().filter(|_| begun.elapsed() < INTERRUPT_FOR);
        if let Some(step) = thread(&task.path(), kind, memory.as_ref(), turn) {
            worker.order(step)?;
        }
    }
    drop(turn);
    worker.finish(OrderEnd::default())
}

fn begin(kind: ThreadProfileKind, form: ProfileForm) -> OrderBegin {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = match kind {
        ThreadProfileKind::Stacks => "goroutine",
        ThreadProfileKind::Names => "threadcreate",
    };
    let value = ProfileValue::new(name, "count");
    OrderBegin {
        form: form.into(),
        values: vec![value.clone()],
        period_type: Some(value),
        period: 1,
        time_nanos: nanos(now),
        title: name.to_owned(),
        ..OrderBegin::default()
    }
}

fn thread(
    task: &Path,
    kind: ThreadProfileKind,
    memory: Option<&File>,
    turn: Option<&mut SamplingTurn>,
) -> Option<OrderStep> {
    let name = String::from_utf8_lossy(&fs::read(task.join("comm")).ok()?).trim_end().to_owned();
    if kind == ThreadProfileKind::Names {
        return Some(OrderStep::Stack(CapturedStack { values: vec![1], instead: name, ..CapturedStack::default() }));
    }
    let state = state(&fs::read(task.join("stat")).ok()?);
    let labels = vec![StackLabel::new("thread", &name), StackLabel::new("state", state)];
    let interrupted = turn.filter(|_| may_be_interrupted(task)).and_then(|turn| turn.of_thread(number(task)?));
    let snapshot = interrupted.or_else(|| sleeping(task, memory?));
    Some(match snapshot {
        Some(snapshot) => OrderStep::Snapshot(ThreadSnapshot { labels, values: vec![1], ..snapshot }),
        None => OrderStep::Stack(CapturedStack {
            values: vec![1],
            labels,
            instead: format!("[{state}]"),
            ..CapturedStack::default()
        }),
    })
}

/// The third field of `stat`, after the name, which may itself contain brackets.
fn state(stat: &[u8]) -> &'static str {
    let letter = stat.iter().rposition(|byte| *byte == b')').and_then(|at| stat.get(at + 2));
    match letter {
        Some(b'R') => "running",
        Some(b'S') => "sleeping",
        Some(b'D') => "waiting for a device",
        Some(b'T' | b't') => "stopped",
        Some(b'Z' | b'X') => "ended",
        Some(b'I') => "idle",
        _ => "state not known",
    }
}

fn number(task: &Path) -> Option<i32> {
    task.file_name()?.to_str()?.parse().ok()
}

/// Whether the thread sleeps in a call that may return early.
fn may_be_interrupted(task: &Path) -> bool {
    let syscall = fs::read_to_string(task.join("syscall")).unwrap_or_default();
    syscall_file::number(&syscall).is_some_and(|call| HARMLESS.contains(&call))
}

fn sleeping(task: &Path, memory: &File) -> Option<ThreadSnapshot> {
    let path = task.join("syscall");
    let before = fs::read_to_string(&path).ok()?;
    let (sp, pc) = syscall_file::registers(&before)?;
    let mut stack = vec![0; STACK_BYTES];
    let read = memory.read_at(&mut stack, sp).ok()?;
    stack.truncate(read);
    // If the thread has run in between, the copy mixes two moments and is useless.
    (fs::read_to_string(&path).ok()? == before).then(|| ThreadSnapshot {
        pc,
        sp,
        stack,
        values: vec![1],
        ..ThreadSnapshot::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_is_found_behind_a_name_with_brackets() {
        for (stat, expected) in [
            ("7 (poll) S 1", "sleeping"),
            ("7 (a) R) D 1", "waiting for a device"),
            ("7 (x) R 1", "running"),
            ("", "state not known"),
            ("7 (x)", "state not known"),
        ] {
            assert_eq!(state(stat.as_bytes()), expected, "{stat}");
        }
    }
}
