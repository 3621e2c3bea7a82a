//! The kinds of work. Functions with a known share are never inlined, except `always_inlined`.

use std::fs;
use std::hint::black_box;
use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

/// Starts a kind of work on new threads.
pub(crate) fn start(name: &str) -> io::Result<()> {
    match name {
        "burn" => spawn("burn", burn),
        "hold" => {
            // Allocate before the program prints its address, so that a profile of later allocations does not have
            // these.
            let (held, wait) = std::sync::mpsc::channel();
            spawn("hold", move || hold(&held))?;
            await_sleep(&wait.recv().map_err(io::Error::other)?)
        }
        "grow" => spawn("grow", grow),
        "churn" => {
            // Panics are part of this work: hide their messages.
            std::panic::set_hook(Box::new(|_| {}));
            ["alloc", "panic", "spawn", "load"].into_iter().try_for_each(|kind| spawn(kind, || churn(kind)))
        }
        _ => Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no such work: {name}"))),
    }
}

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    thread::Builder::new().name(name.to_owned()).spawn(work).map(drop)
}

fn burn() {
    loop {
        mid();
    }
}

/// Calls `hot` and `warm`; `hot` does twice as many turns. A call takes about a tenth of a second and so has many
/// samples, whose counts follow the work with little noise.
#[inline(never)]
fn mid() {
    black_box(hot(black_box(24_000_000)));
    black_box(warm(black_box(12_000_000)));
}

#[inline(never)]
fn hot(turns: u64) -> u64 {
    let mut sum = 1;
    for turn in 0..turns {
        sum = always_inlined(sum, black_box(turn));
    }
    sum
}

#[inline(never)]
fn warm(turns: u64) -> u64 {
    let mut sum = 1;
    for turn in 0..turns {
        sum = always_inlined(sum, black_box(turn));
    }
    sum
}

#[inline(always)]
fn always_inlined(sum: u64, turn: u64) -> u64 {
    let mixed = sum.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(turn);
    mixed ^ (mixed >> 29)
}

fn hold(held: &std::sync::mpsc::Sender<PathBuf>) {
    let blocks = keep_blocks(1024, 64 << 10);
    // The receiver is gone if the program ends.
    let _ = held.send(fs::read_link("/proc/thread-self").unwrap_or_default());
    loop {
        black_box(&blocks);
        thread::park();
    }
}

/// Returns when the thread with this folder below `/proc` sleeps. On a busy machine it may run for a while after its
/// message, and the profile of a running thread has no stack.
fn await_sleep(thread: &Path) -> io::Result<()> {
    let stat = Path::new("/proc").join(thread).join("stat");
    while !fs::read_to_string(&stat)?.contains(" (hold) S ") {
        thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}

#[inline(never)]
fn keep_blocks(count: usize, size: usize) -> Vec<Vec<u8>> {
    (0..count).map(|_| Vec::with_capacity(size)).collect()
}

fn grow() {
    let mut kept = Vec::new();
    loop {
        kept.push(keep_more(64 << 10));
        // 8 MiB a second, for at most a minute.
        if kept.len() == 8 * 16 * 60 {
            kept.clear();
        }
        thread::sleep(Duration::from_micros(1_000_000 / 128));
    }
}

#[inline(never)]
fn keep_more(size: usize) -> Vec<u8> {
    black_box(Vec::with_capacity(size))
}

fn churn(kind: &str) {
    loop {
        match kind {
            "alloc" => drop(black_box((0..100).map(|size| vec![1_u8; size * 37]).collect::<Vec<_>>())),
            "panic" => drop(std::panic::catch_unwind(|| assert!(black_box(1) == 2))),
            "spawn" => drop(thread::spawn(|| black_box(hot(1000))).join()),
            _ => load_and_unload(),
        }
    }
}

#[expect(unsafe_code, reason = "loads and unloads a library while a profile is taken")]
fn load_and_unload() {
    // SAFETY: libz and libutil run no code of ours when they come and go; a null handle is not closed.
    unsafe {
        for name in [c"libutil.so.1", c"libanl.so.1", c"libthread_db.so.1"] {
            let handle = libc::dlopen(name.as_ptr(), libc::RTLD_NOW);
            if !handle.is_null() {
                libc::dlclose(handle);
            }
        }
    }
}
