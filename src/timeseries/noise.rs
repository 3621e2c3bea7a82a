//! Seeded noise for the tests of this crate.

/// Independent numbers, uniform from 0 to 1 (SplitMix64).
pub(crate) fn noise(seed: u64) -> impl Iterator<Item = f64> {
    let mut state = seed;
    std::iter::from_fn(move || {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Some(((mixed ^ (mixed >> 31)) >> 40) as f64 / f64::from(1 << 24))
    })
}
