//! `doctor nodes`: every Node with GPUs as a row: its register, handshake, slots, health, stream, driver, CDI and runtime, and the
//! devices of other vendors.
//!
//! ```text
//!   API server ──▶ Nodes ──────────────────┐
//!   leader ──▶ what it believes, how old ──┴──▶ judge (pure), one row for each Node ──▶ findings, one for each problem
//! ```

mod problems;
mod judge;

pub(crate) use judge::{NodeRow, judged};

use crate::cluster::{ClusterReader, TimeSeen};
use crate::finding::{Finding, Report, Seen, Unread};
use crate::leader::{Leader, LeaderPlace};
use crate::print::Row;
use wire::api::believed_nodes::BelievedNodesJson;
use wire::described_node::DescribedNode;
use wire::described_pod::DescribedPod;

/// What is looked at.
#[derive(Debug)]
pub(crate) struct NodesSeen {
    pub(crate) nodes: Seen<Vec<DescribedNode>>,
    pub(crate) believed: Seen<BelievedNodesJson>,
    /// The time when all Nodes had been read.
    pub(crate) time: TimeSeen,
}

impl NodesSeen {
    /// Looks at the cluster.
    pub(crate) async fn look(
        cluster: &Seen<ClusterReader>,
        place: &LeaderPlace,
        pods: &Seen<Vec<DescribedPod>>,
    ) -> NodesSeen {
        let reader = cluster.as_ref().map_err(Clone::clone);
        let nodes = match &reader {
            Ok(cluster) => cluster.nodes().await,
            Err(unread) => Err(unread.clone()),
        };
        let time = TimeSeen::look(reader.clone()).await;
        let believed = match Leader::find(place, reader, pods).await {
            Ok(mut leader) => leader.nodes(None).await,
            Err(unread) => Err(unread),
        };
        NodesSeen { nodes, believed, time }
    }

    /// The diagnosis. With `all`, Nodes without GPUs are rows too.
    pub(crate) fn report(&self, all: bool) -> Report<NodeRow> {
        let mut findings: Vec<Finding> = self.believed.as_ref().err().map(no_leader).into_iter().collect();
        let nodes = match &self.nodes {
            Ok(nodes) => nodes,
            Err(unread) => {
                findings.push(Finding::unknown("NodesNotSeen", unread.to_string()));
                return Report::new("doctor nodes", "the Nodes", findings, Vec::new());
            }
        };
        let (mut rows, problems) = judged(nodes, self.believed.as_ref().ok(), self.time.now);
        findings.extend(problems);
        findings.extend(self.time.note());
        let gpus = rows.iter().filter(|row| row.has_gpus).count();
        let others = rows.len() - gpus;
        if gpus == 0 {
            let advice = "check that the agents run: kubectl get pods -A -l app.kubernetes.io/name=gpu-steward -o wide";
            findings.push(Finding::wrong("NodeUnregistered", "no Node has registered a GPU").advise([advice]));
        }
        rows.retain(|row| all || row.has_gpus);
        let about = format!("{gpus} Nodes with GPUs, {others} without");
        Report::new("doctor nodes", about, findings, rows)
    }
}

/// Without the leader the streams are not known, nor why it places nothing on a Node.
fn no_leader(unread: &Unread) -> Finding {
    Finding::unknown("LeaderNotSeen", format!("{unread}; the streams of agents are not known"))
        .advise([format!("to see what the leader believes: {LEADER_ADVICE}")])
}

/// How to let `doctor` see the leader.
pub(crate) const LEADER_ADVICE: &str = "allow your identity to list pods and to get and create pods/portforward in the namespace of the \
                                        extender, or run kubectl port-forward to the leader and give --extender http://127.0.0.1:9444";

impl Row for NodeRow {
    const HEADINGS: &'static [&'static str] = &[
        "NODE",
        "READY",
        "REGISTER",
        "HANDSHAKE",
        "SLOTS",
        "HEALTHY",
        "STREAM",
        "DRIVER",
        "CDI",
        "RUNTIME",
        "OTHER VENDORS",
    ];

    fn cells(&self) -> Vec<String> {
        let dash = || "-".to_owned();
        let age = |age: Option<f64>| age.map_or_else(dash, |age| format!("{age:.0}s"));
        vec![
            self.node.clone(),
            self.ready.map_or_else(dash, |ready| if ready { "yes" } else { "NO" }.to_owned()),
            self.register.clone(),
            if self.handshake_age_seconds.is_some() { age(self.handshake_age_seconds) } else { self.handshake.clone() },
            format!("{}/{}", number(self.slots_allocatable), number(self.slots_registered)),
            format!("{}/{}", number(self.gpus_healthy), number(self.gpus)),
            match &self.stream {
                Some(state) => format!("{state} {}", age(self.stream_age_seconds)),
                None => dash(),
            },
            self.driver.clone().unwrap_or_else(dash),
            self.cdi.clone(),
            self.runtime.clone(),
            if self.other_vendors.is_empty() {
                dash()
            } else {
                format!("{} (not implemented)", self.other_vendors.join(", "))
            },
        ]
    }
}

fn number(number: Option<u64>) -> String {
    number.map_or_else(|| "-".to_owned(), |number| number.to_string())
}
