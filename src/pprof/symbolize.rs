//! The child process: reads orders from its input, unwinds stacks, finds names, and writes one answer to its output.

use crate::lines::LineTable;
use crate::order::{self, CapturedStack, Module, OrderBegin, OrderEnd, OrderStep, ProfileForm, ThreadSnapshot};
use crate::profile::{self, ProfileHead, StackKey, StackTally};
use crate::text;
use crate::unwind::FrameTables;
use std::io::{self, BufReader, Read, Write};

/// Runs the program as the child process, when its first argument is [`SUBCOMMAND`](crate::SUBCOMMAND). Reads captured
/// stacks from standard input, names their functions and lines, and writes the profile to standard output.
///
/// # Errors
/// If the input is not a complete sequence of orders, or the output is closed.
pub fn run_child() -> io::Result<()> {
    let answer = answer(&mut BufReader::new(io::stdin().lock()))?;
    let mut output = io::stdout().lock();
    output.write_all(&answer)?;
    output.flush()
}

/// The answer to a sequence of orders.
///
/// # Errors
/// If the orders do not begin with `Begin` or do not end with `End`.
pub(crate) fn answer(input: &mut impl Read) -> io::Result<Vec<u8>> {
    let Some(OrderStep::Begin(begin)) = order::read(input)? else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the first order is not `Begin`"));
    };
    let mut work = Work { frames: None, modules: Vec::new(), tally: StackTally::default() };
    while let Some(step) = order::read(input)? {
        match step {
            OrderStep::Modules(list) => work.replace_modules(list.modules),
            OrderStep::Snapshot(snapshot) => work.snapshot(&snapshot),
            OrderStep::Stack(stack) => work.stack(stack),
            OrderStep::End(end) => return work.finish(&begin, end),
            OrderStep::Begin(_) => return Err(io::Error::new(io::ErrorKind::InvalidData, "a second `Begin` order")),
        }
    }
    Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the input ended before the order `End`"))
}

struct Work {
    /// Made at the first snapshot: heap profiles need none.
    frames: Option<FrameTables>,
    modules: Vec<Module>,
    tally: StackTally,
}

impl Work {
    fn replace_modules(&mut self, modules: Vec<Module>) {
        self.modules = modules;
        self.frames = None;
    }

    fn snapshot(&mut self, snapshot: &ThreadSnapshot) {
        let frames = self.frames.get_or_insert_with(|| FrameTables::new(&self.modules));
        let addresses = frames.addresses(snapshot);
        let key = StackKey { addresses, labels: snapshot.labels.clone(), instead: String::new() };
        self.tally.add(key, &snapshot.values);
    }

    fn stack(&mut self, stack: CapturedStack) {
        let CapturedStack { addresses, values, labels, instead } = stack;
        self.tally.add(StackKey { addresses, labels, instead }, &values);
    }

    fn finish(mut self, begin: &OrderBegin, end: OrderEnd) -> io::Result<Vec<u8>> {
        // Frees the frame tables before the line tables are read.
        self.frames = None;
        let mut lines = LineTable::new(&self.modules);
        let name = |address| lines.of(address);
        match begin.form() {
            ProfileForm::Text => Ok(text::stacks(&begin.title, &self.tally, name).into_bytes()),
            ProfileForm::Symbols => Ok(text::symbols(&self.tally, name).into_bytes()),
            ProfileForm::Profile => {
                let comment =
                    (end.lost > 0).then(|| format!("{} samples found no free slot and are missing", end.lost));
                let duration_nanos = end.duration_nanos;
                let frame = ProfileHead { begin, modules: &self.modules, duration_nanos, comment };
                profile::compressed(&frame, &self.tally, name)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module;
    use crate::order::{Modules, encode};
    use proptest::prelude::*;

    #[test]
    fn an_address_of_this_program_is_answered_with_its_name() {
        let address = an_address_of_this_program_is_answered_with_its_name as *const () as u64;
        let input = [
            encode(OrderStep::Begin(OrderBegin { form: ProfileForm::Symbols.into(), ..OrderBegin::default() })),
            encode(OrderStep::Modules(Modules { modules: module::loaded() })),
            encode(OrderStep::Stack(CapturedStack {
                addresses: vec![address],
                values: vec![1],
                ..CapturedStack::default()
            })),
            encode(OrderStep::End(OrderEnd::default())),
        ]
        .concat();
        let answer = String::from_utf8(answer(&mut input.as_slice()).unwrap()).unwrap();
        assert!(answer.contains("an_address_of_this_program_is_answered_with_its_name"), "{answer}");
    }

    proptest! {
        #[test]
        fn any_input_is_an_answer_or_an_error(bytes: Vec<u8>) {
            let _ = answer(&mut bytes.as_slice());
        }
    }
}
