//! The messages of this process to its child: `Begin`, then `Modules`, snapshots and stacks in any order, then `End`.
//! Each message begins with its length. Parent and child are the same program, so this format has no versions.

use prost::Message;
use std::io::{self, Read};

/// The argument with which the program starts itself to name functions and lines; its `main` then calls
/// [`run_child`](crate::run_child).
pub const SUBCOMMAND: &str = "symbolize";

/// Maximum size of an order in bytes: a snapshot has at most 64 KiB of stack, a list of 1,000 modules about 150 KiB.
const MAX_ORDER: u64 = 1 << 20;

/// One message to the child.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct SymbolizeOrder {
    /// The order.
    #[prost(oneof = "OrderStep", tags = "1, 2, 3, 4, 5")]
    pub(crate) step: Option<OrderStep>,
}

/// The order of one message.
#[derive(Clone, PartialEq, prost::Oneof)]
pub(crate) enum OrderStep {
    /// The first order: the kind of the profile.
    #[prost(message, tag = "1")]
    Begin(OrderBegin),
    /// The loaded files; replaces the earlier list.
    #[prost(message, tag = "2")]
    Modules(Modules),
    /// The registers and stack of a thread, to be unwound.
    #[prost(message, tag = "3")]
    Snapshot(ThreadSnapshot),
    /// A stack that is unwound already.
    #[prost(message, tag = "4")]
    Stack(CapturedStack),
    /// The last order: write the answer.
    #[prost(message, tag = "5")]
    End(OrderEnd),
}

/// The kind and the form of the answer.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct OrderBegin {
    /// A [`ProfileForm`].
    #[prost(enumeration = "ProfileForm", tag = "1")]
    pub(crate) form: i32,
    /// The kinds of values.
    #[prost(message, repeated, tag = "2")]
    pub(crate) values: Vec<ProfileValue>,
    /// The kind that is shown by default; if empty, the last.
    #[prost(string, tag = "3")]
    pub(crate) shown: String,
    /// The kind of the sampling period.
    #[prost(message, optional, tag = "4")]
    pub(crate) period_type: Option<ProfileValue>,
    /// The sampling period.
    #[prost(int64, tag = "5")]
    pub(crate) period: i64,
    /// The start, in nanoseconds since 1970.
    #[prost(int64, tag = "6")]
    pub(crate) time_nanos: i64,
    /// A regular expression of functions that are hidden with all that they call.
    #[prost(string, tag = "7")]
    pub(crate) drop_frames: String,
    /// The profile's name, for the text form.
    #[prost(string, tag = "8")]
    pub(crate) title: String,
}

/// The forms of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, prost::Enumeration)]
#[repr(i32)]
pub(crate) enum ProfileForm {
    /// A compressed profile.
    Profile = 0,
    /// Stacks as text (`debug=1`).
    Text = 1,
    /// `0xaddress name` lines.
    Symbols = 2,
}

/// A kind of value and its unit.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ProfileValue {
    /// The kind: `cpu`.
    #[prost(string, tag = "1")]
    pub(crate) kind: String,
    /// The unit: `nanoseconds`.
    #[prost(string, tag = "2")]
    pub(crate) unit: String,
}

impl ProfileValue {
    /// A kind of value and its unit.
    #[must_use]
    pub(crate) fn new(kind: &str, unit: &str) -> Self {
        ProfileValue { kind: kind.to_owned(), unit: unit.to_owned() }
    }
}

/// The loaded files.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Modules {
    /// The program itself first.
    #[prost(message, repeated, tag = "1")]
    pub(crate) modules: Vec<Module>,
}

/// A loaded file.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub(crate) struct Module {
    /// First address.
    #[prost(uint64, tag = "1")]
    pub(crate) start: u64,
    /// Address after the last.
    #[prost(uint64, tag = "2")]
    pub(crate) end: u64,
    /// An address in memory minus the same address in the file.
    #[prost(uint64, tag = "3")]
    pub(crate) bias: u64,
    /// Path for people.
    #[prost(string, tag = "4")]
    pub(crate) path: String,
    /// Path to open; `/proc/self/exe` for the program, which stays correct after an upgrade has replaced the file.
    #[prost(string, tag = "5")]
    pub(crate) open: String,
    /// Build ID, in hexadecimal.
    #[prost(string, tag = "6")]
    pub(crate) build_id: String,
}

/// The state of a thread at one moment.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct ThreadSnapshot {
    /// Program counter.
    #[prost(uint64, tag = "1")]
    pub(crate) pc: u64,
    /// Stack pointer.
    #[prost(uint64, tag = "2")]
    pub(crate) sp: u64,
    /// Frame pointer, 0 if unknown.
    #[prost(uint64, tag = "3")]
    pub(crate) fp: u64,
    /// Link register, if the processor has one.
    #[prost(uint64, tag = "4")]
    pub(crate) lr: u64,
    /// Memory from `sp` upwards.
    #[prost(bytes = "vec", tag = "5")]
    pub(crate) stack: Vec<u8>,
    /// Values.
    #[prost(int64, repeated, tag = "6")]
    pub(crate) values: Vec<i64>,
    /// Labels.
    #[prost(message, repeated, tag = "7")]
    pub(crate) labels: Vec<StackLabel>,
}

/// A stack as addresses, the leaf first, each inside the call (a return address minus one).
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct CapturedStack {
    /// Addresses.
    #[prost(uint64, repeated, tag = "1")]
    pub(crate) addresses: Vec<u64>,
    /// Values.
    #[prost(int64, repeated, tag = "2")]
    pub(crate) values: Vec<i64>,
    /// Labels.
    #[prost(message, repeated, tag = "3")]
    pub(crate) labels: Vec<StackLabel>,
    /// Shown instead of a missing stack: `[running]`.
    #[prost(string, tag = "4")]
    pub(crate) instead: String,
}

/// A label.
#[derive(Clone, PartialEq, Eq, Hash, prost::Message)]
pub(crate) struct StackLabel {
    /// Key.
    #[prost(string, tag = "1")]
    pub(crate) key: String,
    /// Text.
    #[prost(string, tag = "2")]
    pub(crate) text: String,
}

impl StackLabel {
    /// A label.
    #[must_use]
    pub(crate) fn new(key: &str, text: &str) -> Self {
        StackLabel { key: key.to_owned(), text: text.to_owned() }
    }
}

/// The last order.
#[derive(Clone, Copy, PartialEq, prost::Message)]
pub(crate) struct OrderEnd {
    /// How long sampling took, in nanoseconds.
    #[prost(int64, tag = "1")]
    pub(crate) duration_nanos: i64,
    /// The number of samples that found no free slot.
    #[prost(uint64, tag = "2")]
    pub(crate) lost: u64,
}

/// The bytes of an order, with its length before it.
#[must_use]
pub(crate) fn encode(step: OrderStep) -> Vec<u8> {
    SymbolizeOrder { step: Some(step) }.encode_length_delimited_to_vec()
}

/// Reads the next order; `None` at the end of the input.
///
/// # Errors
/// If the input ends inside an order, or is not an order.
pub(crate) fn read(input: &mut impl Read) -> io::Result<Option<OrderStep>> {
    let Some(length) = read_length(input)? else { return Ok(None) };
    if length > MAX_ORDER {
        return Err(invalid(format!("an order of {length} bytes; the limit is {MAX_ORDER}")));
    }
    let mut bytes = Vec::new();
    input.take(length).read_to_end(&mut bytes)?;
    if bytes.len() as u64 != length {
        return Err(invalid(format!("an order of {length} bytes ended after {}", bytes.len())));
    }
    let order = SymbolizeOrder::decode(bytes.as_slice())
        .map_err(|error| invalid(format!("an order cannot be read: {error}")))?;
    Ok(order.step)
}

fn read_length(input: &mut impl Read) -> io::Result<Option<u64>> {
    let mut length = 0_u64;
    for shift in (0..35).step_by(7) {
        let mut byte = [0_u8];
        if input.read(&mut byte)? == 0 {
            return if shift == 0 { Ok(None) } else { Err(invalid("the input ended inside a length".to_owned())) };
        }
        length |= u64::from(byte[0] & 0x7f) << shift;
        if byte[0] & 0x80 == 0 {
            return Ok(Some(length));
        }
    }
    Err(invalid("a length of more than five bytes".to_owned()))
}

fn invalid(what: String) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_order_is_read_back_as_it_was_written() {
        let step = OrderStep::Stack(CapturedStack {
            addresses: vec![1, u64::MAX],
            values: vec![-1],
            labels: vec![StackLabel::new("thread", "poll")],
            instead: String::new(),
        });
        let bytes = [encode(step.clone()), encode(OrderStep::End(OrderEnd { duration_nanos: 7, lost: 0 }))].concat();
        let mut input = bytes.as_slice();
        assert_eq!(read(&mut input).unwrap(), Some(step));
        assert!(matches!(read(&mut input).unwrap(), Some(OrderStep::End(_))));
        assert_eq!(read(&mut input).unwrap(), None);
    }

    #[test]
    fn an_order_that_breaks_off_is_an_error() {
        let bytes = encode(OrderStep::End(OrderEnd { duration_nanos: 7, lost: 1 }));
        for cut in 1..bytes.len() {
            assert!(read(&mut &bytes[..cut]).is_err(), "cut at {cut}");
        }
        assert!(read(&mut [0xff_u8; 9].as_slice()).is_err());
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes: Vec<u8>) {
            let mut input = bytes.as_slice();
            while let Ok(Some(_)) = read(&mut input) {}
        }
    }
}
