//! Converts values of the model to numbers in base units.

use model::Reading;
use model::reading_name::{ReadingName, ReadingValue};
use model::recovery::RecoveryAction;
use model::unit::{Bytes, BytesPerSecond, Celsius, Cores, Count, Megahertz, Millijoules, Nanos, Percent, Ratio, Watts};
use serve::exposition::{MetricFamily, MetricType, SampleValue};

/// A value with a number in base units: bytes, seconds, joules, hertz, ratios from 0 to 1.
pub trait Measure {
    /// The number in base units.
    fn number(self) -> SampleValue;
}

macro_rules! measure {
    ($($noun:ty => |$value:ident| $change:expr;)*) => {
        $(impl Measure for $noun {
            fn number(self) -> SampleValue {
                let $value = self;
                $change
            }
        })*
    };
}

measure! {
    Bytes => |it| SampleValue::Whole(it.0);
    Count => |it| SampleValue::Whole(it.0);
    Percent => |it| SampleValue::Real(it.ratio().0);
    Ratio => |it| SampleValue::Real(it.0);
    Watts => |it| SampleValue::Real(it.0);
    Cores => |it| SampleValue::Real(it.0);
    BytesPerSecond => |it| SampleValue::Real(it.0);
    Millijoules => |it| SampleValue::Real(thousandths(it.0));
    Megahertz => |it| SampleValue::Whole(u64::from(it.0) * 1_000_000);
    Celsius => |it| SampleValue::Real(f64::from(it.0));
    Nanos => |it| SampleValue::Real(it.as_seconds());
    u32 => |it| SampleValue::Whole(u64::from(it));
    u64 => |it| SampleValue::Whole(it);
    f64 => |it| SampleValue::Real(it);
    bool => |it| SampleValue::Whole(u64::from(it));
    RecoveryAction => |it| SampleValue::Whole(u64::from(it.number()));
    ReadingValue => |it| match it {
        ReadingValue::Bytes(it) => it.number(),
        ReadingValue::BytesPerSecond(it) => it.number(),
        ReadingValue::Celsius(it) => it.number(),
        ReadingValue::Count(it) => it.number(),
        ReadingValue::Megahertz(it) => it.number(),
        ReadingValue::Millijoules(it) => it.number(),
        ReadingValue::Nanos(it) => it.number(),
        ReadingValue::Percent(it) => it.number(),
        ReadingValue::Ratio(it) => it.number(),
        ReadingValue::Watts(it) => it.number(),
        ReadingValue::Number(it) => it.number(),
        ReadingValue::Flag(it) => it.number(),
        ReadingValue::Recovery(it) => Measure::number(it),
    };
}

#[expect(clippy::cast_precision_loss, reason = "exact below 2^53 mJ, which a 1 kW GPU reaches after 285 years")]
fn thousandths(value: u64) -> f64 {
    value as f64 / 1e3
}

/// The reading as a number.
pub fn number<T: Measure + Copy>(reading: &Reading<T>) -> Reading<SampleValue> {
    reading.map(Measure::number)
}

/// The family that shows the reading of this name.
pub fn reading_family(name: &ReadingName) -> MetricFamily {
    let kind = if name.counter() { MetricType::Counter } else { MetricType::Gauge };
    MetricFamily { name: name.metric, kind, unit: name.unit, help: name.help }
}

/// A row of a table: a family, fixed labels, and the function that reads the value from `S`.
#[derive(Clone, Copy, Debug)]
pub struct MetricRow<S> {
    /// The metric family.
    pub family: MetricFamily,
    /// Fixed `name="value"` pairs, already escaped.
    pub labels: &'static str,
    /// Reads the value.
    pub read: fn(&S) -> Reading<SampleValue>,
}

impl<S> MetricRow<S> {
    /// A gauge.
    pub const fn gauge(
        name: &'static str,
        unit: &'static str,
        help: &'static str,
        read: fn(&S) -> Reading<SampleValue>,
    ) -> Self {
        MetricRow { family: MetricFamily { name, kind: MetricType::Gauge, unit, help }, labels: "", read }
    }

    /// A counter; its name ends in `_total`.
    pub const fn counter(
        name: &'static str,
        unit: &'static str,
        help: &'static str,
        read: fn(&S) -> Reading<SampleValue>,
    ) -> Self {
        MetricRow { family: MetricFamily { name, kind: MetricType::Counter, unit, help }, labels: "", read }
    }

    /// A counter that another program named without `_total`.
    pub const fn foreign_counter(name: &'static str, help: &'static str, read: fn(&S) -> Reading<SampleValue>) -> Self {
        MetricRow { family: MetricFamily { name, kind: MetricType::ForeignCounter, unit: "", help }, labels: "", read }
    }

    /// The same row with fixed labels. Rows of one family must be next to each other in their table.
    pub const fn labelled(mut self, labels: &'static str) -> Self {
        self.labels = labels;
        self
    }
}
