//! Profiles of the running program, in the format of `go tool pprof`. `README.md` describes how to use this crate, what
//! it costs and what it needs.
//!
//! ```text
//!   the program                                         its child: the same program, `symbolize`
//!   cpu      SIGPROF: registers + a copy of the stack ─┐
//!   threads  the same, taken by each sleeping thread  ─┼─order──▶ symbolize: unwind, lines ──▶ profile ─┐
//!   heap     jemalloc's own dump: addresses           ─┘         (reads the debug information)          │
//!   route    ◀── a finished, compressed profile ────────────────────────────────────────────────────────┘
//!
//!   capture syscall_file      a thread's registers and stack; the system call in which a thread sleeps
//!   module heap_dump          the files that the process has loaded; jemalloc's dump
//!   worker                    starts the child, and waits for its answer with a limit
//!   message text              the format of `go tool pprof`; stacks as text
//!   symbol_request            the addresses that a client asks about
//!   cancel error              ends a profile early; why there is no profile
//! ```
//!
//! What must never happen here: the program reads debug information or unwinds (that takes tens of MiB that would
//! stay); a signal handler allocates, locks or unwinds; two CPU profiles run at the same time; a child outlives its
//! request. `docs/decisions/0070-own-cpu-sampler.md` explains why this crate does not use an existing sampler.
#![cfg_attr(doctest, doc = include_str!("README.md"))]

mod cancel;
pub mod message;
mod order;
mod heap_dump;
mod syscall_file;
mod error;
mod module;
mod profile;
mod text;
mod unwind;
mod lines;
mod symbolize;
mod worker;
mod capture;
mod cpu;
mod heap;
mod threads;
#[cfg(feature = "http")]
mod symbol_request;
#[cfg(feature = "http")]
mod route;

pub use cancel::CancelFlag;
pub use cpu::cpu_profile;
pub use error::Error;
pub use heap::{HeapValue, heap_profile, set_heap_sample_interval, set_heap_sampling};
pub use heap_dump::HeapDumpError;
pub use order::SUBCOMMAND;
#[cfg(feature = "http")]
pub use route::router;
pub use symbolize::run_child;
pub use threads::{ThreadProfileKind, thread_profile};
