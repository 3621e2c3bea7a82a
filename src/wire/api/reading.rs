//! A reading in JSON, and the conversion of each unit of `model` to a plain number.

use model::host::CgroupVersion;
use model::recovery::RecoveryAction;
use model::sample_value::SampleValue;
use model::time::Monotonic;
use model::unit::{Bytes, BytesPerSecond, Celsius, Cores, Count, Megahertz, Millijoules, Nanos, Percent, Ratio, Watts};
use serde::{Deserialize, Serialize};
use serde_json::Number;
use std::sync::Arc;

/// A value with its age, or the reason why it is absent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum ReadingJson<T> {
    /// A measured value.
    Measured {
        /// The value, in the unit that the name of the field gives.
        value: T,
        /// Seconds between the measurement and this answer, to the millisecond.
        age_seconds: f64,
    },
    /// An absent value.
    Absent {
        /// A stable reason code: see [`model::Absence::code`].
        absent: String,
        /// The reason as a sentence.
        reason: String,
    },
}

impl<T> ReadingJson<T> {
    /// The value, if there is one.
    pub fn value(&self) -> Option<&T> {
        match self {
            ReadingJson::Measured { value, .. } => Some(value),
            ReadingJson::Absent { .. } => None,
        }
    }

    /// Why there is no value, as a sentence.
    pub fn reason(&self) -> Option<&str> {
        match self {
            ReadingJson::Measured { .. } => None,
            ReadingJson::Absent { reason, .. } => Some(reason),
        }
    }

    /// Seconds since it was measured.
    pub fn age_seconds(&self) -> Option<f64> {
        match self {
            ReadingJson::Measured { age_seconds, .. } => Some(*age_seconds),
            ReadingJson::Absent { .. } => None,
        }
    }
}

/// Computes the ages of readings at the time of the answer.
#[derive(Clone, Copy, Debug)]
pub struct ReadingAges(
    /// The time of the answer.
    pub Monotonic,
);

impl ReadingAges {
    /// The reading in JSON.
    pub fn of<T: PlainJson>(self, reading: &model::Reading<T>) -> ReadingJson<T::Out> {
        self.with(reading, PlainJson::plain)
    }

    /// The reading in JSON, with its value converted by `plain`.
    pub fn with<T, U>(self, reading: &model::Reading<T>, plain: impl FnOnce(&T) -> U) -> ReadingJson<U> {
        match reading {
            model::Reading::Measured(value, at) => {
                ReadingJson::Measured { value: plain(value), age_seconds: self.since(*at) }
            }
            model::Reading::Absent(why) => {
                ReadingJson::Absent { absent: why.code().to_owned(), reason: why.to_string() }
            }
        }
    }

    /// Seconds since `at`, to the millisecond.
    #[must_use]
    #[expect(clippy::cast_precision_loss, reason = "milliseconds of uptime are far below 2^53")]
    pub fn since(self, at: Monotonic) -> f64 {
        self.0.since(at).as_millis() as f64 / 1e3
    }
}

/// A type of `model` that JSON shows as a plain value in base units.
pub trait PlainJson {
    /// The type of the plain value.
    type Out;
    /// The value in base units.
    fn plain(&self) -> Self::Out;
}

macro_rules! plain {
    ($($noun:ty => $out:ty, |$value:ident| $change:expr;)*) => {
        $(impl PlainJson for $noun {
            type Out = $out;
            fn plain(&self) -> $out {
                let $value = self;
                $change
            }
        })*
    };
}

plain! {
    Bytes => u64, |it| it.0;
    Count => u64, |it| it.0;
    Percent => f64, |it| finite(it.ratio().0);
    Ratio => f64, |it| finite(it.0);
    Watts => f64, |it| finite(it.0);
    Cores => f64, |it| finite(it.0);
    BytesPerSecond => f64, |it| finite(it.0);
    Millijoules => f64, |it| it.joules();
    Megahertz => u64, |it| u64::from(it.0) * 1_000_000;
    Celsius => i32, |it| it.0;
    Nanos => f64, |it| it.as_seconds();
    Option<f64> => Option<f64>, |it| it.map(finite);
    Option<Bytes> => Option<u64>, |it| it.map(|bytes| bytes.0);
    [f64; 3] => [f64; 3], |it| it.map(finite);
    u32 => u32, |it| *it;
    u64 => u64, |it| *it;
    bool => bool, |it| *it;
    Arc<str> => String, |it| it.to_string();
    CgroupVersion => String, |it| it.code().to_owned();
    RecoveryAction => String, |it| recovery_word(*it);
    SampleValue => Number, |it| match it {
        SampleValue::Whole(it) => Number::from(*it),
        SampleValue::Real(it) => Number::from_f64(*it).unwrap_or(Number::from(0)),
    };
}

/// Replaces infinity and not-a-number by 0, because JSON cannot hold them. No source should produce them.
fn finite(value: f64) -> f64 {
    if value.is_finite() { value } else { 0.0 }
}

fn recovery_word(action: RecoveryAction) -> String {
    match action {
        RecoveryAction::Unknown(number) => format!("unknown_{number}"),
        known => known.code().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::Absence;

    #[test]
    fn measured_and_absent_readings_are_read_back_unchanged() {
        let ages = ReadingAges(Monotonic(2_500_000_000));
        let measured = ages.of(&model::Reading::Measured(Bytes(7), Monotonic(1_250_000_000)));
        let text = serde_json::to_string(&measured).unwrap();
        assert_eq!(text, r#"{"value":7,"age_seconds":1.25}"#);
        assert_eq!(serde_json::from_str::<ReadingJson<u64>>(&text).unwrap(), measured);

        let gone = ages.of(&model::Reading::<Bytes>::Absent(Absence::Nvml(15)));
        let text = serde_json::to_string(&gone).unwrap();
        assert_eq!(text, r#"{"absent":"nvml_error","reason":"NVML error 15"}"#);
        assert_eq!(serde_json::from_str::<ReadingJson<u64>>(&text).unwrap(), gone);
    }

    #[test]
    fn a_missing_limit_is_null_and_not_absent() {
        let none = ReadingAges(Monotonic(0)).of(&model::Reading::Measured(None::<Bytes>, Monotonic(0)));
        let text = serde_json::to_string(&none).unwrap();
        assert_eq!(text, r#"{"value":null,"age_seconds":0.0}"#);
        assert_eq!(serde_json::from_str::<ReadingJson<Option<u64>>>(&text).unwrap(), none);
    }

    #[test]
    fn units_become_base_units() {
        assert!((Percent(42.0).plain() - 0.42).abs() < 1e-12);
        assert_eq!(Megahertz(1980).plain(), 1_980_000_000);
        assert!((Millijoules(1500).plain() - 1.5).abs() < 1e-12);
        assert_eq!(Ratio(f64::NAN).plain().to_bits(), 0);
    }
}
