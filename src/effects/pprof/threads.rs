//! The threads of this process: what a Go program would answer for its goroutines.
//!
//! A thread that sleeps in the kernel shows its program counter and stack pointer in `/proc/self/task/<id>/syscall`; a copy
//! of its stack is unwound by the child, as for a CPU sample. A thread that runs has no stack to show, only its name.

use super::cpu::{STACK_BYTES, nanos};
use super::order::{Begin, End, Form, Snapshot, Stack, Step, Tag, Value};
use super::worker::{self, Worker};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio_util::sync::CancellationToken;

/// Most threads told; the agent has about twenty.
const MAX_THREADS: usize = 1_024;

/// Which profile is made of the threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Each with its stack.
    Stacks,
    /// Only how many of each name.
    Names,
}

/// The profile.
///
/// # Errors
/// When the child fails or the request is given up.
pub fn profile(kind: Kind, form: Form, given_up: &CancellationToken) -> Result<Vec<u8>, worker::Error> {
    let mut worker = Worker::start(begin(kind, form), given_up.clone())?;
    let memory = File::open("/proc/self/mem").ok();
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten().take(MAX_THREADS);
    for task in tasks {
        // A thread that ended in between has no files left and is left out.
        if let Some(step) = thread(&task.path(), kind, memory.as_ref()) {
            worker.order(step)?;
        }
    }
    worker.finish(End::default())
}

fn begin(kind: Kind, form: Form) -> Begin {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let name = match kind {
        Kind::Stacks => "goroutine",
        Kind::Names => "threadcreate",
    };
    let value = Value::new(name, "count");
    Begin {
        form: form.into(),
        values: vec![value.clone()],
        period_type: Some(value),
        period: 1,
        time_nanos: nanos(now),
        title: name.to_owned(),
        ..Begin::default()
    }
}

fn thread(task: &Path, kind: Kind, memory: Option<&File>) -> Option<Step> {
    let name = String::from_utf8_lossy(&fs::read(task.join("comm")).ok()?).trim_end().to_owned();
    if kind == Kind::Names {
        return Some(Step::Stack(Stack { values: vec![1], instead: name, ..Stack::default() }));
    }
    let state = state(&fs::read(task.join("stat")).ok()?);
    let labels = vec![Tag::new("thread", &name), Tag::new("state", state)];
    let snapshot = memory.and_then(|memory| sleeping(task, memory));
    Some(match snapshot {
        Some(snapshot) => Step::Snapshot(Snapshot { labels, ..snapshot }),
        None => Step::Stack(Stack { values: vec![1], labels, instead: format!("[{state}]"), ..Stack::default() }),
    })
}

/// The third field of `stat`, behind the name, which may itself hold brackets.
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

fn sleeping(task: &Path, memory: &File) -> Option<Snapshot> {
    let path = task.join("syscall");
    let before = fs::read_to_string(&path).ok()?;
    let (sp, pc) = registers(&before)?;
    let mut stack = vec![0; STACK_BYTES];
    let read = memory.read_at(&mut stack, sp).ok()?;
    stack.truncate(read);
    // It may have run in between: then the copy is of two moments and worth nothing.
    (fs::read_to_string(&path).ok()? == before).then(|| Snapshot {
        pc,
        sp,
        stack,
        values: vec![1],
        ..Snapshot::default()
    })
}

/// Stack pointer and program counter: the last two of nine numbers; `running` or `-1 SP PC` otherwise.
fn registers(syscall: &str) -> Option<(u64, u64)> {
    let mut words = syscall.split_ascii_whitespace().rev();
    let mut number = || u64::from_str_radix(words.next()?.strip_prefix("0x")?, 16).ok();
    let pc = number()?;
    Some((number()?, pc))
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

    #[test]
    fn a_sleeper_tells_where_it_sleeps_and_a_runner_does_not() {
        let sleeping = "202 0x7f 0x80 0x0 0x0 0x0 0x0 0x7ffd10 0x7f99\n";
        for (text, expected) in [
            (sleeping, Some((0x7f_fd10, 0x7f99))),
            ("running\n", None),
            ("-1 0x10 0x20\n", Some((0x10, 0x20))),
            ("", None),
        ] {
            assert_eq!(registers(text), expected, "{text}");
        }
    }
}
