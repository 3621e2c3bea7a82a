//! Runs the built program as an extender with a short Lease, in an empty directory. It is killed when the test is over.

use crate::eventually::eventually;
use crate::http::{self, HttpResponse};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::fs::File;
use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Longest time until it listens or leads, generous because tests run while other code compiles.
const SOON: Duration = Duration::from_secs(120);
/// Characters of the log that a failed test shows.
const LOG_SHOWN: usize = 6000;
const LEASE: [&str; 4] = ["--lease-duration", "3s", "--renew-deadline", "2s"];
/// Several extenders run at once, so the kernel chooses the port.
const ADMIN: [&str; 2] = ["--extender-admin-listen", "127.0.0.1:0"];

/// A running extender.
#[derive(Debug)]
pub struct ExtenderProcess {
    child: Child,
    dir: TempDir,
    /// The address of the verbs, health and metrics.
    pub address: SocketAddr,
}

impl ExtenderProcess {
    /// Starts the program, and waits until it listens. `flags` makes further flags from the path of the directory, at
    /// least those for the credentials.
    ///
    /// # Panics
    /// If it does not listen in time.
    #[must_use]
    pub fn start(binary: &str, flags: impl FnOnce(&Path) -> Vec<OsString>) -> ExtenderProcess {
        ExtenderProcess::start_in(binary, &[], flags)
    }

    /// The same with these environment variables, which describe the pod to its process.
    ///
    /// # Panics
    /// If it does not listen in time.
    #[must_use]
    pub fn start_in(
        binary: &str,
        variables: &[(&str, &str)],
        flags: impl FnOnce(&Path) -> Vec<OsString>,
    ) -> ExtenderProcess {
        let dir = tempfile::Builder::new().prefix("steward-").tempdir().expect("a temporary directory");
        let flags = flags(dir.path());
        let lease = if flags.iter().any(|flag| flag == "--lease-duration") { &[][..] } else { &LEASE };
        let child = Command::new(binary)
            .args(["extender", "--log-format", "json"])
            .args(lease)
            .args(ADMIN)
            .args(flags)
            .env_clear()
            .envs(variables.iter().copied())
            .stdin(Stdio::null())
            .stderr(File::create(dir.path().join("log")).expect("the log can be written"))
            .spawn()
            .expect("the program can be run");
        let mut process = ExtenderProcess { child, dir, address: ([127, 0, 0, 1], 0).into() };
        process.address = process.started_with("address");
        process
    }

    /// An address that the log line of its start names in this field.
    ///
    /// # Panics
    /// If there is none in time.
    #[must_use]
    pub fn started_with(&self, field: &str) -> SocketAddr {
        eventually(&format!("the extender's {field}"), SOON, || {
            let log = self.log();
            let line = log.lines().find(|line| line.contains("gpu-steward extender started"))?;
            serde_json::from_str::<Value>(line).ok()?[field].as_str()?.parse().ok()
        })
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The log so far.
    #[must_use]
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap_or_default()
    }

    /// Sends a GET request.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn get(&self, path: &str) -> HttpResponse {
        http::get(self.address, path).expect("an answer of the extender")
    }

    /// Sends a request to its admin port.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn admin(&self, method: &str, path: &str, body: &str) -> HttpResponse {
        let answer = http::request(self.started_with("admin"), method, path, &[], body.as_bytes());
        answer.expect("an answer of the extender's admin port")
    }

    /// Calls a verb as kube-scheduler does.
    ///
    /// # Panics
    /// If it does not answer.
    #[must_use]
    pub fn ask(&self, verb: &str, question: &Value) -> HttpResponse {
        let kind = [("Content-Type", "application/json")];
        let answer = http::request(self.address, "POST", &format!("/{verb}"), &kind, question.to_string().as_bytes());
        answer.expect("an answer of the extender")
    }

    /// The answer of the filter about these nodes.
    ///
    /// # Panics
    /// If it is an error.
    #[expect(clippy::must_use_candidate, reason = "the extender remembers the question")]
    pub fn filter(&self, pod: &Value, nodes: &[&str]) -> Value {
        let answer = self.ask("filter", &json!({ "Pod": pod, "Nodes": null, "NodeNames": nodes }));
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()
    }

    /// The error of a bind; empty if the pod is bound.
    ///
    /// # Panics
    /// If the answer is not a valid answer to a bind.
    #[must_use]
    pub fn bind(&self, pod: &Value, node: &str) -> String {
        let metadata = &pod["metadata"];
        let question = json!({
            "PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"], "Node": node,
        });
        let answer = self.ask("bind", &question);
        assert_eq!(answer.status, 200, "{}", answer.text());
        answer.json()["Error"].as_str().expect("a text").to_owned()
    }

    /// Whether this extender leads and decides.
    #[must_use]
    pub fn leads(&self) -> bool {
        http::get(self.address, "/leadz").is_ok_and(|answer| answer.status == 200)
    }

    /// Waits until this extender leads and decides.
    ///
    /// # Panics
    /// If it does not in time.
    pub fn wait_until_leads(&self) {
        eventually("the extender to lead", SOON, || self.leads().then_some(()));
    }

    /// The value of a sample in `/metrics`.
    ///
    /// # Panics
    /// If there is none.
    #[must_use]
    pub fn metric(&self, sample: &str) -> u64 {
        let text = self.get("/metrics").text();
        let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        value.and_then(|value| value.parse().ok()).unwrap_or_else(|| panic!("{sample} in {text}"))
    }

    /// Sends a signal, such as `-STOP`.
    ///
    /// # Panics
    /// If it has ended.
    pub fn signal(&self, signal: &str) {
        let status = Command::new("kill").args([signal, &self.pid().to_string()]).status().expect("kill can be run");
        assert!(status.success(), "kill {signal}");
    }

    /// Sends SIGTERM, and waits for the end.
    ///
    /// # Panics
    /// If it has ended already, or ends with a failure.
    pub fn terminate(&mut self) {
        self.signal("-TERM");
        let status = self.child.wait().expect("its end");
        assert!(status.success(), "{status}");
    }

    /// Sends SIGKILL, and waits for the end.
    pub fn kill(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for ExtenderProcess {
    fn drop(&mut self) {
        self.kill();
        if std::thread::panicking() {
            let log = self.log();
            let from = log.char_indices().rev().nth(LOG_SHOWN).map_or(0, |(place, _)| place);
            let _ = writeln!(std::io::stderr(), "the end of the extender's log:\n{}", &log[from..]);
        }
    }
}
