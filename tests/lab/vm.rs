//! A virtual machine, which `tests/vm/up` boots (needs root). It has systemd and cgroup v2, and it is the only node of
//! a control plane on this machine. Tests send scripts to it and get their output.

use crate::cluster::{Cluster, ClusterOptions, script};
use crate::eventually::eventually;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

/// The name of the Node.
pub const NODE: &str = "vm";
/// The address of the guest's shell: an address of the host that QEMU forwards.
const SHELL: ([u8; 4], u16) = ([10, 95, 0, 100], 7000);
/// Longest time of a script. QEMU emulates each instruction, on cores that other tests use as well.
const SCRIPT: Duration = Duration::from_secs(300);
/// Longest time until a running guest answers.
const ANSWER: Duration = Duration::from_secs(20);
/// Longest time from a reset until the guest answers again.
const BOOT: Duration = Duration::from_secs(400);

/// A running virtual machine with its cluster, which no other test uses at the same time.
#[derive(Debug)]
pub struct Vm {
    cluster: Cluster,
    key: String,
}

/// The result of a script.
#[derive(Clone, Debug)]
pub struct ScriptOutput {
    /// Exit code.
    pub code: i32,
    /// The text on stdout and stderr.
    pub out: String,
}

impl Vm {
    /// Boots the machine, or takes a running one.
    ///
    /// # Panics
    /// If it does not come up; the text contains the script's output.
    #[must_use]
    pub fn up() -> Vm {
        let cluster = Cluster::up(&ClusterOptions::nodes(0));
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
    /// If the guest does not answer.
    #[track_caller]
    #[must_use]
    pub fn run(&self, script: &str) -> ScriptOutput {
        match self.send(&format!("exec </dev/null; {script}"), b"", SCRIPT) {
            Ok(output) => output,
            Err(error) => panic!("the guest does not answer ({error}): {script}"),
        }
    }

    /// Runs a script that must succeed, and returns its output without the last newline.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        let output = self.run(script);
        assert_eq!(output.code, 0, "{script}\n{}", output.out);
        output.out
    }

    /// Writes a file with this mode in the guest.
    ///
    /// # Panics
    /// If the guest does not answer or cannot write the file.
    #[track_caller]
    pub fn put(&self, bytes: &[u8], mode: &str, path: &str) {
        let script = format!(
            "mkdir -p \"$(dirname {path})\" && head -c {} >{path}.new && chmod {mode} {path}.new && mv {path}.new {path}",
            bytes.len()
        );
        let output = self.send(&script, bytes, SCRIPT).expect("the guest answers");
        assert_eq!(output.code, 0, "{path}: {}", output.out);
    }

    /// Runs a script that resets the machine, then `meanwhile`, and waits until the machine answers again. Data that
    /// its kernel has not written to the disk is lost, unless the script shuts the machine down.
    ///
    /// # Panics
    /// If the machine does not come back.
    #[track_caller]
    pub fn boot_by(&self, script: &str, meanwhile: impl FnOnce()) {
        const BOOT_ID: &str = "cat /proc/sys/kernel/random/boot_id";
        let before = self.sh(BOOT_ID);
        // The machine may reset before the script has answered.
        let _ = self.send(&format!("exec </dev/null; {script}"), b"", ANSWER);
        meanwhile();
        eventually("the guest's next boot", BOOT, || {
            let output = self.send(BOOT_ID, b"", ANSWER).ok()?;
            (output.code == 0 && output.out != before).then_some(())
        });
    }

    fn send(&self, script: &str, input: &[u8], within: Duration) -> io::Result<ScriptOutput> {
        let mut stream = TcpStream::connect_timeout(&SocketAddr::from(SHELL), ANSWER)?;
        stream.set_write_timeout(Some(within))?;
        // The timeout applies to each read, including the first.
        stream.set_read_timeout(Some(within))?;
        write!(stream, "{} {}\n{script}", self.key, script.len())?;
        stream.write_all(input)?;
        let mut out = Vec::new();
        stream.read_to_end(&mut out)?;
        let text = String::from_utf8_lossy(&out);
        let (out, code) = text.trim_end().rsplit_once("\nexit ").ok_or(io::ErrorKind::UnexpectedEof)?;
        let code = code.parse().map_err(|_| io::ErrorKind::InvalidData)?;
        Ok(ScriptOutput { code, out: out.trim_end_matches('\n').to_owned() })
    }
}
