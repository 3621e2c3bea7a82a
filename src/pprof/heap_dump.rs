//! jemalloc's heap profile, as `prof.dump` writes it (`heap_v2`): the memory that each call stack holds.
//!
//! ```text
//!   heap_v2/524288                        mean bytes between two samples
//!     t*: 3: 4096 [7: 9000]               all threads: objects: bytes [allocated ever: bytes]
//!   @ 0x55d0c0de 0x55d0beef               one stack, leaf first
//!     t*: 1: 1024 [2: 2048]
//!     t3: 1: 1024 [2: 2048]               the part of one thread
//!   MAPPED_LIBRARIES:                     a copy of /proc/self/maps, not read here
//! ```
//!
//! jemalloc samples allocations; [`HeapStack::estimate`] estimates the total from the samples.

use std::collections::HashMap;

/// Maximum number of stacks in one dump; a program of 20 MiB has a few hundred to a few thousand.
pub(crate) const MAX_STACKS: usize = 100_000;

/// Maximum depth of a stack; jemalloc itself stops at 128.
pub(crate) const MAX_DEPTH: usize = 256;

/// A dump.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeapDump {
    /// Mean bytes allocated between two samples.
    pub(crate) rate: u64,
    /// Stacks, each once.
    pub(crate) stacks: HashMap<Vec<u64>, HeapStack>,
}

/// The sampled allocations of one stack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeapStack {
    /// Live objects.
    pub(crate) live_objects: u64,
    /// Bytes of the live objects.
    pub(crate) live_bytes: u64,
    /// Objects ever allocated since profiling began; 0 without `prof_accum`.
    pub(crate) all_objects: u64,
    /// Bytes of all these objects.
    pub(crate) all_bytes: u64,
}

/// The estimated allocations of one stack, computed from its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct HeapEstimate {
    /// Objects ever allocated.
    pub(crate) all_objects: i64,
    /// Bytes of all these objects.
    pub(crate) all_bytes: i64,
    /// Live objects.
    pub(crate) live_objects: i64,
    /// Bytes of the live objects.
    pub(crate) live_bytes: i64,
}

/// Why a dump cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeapDumpError {
    /// The first line is not the first line of a heap dump.
    #[error("a heap dump begins with `heap_v2/RATE`, this one with {0:?}")]
    NotADump(String),
    /// A later line cannot be read.
    #[error("line {line} of the heap dump is not {expected}: {text:?}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// The expected content.
        expected: &'static str,
        /// The start of the line.
        text: String,
    },
    /// The dump has too many stacks.
    #[error("the heap dump has more than {MAX_STACKS} stacks")]
    TooMany,
}

/// Reads a dump.
///
/// # Errors
/// [`HeapDumpError`] when the dump is not `heap_v2`, a line cannot be read, or there are more than [`MAX_STACKS`]
/// stacks.
pub(crate) fn parse(dump: &[u8]) -> Result<HeapDump, HeapDumpError> {
    let mut lines = dump.split(|byte| *byte == b'\n').enumerate().map(|(at, line)| (at + 1, line.trim_ascii()));
    let first = lines.next().map(|(_, line)| line).unwrap_or_default();
    let not_a_dump = || HeapDumpError::NotADump(excerpt(first));
    let rate = text(first).and_then(|line| line.strip_prefix("heap_v2/")).ok_or_else(not_a_dump)?;
    let rate = rate.parse().map_err(|_| not_a_dump())?;
    let mut stacks: HashMap<Vec<u64>, HeapStack> = HashMap::new();
    let mut current: Option<Vec<u64>> = None;
    for (number, line) in lines {
        if line.starts_with(b"MAPPED_LIBRARIES") {
            break;
        }
        let wrong = |expected| HeapDumpError::Line { line: number, expected, text: excerpt(line) };
        if let Some(rest) = line.strip_prefix(b"@") {
            current = Some(addresses(rest).ok_or_else(|| wrong("a stack `@ 0x1 0x2`"))?);
        } else if let Some(rest) = line.strip_prefix(b"t*:") {
            let counts = counts(rest).ok_or_else(|| wrong("counts `t*: 1: 2 [3: 4]`"))?;
            // The first `t*` line comes before any stack and is the sum over all stacks.
            if let Some(stack) = current.take() {
                if stacks.len() == MAX_STACKS && !stacks.contains_key(&stack) {
                    return Err(HeapDumpError::TooMany);
                }
                stacks.entry(stack).or_default().add(counts);
            }
        } else if !line.is_empty() && !line.starts_with(b"t") {
            return Err(wrong("a stack or counts"));
        }
    }
    Ok(HeapDump { rate, stacks })
}

fn text(line: &[u8]) -> Option<&str> {
    std::str::from_utf8(line).ok()
}

fn excerpt(line: &[u8]) -> String {
    String::from_utf8_lossy(&line[..line.len().min(80)]).into_owned()
}

fn addresses(rest: &[u8]) -> Option<Vec<u64>> {
    let words = text(rest)?.split_ascii_whitespace().take(MAX_DEPTH);
    words.map(|word| u64::from_str_radix(word.strip_prefix("0x").unwrap_or(word), 16).ok()).collect()
}

fn counts(rest: &[u8]) -> Option<HeapStack> {
    let mut numbers = [0_u64; 4];
    let mut words = text(rest)?.split([':', '[', ']', ' ']).filter(|word| !word.is_empty());
    for number in &mut numbers {
        *number = words.next()?.parse().ok()?;
    }
    let [live_objects, live_bytes, all_objects, all_bytes] = numbers;
    words.next().is_none().then_some(HeapStack { live_objects, live_bytes, all_objects, all_bytes })
}

impl HeapStack {
    fn add(&mut self, other: HeapStack) {
        self.live_objects = self.live_objects.saturating_add(other.live_objects);
        self.live_bytes = self.live_bytes.saturating_add(other.live_bytes);
        self.all_objects = self.all_objects.saturating_add(other.all_objects);
        self.all_bytes = self.all_bytes.saturating_add(other.all_bytes);
    }

    /// Estimates the total from the samples. jemalloc samples an object of `s` bytes with probability `1 - exp(-s /
    /// rate)`, so the sampled numbers are divided by this probability, with the mean size as `s` (as in jeprof's
    /// `AdjustSamples`).
    #[must_use]
    pub(crate) fn estimate(&self, rate: u64) -> HeapEstimate {
        // Without `prof_accum` jemalloc keeps no counts of freed objects; the live objects are then the lower bound.
        let all_objects = self.all_objects.max(self.live_objects);
        let all_bytes = self.all_bytes.max(self.live_bytes);
        let (live_objects, live_bytes) = scaled(self.live_objects, self.live_bytes, rate);
        let (all_objects, all_bytes) = scaled(all_objects, all_bytes, rate);
        HeapEstimate { all_objects, all_bytes, live_objects, live_bytes }
    }
}

#[expect(clippy::cast_precision_loss, reason = "an estimate; exact below 8 PiB")]
fn scaled(objects: u64, bytes: u64, rate: u64) -> (i64, i64) {
    if objects == 0 || bytes == 0 || rate == 0 {
        return (whole(objects as f64), whole(bytes as f64));
    }
    let mean = bytes as f64 / objects as f64;
    let seen = -(-mean / rate as f64).exp_m1();
    if seen <= 0.0 {
        return (whole(objects as f64), whole(bytes as f64));
    }
    (whole(objects as f64 / seen), whole(bytes as f64 / seen))
}

#[expect(clippy::cast_possible_truncation, reason = "`as` saturates, which is good enough for an estimate")]
fn whole(value: f64) -> i64 {
    value.round() as i64
}

impl HeapEstimate {
    /// `self - earlier`: the change since then, negative if memory was freed.
    #[must_use]
    pub(crate) fn since(&self, earlier: &HeapEstimate) -> HeapEstimate {
        HeapEstimate {
            all_objects: self.all_objects.saturating_sub(earlier.all_objects),
            all_bytes: self.all_bytes.saturating_sub(earlier.all_bytes),
            live_objects: self.live_objects.saturating_sub(earlier.live_objects),
            live_bytes: self.live_bytes.saturating_sub(earlier.live_bytes),
        }
    }
}

impl HeapDump {
    /// The estimate for each stack.
    #[must_use]
    pub(crate) fn estimates(&self) -> HashMap<Vec<u64>, HeapEstimate> {
        self.stacks.iter().map(|(stack, counts)| (stack.clone(), counts.estimate(self.rate))).collect()
    }

    /// The estimated change of each stack since an earlier dump; stacks without a change are left out.
    #[must_use]
    pub(crate) fn since(&self, earlier: &HeapDump) -> HashMap<Vec<u64>, HeapEstimate> {
        let mut changes = self.estimates();
        for (stack, before) in earlier.estimates() {
            let now = changes.entry(stack).or_default();
            *now = now.since(&before);
        }
        changes.retain(|_, change| *change != HeapEstimate::default());
        changes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const DUMP: &str = "heap_v2/524288\n  t*: 3: 4096 [7: 9000]\n  t0: 1: 2 [0: 0]\n@ 0x10 0x20\n  t*: 1: 1024 [2: 2048]\n  \
        t3: 1: 1024 [2: 2048]\n@ 0x30\n  t*: 0: 0 [4: 4194304]\n\nMAPPED_LIBRARIES:\nnot @ read\n";

    #[test]
    fn each_stack_has_its_counts() {
        let dump = parse(DUMP.as_bytes()).unwrap();
        assert_eq!(dump.rate, 524_288);
        assert_eq!(dump.stacks.len(), 2);
        let stack = HeapStack { live_objects: 1, live_bytes: 1024, all_objects: 2, all_bytes: 2048 };
        assert_eq!(dump.stacks[&vec![0x10, 0x20]], stack);
    }

    #[test]
    fn an_estimate_includes_the_objects_that_were_not_sampled() {
        // One sampled object of 1 KiB at a rate of 512 KiB stands for about 512 objects; one of 100 MiB only for
        // itself.
        for (bytes, objects) in [(1024, 512..=513), (100 << 20, 1..=1)] {
            let stack = HeapStack { live_objects: 1, live_bytes: bytes, all_objects: 1, all_bytes: bytes };
            assert!(objects.contains(&stack.estimate(524_288).live_objects), "{:?}", stack.estimate(524_288));
        }
    }

    #[test]
    fn a_stack_with_only_freed_objects_has_no_live_objects() {
        let dump = parse(DUMP.as_bytes()).unwrap();
        let estimate = dump.estimates()[&vec![0x30]];
        assert_eq!((estimate.live_objects, estimate.live_bytes), (0, 0));
        assert!(estimate.all_objects >= 4);
    }

    #[test]
    fn the_difference_leaves_out_unchanged_stacks() {
        let before = parse(DUMP.as_bytes()).unwrap();
        let mut after = before.clone();
        assert!(after.since(&before).is_empty());
        after.stacks.remove(&vec![0x10, 0x20]);
        let change = after.since(&before)[&vec![0x10, 0x20]];
        assert!(change.live_bytes < 0 && change.live_objects < 0, "{change:?}");
    }

    #[test]
    fn an_invalid_dump_is_refused_with_the_line() {
        for (text, expected) in [
            ("", "begins with"),
            ("heap_v1/3", "begins with"),
            ("heap_v2/x", "begins with"),
            ("heap_v2/1\n@ zz", "line 2"),
            ("heap_v2/1\n@ 1\n t*: 1", "line 3"),
            ("heap_v2/1\nwhat", "line 2"),
        ] {
            let error = parse(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(expected), "{text:?}: {error}");
        }
    }

    proptest! {
        /// Promise 18 in docs/specification.md.
        #[test]
        fn no_bytes_cause_a_panic(bytes: Vec<u8>) {
            let _ = parse(&bytes);
        }

        #[test]
        fn no_numbers_cause_a_panic(rate: u64, a: u64, b: u64, c: u64, d: u64) {
            let text = format!("heap_v2/{rate}\n@ 0x1\n  t*: {a}: {b} [{c}: {d}]\n");
            let dump = parse(text.as_bytes()).unwrap();
            let _ = dump.since(&HeapDump { rate, stacks: HashMap::new() });
        }
    }
}
