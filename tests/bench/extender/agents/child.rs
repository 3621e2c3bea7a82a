//! The program that runs the agents.

use super::counts::Counts;
use super::handle::{Plan, PlannedAgent};
use super::link::{Link, trusting};
use super::mode::Mode;
use crate::outcome::Outcome;
use decide::leader_search::LeaderSearch;
use parking_lot::Mutex;
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::{BufRead, Write};
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;
use tokio::time::sleep;
use tokio_rustls::TlsConnector;

/// The agents.
struct Running {
    tls: TlsConnector,
    counts: Counts,
    /// The extenders behind the Service.
    service: Mutex<Vec<String>>,
    mode: watch::Sender<Mode>,
}

/// Runs the agents of this plan until the end of the commands.
pub(crate) fn run(plan: &Path) -> Outcome<()> {
    let Plan { trusted, agents } = serde_json::from_slice(&fs::read(plan)?)?;
    let running = Arc::new(Running {
        tls: trusting(&trusted)?,
        counts: Counts::new(),
        service: Mutex::default(),
        mode: watch::Sender::new(Mode::default()),
    });
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let mut waiting = agents;
    for line in std::io::stdin().lock().lines() {
        let line = line?;
        let (command, rest) = line.split_once(' ').unwrap_or((&line, ""));
        let mode = |change: fn(&mut Mode, bool)| running.mode.send_modify(|mode| change(mode, rest == "on"));
        match command {
            "service" => *running.service.lock() = rest.split(',').map(str::to_owned).collect(),
            "open" => {
                for agent in std::mem::take(&mut waiting) {
                    runtime.spawn(reports(Arc::clone(&running), agent));
                }
            }
            "changing" => mode(|mode, on| mode.changing = on),
            "closed" => mode(|mode, on| mode.closed = on),
            "mark" => running.counts.mark(),
            "report" => {}
            _ => return Err(format!("unknown command: {line}").into()),
        }
        let mut out = std::io::stdout();
        writeln!(out, "{}", running.counts.report())?;
        out.flush()?;
    }
    runtime.shutdown_background();
    Ok(())
}

/// Runs one agent forever.
async fn reports(running: Arc<Running>, agent: PlannedAgent) {
    let mut search = LeaderSearch::new("service".into());
    let mut link = Link { agent: &agent, tls: &running.tls, counts: &running.counts, mode: running.mode.subscribe() };
    loop {
        let address = match &**search.address() {
            // A Service sends each connection to any of its pods.
            "service" => {
                let pods = running.service.lock();
                pods[random() as usize % pods.len()].clone()
            }
            leader => leader.to_owned(),
        };
        let end = link.once(&address).await;
        sleep(search.ended(end, random())).await;
    }
}

/// A random number from 0 to 999.
fn random() -> u32 {
    u32::try_from(RandomState::new().hash_one(Instant::now()) % 1000).unwrap_or(0)
}
