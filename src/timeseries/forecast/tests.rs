//! Forecasts of series whose continuation is known.

use super::*;
use crate::noise::noise;
use crate::series::Series;
use proptest::prelude::*;

const SECOND: Duration = Duration::from_secs(1);

fn series(values: impl IntoIterator<Item = f64>) -> Series {
    Series::regular(SECOND, values.into_iter().map(Some)).unwrap()
}

fn cycle(steps: u64) -> Period {
    let length = SECOND * u32::try_from(steps).unwrap();
    Period { length, interval: (length, length), score: 1.0, cycles: 10, starts: Vec::new(), alternatives: Vec::new() }
}

#[test]
fn a_cycle_is_forecast_by_the_seasonal_member() {
    let values = series((0..200).map(|index| f64::from(index % 20)));
    let forecasts = forecast(&values, &[SECOND * 7, SECOND * 30], Some(&cycle(20)));
    for (steps, forecast) in [(7_u32, forecasts[0].unwrap()), (30, forecasts[1].unwrap())] {
        assert_eq!(forecast.member, Member::Seasonal);
        assert_eq!((forecast.value, forecast.horizon), (f64::from((199 + steps) % 20), SECOND * steps));
    }
}

#[test]
fn a_constant_is_forecast_without_doubt() {
    let forecast = forecast(&series([37.0; 100]), &[SECOND * 5], None)[0].unwrap();
    assert_eq!((forecast.value, forecast.interval, forecast.member), (37.0, (37.0, 37.0), Member::LastValue));
}

#[test]
fn the_forecast_of_a_load_that_repeats_and_rises_lies_within_its_interval() {
    let value = |at: u32| f64::from(at) * 0.8 + if at % 60 >= 30 { 200.0 } else { 0.0 };
    let values = series((0..1200).map(value));
    for steps in [1, 30, 60, 300] {
        let forecast = forecast(&values, &[SECOND * steps], Some(&cycle(60)))[0].unwrap();
        let (low, high) = forecast.interval;
        assert!((low..=high).contains(&forecast.value), "{steps}: {forecast:?}");
        // The next value is another level, which the last value does not know.
        let error = (forecast.value - value(1199 + steps)).abs();
        assert!(steps == 1 || error < 150.0, "{steps}: {forecast:?}, {error}");
    }
}

#[test]
fn noise_is_not_forecast_by_the_last_value() {
    let replayed = replay(&series(noise(1).take(2000)), 5, None);
    let choices = replayed.iter().filter(|made| made.forecast.member == Member::Median).count();
    assert!(choices * 10 > replayed.len() * 8, "{choices} of {}", replayed.len());
}

#[test]
fn intervals_cover_nine_of_ten_values() {
    for horizon in [1, 5, 30, 200] {
        let values: Vec<f64> = noise(7).map(|value| value.powi(3)).take(6000).collect();
        let replayed = replay(&series(values.iter().copied()), horizon, None);
        let judged: Vec<bool> = replayed
            .iter()
            .filter_map(|made| values.get(made.at + horizon).map(|value| (made.forecast.interval, *value)))
            .map(|((lower, upper), value)| lower <= value && value <= upper)
            .collect();
        let covered = judged.iter().filter(|covered| **covered).count() as f64 / judged.len() as f64;
        assert!((0.87..=0.95).contains(&covered), "{covered} at {horizon}");
    }
}

#[test]
fn a_replay_is_what_a_shorter_series_would_have_forecast() {
    let values: Vec<f64> = noise(3).take(400).collect();
    let whole = replay(&series(values.iter().copied()), 5, None);
    for end in [60, 200, 399] {
        let then = replay(&series(values[..end].iter().copied()), 5, None);
        assert_eq!(then.last(), whole.iter().find(|made| made.at + 1 == end));
    }
    let maxima = replay_maximum(&series(values.iter().copied()), 20, 0.9);
    let then = next_maximum(&series(values[..300].iter().copied()), SECOND * 20, 0.9).unwrap();
    assert_eq!(Some(then.value), maxima.iter().find(|(at, _)| *at == 299).map(|(_, bound)| *bound));
}

#[test]
fn a_short_history_has_no_forecast() {
    let values: Vec<f64> = noise(5).take(200).collect();
    let with = |count: usize, steps: u32| {
        let series = series(values[..count].iter().copied());
        (forecast(&series, &[SECOND * steps], None)[0].is_some(), next_maximum(&series, SECOND * steps, 0.9).is_some())
    };
    assert_eq!(with(19, 1), (false, true));
    assert_eq!(with(20, 1), (true, true));
    assert_eq!(with(59, 20), (false, false));
    assert_eq!(with(60, 20), (true, false));
    assert_eq!(with(79, 20), (true, false));
    assert_eq!(with(80, 20), (true, true));
    assert_eq!(forecast(&series([1.0; 50]), &[Duration::from_millis(400), SECOND * 9999], None), [None, None]);
}

#[test]
fn gaps_are_not_values() {
    let with_gaps = |every: usize, count: usize| {
        let points = (0..count).map(|index| (index % every != 0).then_some(3.0));
        let series = Series::regular(SECOND, points).unwrap();
        (forecast(&series, &[SECOND * 5], None)[0], next_maximum(&series, SECOND * 5, 0.9))
    };
    let (forecast, maximum) = with_gaps(10, 100);
    assert_eq!((forecast.unwrap().value, maximum.unwrap().value), (3.0, 3.0));
    assert_eq!(with_gaps(10, 101), (None, None), "the newest value is a gap");
    assert_eq!(with_gaps(3, 102), (None, None), "a third are gaps");
}

#[test]
fn the_next_maximum_is_exceeded_about_as_often_as_asked() {
    // Bursts of random height: the maximum of a window is no constant.
    let values: Vec<f64> =
        noise(11).map(|value| if value > 0.97 { (value - 0.97) * 3000.0 } else { value }).take(20_000).collect();
    for (horizon, quantile) in [(60, 0.9), (60, 0.5), (200, 0.9)] {
        let bounds = replay_maximum(&series(values.iter().copied()), horizon, quantile);
        let judged: Vec<bool> = bounds
            .iter()
            .filter_map(|(at, bound)| {
                values.get(at + 1..=at + horizon).map(|next| next.iter().any(|value| value > bound))
            })
            .collect();
        let exceeded = judged.iter().filter(|exceeded| **exceeded).count() as f64 / judged.len() as f64;
        assert!(exceeded > 0.0 && exceeded < (1.0 - quantile) * 1.4, "{exceeded} at {horizon}, {quantile}");
    }
}

fn points() -> impl Strategy<Value = Vec<Option<f64>>> {
    let value = prop_oneof![
        3 => (-100.0..100.0_f64).prop_map(Some),
        1 => any::<f64>().prop_map(Some),
        1 => Just(None),
        1 => Just(Some(0.0)),
    ];
    proptest::collection::vec(value, 0..300)
}

proptest! {
    #[test]
    fn no_series_makes_a_forecast_panic_or_infinite(
        points in points(), horizon in 0_usize..400, quantile in -0.5..1.5_f64, period in 0.0..400.0_f64,
    ) {
        let series = Series::regular(SECOND, points).unwrap();
        let mut cycle = cycle(1);
        cycle.length = Duration::from_secs_f64(period);
        for made in replay(&series, horizon, Some(&cycle)) {
            let (lower, upper) = made.forecast.interval;
            prop_assert!(made.forecast.value.is_finite() && lower.is_finite() && upper.is_finite() && lower <= upper);
        }
        prop_assert!(replay_maximum(&series, horizon, quantile).iter().all(|(_, bound)| bound.is_finite()));
        let horizons = [SECOND * u32::try_from(horizon).unwrap(), Duration::MAX, Duration::ZERO];
        let forecasts = forecast(&series, &horizons, Some(&cycle));
        prop_assert_eq!(forecasts.len(), 3);
        prop_assert_eq!(forecasts[1], None);
        let _ = next_maximum(&series, horizons[0], quantile);
    }
}
