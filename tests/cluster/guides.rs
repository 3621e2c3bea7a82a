//! Runs the commands of docs/troubleshooting.md and docs/realtime-check.md as a reader would, on a cluster with agents and extender.
//! `go tool pprof` and the profiles need `--profiling`; `tests/node/doctor.rs` asks for their addresses.

use crate::built::binary;
use crate::chart::{self, NAMESPACE};
use crate::placed::{Placed, SETTLED};
use crate::quickstart::commands;
use lab::eventually::eventually;
use lab::http;
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;

const TROUBLESHOOTING: &str = include_str!("../../docs/troubleshooting.md");
const REALTIME_CHECK: &str = include_str!("../../docs/realtime-check.md");
/// The ports of an extender that the guide forwards: its verbs, and its admin port.
const PORTS: [u16; 2] = [9444, 9445];

/// Somebody who reads a guide and types its commands.
struct Reader<'a> {
    placed: &'a Placed,
    folder: TempDir,
    /// The placeholders of the guide, and the values of this test for them.
    placeholders: Vec<(&'static str, String)>,
}

/// A command that ends with this value.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the commands of both guides. `doctor` is asked about this pod, which waits.
pub(crate) fn check(placed: &Placed, (namespace, name): (&str, &str)) {
    let folder = tempfile::tempdir().expect("a directory");
    std::os::unix::fs::symlink(binary(), folder.path().join("gpu-steward")).expect("a link");
    let first = |component: &str| {
        let label = format!("app.kubernetes.io/component={component}");
        let pods = placed.admin.get(&["pods", "-n", NAMESPACE, "-l", &label]);
        pods["items"][0]["metadata"]["name"].as_str().expect("a pod").to_owned()
    };
    let report = folder.path().join("report.tar").display().to_string();
    // The longer one of two words comes first.
    let placeholders = vec![
        ("NAMESPACE/NAME", format!("{namespace}/{name}")),
        ("pod NAME -n NAMESPACE", format!("pod {name} -n {namespace}")),
        ("-n NAMESPACE", format!("-n {NAMESPACE}")),
        ("gpu-system", NAMESPACE.to_owned()),
        ("AGENT-POD", first("agent")),
        ("EXTENDER-POD", first("extender")),
        ("/tmp/report.tar", report),
    ];
    let reader = Reader { placed, folder, placeholders };
    reader.troubleshooting();
    reader.rollbacks();
}

impl Reader<'_> {
    /// The command, with the guide's placeholders (`NAMESPACE`, `AGENT-POD`) replaced by this test's values.
    fn told(&self, command: &str) -> String {
        let told = self.placeholders.iter().fold(command.to_owned(), |text, (from, to)| text.replace(from, to));
        assert!(
            !["NAMESPACE", "-POD", "…"].iter().any(|word| told.contains(word)),
            "{told}: a word has no meaning here"
        );
        told
    }

    /// The command in a shell that finds the programs.
    fn shell(&self, command: &str) -> Command {
        let status = self.placed.cluster.status();
        let others = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{}:{others}", self.folder.path().display(), status.programs);
        let mut shell = Command::new("sh");
        shell.args(["-c", command]).current_dir(self.folder.path()).stdin(Stdio::null());
        shell.env("PATH", path).env("KUBECONFIG", &status.kubeconfig);
        shell
    }

    fn troubleshooting(&self) {
        let all = commands(TROUBLESHOOTING);
        let is_forward = |command: &&String| command.starts_with("kubectl port-forward");
        let forward = self.told(all.iter().find(is_forward).expect("a forwarded port"));
        // The guide uses the other port too, and leaves to its reader how it is reached.
        let child = self.shell(&format!("exec {forward} {}", PORTS[0])).stdout(Stdio::null()).spawn();
        let _forwarded = Running(child.expect("kubectl can be run"));
        let open = |port: &u16| TcpStream::connect((Ipv4Addr::LOCALHOST, *port)).is_ok();
        eventually("the forwarded ports", SETTLED, || PORTS.iter().all(open).then_some(()));
        let profiles = |command: &&String| command.contains("/debug/pprof/");
        let mut ran = 0;
        for command in all.iter().filter(|command| !is_forward(command) && !profiles(command)) {
            self.run(command);
            ran += 1;
        }
        assert!(ran > 12, "the guide has too few commands: {all:?}");
        let admin = SocketAddr::from((Ipv4Addr::LOCALHOST, PORTS[1]));
        let level = http::get(admin, "/loglevel").expect("an answer of the admin port").text();
        assert_eq!(level.trim(), "4", "the guide sets this log level");
    }

    fn run(&self, command: &str) {
        let told = self.told(command);
        let output = self.shell(&told).output().expect("sh can be run");
        let (out, error) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        let code = output.status.code().expect("an exit code");
        // doctor has found something wrong, such as the pod that waits, or on this machine no driver.
        let may_find = told.contains("gpu-steward doctor ");
        assert!(code == 0 || may_find && (1..=2).contains(&code), "{told}: {code}: {out}{error}");
        if may_find {
            let unseen = ["LeaderNotSeen", "NotLookedAt"].iter().any(|code| out.contains(code));
            assert!(!out.is_empty() && !unseen, "{told}: {out}{error}");
        }
    }

    /// The ways back from the real-time check: helm renders what it would install, and the API server accepts what kubectl changes.
    fn rollbacks(&self) {
        let all = commands(REALTIME_CHECK);
        assert!(all.len() >= 3, "{all:?}");
        for command in &all {
            if let Some(value) = command.strip_prefix("helm upgrade gpu-steward … --set ") {
                let rendered = chart::render(&["extender/deployment"], &["extender.enabled=true", value]);
                let flag = value.strip_prefix("extender.settings.").expect("a setting of the extender");
                assert!(rendered.contains(&format!("- --{flag}\n")), "{command}: {rendered}");
                continue;
            }
            let told = self.told(command);
            let (_, variable) = told.rsplit_once(' ').expect("a variable");
            let (name, value) = variable.split_once('=').expect("a value");
            let output = self.shell(&format!("{told} --dry-run=server -o yaml")).output().expect("sh can be run");
            let changed = String::from_utf8_lossy(&output.stdout);
            let line = format!("- name: {name}\n");
            let set = changed.split_once(&line).and_then(|(_, rest)| rest.lines().next()).unwrap_or_default();
            assert_eq!(set.trim(), format!("value: \"{value}\""), "{told}: {output:?}");
        }
    }
}
