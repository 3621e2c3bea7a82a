//! `perftools.profiles.Profile`, the format of `go tool pprof` (github.com/google/pprof, proto/profile.proto), as far
//! as this crate writes it. Strings are indices into the profile's string table; index 0 is the empty string.

/// A whole profile.
#[derive(Clone, PartialEq, prost::Message)]
pub struct ProfileMessage {
    /// The kinds of the values of each sample.
    #[prost(message, repeated, tag = "1")]
    pub sample_type: Vec<ValueType>,
    /// The samples.
    #[prost(message, repeated, tag = "2")]
    pub sample: Vec<SampleMessage>,
    /// The files that contain the addresses; the program itself first.
    #[prost(message, repeated, tag = "3")]
    pub mapping: Vec<MappingMessage>,
    /// Addresses with their lines.
    #[prost(message, repeated, tag = "4")]
    pub location: Vec<LocationMessage>,
    /// The functions of the lines.
    #[prost(message, repeated, tag = "5")]
    pub function: Vec<FunctionMessage>,
    /// All strings; the first is empty.
    #[prost(string, repeated, tag = "6")]
    pub string_table: Vec<String>,
    /// A regular expression of functions that are hidden together with all that they call.
    #[prost(int64, tag = "7")]
    pub drop_frames: i64,
    /// The start, in nanoseconds since 1970.
    #[prost(int64, tag = "9")]
    pub time_nanos: i64,
    /// The duration, in nanoseconds.
    #[prost(int64, tag = "10")]
    pub duration_nanos: i64,
    /// The kind of the sampling period.
    #[prost(message, optional, tag = "11")]
    pub period_type: Option<ValueType>,
    /// The sampling period.
    #[prost(int64, tag = "12")]
    pub period: i64,
    /// Comments for the reader.
    #[prost(int64, repeated, tag = "13")]
    pub comment: Vec<i64>,
    /// The sample type that is shown by default.
    #[prost(int64, tag = "14")]
    pub default_sample_type: i64,
}

/// A kind of value and its unit.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct ValueType {
    /// The kind: `cpu`, `inuse_space`.
    #[prost(int64, tag = "1")]
    pub r#type: i64,
    /// The unit: `nanoseconds`, `bytes`, `count`.
    #[prost(int64, tag = "2")]
    pub unit: i64,
}

/// One stack and its values.
#[derive(Clone, PartialEq, prost::Message)]
pub struct SampleMessage {
    /// The locations, the leaf first.
    #[prost(uint64, repeated, tag = "1")]
    pub location_id: Vec<u64>,
    /// One value for each sample type.
    #[prost(int64, repeated, tag = "2")]
    pub value: Vec<i64>,
    /// Labels, such as the name of the thread.
    #[prost(message, repeated, tag = "3")]
    pub label: Vec<LabelMessage>,
}

/// A key and its text.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct LabelMessage {
    /// Key.
    #[prost(int64, tag = "1")]
    pub key: i64,
    /// Text.
    #[prost(int64, tag = "2")]
    pub str: i64,
}

/// A file and its place in memory.
#[derive(Clone, PartialEq, prost::Message)]
pub struct MappingMessage {
    /// Number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// First address.
    #[prost(uint64, tag = "2")]
    pub memory_start: u64,
    /// Address after the last.
    #[prost(uint64, tag = "3")]
    pub memory_limit: u64,
    /// Offset of the first address in the file.
    #[prost(uint64, tag = "4")]
    pub file_offset: u64,
    /// Path.
    #[prost(int64, tag = "5")]
    pub filename: i64,
    /// Build ID, in hexadecimal.
    #[prost(int64, tag = "6")]
    pub build_id: i64,
    /// The profile has function names, so the reader need not look for names.
    #[prost(bool, tag = "7")]
    pub has_functions: bool,
    /// The profile has file names.
    #[prost(bool, tag = "8")]
    pub has_filenames: bool,
    /// The profile has line numbers.
    #[prost(bool, tag = "9")]
    pub has_line_numbers: bool,
    /// The profile has inlined calls.
    #[prost(bool, tag = "10")]
    pub has_inline_frames: bool,
}

/// An address.
#[derive(Clone, PartialEq, prost::Message)]
pub struct LocationMessage {
    /// Number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// The mapping that has the address, 0 if none.
    #[prost(uint64, tag = "2")]
    pub mapping_id: u64,
    /// The address.
    #[prost(uint64, tag = "3")]
    pub address: u64,
    /// Lines: several if calls were inlined, the innermost first.
    #[prost(message, repeated, tag = "4")]
    pub line: Vec<LineMessage>,
}

/// A line of a function.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct LineMessage {
    /// The function.
    #[prost(uint64, tag = "1")]
    pub function_id: u64,
    /// Line in the function's file, 0 if unknown.
    #[prost(int64, tag = "2")]
    pub line: i64,
}

/// A function.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct FunctionMessage {
    /// Number, from 1.
    #[prost(uint64, tag = "1")]
    pub id: u64,
    /// Name for people.
    #[prost(int64, tag = "2")]
    pub name: i64,
    /// The linker's name. If it differs from `name`, the reader does not shorten `name` as if it were C++.
    #[prost(int64, tag = "3")]
    pub system_name: i64,
    /// Source file.
    #[prost(int64, tag = "4")]
    pub filename: i64,
}
