//! The allocator: jemalloc, because heap profiles are made of its samples and because it gives memory back.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Sampling is on from the first allocation, so that a heap profile also knows what the start allocated; without
/// `--profiling` the agent switches it off as soon as it has read its settings. One sample for
/// 64 KiB, because all that lives here is a few MiB. Two arenas, because the program has few
/// threads that allocate; freed pages are returned after a second by a thread of jemalloc's own.
const CONF: &[u8] = b"prof:true,prof_active:true,prof_accum:true,lg_prof_sample:16,background_thread:true,narenas:2,\
dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// The symbol that jemalloc reads at start: a `const char *`.
#[expect(unsafe_code, reason = "jemalloc looks its configuration up under this very symbol; nothing else defines it")]
#[unsafe(export_name = "malloc_conf")]
#[used]
static MALLOC_CONF: &[u8; CONF.len()] = match CONF.first_chunk() {
    Some(conf) => conf,
    None => unreachable!(),
};
