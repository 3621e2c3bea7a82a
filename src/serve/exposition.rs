//! Writes Prometheus text in both formats: classic 0.0.4 and OpenMetrics 1.0.
//!
//! ```text
//!   family(&FAMILY)            remembers the header; nothing is written yet
//!   sample(&[labels], value)   writes HELP, TYPE, UNIT before the first sample, then the line
//!   counted(&[labels], …)      the same, and in OpenMetrics the start time of the counter
//!   histogram(&[labels], …)    the same for all lines of a histogram
//!   finish()                   writes `# EOF` in OpenMetrics
//! ```
//!
//! The program uses no library for this. The known libraries have one of three problems: they own their metrics, so
//! that the agent would have to register and remove each pod; they write only one of the two formats; or they refuse
//! metric names of other programs. For example, `DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION` is a counter without `_total`.
//! OpenMetrics does not allow that, so in OpenMetrics the type of such a family is `unknown`. Here a scrape walks one
//! view and writes one buffer: label sets are escaped once for each GPU, pod or container, and copied into every line
//! that needs them.
//!
//! What must never happen here: a family without samples in the text, a label value that breaks a line, a name that the
//! program did not declare as a [`MetricFamily`].

use model::histogram::{BOUNDS_BYTES, BOUNDS_US, ByteHistogram, Histogram};
use model::sample_value::SampleValue;
use std::fmt::Write as _;
use std::io::Write as _;
use std::time::Duration;

/// Maximum size of a label value in bytes. cgroup paths of nested systemd slices reach about 300, image references
/// about 350. A longer value is cut and ends in a hash, so that two long values stay different.
pub const MAX_LABEL_VALUE: usize = 512;

/// The text format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExpositionFormat {
    /// `text/plain; version=0.0.4`.
    Classic,
    /// `application/openmetrics-text; version=1.0.0`.
    OpenMetrics,
}

impl ExpositionFormat {
    /// The value of the header `Content-Type`.
    #[must_use]
    pub fn content_type(self) -> &'static str {
        match self {
            ExpositionFormat::Classic => "text/plain; version=0.0.4; charset=utf-8",
            ExpositionFormat::OpenMetrics => "application/openmetrics-text; version=1.0.0; charset=utf-8",
        }
    }
}

/// The type of a family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricType {
    /// Goes up and down.
    Gauge,
    /// Only goes up; its name ends in `_total`.
    Counter,
    /// Only goes up, but another program named it without `_total`; its type in OpenMetrics is `unknown`.
    ForeignCounter,
    /// Always 1, the labels are the information; its name ends in `_info`.
    Info,
    /// Counts of the values up to each bound, with the sum of all values.
    Histogram,
}

/// One metric name, declared once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricFamily {
    /// The whole name, or the part after the prefix given to [`Exposition::prefixed`].
    pub name: &'static str,
    /// The type.
    pub kind: MetricType,
    /// Base unit, with which the name ends (before `_total`); empty for none.
    pub unit: &'static str,
    /// Help text without line breaks.
    pub help: &'static str,
}

impl MetricFamily {
    /// A gauge without a unit.
    #[must_use]
    pub const fn gauge(name: &'static str, help: &'static str) -> MetricFamily {
        MetricFamily { name, kind: MetricType::Gauge, unit: "", help }
    }

    /// A counter without a unit; its name ends in `_total`.
    #[must_use]
    pub const fn counter(name: &'static str, help: &'static str) -> MetricFamily {
        MetricFamily { name, kind: MetricType::Counter, unit: "", help }
    }

    /// A histogram of times; its name ends in `_seconds`.
    #[must_use]
    pub const fn histogram(name: &'static str, help: &'static str) -> MetricFamily {
        MetricFamily { name, kind: MetricType::Histogram, unit: "seconds", help }
    }
}

/// Escaped `name="value"` pairs, ready to be copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MetricLabels(String);

/// The text being written.
#[derive(Debug)]
pub struct Exposition<'b> {
    out: &'b mut Vec<u8>,
    format: ExpositionFormat,
    family: Option<(&'static str, MetricFamily)>,
    name: String,
    header_due: bool,
    declared: Option<Vec<(&'static str, MetricFamily)>>,
}

// === impl MetricLabels ===

impl MetricLabels {
    /// No labels.
    #[must_use]
    pub fn new() -> MetricLabels {
        MetricLabels::default()
    }

    /// Adds a label. Control characters become `U+FFFD`; a long value is cut ([`MAX_LABEL_VALUE`]).
    #[must_use]
    pub fn with(mut self, name: &str, value: &str) -> MetricLabels {
        if !self.0.is_empty() {
            self.0.push(',');
        }
        self.0.push_str(name);
        self.0.push_str("=\"");
        if value.len() <= MAX_LABEL_VALUE {
            self.escape(value);
        } else {
            self.escape(&value[..value.floor_char_boundary(MAX_LABEL_VALUE - 20)]);
            let _ = write!(self.0, "…{:016x}", fingerprint(value));
        }
        self.0.push('"');
        self
    }

    /// The pairs, joined by commas.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn escape(&mut self, value: &str) {
        for character in value.chars() {
            match character {
                '\\' => self.0.push_str("\\\\"),
                '"' => self.0.push_str("\\\""),
                '\n' => self.0.push_str("\\n"),
                other if other.is_control() => self.0.push(char::REPLACEMENT_CHARACTER),
                other => self.0.push(other),
            }
        }
    }
}

/// FNV-1a, 64 bits. It keeps long values different; it does not protect against collisions made on purpose.
fn fingerprint(value: &str) -> u64 {
    value.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}

// === impl Exposition ===

impl<'b> Exposition<'b> {
    /// Writes to the end of `out`.
    #[must_use]
    pub fn new(out: &'b mut Vec<u8>, format: ExpositionFormat) -> Self {
        Exposition { out, format, family: None, name: String::new(), header_due: false, declared: None }
    }

    /// Like [`Exposition::new`], and records every family that could be written. The reference page is generated from
    /// this list.
    #[must_use]
    pub fn recording(out: &'b mut Vec<u8>) -> Self {
        Exposition { declared: Some(Vec::new()), ..Exposition::new(out, ExpositionFormat::Classic) }
    }

    /// Sets the family of the samples that follow.
    pub fn family(&mut self, family: &MetricFamily) {
        self.prefixed("", family);
    }

    /// Like [`Exposition::family`], with a prefix, for tables whose names several subjects share.
    pub fn prefixed(&mut self, prefix: &'static str, family: &MetricFamily) {
        if self.family.is_some_and(|(p, f)| p == prefix && f.name == family.name) {
            return;
        }
        self.family = Some((prefix, *family));
        self.name.clear();
        self.name.push_str(prefix);
        self.name.push_str(family.name);
        self.header_due = true;
        if let Some(declared) = &mut self.declared {
            declared.push((prefix, *family));
        }
    }

    /// Writes one line. `labels` are joined; empty labels are skipped.
    pub fn sample(&mut self, labels: &[&str], value: SampleValue) {
        self.line("", labels, value);
    }

    /// Writes one line of a counter that started with 0 at `created`, in seconds since 1970. In OpenMetrics that time
    /// is written too, so that a reader knows the increase up to the first sample.
    pub fn counted(&mut self, labels: &[&str], value: SampleValue, created: Option<f64>) {
        self.line("", labels, value);
        let Some(created) = created.filter(|_| self.format == ExpositionFormat::OpenMetrics) else { return };
        let whole = self.name.len();
        let base = self.name.trim_end_matches("_total").len();
        self.name.truncate(base);
        self.line("_created", labels, SampleValue::Real(created));
        if base < whole {
            self.name.push_str("_total");
        }
    }

    /// Writes all lines of a histogram of times.
    pub fn histogram(&mut self, labels: &[&str], calls: &Histogram) {
        let bounds = BOUNDS_US.map(|us| SampleValue::Real(Duration::from_micros(us).as_secs_f64()));
        self.buckets(labels, (&bounds, &calls.counts), SampleValue::Real(calls.sum.as_secs_f64()));
    }

    /// Writes all lines of a histogram of amounts of memory.
    pub fn byte_histogram(&mut self, labels: &[&str], amounts: &ByteHistogram) {
        let bounds = BOUNDS_BYTES.map(SampleValue::Whole);
        self.buckets(labels, (&bounds, &amounts.counts), SampleValue::Whole(amounts.sum));
    }

    fn buckets(&mut self, labels: &[&str], (bounds, counts): (&[SampleValue], &[u64]), sum: SampleValue) {
        let mut count = 0;
        for (index, own) in counts.iter().enumerate() {
            count += own;
            let bound = bounds.get(index).copied().unwrap_or(SampleValue::Real(f64::INFINITY));
            let bound = MetricLabels::new().with("le", &as_bound(bound));
            self.line("_bucket", &[labels, &[bound.as_str()]].concat(), SampleValue::Whole(count));
        }
        self.line("_sum", labels, sum);
        self.line("_count", labels, SampleValue::Whole(count));
    }

    fn line(&mut self, suffix: &str, labels: &[&str], value: SampleValue) {
        if self.header_due {
            self.header_due = false;
            self.header();
        }
        self.out.extend_from_slice(self.name.as_bytes());
        self.out.extend_from_slice(suffix.as_bytes());
        let mut before = b'{';
        for pairs in labels.iter().filter(|pairs| !pairs.is_empty()) {
            self.out.push(before);
            self.out.extend_from_slice(pairs.as_bytes());
            before = b',';
        }
        if before == b',' {
            self.out.push(b'}');
        }
        self.out.push(b' ');
        write_value(value, self.out);
        self.out.push(b'\n');
    }

    /// Ends the text. Returns the declared families if this was made by [`Exposition::recording`].
    pub fn finish(self) -> Vec<(&'static str, MetricFamily)> {
        if self.format == ExpositionFormat::OpenMetrics {
            self.out.extend_from_slice(b"# EOF\n");
        }
        self.declared.unwrap_or_default()
    }

    fn header(&mut self) {
        let Some((_, family)) = self.family else { return };
        let open = self.format == ExpositionFormat::OpenMetrics;
        let name: &str = if open { family.kind.trim(&self.name) } else { &self.name };
        let kind = family.kind.word(self.format);
        // Writing to memory does not fail.
        let _ = writeln!(self.out, "# HELP {name} {}", Help(family.help, open));
        let _ = writeln!(self.out, "# TYPE {name} {kind}");
        if open && !family.unit.is_empty() {
            let _ = writeln!(self.out, "# UNIT {name} {}", family.unit);
        }
    }
}

impl MetricType {
    /// The word after `# TYPE`.
    #[must_use]
    pub fn word(self, format: ExpositionFormat) -> &'static str {
        match (self, format) {
            (MetricType::Gauge, _) | (MetricType::Info, ExpositionFormat::Classic) => "gauge",
            (MetricType::Counter, _) | (MetricType::ForeignCounter, ExpositionFormat::Classic) => "counter",
            (MetricType::ForeignCounter, ExpositionFormat::OpenMetrics) => "unknown",
            (MetricType::Info, ExpositionFormat::OpenMetrics) => "info",
            (MetricType::Histogram, _) => "histogram",
        }
    }

    /// The family's name in OpenMetrics, which writes the suffix only in samples.
    fn trim(self, name: &str) -> &str {
        let suffix = match self {
            MetricType::Gauge | MetricType::ForeignCounter | MetricType::Histogram => "",
            MetricType::Counter => "_total",
            MetricType::Info => "_info",
        };
        name.strip_suffix(suffix).unwrap_or(name)
    }
}

/// Escaped help text. Both formats escape backslash and line feed; OpenMetrics also escapes the quotation mark.
struct Help(&'static str, bool);

impl std::fmt::Display for Help {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for character in self.0.chars() {
            match character {
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '"' if self.1 => f.write_str("\\\"")?,
                other => f.write_char(other)?,
            }
        }
        Ok(())
    }
}

/// The value as the bound of a bucket. OpenMetrics needs a decimal point even in whole numbers, so both formats get
/// this text.
fn as_bound(value: SampleValue) -> String {
    let mut text = Vec::new();
    write_value(value, &mut text);
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if text.bytes().all(|byte| byte.is_ascii_digit()) {
        text.push_str(".0");
    }
    text
}

fn write_value(value: SampleValue, out: &mut Vec<u8>) {
    // Writing to memory does not fail.
    let _ = match value {
        SampleValue::Whole(value) => write!(out, "{value}"),
        SampleValue::Real(value) if value.is_nan() => write!(out, "NaN"),
        SampleValue::Real(value) if value.is_infinite() => {
            write!(out, "{}Inf", if value > 0.0 { '+' } else { '-' })
        }
        SampleValue::Real(value) => write!(out, "{value}"),
    };
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ENERGY: MetricFamily = MetricFamily {
        name: "x_joules_total",
        kind: MetricType::Counter,
        unit: "joules",
        help: "Energy \"drawn\"\\spent.",
    };
    const FOREIGN: MetricFamily =
        MetricFamily { name: "DCGM_ENERGY", kind: MetricType::ForeignCounter, unit: "", help: "mJ." };
    const IDENTITY: MetricFamily = MetricFamily { name: "x_info", kind: MetricType::Info, unit: "", help: "Who." };
    const UNMEASURED: MetricFamily =
        MetricFamily { name: "x_silent", kind: MetricType::Gauge, unit: "", help: "Never measured." };

    fn text(format: ExpositionFormat) -> String {
        let mut out = Vec::new();
        let mut exposition = Exposition::new(&mut out, format);
        exposition.family(&ENERGY);
        exposition.sample(&["", "gpu=\"0\"", "uuid=\"a\""], SampleValue::Real(1.5));
        exposition.family(&ENERGY);
        exposition.sample(&[], SampleValue::Whole(u64::MAX));
        exposition.family(&UNMEASURED);
        exposition.family(&FOREIGN);
        exposition.sample(&[], SampleValue::Real(f64::NEG_INFINITY));
        exposition.family(&IDENTITY);
        exposition.sample(&[MetricLabels::new().with("a", "b").as_str()], SampleValue::Whole(1));
        exposition.finish();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn classic_text_has_full_names_and_no_end_mark() {
        assert_eq!(
            text(ExpositionFormat::Classic),
            "# HELP x_joules_total Energy \"drawn\"\\\\spent.\n# TYPE x_joules_total counter\n\
             x_joules_total{gpu=\"0\",uuid=\"a\"} 1.5\nx_joules_total 18446744073709551615\n\
             # HELP DCGM_ENERGY mJ.\n# TYPE DCGM_ENERGY counter\nDCGM_ENERGY -Inf\n\
             # HELP x_info Who.\n# TYPE x_info gauge\nx_info{a=\"b\"} 1\n"
        );
    }

    #[test]
    fn open_metrics_has_base_names_units_and_an_end_mark() {
        assert_eq!(
            text(ExpositionFormat::OpenMetrics),
            "# HELP x_joules Energy \\\"drawn\\\"\\\\spent.\n# TYPE x_joules counter\n# UNIT x_joules joules\n\
             x_joules_total{gpu=\"0\",uuid=\"a\"} 1.5\nx_joules_total 18446744073709551615\n\
             # HELP DCGM_ENERGY mJ.\n# TYPE DCGM_ENERGY unknown\nDCGM_ENERGY -Inf\n\
             # HELP x Who.\n# TYPE x info\nx_info{a=\"b\"} 1\n# EOF\n"
        );
    }

    #[test]
    fn a_counter_has_a_created_line_in_open_metrics_only() {
        let line = |format| {
            let mut out = Vec::new();
            let mut exposition = Exposition::new(&mut out, format);
            exposition.family(&ENERGY);
            exposition.counted(&["a=\"1\""], SampleValue::Whole(0), Some(1_799_990_000.25));
            exposition.counted(&["a=\"2\""], SampleValue::Whole(3), None);
            exposition.finish();
            let text = String::from_utf8(out).unwrap();
            text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
        };
        let values = ["x_joules_total{a=\"1\"} 0", "x_joules_total{a=\"2\"} 3"];
        assert_eq!(line(ExpositionFormat::Classic), values);
        assert_eq!(
            line(ExpositionFormat::OpenMetrics),
            [values[0], "x_joules_created{a=\"1\"} 1799990000.25", values[1]],
            "no line for an unknown start"
        );
    }

    #[test]
    fn histogram_buckets_are_cumulative_and_end_with_infinity() {
        const TOOK: MetricFamily =
            MetricFamily { name: "x_seconds", kind: MetricType::Histogram, unit: "seconds", help: "Time." };
        let mut calls = Histogram { sum: Duration::from_micros(1_030), ..Histogram::default() };
        for micros in [30, 1_000, 40_000_000] {
            calls.counts[Histogram::bucket(Duration::from_micros(micros))] += 1;
        }
        let mut out = Vec::new();
        let mut exposition = Exposition::new(&mut out, ExpositionFormat::OpenMetrics);
        exposition.family(&TOOK);
        exposition.histogram(&["a=\"b\""], &calls);
        exposition.finish();
        let text = String::from_utf8(out).unwrap();
        assert!(
            text.starts_with("# HELP x_seconds Time.\n# TYPE x_seconds histogram\n# UNIT x_seconds seconds\n"),
            "{text}"
        );
        for line in [
            "x_seconds_bucket{a=\"b\",le=\"0.000025\"} 0",
            "x_seconds_bucket{a=\"b\",le=\"0.00005\"} 1",
            "x_seconds_bucket{a=\"b\",le=\"0.001\"} 2",
            "x_seconds_bucket{a=\"b\",le=\"1.0\"} 2",
            "x_seconds_bucket{a=\"b\",le=\"30.0\"} 2",
            "x_seconds_bucket{a=\"b\",le=\"+Inf\"} 3",
            "x_seconds_sum{a=\"b\"} 0.00103",
            "x_seconds_count{a=\"b\"} 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}: {text}");
        }
    }

    #[test]
    fn label_values_that_would_break_a_line_are_escaped() {
        let labels = MetricLabels::new().with("a", "q\"b\\n\nz\u{0}\r").with("b", "");
        assert_eq!(labels.as_str(), "a=\"q\\\"b\\\\n\\nz\u{fffd}\u{fffd}\",b=\"\"");
    }

    #[test]
    fn long_label_values_are_cut_and_stay_different() {
        let long = |end: &str| MetricLabels::new().with("a", &("é".repeat(400) + end)).as_str().to_owned();
        assert!(long("x").len() <= MAX_LABEL_VALUE + 4);
        assert_ne!(long("x"), long("y"));
    }

    proptest! {
        #[test]
        fn any_value_gives_one_line_with_closed_quotes(value in any::<String>()) {
            let labels = MetricLabels::new().with("a", &value);
            let inner = labels.as_str().strip_prefix("a=\"").unwrap().strip_suffix('"').unwrap();
            prop_assert!(!labels.as_str().chars().any(char::is_control));
            let mut characters = inner.chars();
            while let Some(character) = characters.next() {
                prop_assert_ne!(character, '"');
                if character == '\\' {
                    prop_assert!(matches!(characters.next(), Some('\\' | '"' | 'n')));
                }
            }
        }
    }
}
