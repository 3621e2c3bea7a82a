//! One stream, opened like the real agent's (`agent::leader_stream`).

use super::counts::Counts;
use super::handle::PlannedAgent;
use super::mode::Mode;
use crate::cluster::{GPUS, gpu_uuid};
use crate::outcome::Outcome;
use decide::leader_search::SearchEnd;
use proto::stream::{AgentMessage, GpuReport, GpuUse, LeaderMessage, NodeChange, NodeFull, Phase, PodReport, Stage};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stream::opening::{self, AgentStream};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsConnector;

/// The name in the certificates of extenders.
const NAME: &str = "extender.gpu-steward.io";
/// The times of the real agent: for the connection, for the start of the answer, and between two messages.
const CONNECTS_WITHIN: Duration = Duration::from_secs(10);
const BEGINS_WITHIN: Duration = Duration::from_secs(15);
const BEAT: Duration = Duration::from_secs(10);
/// The time without a message after which the agent connects again.
const SILENCE: Duration = Duration::from_secs(22);
/// While a fifth of the nodes changes each second, each node changes every five seconds.
const CHANGES_EVERY: Duration = Duration::from_secs(5);
/// Memory of a GPU in a report. It changes by more than the dead band.
const USED: u64 = 8 << 30;

/// A configuration that trusts these certificates.
pub(super) fn trusting(pem: &str) -> Outcome<TlsConnector> {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
        roots.add(certificate?)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // Each real agent is a separate process, which does not know the sessions of other agents.
    config.resumption = rustls::client::Resumption::disabled();
    Ok(TlsConnector::from(Arc::new(config)))
}

/// One agent with everything that its stream needs.
pub(super) struct Link<'a> {
    pub(super) agent: &'a PlannedAgent,
    pub(super) tls: &'a TlsConnector,
    pub(super) counts: &'a Counts,
    pub(super) mode: watch::Receiver<Mode>,
}

impl Link<'_> {
    /// Runs one stream to the extender at this address, from its start to its end.
    pub(super) async fn once(&mut self, address: &str) -> SearchEnd {
        let opened = timeout(BEGINS_WITHIN, self.open(address)).await;
        let mut messages = match opened {
            Ok(Ok(opened)) => opened,
            Ok(Err(why)) => return self.failed(&why),
            Err(_) => return self.failed("no answer in time"),
        };
        if messages.send(&self.full()).await.is_err() {
            return self.failed("the stream has ended");
        }
        let first = match timeout(SILENCE, messages.next::<LeaderMessage>()).await {
            Ok(Ok(Some(first))) if !first.leader.is_empty() => return SearchEnd::Named(first.leader.into()),
            Ok(Ok(Some(LeaderMessage { end: Some(end), .. }))) => return self.failed(&end.text),
            Ok(Ok(Some(first))) => first,
            Ok(Ok(None)) => return self.failed("ended"),
            Ok(Err(why)) => return self.failed(&why.to_string()),
            Err(_) => return self.failed("silent"),
        };
        self.counts.up();
        drop(first);
        let end = self.works(&mut messages).await;
        self.counts.down();
        end
    }

    fn failed(&self, why: &str) -> SearchEnd {
        // Numbers are removed, so that equal failures are counted together.
        let why: String = why.chars().filter(|letter| !letter.is_ascii_digit()).take(80).collect();
        self.counts.failed(why);
        SearchEnd::Failed
    }

    /// Reports until the stream ends.
    async fn works(&mut self, messages: &mut AgentStream) -> SearchEnd {
        let (mut beat, mut heard, mut turn) = (Instant::now() + BEAT, Instant::now(), 0_usize);
        let mut mode = *self.mode.borrow_and_update();
        // The changes of all agents are spread over the time between two changes of one agent.
        let mut change = Instant::now() + CHANGES_EVERY.mul_f64(self.agent.place);
        loop {
            let due = if mode.changing { change.min(beat) } else { beat };
            tokio::select! {
                answer = messages.next() => match answer {
                    Ok(Some(LeaderMessage { leader, .. })) if !leader.is_empty() => return SearchEnd::Named(leader.into()),
                    Ok(Some(LeaderMessage { end: Some(_), .. })) => return SearchEnd::Broken,
                    Ok(Some(_)) => heard = Instant::now(),
                    Ok(None) | Err(_) => return SearchEnd::Broken,
                },
                () = sleep_until(heard + SILENCE) => return SearchEnd::Broken,
                changed = self.mode.changed() => {
                    let before = mode;
                    if changed.is_err() {
                        return SearchEnd::Broken;
                    }
                    mode = *self.mode.borrow_and_update();
                    if mode.closed != before.closed && self.agent.number == 0 {
                        let phase = if mode.closed { Phase::Starting } else { Phase::Serving };
                        self.counts.sent(micros_now());
                        if messages.send(&changed_to(NodeChange { phase: phase.into(), binding: 0, ..NodeChange::default() })).await.is_err() {
                            return SearchEnd::Broken;
                        }
                        beat = Instant::now() + BEAT;
                    }
                }
                () = sleep_until(due) => {
                    turn += 1;
                    let message = if mode.changing && change <= Instant::now() {
                        change += CHANGES_EVERY;
                        self.changes(turn, mode)
                    } else {
                        AgentMessage { version: 1, full: None, change: None }
                    };
                    beat = Instant::now() + BEAT;
                    if messages.send(&message).await.is_err() {
                        return SearchEnd::Broken;
                    }
                }
            }
        }
    }

    async fn open(&self, address: &str) -> Result<AgentStream, String> {
        self.counts.tries(self.agent.number, address);
        let text = |why: &dyn std::fmt::Display| why.to_string();
        let connecting = async {
            let stream = TcpStream::connect(address).await?;
            let _ = stream.set_nodelay(true);
            let name = ServerName::try_from(NAME).map_err(std::io::Error::other)?;
            self.tls.connect(name, stream).await
        };
        let stream = timeout(CONNECTS_WITHIN, connecting).await.map_err(|_| "no connection in time".to_owned())?;
        let stream = stream.map_err(|why| text(&why))?;
        opening::open(stream, NAME, &self.agent.token).await.map_err(|why| text(&why))
    }

    /// A full report about the node.
    fn full(&self) -> AgentMessage {
        let full = NodeFull {
            node: self.agent.node.clone(),
            phase: Phase::Serving.into(),
            gpus: (0..GPUS).map(|index| self.gpu(index, USED)).collect(),
            pods: (0..self.agent.pods.len()).map(|place| self.pod(place, USED)).collect(),
            ..NodeFull::default()
        };
        AgentMessage { version: 1, full: Some(full), change: None }
    }

    /// A report that the memory of one GPU and of its pod has changed by a GiB.
    fn changes(&self, turn: usize, mode: Mode) -> AgentMessage {
        let (index, used) = (turn % GPUS, USED + ((turn as u64 / GPUS as u64 % 2) << 30));
        let phase = if mode.closed && self.agent.number == 0 { Phase::Starting } else { Phase::Serving };
        changed_to(NodeChange {
            phase: phase.into(),
            binding: 0,
            gpus: vec![self.gpu(index, used)],
            pods: vec![self.pod(index, used)],
            ..NodeChange::default()
        })
    }

    fn gpu(&self, index: usize, used: u64) -> GpuReport {
        GpuReport {
            uuid: gpu_uuid(self.agent.number, index),
            healthy: true,
            memory_total: Some(80 << 30),
            memory_used: Some(used),
            memory_listed: Some(used),
            memory_unattributed: Some(0),
            processes: Some(1),
            ..GpuReport::default()
        }
    }

    fn pod(&self, place: usize, used: u64) -> PodReport {
        let uuid = gpu_uuid(self.agent.number, place % GPUS);
        let uses = GpuUse { uuid, processes: 1, memory_used: Some(used), ..GpuUse::default() };
        let (uid, stage) = (self.agent.pods[place].clone(), Stage::Started.into());
        PodReport { uid, stage, uses: vec![uses], has_containers: true }
    }
}

fn changed_to(change: NodeChange) -> AgentMessage {
    AgentMessage { version: 1, full: None, change: Some(change) }
}

/// Microseconds since 1970: the same clock in the bench and in this process.
pub(super) fn micros_now() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_micros()).unwrap_or(u64::MAX)
}
