//! Profiles of this process, as `go tool pprof` reads them.
//!
//! ```text
//!   this process                                        its child: the same program, `symbolize`
//!   cpu      SIGPROF: registers + a copy of the stack ─┐
//!   threads  the same, asked of each sleeper          ─┼─order──▶ symbolize: unwind, lines ──▶ profile ─┐
//!   heap     jemalloc's own dump: addresses           ─┘         (reads the debug information)          │
//!   route    ◀── a finished, compressed profile ────────────────────────────────────────────────────────┘
//! ```
//!
//! What must never happen here: reading debug information or unwinding in this process (tens of MiB that would stay), an
//! allocation, lock or unwinder in a signal handler, a second CPU profile at the same time, a child that outlives its
//! request. Why not a ready-made sampler: `docs/decisions/0070-own-cpu-sampler.md`.

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
