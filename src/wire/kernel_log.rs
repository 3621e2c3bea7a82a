//! Driver errors in the messages of the kernel log: `NVRM: Xid (PCI:0000:65:00): 79, pid=1234, name=python3, GPU has
//! fallen off the bus.` [`KernelMessages`] makes messages of the log's lines.
//!
//! All known forms are read: with and without `PCI:`; without a domain (drivers before 340); with a function number;
//! with the MIG instance (`GPU-I:05`, `GPU-CI:00`); with the PID bare, in single or double quotes, or unknown; after a
//! header of `/dev/kmsg`, of a syslog file or of `dmesg`. Some errors state their severity: `145, RLW_RXPIPE Nonfatal
//! XC0 i0 Link 13`. A GPU may also be lost without an XID: `NVRM: GPU 0000:65:00.0: GPU has fallen off the bus.`
//!
//! Errors of an NVSwitch (SXid) have their own numbers and three lines each. Only the line with the severity is read:
//! `nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Non-fatal, Link 44 Minion Link DLREQ interrupt`. The other two
//! lines (`Severity …`, `Data {…}`) belong to the same error.
//!
//! The kernel log has texts that any process can choose: the kernel prints the names of processes and of files. So a message is one
//! only if it begins with its mark and the address of a device, and [`KernelMessages`] lets messages begin only where a record
//! begins. What another program can put at the beginning of a record is its name of at most 15 bytes, and each mark with an address
//! is longer.
//!
//! What must never happen here: an error is read from a text that another program has chosen.

mod header;
mod messages;

pub use messages::KernelMessages;
use model::gpu::XidSeverity;

/// The mark of an XID: a GPU error.
const MARK: &[u8] = b"NVRM: Xid (";
/// Marks of the driver's other messages about a GPU.
const GPU: [&[u8]; 3] = [b"NVRM: GPU at ", b"NVRM: GPU ", b"NVRM: The NVIDIA GPU "];
/// The mark of an NVSwitch error: the driver, the switch's number, and the rest of the mark.
const SWITCH: [&[u8]; 2] = [b"nvidia-nvswitch", b": SXid ("];
/// Minimum bytes of an address in an XID, without `PCI:`. The shortest known form is `0003:00`. A shorter one would fit into the name
/// of a process, after the mark.
const SHORTEST_ADDRESS: usize = 7;
/// Minimum bytes of an address in another message about a GPU: `0000:65:00`.
const SHORTEST_WHOLE_ADDRESS: usize = 10;
/// Maximum code of an NVSwitch error: NVIDIA's catalogue has numbers of five digits.
const MAX_SWITCH_CODE: u32 = 99_999;
/// Maximum code of an XID: NVIDIA's catalogue ends below 200, and a much larger number is a damaged line.
const MAX_CODE: u32 = 9_999;

/// Phrases with which the driver reports that a GPU is gone, in lower case.
const LOST: [&str; 4] = ["fallen off the bus", "lost from the bus", "gpu is lost", "gpu_is_lost"];
/// Maximum bytes of a process's name, which the process itself chooses (`TASK_COMM_LEN` without the zero).
const LONGEST_NAME: usize = 15;

/// A PCI address without its function: NVIDIA GPUs are function 0, and the kernel log omits it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PciSlot {
    /// Domain (segment).
    pub domain: u32,
    /// Bus.
    pub bus: u8,
    /// Device on the bus.
    pub device: u8,
}

/// One XID: an error of a GPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KernelXid {
    /// PCI address of the GPU.
    pub slot: PciSlot,
    /// The number in NVIDIA's catalogue.
    pub code: u32,
    /// The PID in the line.
    pub pid: Option<u32>,
    /// MIG GPU instance, if the line names one.
    pub gpu_instance: Option<u32>,
    /// MIG compute instance, if the line names one.
    pub compute_instance: Option<u32>,
    /// The severity, if the message states one.
    pub severity: Option<XidSeverity>,
}

/// Reads one message; `None` when it has no XID.
#[must_use]
pub fn xid(message: &[u8]) -> Option<KernelXid> {
    let (slot, words, tail) = xid_place(message)?;
    let mut gpu_instance = None;
    let mut compute_instance = None;
    for word in words.split_ascii_whitespace() {
        if let Some(number) = word.strip_prefix("GPU-I:") {
            gpu_instance = u32::from_str_radix(number, 16).ok();
        } else if let Some(number) = word.strip_prefix("GPU-CI:") {
            compute_instance = u32::from_str_radix(number, 16).ok();
        }
    }
    let code = digits(tail).filter(|code| *code <= MAX_CODE)?;
    Some(KernelXid { slot, code, pid: pid(tail), gpu_instance, compute_instance, severity: severity(tail) })
}

/// The address of the GPU in an XID, the words after the address, and the text after the place.
fn xid_place(message: &[u8]) -> Option<(PciSlot, &str, &[u8])> {
    let (place, tail) = in_parentheses(message.strip_prefix(MARK)?)?;
    let (address, words) = place.split_once(' ').unwrap_or((place, ""));
    Some((stated_slot(address, SHORTEST_ADDRESS)?, words, tail))
}

/// The address of the NVSwitch in an SXid, and the text after it.
fn switch_place(message: &[u8]) -> Option<(PciSlot, &[u8])> {
    let [driver, mark] = SWITCH;
    let rest = message.strip_prefix(driver)?;
    let number = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let (place, tail) = in_parentheses(rest.get(number..)?.strip_prefix(mark)?)?;
    (number > 0).then_some(())?;
    Some((stated_slot(place.trim(), SHORTEST_ADDRESS)?, tail))
}

/// The address of the GPU in another message of the driver, and the text after it.
fn gpu_place(message: &[u8]) -> Option<(PciSlot, &[u8])> {
    let rest = GPU.iter().find_map(|mark| message.strip_prefix(*mark))?;
    let ends = |byte: &u8| byte.is_ascii_whitespace() || b"()[],;".contains(byte);
    let end = rest.iter().position(ends).unwrap_or(rest.len());
    let word = std::str::from_utf8(rest.get(..end)?).ok()?.trim_end_matches([':', '.']);
    let address = word.strip_prefix("PCI:").unwrap_or(word);
    // A shorter address could also be another number: `(PCI ID: 10de:20b5)`.
    let slot = stated_slot(address, SHORTEST_WHOLE_ADDRESS).filter(|_| address.matches(':').count() == 2)?;
    Some((slot, rest.get(end..)?))
}

/// The text before `):`, and the text after it.
fn in_parentheses(text: &[u8]) -> Option<(&str, &[u8])> {
    let close = text.iter().position(|byte| *byte == b')')?;
    let tail = text.get(close + 1..)?.strip_prefix(b":")?.trim_ascii_start();
    Some((std::str::from_utf8(text.get(..close)?).ok()?, tail))
}

/// A PCI address of at least this many bytes.
fn stated_slot(text: &str, shortest: usize) -> Option<PciSlot> {
    let address = text.strip_prefix("PCI:").unwrap_or(text);
    (address.len() >= shortest).then(|| pci_slot(address))?
}

/// Whether a message of NVIDIA's drivers about a device begins here.
fn is_head(text: &[u8]) -> bool {
    xid_place(text).is_some() || switch_place(text).is_some() || gpu_place(text).is_some()
}

/// One error of an NVSwitch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KernelSxid {
    /// PCI address of the switch.
    pub slot: PciSlot,
    /// The number in NVIDIA's catalogue (Fabric Manager's guide).
    pub code: u32,
    /// Whether the driver calls the error fatal: then traffic through the switch is lost until a reset.
    pub fatal: bool,
    /// The number of the link on the switch, if the line names one.
    pub link: Option<u32>,
}

/// One error in the kernel log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KernelError {
    /// An error of a GPU.
    Gpu(KernelXid),
    /// The driver says that a GPU is gone, without an XID.
    Lost(PciSlot),
    /// An error of an NVSwitch.
    Switch(KernelSxid),
}

/// Reads one message; `None` when it has no error of a GPU or NVSwitch.
#[must_use]
pub fn error(message: &[u8]) -> Option<KernelError> {
    xid(message)
        .map(KernelError::Gpu)
        .or_else(|| sxid(message).map(KernelError::Switch))
        .or_else(|| lost(message).map(KernelError::Lost))
}

/// The slot of the GPU of which the driver says, without an XID, that it is gone.
#[must_use]
pub fn lost(message: &[u8]) -> Option<PciSlot> {
    let (slot, text) = gpu_place(message)?;
    // A process chooses its name itself.
    let end = position(text, b"name=").unwrap_or(text.len());
    let text = String::from_utf8_lossy(text.get(..end)?).to_ascii_lowercase();
    LOST.iter().any(|phrase| text.contains(phrase)).then_some(slot)
}

/// The severity in the text of an XID: the first such word that is not part of a process's name.
fn severity(tail: &[u8]) -> Option<XidSeverity> {
    let text = after_name(tail);
    let mut words = text.split(|byte| !byte.is_ascii_alphanumeric() && *byte != b'-').filter(|word| !word.is_empty());
    let mut before: &[u8] = &[];
    words.find_map(|word| {
        let before = std::mem::replace(&mut before, word);
        if word.eq_ignore_ascii_case(b"nonfatal") || word.eq_ignore_ascii_case(b"non-fatal") {
            Some(XidSeverity::Nonfatal)
        } else if !word.eq_ignore_ascii_case(b"fatal") {
            None
        } else if before.eq_ignore_ascii_case(b"non") {
            Some(XidSeverity::Nonfatal)
        } else {
            Some(XidSeverity::Fatal)
        }
    })
}

/// The text after `name=…`. The name may have commas in it. So this skips everything up to the last separator at which the name
/// may end, and no process can state a severity in its name.
fn after_name(text: &[u8]) -> &[u8] {
    const KEY: &[u8] = b"name=";
    let Some(name) = position(text, KEY).and_then(|at| text.get(at + KEY.len()..)) else { return text };
    let mut most = 0;
    // Quotes around the name are not part of it.
    for _ in 0..LONGEST_NAME + 3 {
        // `/dev/kmsg` writes `\x07`, and rsyslog `#007`, for one byte.
        most += if matches!(name.get(most), Some(b'\\' | b'#')) { 4 } else { 1 };
    }
    let end = (0..most.min(name.len())).rev().find(|at| name.get(*at) == Some(&b','));
    end.and_then(|at| name.get(at + 1..)).unwrap_or_default()
}

fn position(text: &[u8], part: &[u8]) -> Option<usize> {
    text.windows(part.len()).position(|window| window == part)
}

fn contains(text: &[u8], part: &[u8]) -> bool {
    position(text, part).is_some()
}

/// Reads one message; `None` when it has no SXid or no severity.
#[must_use]
pub fn sxid(message: &[u8]) -> Option<KernelSxid> {
    let (slot, tail) = switch_place(message)?;
    let code = digits(tail).filter(|code| *code <= MAX_SWITCH_CODE)?;
    let mut parts = tail.split(|byte| *byte == b',').skip(1).map(<[u8]>::trim_ascii);
    let fatal = match parts.next()? {
        word if word.eq_ignore_ascii_case(b"fatal") => true,
        word if word.eq_ignore_ascii_case(b"non-fatal") => false,
        _ => return None,
    };
    let link = parts.next().and_then(|text| digits(text.strip_prefix(b"Link ")?));
    Some(KernelSxid { slot, code, fatal, link })
}

/// Reads a PCI address in any form: `00000000:65:00.0`, `0000:65:00.0`, `PCI:0000:65:00`, `65:00`, `0065:00`.
#[must_use]
pub fn pci_slot(text: &str) -> Option<PciSlot> {
    let text = text.strip_prefix("PCI:").unwrap_or(text);
    let text = text.split_once('.').map_or(text, |(slot, _function)| slot);
    let mut parts = text.rsplit(':').map(|part| u32::from_str_radix(part, 16).ok());
    let device = u8::try_from(parts.next()??).ok()?;
    let bus = u8::try_from(parts.next()??).ok()?;
    let domain = match parts.next() {
        Some(domain) => domain?,
        None => 0,
    };
    if parts.next().is_some() { None } else { Some(PciSlot { domain, bus, device }) }
}

/// The number at the start of `text`.
fn digits(text: &[u8]) -> Option<u32> {
    let end = text.iter().position(|byte| !byte.is_ascii_digit()).unwrap_or(text.len());
    std::str::from_utf8(text.get(..end)?).ok()?.parse().ok()
}

/// The number after `pid=`, with or without quotes; `None` for `<unknown>`.
fn pid(text: &[u8]) -> Option<u32> {
    const KEY: &[u8] = b"pid=";
    let start = position(text, KEY)? + KEY.len();
    let value = text.get(start..)?;
    let value = value.strip_prefix(b"'").or_else(|| value.strip_prefix(b"\"")).unwrap_or(value);
    digits(value).filter(|pid| *pid != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::golden::mutated;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    const FORMS: &str = include_str!("../../tests/golden/kernel-log/forms.json");

    fn slot(domain: u32, bus: u8, device: u8) -> PciSlot {
        PciSlot { domain, bus, device }
    }

    /// A list of the golden file.
    pub(super) fn forms(list: &str) -> Vec<Value> {
        let forms: Value = serde_json::from_str(FORMS).unwrap();
        forms[list].as_array().unwrap().clone()
    }

    /// The text `key` of a form.
    pub(super) fn text(form: &Value, key: &str) -> String {
        form[key].as_str().unwrap_or_else(|| panic!("{key} of {form}")).to_owned()
    }

    fn lines() -> Vec<String> {
        forms("errors").iter().map(|form| text(form, "begin") + &text(form, "end")).collect()
    }

    fn address(slot: PciSlot) -> String {
        format!("{:04x}:{:02x}:{:02x}", slot.domain, slot.bus, slot.device)
    }

    /// An error as the golden file has it.
    pub(super) fn values(error: &KernelError) -> Value {
        match error {
            KernelError::Gpu(xid) => json!({
                "gpu": address(xid.slot), "xid": xid.code, "pid": xid.pid, "gpuInstance": xid.gpu_instance,
                "computeInstance": xid.compute_instance, "severity": xid.severity.map(XidSeverity::code),
            }),
            KernelError::Lost(slot) => json!({ "lost": address(*slot) }),
            KernelError::Switch(sxid) => json!({
                "switch": address(sxid.slot), "sxid": sxid.code, "fatal": sxid.fatal, "link": sxid.link,
            }),
        }
    }

    /// A line with this error.
    fn written(error: &KernelError) -> String {
        match error {
            KernelError::Gpu(xid) => {
                let gpu_instance = xid.gpu_instance.map_or_else(String::new, |number| format!(" GPU-I:{number:02x}"));
                let instance = xid.compute_instance.map_or_else(String::new, |number| format!(" GPU-CI:{number:02x}"));
                let pid = xid.pid.map_or_else(String::new, |pid| format!(", pid={pid}, name=x"));
                let severity = xid.severity.map_or_else(String::new, |severity| format!(", {}", severity.code()));
                let place = address(xid.slot) + &gpu_instance + &instance;
                format!("NVRM: Xid (PCI:{place}): {}{pid}{severity}", xid.code)
            }
            KernelError::Lost(slot) => format!("NVRM: GPU {}.0: GPU has fallen off the bus.", address(*slot)),
            KernelError::Switch(sxid) => {
                let severity = if sxid.fatal { "Fatal" } else { "Non-fatal" };
                let link = sxid.link.map_or_else(String::new, |link| format!(", Link {link:02} x"));
                format!("nvidia-nvswitch0: SXid (PCI:{}): {}, {severity}{link}", address(sxid.slot), sxid.code)
            }
        }
    }

    /// The numbers of an error without leading zeros.
    fn numbers(error: &KernelError) -> Vec<String> {
        let (slot, decimal, hexadecimal) = match error {
            KernelError::Gpu(xid) => (xid.slot, [Some(xid.code), xid.pid], [xid.gpu_instance, xid.compute_instance]),
            KernelError::Lost(slot) => (*slot, [None; 2], [None; 2]),
            KernelError::Switch(sxid) => (sxid.slot, [Some(sxid.code), sxid.link], [None; 2]),
        };
        let slot = [slot.domain, slot.bus.into(), slot.device.into()].map(Some);
        let hexadecimal = hexadecimal.into_iter().chain(slot).flatten().filter(|number| *number > 0);
        let decimal = decimal.into_iter().flatten().map(|number| number.to_string());
        decimal.chain(hexadecimal.map(|number| format!("{number:x}"))).collect()
    }

    #[test]
    fn every_known_form_of_a_line_is_read() {
        for form in forms("errors") {
            let line = text(&form, "begin") + &text(&form, "end");
            let found = values(&error(line.as_bytes()).unwrap_or_else(|| panic!("{line}")));
            for (key, value) in found.as_object().unwrap() {
                assert_eq!(&form[key], value, "{key} of {line}");
            }
        }
    }

    #[test]
    fn the_severity_in_a_message_is_read_and_a_process_cannot_state_it() {
        use XidSeverity::{Fatal, Nonfatal};
        for (text, severity) in [
            ("145, RLW_RXPIPE Nonfatal XC0 i0 Link 13 (0x00000004 0x00000000)", Some(Nonfatal)),
            ("149, NETIR_LINK_EVT  Fatal   XC0 i0 Link 09 (0x00000002 0x00000000)", Some(Fatal)),
            ("145, RLW_CTRL Non-fatal XC1", Some(Nonfatal)),
            ("145, RLW_CTRL NON FATAL XC1", Some(Nonfatal)),
            ("145, pid='<unknown>', name=<unknown>, RLW_RXPIPE Nonfatal XC0", Some(Nonfatal)),
            ("145, pid=7, name=x, RLW_RXPIPE Nonfatal XC0", Some(Nonfatal)),
            ("145, RLW_RXPIPE Nonfatal XC0, follows a Fatal one", Some(Nonfatal)),
            ("79, pid=7, name=Nonfatal, GPU has fallen off the bus.", None),
            ("79, pid=7, name=a, Nonfatal, GPU has fallen off the bus.", None),
            ("79, pid=7, name=a,,, Nonfatal b, GPU has fallen off the bus.", None),
            ("79, pid=7, name='a, Nonfatal, b', GPU has fallen off the bus.", None),
            ("149, pid=7, name=a, Nonfatal, NETIR Fatal XC0", Some(Fatal)),
            ("79, pid=7, name=Nonfatal", None),
            ("79, GPU has fallen off the bus: nonfatality", None),
        ] {
            let line = format!("NVRM: Xid (PCI:0000:10:00): {text}");
            assert_eq!(xid(line.as_bytes()).expect("an XID").severity, severity, "{text}");
        }
    }

    #[test]
    fn lines_that_do_not_report_a_lost_gpu_are_skipped() {
        for line in [
            "NVRM: GPU 0000:65:00.0: GPU serial number is 1.",
            "NVRM: GPU0 GPU lost from the bus [NV_ERR_GPU_IS_LOST] (0x0000000F)",
            "NVRM: The NVIDIA GPU (PCI ID: 10de:20b5) has fallen off the bus",
            "pcieport 0000:65:00.0: device has fallen off the bus",
            "NVRM: API mismatch at 0000:65:00.0: pid=7, name=fallen off the bus",
            "NVRM: GPU 0000:65:00.0: API mismatch, name=fallen off the bus",
            "NVRM: a[7]: segfault in GPU 0000:65:00.0: fallen off the bus",
            "NVRM: GPU 0:1:2[7]: segfault in fallen off the bus",
        ] {
            assert_eq!(error(line.as_bytes()), None, "{line}");
        }
        let xid = error(b"NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus.");
        assert!(matches!(xid, Some(KernelError::Gpu(_))), "an XID is reported as such");
    }

    #[test]
    fn lines_without_an_xid_of_a_gpu_are_skipped() {
        for line in [
            "",
            "NVRM: Xid (",
            "NVRM: Xid (PCI:0000:65:00)",
            "NVRM: Xid (PCI:0000:65:00): ",
            "NVRM: Xid (PCI:0000:65:00): many",
            "NVRM: Xid (PCI:0000:65:00): 4294967296",
            "NVRM: Xid (PCI:zz:65:00): 79",
            "NVRM: Xid (PCI:1:2:3:4): 79",
            "nvidia-nvswitch0: SXid (PCI:0000:c1:00.0): 12028, Non-fatal",
            "NVRM: GPU at PCI:0000:65:00: GPU-1d8e9a1c-3b0a-4c0a-9f44-2f8e8d7a6b5c",
            "a[7]: segfault in NVRM: Xid (PCI:0000:65:00): 79, GPU fell",
            "NVRM: Xid (1:2 [7]: segfault in a): 79, GPU fell",
            "NVRM: Xid (PCI:[7]: segfault in 0000:65:00): 79, GPU fell",
        ] {
            assert_eq!(xid(line.as_bytes()), None, "{line}");
        }
    }

    #[test]
    fn an_error_of_a_switch_is_read_only_from_its_line_with_the_severity() {
        for line in [
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Severity 0 Engine instance 44 Sub-engine instance 00",
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Data {0x0000002b, 0x0000002b, 0x00000000}",
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013",
            "nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 4294967296, Fatal, x",
            "nvidia-nvswitch3: SXid (PCI:zz:04:00.0): 22013, Fatal, x",
            "nvidia-nvswitch: SXid (PCI:0000:04:00.0): 22013, Fatal, x",
            "nvidia-nvswitch[7]: segfault in 3: SXid (PCI:0000:04:00.0): 22013, Fatal, x",
            "a[7]: segfault in nvidia-nvswitch3: SXid (PCI:0000:04:00.0): 22013, Fatal, x",
        ] {
            assert_eq!(error(line.as_bytes()), None, "{line}");
        }
        assert_eq!(sxid(b"NVRM: Xid (PCI:0000:65:00): 79, GPU has fallen off the bus."), None);
    }

    #[test]
    fn a_pci_address_is_read_in_every_form() {
        for text in ["00000000:65:00.0", "0000:65:00.0", "PCI:0000:65:00", "65:00", "0065:00", "00000000:65:00"] {
            assert_eq!(pci_slot(text), Some(slot(0, 0x65, 0)), "{text}");
        }
        for text in ["", ":", "::", "65", "0000:65:00:00:0", "0000:165:00", "x"] {
            assert_eq!(pci_slot(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..256)) {
            let _ = xid(&bytes);
            let mut marked = MARK.to_vec();
            marked.extend_from_slice(&bytes);
            let _ = xid(&marked);
            let _ = error(&[SWITCH[0], b"0", SWITCH[1], &bytes[..]].concat());
            let _ = error(&[b"NVRM: GPU 0000:65:00.0", &bytes[..]].concat());
            let _ = error(&[b"NVRM: Xid (PCI:0000:65:00): 145, name=", &bytes[..]].concat());
            let _ = error(&[b"nvidia-nvswitch0: SXid (PCI:0000:04:00.0): 1,", &bytes[..]].concat());
        }

        #[test]
        fn what_is_read_of_a_line_that_differs_a_little_from_a_golden_one_stands_in_it(line in mutated(lines())) {
            if let Some(read) = error(line.as_bytes()) {
                let lower = line.to_ascii_lowercase();
                for number in numbers(&read) {
                    prop_assert!(lower.contains(&number), "{} of {:?}", number, line);
                }
                prop_assert_eq!(error(written(&read).as_bytes()), Some(read), "{:?}", line);
            }
        }

        #[test]
        fn lines_about_a_switch_are_read_unchanged(domain: u16, bus: u8, device in 0u8..32, code in 10_000u32..30_000, fatal: bool, link in 0u32..64) {
            let word = if fatal { "Fatal" } else { "Non-fatal" };
            let line = format!("nvidia-nvswitch2: SXid (PCI:{domain:04x}:{bus:02x}:{device:02x}.0): {code:05}, {word}, Link {link:02} TLC RX");
            let expected = KernelSxid { slot: slot(domain.into(), bus, device), code, fatal, link: Some(link) };
            prop_assert_eq!(sxid(line.as_bytes()), Some(expected));
        }

        #[test]
        fn lines_about_a_gpu_are_read_unchanged(domain: u16, bus: u8, device in 0u8..32, code in 0u32..200, pid in 1u32..4_194_304) {
            let line = format!("NVRM: Xid (PCI:{domain:04x}:{bus:02x}:{device:02x}): {code}, pid={pid}, name=x");
            let read = xid(line.as_bytes()).expect("an XID");
            prop_assert_eq!(read.slot, slot(domain.into(), bus, device));
            prop_assert_eq!((read.code, read.pid), (code, Some(pid)));
        }

        #[test]
        fn no_name_of_a_process_states_a_severity(name in "(nonfatal|fatal|,| |\x01|#|\\\\|.){0,12}", form in 0..4) {
            let name: String = name.chars().filter(char::is_ascii).take(LONGEST_NAME).collect();
            let name: String = match form {
                // As `/dev/kmsg` and rsyslog write it.
                1 => name.chars().map(|c| if c < ' ' || c == '\\' { format!("\\x{:02x}", u32::from(c)) } else { c.into() }).collect(),
                2 => name.chars().map(|c| if c < ' ' { format!("#{:03o}", u32::from(c)) } else { c.into() }).collect(),
                3 => format!("'{name}'"),
                _ => name,
            };
            let line = format!("NVRM: Xid (PCI:0000:65:00): 79, pid=7, name={name}, GPU has left.");
            prop_assert_eq!(xid(line.as_bytes()).expect("an XID").severity, None);
        }
    }
}
