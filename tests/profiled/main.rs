//! A program with a known profile: it runs the admin port of the product and a load whose profile is known.
//!
//! `profiled WORK... [--off] [--tls CHAIN KEY]` prints its address and ends when its stdin ends. Kinds of work: `burn`
//! (twice as much in `hot` as in `warm`), `hold` (64 MiB in `keep_blocks`), `grow` (8 MiB more each second), `churn`
//! (threads that allocate, panic, start threads and load libraries).

mod work;

use effects::admin::{LogLevel, Settings, Tls, serve};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use tokio_util::sync::CancellationToken;

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

struct Level(AtomicU8);

impl LogLevel for Level {
    fn show(&self) -> String {
        self.0.load(Ordering::Relaxed).to_string()
    }

    fn set(&self, text: &str) -> Result<(), String> {
        let level = text.parse().ok().filter(|level| *level <= 5).ok_or("a number from 0 to 5 is accepted")?;
        self.0.store(level, Ordering::Relaxed);
        Ok(())
    }
}

fn main() -> std::io::Result<()> {
    let mut words = std::env::args().skip(1).peekable();
    if words.peek().is_some_and(|word| word == effects::pprof::worker::SUBCOMMAND) {
        return effects::pprof::symbolize::run_child();
    }
    let level = Arc::new(Level(AtomicU8::new(2)));
    let (hosts, reload) = (effects::caller::AllowedHosts::default(), Arc::default());
    let mut settings = Settings {
        profiling: true,
        tls: None,
        hosts,
        token: None,
        operator: None,
        reload,
        level,
        incidents: None,
        driver: None,
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--off" => settings.profiling = false,
            "--tls" => {
                let files = words.next().map(PathBuf::from).zip(words.next().map(PathBuf::from));
                settings.tls = files.map(|(chain, key)| Tls { chain, key, client_ca: None });
            }
            name => work::start(name)?,
        }
    }
    let listener = TcpListener::bind("127.0.0.1:0")?;
    writeln!(std::io::stdout(), "{}", listener.local_addr()?)?;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
    let stop = CancellationToken::new();
    let stopper = stop.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        stopper.cancel();
    });
    runtime.block_on(serve(listener, settings, stop))
}
