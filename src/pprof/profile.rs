//! Counts stacks and writes them as a profile. The profile names every function, line and inlined call, so that the
//! reader needs neither the program nor a second request.

use crate::message::{
    FunctionMessage, LabelMessage, LineMessage, LocationMessage, MappingMessage, ProfileMessage, SampleMessage,
    ValueType,
};
use crate::order::{Module, OrderBegin, ProfileValue, StackLabel};
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use std::collections::HashMap;
use std::io::{self, Write};

/// Maximum number of distinct stacks; samples of further stacks are counted as [`LEFT_OUT`]. A busy minute of a Tokio
/// server has a few thousand stacks. 50,000 stacks of depth 60 take about 30 MiB in the child.
const MAX_STACKS: usize = 50_000;

/// The name of the stack that gets the samples of all stacks beyond the limit.
const LEFT_OUT: &str = "[stacks beyond the bound]";

/// One source line of an address, from the debug information or the symbol table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct SourceLine {
    /// Name for people.
    pub(crate) name: String,
    /// The linker's name.
    pub(crate) system_name: String,
    /// Source file, empty if unknown.
    pub(crate) file: String,
    /// Line, 0 if unknown.
    pub(crate) line: u32,
}

/// A stack: addresses, labels, and a text for a stack without addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct StackKey {
    /// The addresses, the leaf first.
    pub(crate) addresses: Vec<u64>,
    /// Labels.
    pub(crate) labels: Vec<StackLabel>,
    /// Shown if there are no addresses.
    pub(crate) instead: String,
}

/// Stacks and their values.
#[derive(Debug, Default)]
pub(crate) struct StackTally {
    stacks: HashMap<StackKey, Vec<i64>>,
}

impl StackTally {
    /// Adds values to a stack.
    pub(crate) fn add(&mut self, key: StackKey, values: &[i64]) {
        let counted_alone = self.stacks.len() < MAX_STACKS || self.stacks.contains_key(&key);
        let key = if counted_alone { key } else { StackKey { instead: LEFT_OUT.to_owned(), ..StackKey::default() } };
        let sums = self.stacks.entry(key).or_default();
        sums.resize(sums.len().max(values.len()), 0);
        for (sum, value) in sums.iter_mut().zip(values) {
            *sum = sum.saturating_add(*value);
        }
    }

    /// All stacks, the largest first; equal stacks in the order of their addresses, so that two runs give the same
    /// result.
    #[must_use]
    pub(crate) fn sorted(&self) -> Vec<(&StackKey, &[i64])> {
        let mut all: Vec<_> = self.stacks.iter().map(|(key, values)| (key, values.as_slice())).collect();
        all.sort_by(|a, b| {
            let size = |values: &[i64]| values.last().copied().unwrap_or(0).saturating_abs();
            size(b.1).cmp(&size(a.1)).then_with(|| a.0.addresses.cmp(&b.0.addresses))
        });
        all
    }
}

/// The fields of the profile besides its samples.
#[derive(Debug)]
pub(crate) struct ProfileHead<'a> {
    /// Kinds of values, time, period.
    pub(crate) begin: &'a OrderBegin,
    /// The loaded files, the program first.
    pub(crate) modules: &'a [Module],
    /// How long sampling took.
    pub(crate) duration_nanos: i64,
    /// A comment for the reader, if there is one.
    pub(crate) comment: Option<String>,
}

/// The compressed profile. `lines` returns the lines of an address; it is called once for each address.
///
/// # Errors
/// If the compressor fails; it writes into memory.
pub(crate) fn compressed(
    frame: &ProfileHead<'_>,
    tally: &StackTally,
    lines: impl FnMut(u64) -> Vec<SourceLine>,
) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&profile(frame, tally, lines).encode_to_vec())?;
    encoder.finish()
}

/// The profile, not compressed.
pub(crate) fn profile(
    frame: &ProfileHead<'_>,
    tally: &StackTally,
    lines: impl FnMut(u64) -> Vec<SourceLine>,
) -> ProfileMessage {
    let mut writer = Writer::new(frame.modules, lines);
    let begin = frame.begin;
    let mut profile = ProfileMessage {
        sample_type: begin.values.iter().map(|value| writer.strings.value_type(value)).collect(),
        time_nanos: begin.time_nanos,
        duration_nanos: frame.duration_nanos,
        period_type: begin.period_type.as_ref().map(|value| writer.strings.value_type(value)),
        period: begin.period,
        drop_frames: writer.strings.index(&begin.drop_frames),
        default_sample_type: writer.strings.index(&begin.shown),
        comment: frame.comment.iter().map(|text| writer.strings.index(text)).collect(),
        ..ProfileMessage::default()
    };
    for (key, values) in tally.sorted() {
        if values.iter().any(|value| *value != 0) {
            profile.sample.push(writer.sample(key, values));
        }
    }
    profile.mapping = writer.mappings();
    profile.location = writer.locations;
    profile.function = writer.functions;
    profile.string_table = writer.strings.table;
    profile
}

struct Writer<'a, L> {
    strings: Strings,
    modules: &'a [Module],
    lines: L,
    locations: Vec<LocationMessage>,
    by_address: HashMap<u64, u64>,
    by_text: HashMap<String, u64>,
    functions: Vec<FunctionMessage>,
    by_function: HashMap<(i64, i64, i64), u64>,
}

impl<'a, L: FnMut(u64) -> Vec<SourceLine>> Writer<'a, L> {
    fn new(modules: &'a [Module], lines: L) -> Self {
        Writer {
            strings: Strings::new(),
            modules,
            lines,
            locations: Vec::new(),
            by_address: HashMap::new(),
            by_text: HashMap::new(),
            functions: Vec::new(),
            by_function: HashMap::new(),
        }
    }

    fn sample(&mut self, key: &StackKey, values: &[i64]) -> SampleMessage {
        let location_id = if key.addresses.is_empty() && !key.instead.is_empty() {
            vec![self.text(&key.instead)]
        } else {
            key.addresses.iter().map(|address| self.location(*address)).collect()
        };
        let label = key
            .labels
            .iter()
            .map(|tag| LabelMessage { key: self.strings.index(&tag.key), str: self.strings.index(&tag.text) })
            .collect();
        SampleMessage { location_id, value: values.to_vec(), label }
    }

    fn location(&mut self, address: u64) -> u64 {
        if let Some(id) = self.by_address.get(&address) {
            return *id;
        }
        let spots = (self.lines)(address);
        let module = self.modules.iter().position(|module| module.start <= address && address < module.end);
        let id = self.push(address, module.map_or(0, |at| at as u64 + 1), &spots);
        self.by_address.insert(address, id);
        id
    }

    fn text(&mut self, text: &str) -> u64 {
        if let Some(id) = self.by_text.get(text) {
            return *id;
        }
        let spot = SourceLine { name: text.to_owned(), ..SourceLine::default() };
        let id = self.push(0, 0, &[spot]);
        self.by_text.insert(text.to_owned(), id);
        id
    }

    fn push(&mut self, address: u64, mapping_id: u64, spots: &[SourceLine]) -> u64 {
        let line = spots
            .iter()
            .map(|spot| LineMessage { function_id: self.function(spot), line: i64::from(spot.line) })
            .collect();
        let id = self.locations.len() as u64 + 1;
        self.locations.push(LocationMessage { id, mapping_id, address, line });
        id
    }

    fn function(&mut self, spot: &SourceLine) -> u64 {
        let name = self.strings.index(&spot.name);
        let system_name = self.strings.index(&spot.system_name);
        let filename = self.strings.index(&spot.file);
        let next = self.functions.len() as u64 + 1;
        let id = *self.by_function.entry((name, system_name, filename)).or_insert(next);
        if id == next {
            self.functions.push(FunctionMessage { id, name, system_name, filename });
        }
        id
    }

    fn mappings(&mut self) -> Vec<MappingMessage> {
        let modules = self.modules;
        let mut mappings = Vec::new();
        for (at, module) in modules.iter().enumerate() {
            mappings.push(MappingMessage {
                id: at as u64 + 1,
                memory_start: module.start,
                memory_limit: module.end,
                file_offset: 0,
                filename: self.strings.index(&module.path),
                build_id: self.strings.index(&module.build_id),
                has_functions: true,
                has_filenames: true,
                has_line_numbers: true,
                has_inline_frames: true,
            });
        }
        mappings
    }
}

#[derive(Debug)]
struct Strings {
    table: Vec<String>,
    by_text: HashMap<String, i64>,
}

impl Strings {
    fn new() -> Self {
        Strings { table: vec![String::new()], by_text: HashMap::from([(String::new(), 0)]) }
    }

    fn index(&mut self, text: &str) -> i64 {
        if let Some(index) = self.by_text.get(text) {
            return *index;
        }
        // The limit of stacks also limits the table, far below 2^63.
        let index = i64::try_from(self.table.len()).unwrap_or(0);
        self.table.push(text.to_owned());
        self.by_text.insert(text.to_owned(), index);
        index
    }

    fn value_type(&mut self, value: &ProfileValue) -> ValueType {
        ValueType { r#type: self.index(&value.kind), unit: self.index(&value.unit) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(addresses: &[u64]) -> StackKey {
        StackKey { addresses: addresses.to_vec(), ..StackKey::default() }
    }

    fn begin() -> OrderBegin {
        OrderBegin {
            values: vec![ProfileValue::new("samples", "count"), ProfileValue::new("cpu", "nanoseconds")],
            ..OrderBegin::default()
        }
    }

    #[test]
    fn equal_stacks_are_one_sample_and_an_inlined_call_is_a_second_line() {
        let begin = begin();
        let mut tally = StackTally::default();
        tally.add(key(&[16, 32]), &[1, 10]);
        tally.add(key(&[16, 32]), &[1, 10]);
        tally.add(key(&[32]), &[1, 10]);
        let spot = |name: &str, line| SourceLine { name: name.to_owned(), line, ..SourceLine::default() };
        let frame = ProfileHead { begin: &begin, modules: &[], duration_nanos: 5, comment: None };
        let made = profile(&frame, &tally, |address| match address {
            16 => vec![spot("inlined", 3), spot("leaf", 9)],
            _ => vec![spot("root", 1)],
        });
        assert_eq!(made.sample.len(), 2);
        assert_eq!(made.sample[0].value, [2, 20]);
        let names = |location: u64| -> Vec<&str> {
            let lines = &made.location[usize::try_from(location - 1).unwrap()].line;
            lines
                .iter()
                .map(|line| &made.function[usize::try_from(line.function_id - 1).unwrap()])
                .map(|function| made.string_table[usize::try_from(function.name).unwrap()].as_str())
                .collect()
        };
        assert_eq!(names(made.sample[0].location_id[0]), ["inlined", "leaf"]);
        assert_eq!(names(made.sample[0].location_id[1]), ["root"]);
        assert_eq!(made.sample[0].location_id[1], made.sample[1].location_id[0], "one location for one address");
    }

    #[test]
    fn stacks_beyond_the_bound_are_counted_not_kept() {
        let mut tally = StackTally::default();
        for address in 0..MAX_STACKS as u64 + 10 {
            tally.add(key(&[address + 1]), &[1]);
        }
        assert_eq!(tally.stacks.len(), MAX_STACKS + 1);
        assert_eq!(tally.sorted()[0].1, [10]);
    }

    #[test]
    fn a_stack_whose_values_are_all_zero_is_left_out() {
        let begin = begin();
        let mut tally = StackTally::default();
        tally.add(key(&[1]), &[1, 5]);
        tally.add(key(&[1]), &[-1, -5]);
        let frame = ProfileHead { begin: &begin, modules: &[], duration_nanos: 0, comment: None };
        assert!(profile(&frame, &tally, |_| Vec::new()).sample.is_empty());
    }
}
