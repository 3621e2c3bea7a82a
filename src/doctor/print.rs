//! Prints a report: as text for people, or as JSON. Text from the cluster cannot command the terminal in either.

use crate::finding::{Finding, Report, Verdict};
use serde::Serialize;
use serve::terminal::{plain, plain_json};
use std::fmt::Write;

/// The form of the output (`-o`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Output {
    /// For people.
    Text,
    /// One document for programs.
    Json,
}

/// A kind of row of a report, as a table.
pub(crate) trait Row {
    /// The headings of the columns.
    const HEADINGS: &'static [&'static str];
    /// The cells of this row.
    fn cells(&self) -> Vec<String>;
}

/// A report without rows.
impl Row for () {
    const HEADINGS: &'static [&'static str] = &[];

    fn cells(&self) -> Vec<String> {
        Vec::new()
    }
}

/// The report in this form, with a line feed at its end.
pub(crate) fn report<R: Row + Serialize>(report: &Report<R>, output: Output) -> String {
    match output {
        Output::Text => text(report),
        Output::Json => match serde_json::to_string_pretty(report) {
            Ok(json) => plain_json(&json) + "\n",
            Err(error) => format!("{{\"error\": {:?}}}\n", error.to_string()),
        },
    }
}

/// Writing into a String does not fail.
fn text<R: Row>(report: &Report<R>) -> String {
    let mut text = table(&report.rows);
    if !text.is_empty() {
        text.push('\n');
    }
    let verdict = match report.verdict {
        Verdict::Well | Verdict::Note => "nothing is wrong",
        Verdict::Unknown => "not everything could be looked at",
        Verdict::Wrong => "something is wrong",
    };
    let _ = writeln!(text, "{}: {verdict}", plain(&report.about));
    for finding in &report.findings {
        add(&mut text, finding);
    }
    let steps = report.steps();
    if !steps.is_empty() {
        text.push_str("\nWhat to do:\n");
        for (number, step) in steps.iter().enumerate() {
            let _ = writeln!(text, "{:>3}. {}", number + 1, plain(step));
        }
    }
    text
}

fn add(text: &mut String, finding: &Finding) {
    let Finding { code, verdict, what, evidence, .. } = finding;
    let _ = writeln!(text, "\n{:<8}{code}: {}", verdict.word(), plain(what));
    for line in evidence {
        let _ = writeln!(text, "          {}", plain(line));
    }
}

/// The rows below their headings, each column as wide as its widest cell.
fn table<R: Row>(rows: &[R]) -> String {
    if rows.is_empty() || R::HEADINGS.is_empty() {
        return String::new();
    }
    let cells = |row: &R| row.cells().iter().map(|cell| plain(cell)).collect::<Vec<_>>();
    let rows: Vec<Vec<String>> = std::iter::once(R::HEADINGS.iter().map(|text| (*text).to_owned()).collect())
        .chain(rows.iter().map(cells))
        .collect();
    let width = |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..R::HEADINGS.len()).map(|column| width(column).unwrap_or(0)).collect();
    let mut text = String::new();
    for row in &rows {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            let _ = write!(line, "{cell:<width$}  ");
        }
        let _ = writeln!(text, "{}", line.trim_end());
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Pair(&'static str, &'static str);

    impl Row for Pair {
        const HEADINGS: &'static [&'static str] = &["NODE", "STATE"];

        fn cells(&self) -> Vec<String> {
            vec![self.0.to_owned(), self.1.to_owned()]
        }
    }

    fn findings() -> Vec<Finding> {
        let wrong = Finding::wrong("CardInsufficientMemory", "\u{1b}[31mno GPU has the memory");
        vec![
            Finding::note("Cordoned", "n2 is cordoned"),
            wrong.because(["n1: 3\n4 MiB".to_owned()]).advise(["request less memory", "wait"]),
        ]
    }

    #[test]
    fn a_report_is_a_table_findings_and_steps_and_no_text_commands_the_terminal() {
        let rows = vec![Pair("node-1", "ok"), Pair("\u{9b}2J", "closed\r")];
        let shown = report(&Report::new("doctor nodes", "2 nodes", findings(), rows), Output::Text);
        let expected = "\
NODE    STATE
node-1  ok
\u{fffd}2J     closed\u{fffd}

2 nodes: something is wrong

wrong   CardInsufficientMemory: \u{fffd}[31mno GPU has the memory
          n1: 3\u{fffd}4 MiB

note    Cordoned: n2 is cordoned

What to do:
  1. request less memory
  2. wait
";
        assert_eq!(shown, expected);
        let few = Report::<()>::new("doctor pod", "pod ml/a", Vec::new(), Vec::new());
        assert_eq!(report(&few, Output::Text), "pod ml/a: nothing is wrong\n");
    }

    #[test]
    fn json_has_the_same_and_escapes_the_same_characters() {
        let json =
            report(&Report::new("doctor nodes", "a\u{9b}b", findings(), vec![Pair("n", "\u{202e}")]), Output::Json);
        assert!(!json.contains(|c: char| c != '\n' && c.is_control()) && !json.contains('\u{202e}'), "{json}");
        let read: serde_json::Value = serde_json::from_str(&json).unwrap();
        assert_eq!((&read["about"], &read["verdict"]), (&"a\u{9b}b".into(), &"wrong".into()));
        assert_eq!(read["findings"][0]["advice"][0], "request less memory");
        assert_eq!(read["rows"][0][1], "\u{202e}");
    }
}
