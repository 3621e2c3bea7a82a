//! Formats log lines for people in klog's style: `W1121 10:15:30.123456 sources::nvml] GPU does not answer
//! gpu_uuid="GPU-…"`. Texts from outside (process names, driver messages) are escaped, so they can neither forge a line
//! nor send escape sequences to a terminal.

use std::fmt;
use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::field::RecordFields;
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// Values with fewer bytes (a digit, a letter) may be in a message by chance, so they are always written with their
/// names.
const SHORTEST_NAMED: usize = 3;

/// Writes one event as one line.
#[derive(Debug)]
pub(crate) struct Lines;

/// Writes the fields of one event.
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
    fn format_fields<R: RecordFields>(&self, mut writer: Writer<'a>, fields: R) -> fmt::Result {
        let mut line = Line::default();
        fields.record(&mut line);
        write!(writer, "{line}")
    }
}

/// One line. The message comes first, wherever it stands in the code, then each value that the message does not already
/// contain.
#[derive(Debug, Default)]
pub(super) struct Line {
    message: String,
    fields: Vec<(&'static str, String)>,
}

impl Line {
    /// The fields of the line, without the message.
    pub(super) fn fields(&self) -> &[(&'static str, String)] {
        &self.fields
    }

    fn add(&mut self, name: &'static str, value: String) {
        match name {
            "message" => self.message = value,
            _ => self.fields.push((name, value)),
        }
    }

    fn names(&self, value: &str) -> bool {
        let inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric());
        value.len() >= SHORTEST_NAMED
            && self.message.match_indices(value).any(|(at, _)| {
                !inside(self.message[..at].chars().next_back())
                    && !inside(self.message[at + value.len()..].chars().next())
            })
    }
}

impl fmt::Display for Line {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for c in self.message.chars() {
            if c.is_control() { write!(out, "{}", c.escape_default())? } else { write!(out, "{c}")? }
        }
        for (name, value) in self.fields.iter().filter(|(_, value)| !self.names(value)) {
            let plain = |c: char| c.is_ascii_graphic() && !matches!(c, '"' | '=' | '\\');
            let bare = !value.is_empty() && value.chars().all(plain);
            if bare { write!(out, " {name}={value}")? } else { write!(out, " {name}={value:?}")? }
        }
        Ok(())
    }
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        self.add(field.name(), format!("{value:?}"));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.add(field.name(), value.to_owned());
    }

    fn record_error(&mut self, field: &Field, value: &(dyn std::error::Error + 'static)) {
        self.add(field.name(), value.to_string());
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
            let mut line = Line::default();
            line.add("command", value.to_owned());
            assert_eq!(line.to_string(), shown);
        }
        let mut line = Line::default();
        line.add("message", "one\ntwo".to_owned());
        assert_eq!(line.to_string(), "one\\ntwo");
    }

    #[test]
    fn a_value_that_the_message_names_is_not_written_twice() {
        for (message, value, shown) in [
            ("no GPUs: no driver", "no driver", "no GPUs: no driver"),
            ("no GPUs: no drivers", "no driver", "no GPUs: no drivers value=\"no driver\""),
            ("GPU driver error: XID 79", "79", "GPU driver error: XID 79 value=79"),
            ("it failed", "fail", "it failed value=fail"),
            ("é", "x", "é value=x"),
        ] {
            let mut line = Line::default();
            line.add("value", value.to_owned());
            line.add("message", message.to_owned());
            assert_eq!(line.to_string(), shown);
            assert_eq!(line.fields(), [("value", value.to_owned())]);
        }
    }
}
