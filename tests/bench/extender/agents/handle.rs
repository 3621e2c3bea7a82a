//! The handle by which the bench controls the process of the agents.

use crate::outcome::Outcome;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use tempfile::TempDir;

/// One agent.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct PlannedAgent {
    pub(crate) number: usize,
    /// The agent's place among all agents, from 0 to 1.
    pub(crate) place: f64,
    pub(crate) node: String,
    pub(crate) token: String,
    /// The UIDs of the pods on its node.
    pub(crate) pods: Vec<String>,
}

/// The input that the process of the agents reads at its start.
#[derive(Debug, Deserialize, Serialize)]
pub(super) struct Plan {
    /// The certificates of the extenders' authority.
    pub(super) trusted: String,
    pub(super) agents: Vec<PlannedAgent>,
}

/// The running agents. They end with the bench.
pub(crate) struct Agents {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    _dir: TempDir,
}

impl Agents {
    /// Starts the process; no agent connects yet.
    pub(crate) fn start(trusted: String, agents: Vec<PlannedAgent>) -> Outcome<Agents> {
        let dir = tempfile::tempdir()?;
        let path = dir.path().join("agents.json");
        fs::write(&path, serde_json::to_vec(&Plan { trusted, agents })?)?;
        let mut child = Command::new(std::env::current_exe()?)
            .arg("agents")
            .arg(&path)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let commands = child.stdin.take().ok_or("no input")?;
        let answers = BufReader::new(child.stdout.take().ok_or("no output")?);
        Ok(Agents { child, commands, answers, _dir: dir })
    }

    /// Gives a command, and returns the counts after it.
    pub(crate) fn tell(&mut self, command: &str) -> Outcome<Value> {
        writeln!(self.commands, "{command}")?;
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    /// The current value of a count.
    pub(crate) fn count(&mut self, field: &str) -> Outcome<usize> {
        let counts = self.tell("report")?;
        let count = counts[field].as_u64().ok_or_else(|| format!("no {field}"))?;
        Ok(usize::try_from(count)?)
    }
}

impl Drop for Agents {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
