//! Profiles of this process, in the format of `go tool pprof`.
//!
//! ```text
//!   this process                                        its child: the same program, `symbolize`
//!   cpu      SIGPROF: registers + a copy of the stack ─┐
//!   threads  the same, taken by each sleeping thread  ─┼─order──▶ symbolize: unwind, lines ──▶ profile ─┐
//!   heap     jemalloc's own dump: addresses           ─┘         (reads the debug information)          │
//!   route    ◀── a finished, compressed profile ────────────────────────────────────────────────────────┘
//! ```
//!
//! What must never happen here: this process reads debug information or unwinds (that takes tens of MiB that would
//! stay); a signal handler allocates, locks or unwinds; two CPU profiles run at the same time; a child outlives its
//! request. `docs/decisions/0070-own-cpu-sampler.md` says why this is not a ready-made sampler.

pub mod message;
pub mod order;
pub mod module;
pub mod profile;
pub mod text;
pub mod unwind;
pub mod lines;
pub mod symbolize;
pub mod worker;
pub mod capture;
pub mod cpu;
pub mod heap;
pub mod threads;
pub mod asked;
pub mod route;
