//! Stacks as text, in the format of Go's `debug=1`, and answers to `/debug/pprof/symbol`.

use crate::profile::{SourceLine, StackKey, StackTally};
use std::fmt::Write;

/// `values @ addresses`, labels, then a line for each frame.
pub(crate) fn stacks(title: &str, tally: &StackTally, mut lines: impl FnMut(u64) -> Vec<SourceLine>) -> String {
    let sorted = tally.sorted();
    let total: i64 = sorted.iter().filter_map(|(_, values)| values.first()).sum();
    let mut text = format!("{title} profile: total {total}\n");
    for (key, values) in sorted {
        stack(&mut text, key, values, &mut lines);
    }
    text
}

// Writing to a String cannot fail, so this file ignores the results of `write!`.
fn stack(text: &mut String, key: &StackKey, values: &[i64], lines: &mut impl FnMut(u64) -> Vec<SourceLine>) {
    let values: Vec<String> = values.iter().map(ToString::to_string).collect();
    let _ = write!(text, "{} @", values.join(" "));
    for address in &key.addresses {
        let _ = write!(text, " {address:#x}");
    }
    text.push('\n');
    if !key.labels.is_empty() {
        let labels: Vec<String> = key.labels.iter().map(|tag| format!("{:?}:{:?}", tag.key, tag.text)).collect();
        let _ = writeln!(text, "# labels: {{{}}}", labels.join(", "));
    }
    for address in &key.addresses {
        for spot in lines(*address) {
            let _ = writeln!(text, "#\t{address:#x}\t{}\t{}:{}", spot.name, spot.file, spot.line);
        }
    }
    if key.addresses.is_empty() && !key.instead.is_empty() {
        let _ = writeln!(text, "#\t{}", key.instead);
    }
    text.push('\n');
}

/// `num_symbols`, then `0xaddress name` for each address whose name is known.
pub(crate) fn symbols(tally: &StackTally, mut lines: impl FnMut(u64) -> Vec<SourceLine>) -> String {
    let mut text = "num_symbols: 1\n".to_owned();
    for (key, _) in tally.sorted() {
        for address in &key.addresses {
            if let Some(outermost) = lines(*address).last() {
                let _ = writeln!(text, "{address:#x} {}", outermost.name);
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::order::StackLabel;

    fn spot(address: u64) -> Vec<SourceLine> {
        let spot =
            |name: &str, line| SourceLine { name: name.into(), file: "a.rs".into(), line, ..SourceLine::default() };
        if address == 16 { vec![spot("in", 1), spot("out", 2)] } else { Vec::new() }
    }

    #[test]
    fn a_thread_is_written_with_its_stack_and_its_labels() {
        let mut tally = StackTally::default();
        let labels = vec![StackLabel::new("thread", "poll")];
        tally.add(StackKey { addresses: vec![16], labels, instead: String::new() }, &[1]);
        tally.add(StackKey { instead: "[running]".into(), ..StackKey::default() }, &[1]);
        let text = stacks("goroutine", &tally, spot);
        assert!(text.starts_with("goroutine profile: total 2\n"), "{text}");
        assert!(
            text.contains("1 @ 0x10\n# labels: {\"thread\":\"poll\"}\n#\t0x10\tin\ta.rs:1\n#\t0x10\tout\ta.rs:2\n")
        );
        assert!(text.contains("1 @\n#\t[running]\n"), "{text}");
    }

    #[test]
    fn a_symbol_is_the_outermost_function_and_an_unknown_address_has_none() {
        let mut tally = StackTally::default();
        tally.add(StackKey { addresses: vec![16, 17], ..StackKey::default() }, &[1]);
        assert_eq!(symbols(&tally, spot), "num_symbols: 1\n0x10 out\n");
    }
}
