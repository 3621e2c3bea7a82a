//! The program under test, a client of its port, and a reader of its profiles.

use flate2::read::GzDecoder;
use pprof::message::{ProfileMessage, SampleMessage};
use prost::Message;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A running program. Dropping it ends the program.
pub(crate) struct Program {
    pub(crate) child: Child,
    pub(crate) address: SocketAddr,
}

/// An answer of the port.
pub(crate) struct Answer {
    pub(crate) status: u16,
    head: String,
    pub(crate) body: Vec<u8>,
}

impl Answer {
    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// A header's value; `name` in lower case.
    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        let lines = self.head.lines().filter_map(|line| line.split_once(": "));
        lines.filter(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value).next()
    }
}

impl Program {
    pub(crate) fn start(words: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profiled"));
        command.args(words);
        Self::start_command(command)
    }

    pub(crate) fn start_command(mut command: Command) -> Self {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        let address = line.trim().parse().unwrap_or_else(|_| panic!("not an address: {line:?}"));
        Program { child, address }
    }

    /// Sends a request with HTTP/1.0, so that the answer ends with the connection.
    pub(crate) fn send(&self, request: &str, body: &str) -> Answer {
        let mut stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        write!(stream, "{request} HTTP/1.0\r\nContent-Length: {}\r\n\r\n{body}", body.len()).unwrap();
        let mut bytes = Vec::new();
        stream.read_to_end(&mut bytes).unwrap();
        let end = bytes.windows(4).position(|four| four == b"\r\n\r\n").expect("an answer has headers");
        let head = String::from_utf8_lossy(&bytes[..end]).into_owned();
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status");
        Answer { status, head, body: bytes.split_off(end + 4) }
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        self.send(&format!("GET {path}"), "")
    }

    pub(crate) fn profile(&self, path: &str) -> Opened {
        let answer = self.get(path);
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        Opened::new(&answer.body)
    }

    /// The CPU time so far, as the kernel counts it: fields 14 and 15 of `stat`, in ticks of 10 ms.
    pub(crate) fn processor_time(&self) -> Duration {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.child.id())).unwrap();
        let fields: Vec<&str> = stat[stat.rfind(')').unwrap() + 2..].split(' ').collect();
        let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
        Duration::from_millis(ticks * 10)
    }

    /// The resident memory in MiB.
    pub(crate) fn resident(&self) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
        line.trim().trim_end_matches(" kB").parse::<f64>().unwrap() / 1024.0
    }

    pub(crate) fn is_alive(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A decoded profile.
pub(crate) struct Opened {
    pub(crate) profile: ProfileMessage,
}

impl Opened {
    pub(crate) fn new(compressed: &[u8]) -> Self {
        let mut bytes = Vec::new();
        GzDecoder::new(compressed).read_to_end(&mut bytes).unwrap();
        Opened { profile: ProfileMessage::decode(bytes.as_slice()).unwrap() }
    }

    pub(crate) fn string(&self, index: i64) -> &str {
        &self.profile.string_table[usize::try_from(index).unwrap()]
    }

    /// Function, file and line of each frame of a sample, the leaf first. Inlined functions are separate frames.
    pub(crate) fn frames(&self, sample: &SampleMessage) -> Vec<(String, String, i64)> {
        let mut frames = Vec::new();
        for id in &sample.location_id {
            for line in &self.profile.location[usize::try_from(*id - 1).unwrap()].line {
                let function = &self.profile.function[usize::try_from(line.function_id - 1).unwrap()];
                let (name, file) = (self.string(function.name), self.string(function.filename));
                frames.push((name.to_owned(), file.to_owned(), line.line));
            }
        }
        frames
    }

    /// The sum of a value over the samples with a frame whose name ends with `name_end`.
    pub(crate) fn sum(&self, value: &str, name_end: &str) -> i64 {
        let at = self.profile.sample_type.iter().position(|kind| self.string(kind.r#type) == value).unwrap();
        let with = |sample: &&SampleMessage| self.frames(sample).iter().any(|(name, _, _)| name.ends_with(name_end));
        self.profile.sample.iter().filter(with).map(|sample| sample.value[at]).sum()
    }

    /// The texts of a label of a sample.
    pub(crate) fn labels(&self, sample: &SampleMessage, key: &str) -> Vec<String> {
        let with = sample.label.iter().filter(|label| self.string(label.key) == key);
        with.map(|label| self.string(label.str).to_owned()).collect()
    }
}
