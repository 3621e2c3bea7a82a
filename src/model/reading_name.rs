//! The names under which servers show a reading.
//!
//! ```text
//!   (metric("power_watts", "watts", "Power drawn by the GPU.").json("power_watts"), |_, it| it.power.number())
//!    the names of the reading                                                      reads it, in base units
//! ```
//!
//! A table of such rows is next to the struct with the readings.

/// The names under which a reading is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadingName {
    /// The name of the metric without its prefix. The name of a counter ends in `_total`, the name of a gauge does not.
    pub metric: &'static str,
    /// The base unit, with which the name ends (before `_total`); empty if the reading has no unit.
    pub unit: &'static str,
    /// The help text of the metric.
    pub help: &'static str,
    /// The fixed label of this reading if the metric has several readings, already escaped: `policy="power"`.
    pub label: &'static str,
    /// The field of `/api/v1`; `None` if the reading has no field of its own there.
    pub json: Option<&'static str>,
}

/// The names of a reading that is shown as a metric.
#[must_use]
pub const fn metric(metric: &'static str, unit: &'static str, help: &'static str) -> ReadingName {
    ReadingName { metric, unit, help, label: "", json: None }
}

impl ReadingName {
    /// The name with a fixed label. The readings of one metric stand next to each other in their table.
    #[must_use]
    pub const fn label(self, label: &'static str) -> Self {
        ReadingName { label, ..self }
    }

    /// The name, shown in JSON as this field.
    #[must_use]
    pub const fn json(self, field: &'static str) -> Self {
        ReadingName { json: Some(field), ..self }
    }

    /// Whether the value only grows.
    #[must_use]
    pub fn counter(&self) -> bool {
        self.metric.ends_with("_total")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::{GPU_READINGS, GpuSample};
    use crate::hardware::HARDWARE_READINGS;
    use crate::reading::Absence;
    use std::collections::BTreeSet;

    /// The names of all tables.
    fn names() -> Vec<ReadingName> {
        let gpu = GPU_READINGS.iter().map(|(name, _)| *name);
        gpu.chain(HARDWARE_READINGS.iter().map(|(name, _)| *name)).collect()
    }

    #[test]
    fn the_name_of_each_reading_ends_with_its_unit() {
        for name in names() {
            for shown in [Some(name.metric), name.json].into_iter().flatten() {
                assert!(shown.trim_end_matches("_total").ends_with(name.unit), "{shown}");
            }
        }
    }

    #[test]
    fn no_two_readings_are_shown_under_one_name() {
        let names = names();
        let series: BTreeSet<_> = names.iter().map(|name| (name.metric, name.label)).collect();
        assert_eq!(series.len(), names.len());
        let fields: Vec<_> = names.iter().filter_map(|name| name.json).collect();
        assert_eq!(fields.iter().collect::<BTreeSet<_>>().len(), fields.len());
    }

    #[test]
    fn the_readings_of_one_metric_stand_together_and_have_labels_and_the_same_text() {
        let names = names();
        let mut seen = BTreeSet::new();
        for metric in names.chunk_by(|one, next| one.metric == next.metric) {
            assert!(seen.insert(metric[0].metric), "{} is in two places", metric[0].metric);
            assert!(metric.len() == 1 || metric.iter().all(|name| !name.label.is_empty()), "{}", metric[0].metric);
            assert!(metric.iter().all(|name| name.help == metric[0].help), "{}", metric[0].metric);
        }
    }

    #[test]
    fn an_absent_sample_has_the_reason_in_every_reading() {
        let gone = GpuSample::absent(Absence::GpuLost);
        let reasons = GPU_READINGS.iter().map(|(name, read)| (name.metric, read(&crate::gpu::tests::gpu(), &gone)));
        let facts = ["memory_total_bytes", "power_limit_watts", "nvlinks_active"];
        for (metric, reading) in reasons.filter(|(metric, _)| !facts.contains(metric)) {
            assert_eq!(reading.absence(), Some(Absence::GpuLost), "{metric}");
        }
    }
}
