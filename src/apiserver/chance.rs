//! Random numbers for pauses, so that many processes do not all call the API server at the same moment.
//!
//! What must never happen here: a release build in which a caller can set the random numbers.

#[cfg(all(feature = "simulation", not(debug_assertions)))]
compile_error!("the feature `simulation` lets tests set random numbers: a release build must not have it");

#[cfg(feature = "simulation")]
thread_local! {
    static SIMULATED: std::cell::Cell<Option<u64>> = const { std::cell::Cell::new(None) };
}

/// Seeds the random numbers of this thread; `None` makes them unpredictable again.
#[cfg(feature = "simulation")]
pub fn simulate(seed: Option<u64>) {
    SIMULATED.set(seed);
}

/// A random number from 0 to `end` minus one; 0 if `end` is 0.
#[must_use]
pub fn below(end: u32) -> u32 {
    let number = number() % u64::from(end.max(1));
    u32::try_from(number).unwrap_or(0)
}

fn number() -> u64 {
    #[cfg(feature = "simulation")]
    if let Some(state) = SIMULATED.get() {
        let state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        SIMULATED.set(Some(state));
        // The mixing steps of SplitMix64.
        let mixed = (state ^ (state >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        return mixed ^ (mixed >> 31);
    }
    use std::hash::{BuildHasher, RandomState};
    // Each `RandomState` has its own random keys.
    RandomState::new().hash_one(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_below_the_end_and_differ() {
        let numbers: Vec<u32> = (0..100).map(|_| below(1000)).collect();
        assert!(numbers.iter().all(|number| *number < 1000), "{numbers:?}");
        assert!(numbers.iter().any(|number| *number != numbers[0]), "always {}", numbers[0]);
        assert_eq!((below(0), below(1)), (0, 0));
    }
}
