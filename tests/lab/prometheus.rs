//! A real Prometheus server (Debian's package `prometheus`) in a temporary folder, queries to it, and a fake target.

use crate::http;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The longest time until a query gives the expected values: some scrapes, while other tests compile.
const PATIENCE: Duration = Duration::from_secs(60);

/// Starts a target that always answers with this text, in place of another exporter of a cluster. It runs until the
/// test ends.
///
/// # Panics
/// If no port is free.
#[must_use]
pub fn target(text: &str) -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let address = listener.local_addr().expect("its address");
    let answer = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{text}",
        text.len()
    );
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            // If a scrape breaks off, Prometheus repeats it.
            let _ = stream.read(&mut [0; 4096]).and_then(|_| stream.write_all(answer.as_bytes()));
        }
    });
    address
}

/// A running server. Dropping it kills the server.
#[derive(Debug)]
pub struct Prometheus {
    address: SocketAddr,
    child: Child,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts the server with this configuration (the text of `prometheus.yml`).
    ///
    /// # Panics
    /// If it is not installed (`tests/run programs`) or no temporary folder can be made.
    #[must_use]
    pub fn start(config: &str) -> Prometheus {
        let folder = tempfile::tempdir().expect("a temporary directory");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("its address");
        drop(listener);
        let file = folder.path().join("prometheus.yml");
        std::fs::write(&file, config).expect("the configuration is written");
        let child = Command::new("prometheus")
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address={address}"))
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .expect("prometheus is installed: tests/run programs");
        Prometheus { address, child, _folder: folder }
    }

    /// The values of a query; empty if the server does not answer.
    #[must_use]
    pub fn values(&self, query: &str) -> Vec<f64> {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let answer = http::get(self.address, &format!("/api/v1/query?query={encoded}"));
        let answer: serde_json::Value =
            answer.ok().and_then(|answer| serde_json::from_slice(&answer.body).ok()).unwrap_or_default();
        let results = answer["data"]["result"].as_array().cloned().unwrap_or_default();
        results.iter().filter_map(|result| result["value"][1].as_str()?.parse().ok()).collect()
    }

    /// The type of a metric family, as a target reports it; empty if the family is unknown.
    #[must_use]
    pub fn kind(&self, family: &str) -> String {
        let answer = http::get(self.address, &format!("/api/v1/metadata?metric={family}"));
        let answer: serde_json::Value =
            answer.ok().and_then(|answer| serde_json::from_slice(&answer.body).ok()).unwrap_or_default();
        answer["data"][family][0]["type"].as_str().unwrap_or_default().to_owned()
    }

    /// Repeats a query until `holds` is true for its values.
    ///
    /// # Panics
    /// If it is not true within a minute; the text contains the last values.
    pub fn until(&self, query: &str, holds: impl Fn(&[f64]) -> bool) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let values = self.values(query);
            if holds(&values) {
                return;
            }
            assert!(Instant::now() < deadline, "{query}: {values:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Prometheus {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
