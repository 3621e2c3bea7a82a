//! Real `kubectl` calls. Each caller is a value with its own credentials.

use crate::object_reads::ObjectReads;
use serde_json::Value;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// `kubectl` with the credentials of one caller.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    credentials: Vec<OsString>,
    /// A faster way to read the objects that are read most.
    reads: Option<ObjectReads>,
}

/// The result of a call.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// Whether the exit code is 0.
    pub success: bool,
    /// The text on stdout.
    pub out: String,
    /// The text on stderr.
    pub err: String,
}

impl CommandOutput {
    /// The text on stdout of a call that must have succeeded.
    ///
    /// # Panics
    /// If the call failed; the text contains stderr.
    #[track_caller]
    #[must_use]
    pub fn ok(self) -> String {
        assert!(self.success, "kubectl failed: {}{}", self.out, self.err);
        self.out
    }

    /// The text on stderr of a call that must have failed.
    ///
    /// # Panics
    /// If the call succeeded.
    #[track_caller]
    #[must_use]
    pub fn refused(self) -> String {
        assert!(!self.success, "kubectl should have been refused: {}", self.out);
        self.err
    }
}

impl Kubectl {
    /// With the credentials of a kubeconfig file.
    #[must_use]
    pub fn with_config(program: impl Into<PathBuf>, config: &str) -> Kubectl {
        Kubectl { program: program.into(), credentials: vec!["--kubeconfig".into(), config.into()], reads: None }
    }

    /// The same, but reads pods, Nodes and events with these credentials, which must match the kubeconfig.
    #[must_use]
    pub fn reading(self, reads: ObjectReads) -> Kubectl {
        Kubectl { reads: Some(reads), ..self }
    }

    /// With a bearer token only.
    #[must_use]
    pub fn with_token(program: impl Into<PathBuf>, server: &str, ca: &str, token: &str) -> Kubectl {
        let arguments =
            ["--kubeconfig", "/dev/null", "--server", server, "--certificate-authority", ca, "--token", token];
        Kubectl { program: program.into(), credentials: arguments.iter().map(OsString::from).collect(), reads: None }
    }

    /// Impersonates a user of this name and these groups; the caller must have the right to do so.
    #[must_use]
    pub fn impersonating(&self, user: &str, groups: &[&str]) -> Kubectl {
        let mut other = Kubectl { reads: None, ..self.clone() };
        other.credentials.push(format!("--as={user}").into());
        other.credentials.extend(groups.iter().map(|group| format!("--as-group={group}").into()));
        other
    }

    /// Makes one call.
    ///
    /// # Panics
    /// If the program does not exist.
    #[must_use]
    pub fn run(&self, args: &[&str]) -> CommandOutput {
        command_output(&self.command(args).stdin(Stdio::null()).output().expect("kubectl can be run"))
    }

    /// Makes one call with this text on stdin.
    ///
    /// # Panics
    /// If the program does not exist.
    #[must_use]
    pub fn run_with(&self, args: &[&str], text: &str) -> CommandOutput {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl can be run");
        // If the call ends before it has read everything, it has printed its error.
        let _ = child.stdin.take().expect("a pipe").write_all(text.as_bytes());
        command_output(&child.wait_with_output().expect("kubectl can be waited for"))
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.credentials).args(args);
        command
    }

    /// `kubectl apply` of these manifests.
    #[must_use]
    pub fn apply(&self, manifests: &str) -> CommandOutput {
        self.run_with(&["apply", "-f", "-"], manifests)
    }

    /// `kubectl create` of these manifests: one POST each, without the annotation that `apply` adds.
    #[must_use]
    pub fn create(&self, manifests: &str) -> CommandOutput {
        self.run_with(&["create", "-f", "-"], manifests)
    }

    /// `kubectl get -o json`.
    ///
    /// # Panics
    /// If it fails, or its output is not JSON.
    #[track_caller]
    #[must_use]
    pub fn get(&self, args: &[&str]) -> Value {
        if let Some(found) = self.reads.as_ref().and_then(|reads| reads.get(args)) {
            return found;
        }
        let mut arguments = vec!["get", "-o", "json"];
        arguments.extend(args);
        serde_json::from_str(&self.run(&arguments).ok()).expect("JSON")
    }

    /// Runs a command in a pod, and returns its stdout.
    ///
    /// # Panics
    /// If it fails.
    #[track_caller]
    #[must_use]
    pub fn exec(&self, namespace: &str, pod: &str, command: &[&str]) -> String {
        let mut arguments = vec!["exec", "-n", namespace, pod, "--"];
        arguments.extend(command);
        self.run(&arguments).ok()
    }

    /// `kubectl wait --for`: a watch, not a poll.
    ///
    /// # Panics
    /// If the condition does not become true within that time.
    #[track_caller]
    pub fn wait(&self, condition: &str, within: Duration, args: &[&str]) {
        let condition = format!("--for={condition}");
        let timeout = format!("--timeout={}s", within.as_secs());
        let mut arguments = vec!["wait", &condition, &timeout];
        arguments.extend(args);
        let _ = self.run(&arguments).ok();
    }
}

fn command_output(output: &Output) -> CommandOutput {
    CommandOutput {
        success: output.status.success(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
