//! The measured programs, as child processes, and connections to them.

use crate::outcome::Outcome;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::http::{self, HttpResponse, read_answer};
use lab::tokens::claims;
use serde_json::Value;
use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Longest wait for an action of a child process.
pub(crate) const SOON: Duration = Duration::from_secs(300);
/// The account of the agents, and the audience of every token.
pub(crate) const AGENTS: &str = "gpu:agent";
/// See [`AGENTS`].
pub(crate) const AUDIENCE: &str = "gpu-steward";

/// A child process that ends with the bench.
pub(crate) struct Served {
    child: Child,
    /// The address of the verbs.
    pub(crate) address: SocketAddr,
    dir: Option<TempDir>,
}

impl Drop for Served {
    fn drop(&mut self) {
        self.kill();
    }
}

impl Served {
    /// The pass-through, which is this program again.
    pub(crate) fn pass_through(tenths: u8) -> Outcome<Served> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["pass-through", &tenths.to_string()])
            .stdout(Stdio::piped())
            .spawn()?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().ok_or("no output")?).read_line(&mut line)?;
        Ok(Served { child, address: line.trim().parse()?, dir: None })
    }

    /// An extender that leads, without streams.
    pub(crate) fn extender(server: &FakeApiServer) -> Outcome<Served> {
        let served = Served::begun(server, |_| Ok(Vec::new()))?;
        served.wait_until_leads();
        Ok(served)
    }

    /// An extender with streams, and default settings but for these flags. It listens, but may not lead yet.
    pub(crate) fn with_streams(server: &FakeApiServer, more: &[&str]) -> Outcome<Served> {
        Served::begun(server, |dir| {
            let token = dir.join("token");
            // These flags are for an extender outside a pod, because the fake API server has no pods of extenders.
            let mut own = claims("gpu:extender", AUDIENCE, ("", ""), ("", ""));
            own["kubernetes.io"] = Value::Null;
            fs::write(&token, server.token(&own))?;
            let flags = ["--lease-namespace", "gpu", "--stream-listen", "127.0.0.1:0", "--stream-accounts", AGENTS];
            let mut flags: Vec<OsString> = flags.map(OsString::from).into();
            flags.extend(["--stream-token-file".into(), token.into()]);
            flags.extend(more.iter().map(OsString::from));
            Ok(flags)
        })
    }

    /// Starts an extender with these flags, made from the path of its directory, and waits until it listens.
    pub(crate) fn begun(
        server: &FakeApiServer,
        flags: impl FnOnce(&Path) -> Outcome<Vec<OsString>>,
    ) -> Outcome<Served> {
        let dir = tempfile::tempdir()?;
        let (log, flags) = (dir.path().join("log"), flags(dir.path())?);
        let child = Command::new(env!("CARGO_BIN_EXE_gpu-steward"))
            .args([
                "extender",
                "--extender-listen",
                "127.0.0.1:0",
                "--extender-admin-listen",
                "none",
                "--log-format",
                "json",
            ])
            .args(flags)
            .arg("--kubeconfig")
            .arg(server.kubeconfig(dir.path()))
            .env_clear()
            .stdin(Stdio::null())
            .stderr(File::create(&log)?)
            .spawn()?;
        let mut served = Served { child, address: ([127, 0, 0, 1], 0).into(), dir: Some(dir) };
        served.address = served.started_with("address");
        Ok(served)
    }

    /// An address that the log line of its start names in this field.
    pub(crate) fn started_with(&self, field: &str) -> SocketAddr {
        eventually(&format!("the extender's {field}"), SOON, || {
            self.logged("gpu-steward extender started", field)?.parse().ok()
        })
    }

    /// A field of the last line of the log with this text.
    pub(crate) fn logged(&self, text: &str, field: &str) -> Option<String> {
        let log = self.log();
        let line = log.lines().rfind(|line| line.contains(text))?;
        match &serde_json::from_str::<Value>(line).ok()?[field] {
            Value::String(found) => Some(found.clone()),
            other => Some(other.to_string()),
        }
    }

    /// The log so far.
    pub(crate) fn log(&self) -> String {
        self.dir.as_ref().and_then(|dir| fs::read_to_string(dir.path().join("log")).ok()).unwrap_or_default()
    }

    /// Whether it leads and decides.
    pub(crate) fn leads(&self) -> bool {
        http::get(self.address, "/leadz").is_ok_and(|answer| answer.status == 200)
    }

    /// Waits until it leads and decides.
    pub(crate) fn wait_until_leads(&self) {
        eventually("the extender to lead", SOON, || self.leads().then_some(()));
    }

    /// Waits until it could lead.
    pub(crate) fn wait_until_ready(&self) {
        let ready = || http::get(self.address, "/readyz").is_ok_and(|answer| answer.status == 200);
        eventually("an extender that is ready", SOON, || ready().then_some(()));
    }

    /// The value of a sample in `/metrics`.
    pub(crate) fn metric(&self, sample: &str) -> Outcome<u64> {
        let text = http::get(self.address, "/metrics")?.text();
        let value = text.lines().find_map(|line| line.strip_prefix(sample)?.strip_prefix(' '));
        Ok(value.ok_or_else(|| format!("no sample {sample}"))?.parse()?)
    }

    /// Asks the program to stop (SIGTERM).
    pub(crate) fn terminate(&self) -> Outcome<()> {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status()?;
        if status.success() { Ok(()) } else { Err("kill -TERM failed".into()) }
    }

    /// Sends SIGKILL, and waits for the end.
    pub(crate) fn kill(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Waits for its end after [`Served::terminate`].
    pub(crate) fn ended(&mut self) -> Outcome<()> {
        let status = self.child.wait()?;
        if status.success() { Ok(()) } else { Err(format!("the extender ended with {status}: {}", self.log()).into()) }
    }

    /// CPU time of all threads.
    pub(crate) fn cpu(&self) -> Outcome<Duration> {
        let mut sum = 0;
        for task in fs::read_dir(format!("/proc/{}/task", self.child.id()))? {
            let text = fs::read_to_string(task?.path().join("schedstat"))?;
            sum += text.split(' ').next().ok_or("schedstat is empty")?.parse::<u64>()?;
        }
        Ok(Duration::from_nanos(sum))
    }

    /// CPU time in this time, in percent of one core.
    pub(crate) fn cpu_share(&self, time: Duration) -> Outcome<f64> {
        let (begun, before) = (Instant::now(), self.cpu()?);
        std::thread::sleep(time);
        Ok((self.cpu()? - before).as_secs_f64() / begun.elapsed().as_secs_f64() * 100.0)
    }

    /// A field of `/proc/PID/status`, in KiB.
    pub(crate) fn memory_kib(&self, field: &str) -> Outcome<u64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id()))?;
        let value = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        Ok(value.and_then(|value| value.split_whitespace().next()).ok_or("no such field")?.parse()?)
    }
}

/// A connection that stays open.
pub(crate) struct Connection(BufReader<TcpStream>, SocketAddr);

impl Connection {
    /// Connects.
    pub(crate) fn open(address: SocketAddr) -> Outcome<Connection> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(SOON))?;
        Ok(Connection(BufReader::new(stream), address))
    }

    /// Calls a verb; any answer other than 200 is an error.
    pub(crate) fn ask(&mut self, verb: &str, body: &[u8]) -> Outcome<HttpResponse> {
        let answer = self.send("POST", &format!("/{verb}"), body)?;
        if answer.status == 200 { Ok(answer) } else { Err(format!("{verb}: {}", answer.text()).into()) }
    }

    /// Sends any request.
    pub(crate) fn send(&mut self, method: &str, path: &str, body: &[u8]) -> std::io::Result<HttpResponse> {
        let address = self.1;
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        let stream = self.0.get_mut();
        stream.write_all(head.as_bytes())?;
        stream.write_all(body)?;
        read_answer(&mut self.0)
    }
}
