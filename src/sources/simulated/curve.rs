//! Numbers that follow only from a seed and the time: a GPU's day looks the same at every run.

use std::time::Duration;

/// Seconds in a day.
const DAY: f64 = 86_400.0;
/// Length of a burst, and of a pause between bursts, in seconds.
const SLOT: u64 = 20;

/// One step of splitmix64 (Steele, Lea, Flood: *Fast splittable pseudorandom number generators*): similar inputs give
/// unrelated outputs.
pub(super) fn mix(seed: u64) -> u64 {
    let mut mixed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// A number from 0 to 1 for a seed.
pub(super) fn share(seed: u64) -> f64 {
    let most = f64::from(u32::MAX);
    f64::from(u32::try_from(mix(seed) >> 32).unwrap_or(u32::MAX)) / most
}

/// How busy a GPU is at `seconds` since 1970, from 0 to 1: a slow daily wave with bursts of work on it, with soft
/// edges.
pub(super) fn load(seed: u64, seconds: f64) -> f64 {
    let phase = share(seed) * 0.2;
    let daily = 0.45 - 0.3 * ((seconds / DAY + phase) * std::f64::consts::TAU).cos();
    let slot = slot_of(seconds);
    let into = (seconds / slot_length()).fract();
    let edge = smooth((into / 0.15).min(1.0));
    let level = |slot: u64| burst(seed, slot, daily);
    let before = level(slot.wrapping_sub(1));
    (before + (level(slot) - before) * edge).clamp(0.0, 1.0)
}

/// The level of one slot: higher by day; one slot in five is a pause.
fn burst(seed: u64, slot: u64, daily: f64) -> f64 {
    let drawn = share(seed ^ mix(slot));
    if drawn < 0.2 { daily * 0.05 } else { daily * 0.6 + drawn * 0.55 }
}

/// Maps 0..1 to 0..1 with no slope at either end.
fn smooth(at: f64) -> f64 {
    at * at * (3.0 - 2.0 * at)
}

fn slot_length() -> f64 {
    Duration::from_secs(SLOT).as_secs_f64()
}

/// The slot of a time; times before 1970 are in the first slot.
fn slot_of(seconds: f64) -> u64 {
    Duration::try_from_secs_f64(seconds).map_or(0, |since| since.as_secs() / SLOT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn load_is_between_zero_and_one_and_reproducible() {
        for step in 0..20_000 {
            let seconds = 1.7e9 + f64::from(step) * 7.3;
            let at = load(7, seconds);
            assert!((0.0..=1.0).contains(&at), "{at}");
            assert_eq!(at.to_bits(), load(7, seconds).to_bits());
        }
    }

    #[test]
    fn load_changes_without_jumps() {
        let (mut least, mut most, mut steepest) = (1.0f64, 0.0f64, 0.0f64);
        for step in 0..36_000 {
            let seconds = 1.7e9 + f64::from(step) * 0.1;
            let (now, then) = (load(3, seconds), load(3, seconds + 0.1));
            (least, most, steepest) = (least.min(now), most.max(now), steepest.max((now - then).abs()));
        }
        assert!(least < 0.1 && most > 0.5, "{least} {most}");
        assert!(steepest < 0.08, "{steepest} within 0.1 s");
    }

    #[test]
    fn loads_of_different_seeds_differ() {
        let differ = (0..100).filter(|step| {
            let seconds = 1.7e9 + f64::from(*step) * 60.0;
            (load(1, seconds) - load(2, seconds)).abs() > 0.02
        });
        assert!(differ.count() > 80);
    }

    #[test]
    fn afternoons_are_busier_than_nights() {
        let mean = |from: f64| (0..500).map(|step| load(5, from + f64::from(step) * 20.0)).sum::<f64>() / 500.0;
        let midnight = 19_700.0 * DAY;
        assert!(mean(midnight + DAY * 0.35) > mean(midnight - DAY * 0.15) + 0.1);
    }
}
