//! The memory allocator: jemalloc, because heap profiles use its samples and because it returns memory to the kernel.

use tikv_jemallocator::Jemalloc;

#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// jemalloc's configuration. Sampling is on from the first allocation, so that a heap profile includes the
/// allocations of the start; without `--profiling` the agent switches sampling off as soon as it has read its
/// settings. There is one sample per 64 KiB, because the heap has only a few MiB, and there are two arenas, because
/// few threads of the program allocate. A thread of jemalloc returns freed pages after a second.
const CONF: &[u8] = b"prof:true,prof_active:true,prof_accum:true,lg_prof_sample:16,background_thread:true,narenas:2,\
dirty_decay_ms:1000,muzzy_decay_ms:0\0";

/// The symbol that jemalloc reads at start: a `const char *`.
#[expect(
    unsafe_code,
    reason = "jemalloc reads its configuration from the symbol of this name; nothing else defines it"
)]
#[unsafe(export_name = "malloc_conf")]
#[used]
static MALLOC_CONF: &[u8; CONF.len()] = match CONF.first_chunk() {
    Some(conf) => conf,
    None => unreachable!(),
};
