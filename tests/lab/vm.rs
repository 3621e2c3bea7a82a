//! A machine of its own, as `tests/vm/up` boots it (needs root): systemd, cgroup v2, and the only node of a control plane on
//! this machine. Scripts go in and their output comes out.

use crate::cluster::{Cluster, Wanted, script};
use crate::eventually::eventually;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// The Node's name.
pub const NODE: &str = "vm";
/// Where the guest's shell listens: an address of the host that QEMU forwards.
const SHELL: ([u8; 4], u16) = ([10, 95, 0, 100], 7000);
/// Longest a script may take. Each instruction is emulated, on cores that others use as well.
const SCRIPT: Duration = Duration::from_secs(300);
/// Longest a guest that runs takes to answer at all.
const ANSWER: Duration = Duration::from_secs(20);
/// Longest from a reset until the guest answers again.
const BOOT: Duration = Duration::from_secs(400);

/// A running machine with its cluster, which nobody else has meanwhile.
#[derive(Debug)]
pub struct Vm {
    cluster: Cluster,
    key: String,
}

/// How a script ended.
#[derive(Clone, Debug)]
pub struct Done {
    /// Exit code.
    pub code: i32,
    /// What it printed on both streams.
    pub out: String,
}

impl Vm {
    /// Boots it, or takes the one that is up.
    ///
    /// # Panics
    /// When it does not come up; the text holds what the script said.
    #[must_use]
    pub fn up() -> Vm {
        let cluster = Cluster::up(&Wanted::nodes(0));
        script::<&str>("../vm/up", &[]);
        let state = Path::new(&cluster.status().kubeconfig).parent().expect("a folder");
        let key = std::fs::read_to_string(state.join("vm/key")).expect("the key of the guest's shell");
        Vm { cluster, key: key.trim().to_owned() }
    }

    /// The control plane.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Runs a script as root.
    ///
    /// # Panics
    /// When the guest does not answer.
    #[track_caller]
    #[must_use]
    pub fn run(&self, script: &str) -> Done {
        match self.ask(&format!("exec </dev/null; {script}"), b"", SCRIPT) {
            Ok(done) => done,
            Err(error) => panic!("the guest does not answer ({error}): {script}"),
        }
    }

    /// What a script printed, without the last line's end, where it must succeed.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let done = self.run(script);
        assert_eq!(done.code, 0, "{script}\n{}", done.out);
        done.out
    }

    /// Puts a file there, with this mode.
    ///
    /// # Panics
    /// When it cannot be read here or written there.
    #[track_caller]
    pub fn put(&self, bytes: &[u8], mode: &str, path: &str) {
        let script = format!(
            "mkdir -p \"$(dirname {path})\" && head -c {} >{path}.new && chmod {mode} {path}.new && mv {path}.new {path}",
            bytes.len()
        );
        let done = self.ask(&script, bytes, SCRIPT).expect("the guest answers");
        assert_eq!(done.code, 0, "{path}: {}", done.out);
    }

    /// Runs a script that resets the machine, then this, and waits until the machine answers again. Whatever its kernel had not
    /// written to the disk by then is lost, unless the script shuts it down first.
    ///
    /// # Panics
    /// When it does not come back.
    #[track_caller]
    pub fn boot_by(&self, script: &str, meanwhile: impl FnOnce()) {
        const WHICH: &str = "cat /proc/sys/kernel/random/boot_id";
        let before = self.sh(WHICH);
        // It may end before it has answered, or never answer.
        let _ = self.ask(&format!("exec </dev/null; {script}"), b"", ANSWER);
        meanwhile();
        eventually("the guest's next boot", BOOT, || {
            let done = self.ask(WHICH, b"", ANSWER).ok()?;
            (done.code == 0 && done.out != before).then_some(())
        });
    }

    fn ask(&self, script: &str, input: &[u8], within: Duration) -> io::Result<Done> {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from(SHELL), ANSWER)?;
        stream.set_write_timeout(Some(within))?;
        // Between two bytes, so also until the first.
        stream.set_read_timeout(Some(within))?;
        write!(stream, "{} {}\n{script}", self.key, script.len())?;
        stream.write_all(input)?;
        let mut out = Vec::new();
        stream.read_to_end(&mut out)?;
        let text = String::from_utf8_lossy(&out);
        let (out, code) = text.trim_end().rsplit_once("\nexit ").ok_or(io::ErrorKind::UnexpectedEof)?;
        let code = code.parse().map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(Done { code, out: out.trim_end_matches('\n').to_owned() })
    }
}
