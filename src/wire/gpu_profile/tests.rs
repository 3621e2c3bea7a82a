use super::*;
use proptest::prelude::*;

fn period(seconds: u64) -> CyclePeriod {
    let length = Duration::from_secs(seconds);
    let (shortest, longest) = (length - Duration::from_millis(40), length + Duration::from_millis(32));
    CyclePeriod { length, shortest, longest, score: 0.9375, cycles: 20 }
}

fn quantity(quantity: ProfiledQuantity, verdict: VerdictKind, forecasts: &[(u64, f64)]) -> QuantityProfile {
    let forecast = |(seconds, value): &(u64, f64)| ProfiledForecast {
        horizon: Duration::from_secs(*seconds),
        value: *value,
        low: value / 2.0,
        high: value * 1.5,
    };
    QuantityProfile {
        quantity,
        verdict: Some(verdict),
        period: (verdict == VerdictKind::Periodic).then(|| period(6)),
        forecasts: forecasts.iter().map(forecast).collect(),
        next_hour_maximum: forecasts.first().map(|(_, value)| value * 2.0),
    }
}

fn profile(quantities: Vec<QuantityProfile>) -> GpuProfile {
    let at = WallTime(1_795_256_507_000_000);
    GpuProfile { gpu: GpuUuid::parse("GPU-5eed").unwrap(), at, hour_at: None, simulated: false, quantities }
}

#[test]
fn a_profile_is_written_without_what_is_not_known() {
    let mut whole = profile(vec![
        quantity(ProfiledQuantity::Utilization, VerdictKind::Periodic, &[(30, 50.04), (300, 20.0)]),
        quantity(ProfiledQuantity::MemoryCopy, VerdictKind::Unknown, &[]),
        quantity(ProfiledQuantity::GpuMemory, VerdictKind::Aperiodic, &[(3600, 64_424_509_440.0)]),
    ]);
    whole.hour_at = Some(WallTime(1_795_255_900_000_000));
    let text = concat!(
        r#"{"gpu":"GPU-5eed","at":1795256507,"hour_at":1795255900,"utilization":{"verdict":"periodic","period_seconds":6.0,"#,
        r#""interval_seconds":[5.96,6.032],"score":0.94,"cycles":20,"forecasts":{"30":[50.0,25.0,75.1],"#,
        r#""300":[20.0,10.0,30.0]},"next_hour_maximum":100.1},"memory_copy":{"verdict":"unknown"},"#,
        r#""gpu_memory":{"verdict":"aperiodic","forecasts":{"3600":[64424509440.0,32212254720.0,96636764160.0]},"#,
        r#""next_hour_maximum":128849018880.0}}"#
    );
    assert_eq!(encode(&whole), text);
    assert_eq!(encode(&decode(text).unwrap()), text);
    let simulated = GpuProfile { simulated: true, ..profile(Vec::new()) };
    assert_eq!(encode(&simulated), r#"{"gpu":"GPU-5eed","at":1795256507,"simulated":true}"#);
    assert_eq!(decode(&encode(&simulated)), Ok(simulated));
}

#[test]
fn the_largest_profile_of_a_real_gpu_has_its_first_three_quantities() {
    let forecasts = |value: f64| [(30, value), (300, value), (3600, value)];
    let all = ProfiledQuantity::OF_GPU.map(|of| {
        let value = if of == ProfiledQuantity::GpuMemory { 206_158_430_208.0 } else { 99.9 };
        quantity(of, VerdictKind::Periodic, &forecasts(value))
    });
    let gpu = GpuUuid::parse("GPU-51d00000-36c4-44e6-8000-0a699b560000").unwrap();
    let hour_at = Some(WallTime(1_795_255_900_000_000));
    let text = encode(&GpuProfile { gpu, hour_at, simulated: true, ..profile(all.into()) });
    assert!(text.len() <= MAX_TEXT, "{}", text.len());
    let kept = decode(&text).unwrap().quantities;
    assert!(kept.len() >= 3 && kept.iter().all(|one| one.forecasts.len() == 3), "{text}");
}

#[test]
fn numbers_that_have_no_json_form_are_left_out() {
    let mut odd = quantity(ProfiledQuantity::Power, VerdictKind::Periodic, &[(30, f64::NAN), (300, 20.0)]);
    odd.next_hour_maximum = Some(f64::INFINITY);
    odd.period = Some(CyclePeriod { score: f64::NAN, ..period(6) });
    let read = decode(&encode(&profile(vec![odd]))).unwrap().quantities.remove(0);
    assert_eq!((read.forecasts.len(), read.next_hour_maximum), (1, None));
}

#[test]
fn other_texts_are_refused_with_their_fault() {
    let with = |more: &str| format!(r#"{{"gpu":"GPU-1","at":1,{more}}}"#);
    for (text, what) in [
        (String::new(), "EOF"),
        ("[]".into(), "invalid"),
        (r#"{"at":1}"#.into(), "missing field `gpu`"),
        (r#"{"gpu":"","at":1}"#.into(), "not a GPU UUID"),
        (with(r#""power":{"verdict":"often"}"#), "power: the verdict is not known"),
        (with(r#""power":{"period_seconds":6}"#), "do not come together"),
        (with(r#""power":{"period_seconds":-6,"interval_seconds":[1,2]}"#), "a period is not a time"),
        (with(r#""power":{"forecasts":{"a":[1,2,3]}}"#), "invalid"),
        (
            with(
                r#""power":{"forecasts":{"1":[0,0,0],"2":[0,0,0],"3":[0,0,0],"4":[0,0,0],"5":[0,0,0],"6":[0,0,0],"7":[0,0,0],"8":[0,0,0],"9":[0,0,0]}}"#,
            ),
            "too many forecasts",
        ),
        (" ".repeat(MAX_TEXT + 1), "bytes long"),
    ] {
        let fault = decode(&text).unwrap_err();
        assert!(fault.what.contains(what), "{}: {fault}", &text[..text.len().min(80)]);
    }
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(text in "\\PC{0,100}") {
        let _ = decode(&text);
    }

    #[test]
    fn nothing_like_it_makes_it_panic(inner in "[\\[\\]{}:,\"a-z_0-9.eE+-]{0,80}") {
        let _ = decode(&format!(r#"{{"gpu":"GPU-1","at":1,"utilization":{{"verdict":"periodic",{inner}}}}}"#));
    }

    #[test]
    fn each_text_is_short_and_is_read_back_unchanged(
        numbers in prop::collection::vec(any::<f64>(), 4), seconds in prop::collection::vec(any::<u64>(), 0..20), at in any::<u64>(),
    ) {
        let forecasts: Vec<(u64, f64)> = seconds.iter().map(|second| (*second, numbers[0])).collect();
        let of = |(kind, number): (ProfiledQuantity, &f64)| QuantityProfile {
            next_hour_maximum: Some(*number),
            ..quantity(kind, VerdictKind::Aperiodic, &forecasts)
        };
        let all = ProfiledQuantity::OF_GPU.into_iter().zip(&numbers).map(of).collect();
        let text = encode(&GpuProfile { at: WallTime(at), hour_at: Some(WallTime(at)), ..profile(all) });
        prop_assert!(text.len() <= MAX_TEXT);
        let read = decode(&text);
        prop_assert!(read.is_ok(), "{}: {:?}", text, read);
    }
}
