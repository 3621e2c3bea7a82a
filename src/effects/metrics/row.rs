//! A row of a table of metrics: a family, and the function that reads its value.

use model::Reading;
use model::reading_name::ReadingName;
use model::sample_value::SampleValue;
use serve::exposition::{MetricFamily, MetricType};

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
