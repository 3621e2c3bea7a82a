//! The node view as Prometheus text: our own metric names, and the names of dcgm-exporter, HAMi's monitor and cAdvisor.
//!
//! ```text
//!   counts input        counters of the program itself; the input of a scrape
//!   number subject      values in base units; the labels of GPUs, pods and containers, escaped once
//!   hardware gpu switch infiniband pod profile node plugin own    gpu_steward_*: base units, absent = no series
//!   dcgm hami cadvisor  the names, labels and units of other programs
//! ```
//!
//! Each scrape computes everything from the view, so no series outlives its object by more than the age of the view.
//! Readings of a whole GPU are never divided among pods. If the GPU has exactly one holder, the labels name this
//! holder; for a shared GPU they name no pod. The use by each pod's processes is in `gpu_steward_pod_gpu_*`, as is the
//! unattributed rest.
//!
//! Cost, measured with 8 GPUs, 100 pods and 200 containers (profile dev, best of 20, shared two-core machine): our
//! own and dcgm-exporter's names 0.9 ms and 1.3 MB, dcgm-exporter's names alone 0.15 ms, cAdvisor's names 1.0 ms and
//! 2.4 MB (`cargo test -p effects -- --ignored --nocapture a_scrape_of_200`).
//!
//! What must never happen here: a zero for an absent value, a series that appears twice in the text.

pub mod counts;
pub mod input;
pub mod row;
pub mod subject;
pub mod hardware;
pub mod gpu;
pub mod switch;
pub mod infiniband;
pub mod pod;
pub mod profile;
pub mod node;
pub mod plugin;
pub mod own;
pub mod dcgm;
pub mod hami;
pub mod cadvisor;

use serve::exposition::{Exposition, ExpositionFormat};
use subject::LabelledSubjects;

pub use counts::{ProcessFootprint, ServerCounts};
pub use input::MetricsInput;

/// A set of metric names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricSet {
    /// `gpu_steward_*` and `process_*`.
    Own,
    /// The part of [`MetricSet::Own`] about GPUs and the pods on them, without cgroups.
    Gpu,
    /// dcgm-exporter's.
    Dcgm,
    /// The names that DCGM 4.6 has changed.
    DcgmRenamed,
    /// HAMi monitor's.
    Hami,
    /// cAdvisor's.
    Cadvisor,
}

impl MetricSet {
    /// Whether the set has counters without `_total` in their name, which OpenMetrics does not allow for counters.
    #[must_use]
    pub fn has_foreign_counters(self) -> bool {
        match self {
            MetricSet::Dcgm | MetricSet::DcgmRenamed => true,
            MetricSet::Own | MetricSet::Gpu | MetricSet::Hami | MetricSet::Cadvisor => false,
        }
    }
}

/// Writes the sets, in the order they are given, to the end of `out`.
pub fn render(sets: &[MetricSet], input: &MetricsInput<'_>, format: ExpositionFormat, out: &mut Vec<u8>) {
    let mut exposition = Exposition::new(out, format);
    write(sets, input, &mut exposition);
    exposition.finish();
}

fn write(sets: &[MetricSet], input: &MetricsInput<'_>, out: &mut Exposition<'_>) {
    let subjects = LabelledSubjects::of(input.view);
    for set in sets {
        match set {
            MetricSet::Own => {
                gpu::write(input, &subjects, out);
                switch::write(input.view, out);
                infiniband::write(input.view, &subjects, out);
                profile::write_gpus(input, &subjects, out);
                pod::write(input.view, &subjects, out);
                profile::write_pods(input, &subjects, out);
                node::write(input, out);
                plugin::write(input, out);
                profile::write_recorder(input, out);
                own::write(input, out);
            }
            MetricSet::Gpu => {
                gpu::write(input, &subjects, out);
                switch::write(input.view, out);
                infiniband::write(input.view, &subjects, out);
                profile::write_gpus(input, &subjects, out);
                pod::write_shares(input.view, &subjects, out);
                node::write_gpus(input.view, out);
            }
            MetricSet::Dcgm => dcgm::write(input, dcgm::DcgmNames::Known, out),
            MetricSet::DcgmRenamed => dcgm::write(input, dcgm::DcgmNames::Renamed, out),
            MetricSet::Hami => hami::write(input, &subjects, out),
            MetricSet::Cadvisor => cadvisor::write(input, &subjects, out),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_view::{self, NOW};
    use model::Reading;
    use model::unit::{Bytes, Count};
    use model::view::NodeView;
    use serve::exposition::MetricType;
    use std::collections::{BTreeMap, BTreeSet};
    use std::path::PathBuf;

    const ALL: [(MetricSet, &str); 5] = [
        (MetricSet::Own, "own"),
        (MetricSet::Dcgm, "dcgm"),
        (MetricSet::DcgmRenamed, "dcgm-renamed"),
        (MetricSet::Hami, "hami"),
        (MetricSet::Cadvisor, "cadvisor"),
    ];

    /// The footprint of a program that has run for a while.
    fn footprint() -> ProcessFootprint {
        fn m<T>(value: T) -> Reading<T> {
            Reading::Measured(value, NOW.monotonic)
        }
        ProcessFootprint {
            started_seconds: m(1_799_990_000.25),
            cpu_seconds: m(12.5),
            resident: m(Bytes(20 << 20)),
            address_space: m(Bytes(300 << 20)),
            files: m(Count(900)),
            files_limit: m(Count(1 << 20)),
            threads: m(Count(11)),
        }
    }

    fn text(set: MetricSet, view: &NodeView, format: ExpositionFormat) -> String {
        let (own, profiles) = (ServerCounts::default(), sample_view::profiles::small());
        let input = MetricsInput { view, profiles: Some(&profiles), now: NOW, own: &own, footprint: footprint() };
        let mut out = Vec::new();
        render(&[set], &input, format, &mut out);
        String::from_utf8(out).unwrap()
    }

    /// The only line that starts with `series`.
    fn only<'t>(text: &'t str, series: &str) -> &'t str {
        let lines: Vec<&str> = text.lines().filter(|line| line.starts_with(series)).collect();
        assert_eq!(lines.len(), 1, "{series}: {lines:?}");
        lines[0].rsplit(' ').next().unwrap()
    }

    fn repository() -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
    }

    /// Compares `text` with the file, or writes the file when `UPDATE_GOLDEN` is set.
    fn golden(path: &str, text: &str) {
        let path = repository().join(path);
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, text).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == text, "{} is out of date; UPDATE_GOLDEN=1 writes it", path.display());
    }

    #[test]
    fn the_metrics_of_the_small_view_match_the_golden_files() {
        let view = sample_view::small();
        for (set, name) in ALL {
            golden(&format!("tests/golden/metrics/{name}.txt"), &text(set, &view, ExpositionFormat::Classic));
            golden(
                &format!("tests/golden/metrics/{name}.openmetrics.txt"),
                &text(set, &view, ExpositionFormat::OpenMetrics),
            );
        }
    }

    #[test]
    fn no_series_appears_twice_and_each_family_is_contiguous() {
        for view in [sample_view::small(), sample_view::large(3, 7, 2)] {
            let mut series = BTreeSet::new();
            let mut families = BTreeSet::new();
            for (set, _) in ALL {
                for line in text(set, &view, ExpositionFormat::Classic).lines() {
                    if let Some(family) = line.strip_prefix("# TYPE ") {
                        assert!(families.insert(family.to_owned()), "{family}");
                    } else if !line.starts_with('#') {
                        let (name, _) = line.rsplit_once(' ').unwrap();
                        assert!(series.insert(name.to_owned()), "{name}");
                    }
                }
            }
        }
    }

    #[test]
    fn the_gpu_set_is_the_part_of_the_own_set_without_cgroups() {
        let view = sample_view::small();
        for format in [ExpositionFormat::Classic, ExpositionFormat::OpenMetrics] {
            let (own, gpu) = (text(MetricSet::Own, &view, format), text(MetricSet::Gpu, &view, format));
            let all: BTreeSet<&str> = own.lines().collect();
            let left_out: BTreeSet<&str> = gpu.lines().filter(|line| !all.contains(line)).collect();
            assert_eq!(left_out, BTreeSet::new());
            assert!(!gpu.contains("gpu_steward_container_") && !gpu.contains("_cpu_") && !gpu.contains("process_"));
            let part = |of: &str| own.lines().filter(|line| line.starts_with(of)).all(|line| gpu.contains(line));
            assert!(part("gpu_steward_gpu") && part("gpu_steward_mig_") && part("gpu_steward_pod_gpu_"));
        }
    }

    #[test]
    fn a_shared_gpu_names_no_pod_and_its_parts_sum_up_to_it() {
        let view = sample_view::small();
        let dcgm = text(MetricSet::Dcgm, &view, ExpositionFormat::Classic);
        let held: Vec<&str> = dcgm.lines().filter(|line| line.contains("pod=")).collect();
        assert!(!held.is_empty());
        for line in &held {
            let sole = line.contains("gpu=\"0\"") && line.contains("namespace=\"ml\",pod=\"train-0\"");
            let slice = line.contains("GPU_I_ID=\"7\"") && line.contains("namespace=\"ml\",pod=\"mig-a\"");
            assert!(sole || slice, "{line}");
        }
        let own = text(MetricSet::Own, &view, ExpositionFormat::Classic);
        let shares = own.lines().filter(|line| line.starts_with("gpu_steward_pod_gpu_memory_used_bytes{"));
        let on_one: u64 = shares
            .filter(|line| line.contains("gpu=\"1\""))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum();
        let rest: u64 = only(&own, "gpu_steward_gpu_unattributed_memory_bytes{gpu=\"1\"").parse().unwrap();
        let used: u64 = only(&own, "gpu_steward_gpu_memory_used_bytes{gpu=\"1\"").parse().unwrap();
        assert_eq!(on_one + rest, used);
    }

    #[test]
    fn an_absent_reading_has_a_reason_and_no_value() {
        let own = text(MetricSet::Own, &sample_view::small(), ExpositionFormat::Classic);
        assert!(!own.contains("gpu_steward_gpu_memory_used_bytes{gpu=\"3\""));
        let series = "gpu_steward_gpu_reading_absent{gpu=\"3\",uuid=\"GPU-00000003-1111-2222-3333-444444444444\",\
                      reading=\"memory_used_bytes\",reason=\"gpu_lost\"}";
        assert_eq!(only(&own, series), "1");
        assert_eq!(
            only(
                &own,
                "gpu_steward_gpu_xids_total{gpu=\"3\",uuid=\"GPU-00000003-1111-2222-3333-444444444444\",xid=\"79\"}"
            ),
            "2"
        );
        let dcgm = text(MetricSet::Dcgm, &sample_view::small(), ExpositionFormat::Classic);
        assert_eq!(only(&dcgm, "DCGM_FI_DEV_XID_ERRORS{gpu=\"3\""), "79");
        assert!(!dcgm.contains("DCGM_FI_DEV_FB_USED{gpu=\"3\""));
    }

    /// All families that the program can write, each with its set and full name.
    fn families() -> Vec<(&'static str, String, serve::exposition::MetricFamily)> {
        let own = ServerCounts::default();
        let view = NodeView::empty(model::id::NodeName::parse("n").unwrap(), NOW);
        let mut all = Vec::new();
        for (set, name) in ALL {
            let mut out = Vec::new();
            let mut exposition = Exposition::recording(&mut out);
            let footprint = ProcessFootprint::default();
            write(
                &[set],
                &MetricsInput { view: &view, profiles: None, now: NOW, own: &own, footprint },
                &mut exposition,
            );
            all.extend(
                exposition
                    .finish()
                    .into_iter()
                    .map(|(prefix, family)| (name, format!("{prefix}{}", family.name), family)),
            );
        }
        all
    }

    #[test]
    fn names_follow_the_rules_of_both_formats() {
        for (set, name, family) in families() {
            assert!(family.help.ends_with('.') && !family.help.contains('\n'), "{name}");
            match family.kind {
                MetricType::Counter => assert!(name.ends_with("_total"), "{name}"),
                MetricType::Info => assert!(name.ends_with("_info"), "{name}"),
                MetricType::Gauge | MetricType::ForeignCounter | MetricType::Histogram => {
                    assert!(!name.ends_with("_total"), "{name}")
                }
            }
            let stem = name.trim_end_matches("_total");
            assert!(family.unit.is_empty() || stem.ends_with(&format!("_{}", family.unit)), "{name} {}", family.unit);
            let own = name.starts_with("gpu_steward_") || name.starts_with("process_");
            assert_eq!(own, set == "own", "{name}");
        }
    }

    /// If a family has no series in the golden files, its row could read another family's value and no test would fail.
    #[test]
    fn every_family_has_a_series_in_the_golden_files() {
        let view = sample_view::small();
        let texts: BTreeMap<&str, String> =
            ALL.into_iter().map(|(set, name)| (name, text(set, &view, ExpositionFormat::Classic))).collect();
        let missing: Vec<String> = families()
            .into_iter()
            .filter(|(set, name, _)| !texts[set].contains(&format!("\n# TYPE {name} ")))
            .map(|(_, name, _)| name)
            .collect();
        assert!(missing.is_empty(), "the small view has no value for {missing:?}");
    }

    #[test]
    fn the_reference_page_is_what_the_program_writes() {
        let view = sample_view::small();
        let mut labels: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
        for (set, _) in ALL {
            for line in text(set, &view, ExpositionFormat::Classic).lines().filter(|line| !line.starts_with('#')) {
                let name = line.split(['{', ' ']).next().unwrap();
                let found = labels.entry(name.to_owned()).or_default();
                for pair in line.split("=\"") {
                    let label = pair.rsplit([',', '{']).next().unwrap();
                    if line.contains(&format!("{label}=\"")) && !label.contains('"') {
                        found.insert(label.to_owned());
                    }
                }
            }
        }
        let page_before = std::fs::read_to_string(repository().join("docs/metrics.md")).unwrap_or_default();
        let (prose, _) = page_before.split_once("<!-- generated").unwrap_or((&page_before, ""));
        let mut page = format!("{prose}<!-- generated by the test the_reference_page_is_what_the_program_writes -->\n");
        let mut heading = "";
        for (set, name, family) in families() {
            if set != heading {
                heading = set;
                page += &format!("\n## {}\n\n| name | type | labels | meaning |\n|---|---|---|---|\n", title(set));
            }
            let labels: Vec<String> = labels.get(&name).into_iter().flatten().cloned().collect();
            page += &format!(
                "| `{name}` | {} | {} | {} |\n",
                family.kind.word(ExpositionFormat::Classic),
                labels.join(", "),
                family.help
            );
        }
        golden("docs/metrics.md", &page);
    }

    fn title(set: &str) -> &'static str {
        match set {
            "own" => "Our own names",
            "dcgm" => "dcgm-exporter's names",
            "dcgm-renamed" => "DCGM's new names, with `metrics-dcgm-renamed`",
            "hami" => "HAMi monitor's names",
            _ => "cAdvisor's names",
        }
    }

    /// Measures the cost of a scrape, best of twenty. The numbers in the module comment come from this test.
    #[test]
    #[ignore = "takes a quiet machine: tests/run --long"]
    fn a_scrape_of_200_containers_is_rendered_in_a_few_milliseconds() {
        let own = ServerCounts::default();
        let view = sample_view::large(8, 100, 2);
        let mut out = Vec::new();
        for sets in
            [&[MetricSet::Own][..], &[MetricSet::Dcgm], &[MetricSet::Own, MetricSet::Dcgm], &[MetricSet::Cadvisor]]
        {
            let mut best = std::time::Duration::MAX;
            for _ in 0..20 {
                out.clear();
                let begun = std::time::Instant::now();
                let footprint = ProcessFootprint::default();
                let input = MetricsInput { view: &view, profiles: None, now: NOW, own: &own, footprint };
                render(sets, &input, ExpositionFormat::OpenMetrics, &mut out);
                best = best.min(begun.elapsed());
            }
            println!(
                "{sets:?}: {} µs, {} bytes, {} lines",
                best.as_micros(),
                out.len(),
                out.iter().filter(|b| **b == b'\n').count()
            );
            assert!(best < std::time::Duration::from_millis(50), "{sets:?}: {best:?}");
        }
    }
}
