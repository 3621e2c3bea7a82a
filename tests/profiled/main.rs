//! A program with a known profile: it serves the routes of the crate `pprof`, or prints one profile, while it runs a load
//! whose profile is known.
//!
//! `profiled WORK... [--print PROFILE]` prints its address and ends when its stdin ends. Kinds of work: `burn` (twice as
//! much in `hot` as in `warm`), `hold` (64 MiB in `keep_blocks`), `grow` (8 MiB more each second), `churn` (threads that
//! allocate, panic, start threads and load libraries). `--print` takes a profile without a server and writes it to
//! stdout: `cpu`, `heap`, `threads`, or `cancelled`, a CPU profile of five minutes that is cancelled after a moment.

mod work;

use pprof::{CancelFlag, HeapValue, ThreadProfileKind};
use std::future::IntoFuture;
use std::io::{self, Read, Write};
use std::time::Duration;
use tokio::sync::oneshot;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// jemalloc reads these options before `main`.
#[expect(unsafe_code, reason = "jemalloc finds its options by this symbol")]
// SAFETY: the type is what jemalloc declares, `const char *`, and the text ends with NUL.
#[unsafe(export_name = "malloc_conf")]
pub static MALLOC_CONF: Option<&'static std::ffi::c_char> = options(
    c"prof:true,prof_active:true,prof_accum:true,lg_prof_sample:19,background_thread:true,narenas:2,dirty_decay_ms:1000",
);

#[expect(unsafe_code, reason = "a reference to the first character of a C string, made before `main`")]
const fn options(text: &'static std::ffi::CStr) -> Option<&'static std::ffi::c_char> {
    // SAFETY: the pointer comes from a CStr that lives for ever.
    Some(unsafe { &*text.as_ptr() })
}

fn main() -> io::Result<()> {
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            pprof::SUBCOMMAND => return pprof::run_child(),
            "--print" => return print(&words.next().unwrap_or_default()),
            name => work::start(name)?,
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    runtime.block_on(serve())
}

async fn serve() -> io::Result<()> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    writeln!(io::stdout(), "{}", listener.local_addr()?)?;
    let (ended, input_ends) = oneshot::channel();
    std::thread::spawn(move || {
        let _ = io::stdin().read_to_end(&mut Vec::new());
        ended.send(())
    });
    tokio::select! {
        served = axum::serve(listener, pprof::router()).into_future() => served,
        _ = input_ends => Ok(()),
    }
}

fn print(profile: &str) -> io::Result<()> {
    let cancel = CancelFlag::default();
    let made = match profile {
        "cpu" => pprof::cpu_profile(Duration::from_secs(3), &cancel),
        "heap" => pprof::heap_profile(HeapValue::InUse, &cancel),
        "threads" => pprof::thread_profile(ThreadProfileKind::Stacks, &cancel),
        "cancelled" => {
            let flag = cancel.clone();
            std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(500));
                flag.cancel();
            });
            pprof::cpu_profile(Duration::from_secs(300), &cancel)
        }
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("no such profile: {profile}"))),
    };
    io::stdout().write_all(&made.map_err(io::Error::other)?)
}
