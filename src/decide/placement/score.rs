//! How full a GPU or a node is, as one integer with named terms.
//!
//! ```text
//!   fill = (weight.slots x slots used / slots + weight.cores x cores used / cores
//!           + weight.memory x memory used / memory)
//!          / (sum of the weights)        in parts of a million
//! ```
//!
//! Integers give the same order on every machine, and nodes with equal GPUs and equal claims have equal fills.

use crate::ledger::DeviceDemand;
use model::placement::ScoreWeights;

/// A fill of 1, in parts of a million.
const WHOLE: u64 = 1_000_000;

/// How full something is, in parts of a million. More than a million if more is claimed than there is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fill(pub u64);

/// The capacity of one GPU, or of all GPUs of a node together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capacity {
    /// Number of containers that may share the GPUs.
    pub slots: u64,
    /// Percent of SM time.
    pub cores: u64,
    /// Bytes.
    pub memory: u64,
}

impl Capacity {
    /// Adds another GPU.
    pub fn add(&mut self, other: Capacity) {
        self.slots = self.slots.saturating_add(other.slots);
        self.cores = self.cores.saturating_add(other.cores);
        self.memory = self.memory.saturating_add(other.memory);
    }
}

/// One term of a fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScoreTerm {
    /// The part of the GPU that the term is about.
    pub name: &'static str,
    /// How full that part is, in parts of a million.
    pub value: u64,
    /// The term's weight.
    pub weight: u32,
}

impl ScoreTerm {
    /// Value times weight.
    #[must_use]
    pub fn product(self) -> u128 {
        u128::from(self.value) * u128::from(self.weight)
    }
}

/// The terms of a fill: each part in parts of a million, before its weight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FillTerms {
    /// Slots.
    pub slots: u64,
    /// SM time.
    pub cores: u64,
    /// Memory.
    pub memory: u64,
}

impl FillTerms {
    /// The terms if `used` of `capacity` is taken. A part with a capacity of 0 counts as empty.
    #[must_use]
    pub fn of(used: DeviceDemand, capacity: Capacity) -> FillTerms {
        FillTerms {
            slots: part(used.containers, capacity.slots),
            cores: part(used.cores, capacity.cores),
            memory: part(used.memory, capacity.memory),
        }
    }

    /// The terms with their names and weights.
    #[must_use]
    pub fn terms(self, weights: ScoreWeights) -> [ScoreTerm; 3] {
        let term = |name, value, weight| ScoreTerm { name, value, weight };
        [
            term("slots", self.slots, weights.slots),
            term("cores", self.cores, weights.cores),
            term("memory", self.memory, weights.memory),
        ]
    }

    /// The weighted mean.
    #[must_use]
    pub fn fill(self, weights: ScoreWeights) -> Fill {
        let terms = self.terms(weights);
        let sum: u128 = terms.iter().map(|term| term.product()).sum();
        let weight: u128 = terms.iter().map(|term| u128::from(term.weight)).sum();
        Fill(u64::try_from(sum / weight.max(1)).unwrap_or(u64::MAX))
    }
}

fn part(used: u64, whole: u64) -> u64 {
    // Most numbers leave room for a multiplication in 64 bits, which is several times faster than in 128.
    if let Some(parts) = used.checked_mul(WHOLE) {
        return parts.checked_div(whole).unwrap_or(0);
    }
    u64::try_from(u128::from(used) * u128::from(WHOLE) / u128::from(whole.max(1))).unwrap_or(u64::MAX)
}
