//! The random numbers of a simulation. All numbers follow from one seed.

/// A stream of numbers (SplitMix64).
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Random {
        Random(seed)
    }

    pub(super) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 to `end` minus one; 0 if `end` is 0.
    pub(super) fn below(&mut self, end: u64) -> u64 {
        self.number() % end.max(1)
    }

    /// From `first` to `last`.
    pub(super) fn between(&mut self, first: u64, last: u64) -> u64 {
        first + self.below(last - first + 1)
    }

    /// True in this many of a thousand cases.
    pub(super) fn chance(&mut self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    /// A place in a list of this length.
    pub(super) fn place(&mut self, length: usize) -> usize {
        usize::try_from(self.below(length as u64)).unwrap_or(0)
    }

    /// One of these.
    pub(super) fn one_of<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.place(of.len())]
    }
}
