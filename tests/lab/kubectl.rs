//! Real `kubectl` calls, as somebody: who asks is part of the question, so each caller is a value.

use serde_json::Value;
use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

/// Somebody with `kubectl` in his hand.
#[derive(Clone, Debug)]
pub struct Kubectl {
    program: PathBuf,
    credentials: Vec<OsString>,
}

/// How a call ended.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// Exit code 0.
    pub well: bool,
    /// What it printed.
    pub out: String,
    /// What it complained of.
    pub err: String,
}

impl CommandOutput {
    /// What it printed, where it must have succeeded.
    ///
    /// # Panics
    /// When it failed; the text holds what it complained of.
    #[track_caller]
    #[must_use]
    pub fn ok(self) -> String {
        assert!(self.well, "kubectl failed: {}{}", self.out, self.err);
        self.out
    }

    /// What it complained of, where it must have failed.
    ///
    /// # Panics
    /// When it succeeded.
    #[track_caller]
    #[must_use]
    pub fn refused(self) -> String {
        assert!(!self.well, "kubectl should have been refused: {}", self.out);
        self.err
    }
}

impl Kubectl {
    /// With the credentials of a kubeconfig file.
    #[must_use]
    pub fn with_config(program: impl Into<PathBuf>, config: &str) -> Kubectl {
        Kubectl { program: program.into(), credentials: vec!["--kubeconfig".into(), config.into()] }
    }

    /// With a token and nothing else.
    #[must_use]
    pub fn with_token(program: impl Into<PathBuf>, server: &str, ca: &str, token: &str) -> Kubectl {
        let words = ["--kubeconfig", "/dev/null", "--server", server, "--certificate-authority", ca, "--token", token];
        Kubectl { program: program.into(), credentials: words.iter().map(OsString::from).collect() }
    }

    /// As a user of this name and these groups; the caller must be allowed to impersonate.
    #[must_use]
    pub fn posing_as(&self, user: &str, groups: &[&str]) -> Kubectl {
        let mut other = self.clone();
        other.credentials.push(format!("--as={user}").into());
        other.credentials.extend(groups.iter().map(|group| format!("--as-group={group}").into()));
        other
    }

    /// One call.
    ///
    /// # Panics
    /// When there is no such program.
    #[must_use]
    pub fn run(&self, args: &[&str]) -> CommandOutput {
        said(&self.command(args).stdin(Stdio::null()).output().expect("kubectl can be run"))
    }

    /// One call that reads this text.
    ///
    /// # Panics
    /// When there is no such program.
    #[must_use]
    pub fn run_with(&self, args: &[&str], text: &str) -> CommandOutput {
        let mut command = self.command(args);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("kubectl can be run");
        // A call that ends before it has read everything has said why.
        let _ = child.stdin.take().expect("a pipe").write_all(text.as_bytes());
        said(&child.wait_with_output().expect("kubectl can be waited for"))
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

    /// `kubectl create` of these manifests: one POST each, and no annotation of `apply`'s own.
    #[must_use]
    pub fn create(&self, manifests: &str) -> CommandOutput {
        self.run_with(&["create", "-f", "-"], manifests)
    }

    /// `kubectl get -o json`.
    ///
    /// # Panics
    /// When it fails or answers no JSON.
    #[track_caller]
    #[must_use]
    pub fn get(&self, args: &[&str]) -> Value {
        let mut words = vec!["get", "-o", "json"];
        words.extend(args);
        serde_json::from_str(&self.run(&words).ok()).expect("JSON")
    }

    /// What a command in a pod printed.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    #[must_use]
    pub fn exec(&self, namespace: &str, pod: &str, command: &[&str]) -> String {
        let mut words = vec!["exec", "-n", namespace, pod, "--"];
        words.extend(command);
        self.run(&words).ok()
    }

    /// `kubectl wait --for`: a watch, not a poll.
    ///
    /// # Panics
    /// When it does not come true within that time.
    #[track_caller]
    pub fn wait(&self, condition: &str, within: Duration, args: &[&str]) {
        let condition = format!("--for={condition}");
        let timeout = format!("--timeout={}s", within.as_secs());
        let mut words = vec!["wait", &condition, &timeout];
        words.extend(args);
        let _ = self.run(&words).ok();
    }
}

fn said(output: &Output) -> CommandOutput {
    CommandOutput {
        well: output.status.success(),
        out: String::from_utf8_lossy(&output.stdout).into_owned(),
        err: String::from_utf8_lossy(&output.stderr).into_owned(),
    }
}
