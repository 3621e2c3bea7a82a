//! Writes log lines to journald in its native protocol. Each value is a field (`GPU_UUID`, `POD`). MESSAGE is the whole
//! line of the text format, because `journalctl` prints MESSAGE only.

use super::text::Line;
use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

/// The socket of journald.
const SOCKET: &str = "/run/systemd/journal/socket";
/// The identifier of the program for `journalctl -t` and syslog.
const IDENTIFIER: &str = "gpu-steward";
/// How long a thread waits if journald accepts nothing. Then the line is lost, and the thread continues.
const PATIENCE: Duration = Duration::from_secs(1);
/// Maximum size of MESSAGE in bytes: journald's own limit for a line of stdout.
const MAX_MESSAGE: usize = 48 * 1024;
/// Maximum size of a field in bytes. An event has at most 32 fields, so with MESSAGE it fits into a datagram of the
/// kernel's default size (208 KiB).
const MAX_FIELD: usize = 4 * 1024;
/// Maximum size of a field name in bytes: journald's limit.
const MAX_NAME: usize = 64;

/// The connection to journald.
#[derive(Debug)]
pub(super) struct Journal {
    socket: UnixDatagram,
    path: PathBuf,
}

impl Journal {
    /// Connects to journald. Fails if it does not listen.
    pub(super) fn open() -> io::Result<Journal> {
        Journal::at(Path::new(SOCKET))
    }

    fn at(path: &Path) -> io::Result<Journal> {
        let socket = UnixDatagram::unbound()?;
        socket.connect(path)?;
        socket.set_write_timeout(Some(PATIENCE))?;
        Ok(Journal { socket, path: path.to_owned() })
    }

    fn send(&self, entry: &[u8]) -> io::Result<usize> {
        self.socket.send(entry).or_else(|error| match error.kind() {
            // Its queue is full: a second attempt would wait once more.
            io::ErrorKind::WouldBlock => Err(error),
            _ => {
                // After a restart, journald has a new socket.
                self.socket.connect(&self.path)?;
                self.socket.send(entry)
            }
        })
    }
}

impl<S: Subscriber> Layer<S> for Journal {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut line = Line::default();
        event.record(&mut line);
        let data = event.metadata();
        let mut entry = Vec::with_capacity(512);
        put(&mut entry, "PRIORITY", priority(*data.level()));
        put(&mut entry, "SYSLOG_IDENTIFIER", IDENTIFIER);
        put(&mut entry, "TARGET", data.target());
        if let (Some(file), Some(number)) = (data.file(), data.line()) {
            put(&mut entry, "CODE_FILE", file);
            put(&mut entry, "CODE_LINE", &number.to_string());
        }
        put(&mut entry, "MESSAGE", cut(&line.to_string(), MAX_MESSAGE));
        for (key, value) in line.fields() {
            put(&mut entry, &name(key), cut(value, MAX_FIELD));
        }
        // If the log itself fails, there is no other place to report it.
        let _ = self.send(&entry);
    }
}

/// The syslog priority of a level.
fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "3",
        Level::WARN => "4",
        Level::INFO => "6",
        Level::DEBUG | Level::TRACE => "7",
    }
}

/// Turns a field name into a name that journald accepts.
fn name(key: &str) -> String {
    let plain = key.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' });
    plain.skip_while(|c| !c.is_ascii_uppercase()).take(MAX_NAME).collect()
}

/// The longest prefix of whole characters with at most `most` bytes.
fn cut(value: &str, most: usize) -> &str {
    &value[..value.floor_char_boundary(most)]
}

/// Appends one field. A value of several lines is written with its length, so that no line is read as another field.
fn put(entry: &mut Vec<u8>, name: &str, value: &str) {
    if name.is_empty() {
        return;
    }
    entry.extend_from_slice(name.as_bytes());
    if value.contains('\n') {
        entry.push(b'\n');
        entry.extend_from_slice(&(value.len() as u64).to_le_bytes());
    } else {
        entry.push(b'=');
    }
    entry.extend_from_slice(value.as_bytes());
    entry.push(b'\n');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn field_names_are_valid_and_a_value_cannot_forge_a_field() {
        let mut entry = Vec::new();
        put(&mut entry, &name("gpu_uuid"), "GPU-1");
        put(&mut entry, &name("_r#error.code"), "a\nPRIORITY=0");
        put(&mut entry, &name("___"), "dropped");
        assert_eq!(entry, b"GPU_UUID=GPU-1\nR_ERROR_CODE\n\x0c\0\0\0\0\0\0\0a\nPRIORITY=0\n");
        assert_eq!(cut("aéé", 4), "aé");
    }

    #[test]
    fn a_journald_that_restarted_gets_the_line_and_one_that_accepts_nothing_costs_one_wait() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("socket");
        let listen = || {
            let _ = std::fs::remove_file(&path);
            let socket = UnixDatagram::bind(&path).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket
        };
        let first = listen();
        let journal = Journal::at(&path).unwrap();
        assert_eq!(journal.socket.write_timeout().unwrap(), Some(PATIENCE));
        drop(first);
        let second = listen();
        journal.send(b"restarted").unwrap();
        assert_eq!(second.recv(&mut [0; 16]).unwrap(), b"restarted".len());

        journal.socket.set_nonblocking(true).unwrap();
        while journal.socket.send(b"fill").is_ok() {}
        journal.socket.set_nonblocking(false).unwrap();
        // A second attempt would connect to this socket.
        let third = listen();
        assert_eq!(journal.send(b"lost").unwrap_err().kind(), io::ErrorKind::WouldBlock);
        assert_eq!(third.recv(&mut [0; 16]).unwrap_err().kind(), io::ErrorKind::WouldBlock);
        drop(second);
        journal.send(b"third").unwrap();
        assert_eq!(third.recv(&mut [0; 16]).unwrap(), b"third".len());
    }

    proptest::proptest! {
        #[test]
        fn any_name_and_any_value_give_a_valid_field(key in "\\PC{0,80}", value in ".{0,40}", most in 0_usize..60) {
            let name = name(&key);
            proptest::prop_assert!(name.len() <= MAX_NAME && name.bytes().all(|b| b.is_ascii_uppercase() || b.is_ascii_digit() || b == b'_'));
            proptest::prop_assert!(cut(&value, most).len() <= most);
            put(&mut Vec::new(), &name, &value);
        }
    }
}
