//! Lines for people, in klog's form: `W1121 10:15:30.123456 sources::nvml] GPU does not answer gpu_uuid="GPU-…"`.
//! Texts from outside (process names, driver messages) are escaped, so none can forge a line or colour a terminal.

use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Writes one event as one line.
#[derive(Debug)]
pub(crate) struct Lines;

/// Writes its fields.
#[derive(Debug)]
pub(crate) struct Fields;

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, context: &FmtContext<'_, S, N>, mut out: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let data = event.metadata();
        let (letter, colour) = match *data.level() {
            Level::ERROR => ('E', "\x1b[31m"),
            Level::WARN => ('W', "\x1b[33m"),
            Level::INFO => ('I', "\x1b[32m"),
            Level::DEBUG => ('D', "\x1b[34m"),
            Level::TRACE => ('T', "\x1b[35m"),
        };
        let now = jiff::Timestamp::now().strftime("%m%d %H:%M:%S%.6f");
        if out.has_ansi_escapes() {
            write!(out, "{colour}{letter}{now}\x1b[0m {}] ", data.target())?;
        } else {
            write!(out, "{letter}{now} {}] ", data.target())?;
        }
        context.field_format().format_fields(out.by_ref(), event)?;
        writeln!(out)
    }
}

impl<'a> FormatFields<'a> for Fields {
    fn format_fields<R: RecordFields>(&self, writer: Writer<'a>, fields: R) -> fmt::Result {
        let mut line = Line { message: String::new(), rest: String::new() };
        fields.record(&mut line);
        let mut writer = writer;
        write!(writer, "{}{}", line.message, line.rest)
    }
}

/// One line in the making: the message comes first, wherever it stands in the code.
struct Line {
    message: String,
    rest: String,
}

impl Line {
    fn add(&mut self, name: &str, value: &str) {
        use fmt::Write;
        if name == "message" {
            let plain = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
            self.message = value.chars().map(plain).collect();
            return;
        }
        let bare = !value.is_empty() && value.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\'));
        // A String never refuses to be written to.
        let _ = if bare { write!(self.rest, " {name}={value}") } else { write!(self.rest, " {name}={value:?}") };
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), &format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value);
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field.name(), &value.to_string());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_outside_can_neither_forge_a_line_nor_colour_the_terminal() {
        for (value, shown) in [
            ("GPU-1", " command=GPU-1"),
            ("", " command=\"\""),
            ("two words", " command=\"two words\""),
            ("a=b", " command=\"a=b\""),
            ("x\nE0101 all is lost", " command=\"x\\nE0101 all is lost\""),
            ("\x1b[31mred", " command=\"\\u{1b}[31mred\""),
        ] {
            let mut line = Line { message: String::new(), rest: String::new() };
            line.add("command", value);
            assert_eq!(line.rest, shown);
        }
        let mut line = Line { message: String::new(), rest: String::new() };
        line.add("message", "one\ntwo");
        assert_eq!(line.message, "one\\ntwo");
    }
}
