//! Checks the memory that strangers use, which are processes that belong to no pod.
//!
//! | moment | what must hold |
//! |---|---|
//! | a binding is sent | the pod has room beside the strangers of its GPUs that its extender knew when it chose them |
//! | everything has settled | the leader knows how much memory strangers use of each GPU |

use super::invariants::node_name;
use super::machine::{MIB, Machine};
use super::process::Process;
use decide::cluster::ClusterState;
use model::agent_stream::MEMORY_DEAD_BAND;
use model::id::{GpuUuid, PodUid};
use model::realtime::CheckRules;
use model::time::Monotonic;
use model::unit::{Bytes, Mib};
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// An extender counts only the claims on a node whose agent has sent nothing for 25 s.
const HEARD_WITHIN: Duration = Duration::from_secs(20);

/// A stranger that an extender knows from the newest report.
#[derive(Clone, Debug)]
struct KnownStranger {
    used: Bytes,
    /// When the last message of the agent has come.
    heard: Monotonic,
    /// The pods that had a claim on the node when the extender learned of the stranger. Their GPUs may have been chosen before.
    placed: BTreeSet<PodUid>,
}

/// The strangers that each extender knows.
#[derive(Debug, Default)]
pub(super) struct StrangerChecks(BTreeMap<u64, BTreeMap<GpuUuid, KnownStranger>>);

impl StrangerChecks {
    /// A process has run.
    pub(super) fn ran(&mut self, process: &Process, decides: bool) {
        let mut before = self.0.remove(&process.number).unwrap_or_default();
        if decides {
            let known = process.believes(|cluster| known(cluster, &mut before));
            self.0.insert(process.number, known);
        }
    }

    /// A process sends a binding of this pod.
    pub(super) fn sends(&self, process: &Process, node: &str, uid: &PodUid) -> Result<(), String> {
        let claimed = |gpu: &GpuUuid| {
            let memory =
                |cluster: &ClusterState| Some(cluster.node(&node_name(node))?.ledger().get(uid)?.demand(gpu).memory);
            process.believes(memory).unwrap_or(0)
        };
        for (gpu, stranger) in self.0.get(&process.number).into_iter().flatten() {
            let (own, used) = (claimed(gpu), stranger.used.0);
            let is_late = process.monotonic().since(stranger.heard) >= HEARD_WITHIN || stranger.placed.contains(uid);
            if !is_late && own > 0 && own + used > Mib(MIB).bytes().0 {
                return Err(format!(
                    "extender-{} binds {uid} to {node} with {} MiB of {gpu}, of which strangers use {} MiB",
                    process.number,
                    own >> 20,
                    used >> 20
                ));
            }
        }
        Ok(())
    }
}

/// The strangers that an extender knows by now; `before` are the strangers that it knew when it was last looked at.
fn known(cluster: &ClusterState, before: &mut BTreeMap<GpuUuid, KnownStranger>) -> BTreeMap<GpuUuid, KnownStranger> {
    let mut known = BTreeMap::new();
    for node in cluster.nodes() {
        let Some((report, heard)) = cluster.agent_report(node.name()) else { continue };
        for (gpu, reported) in &report.gpus {
            let used = reported.memory_used.get().filter(|used| reported.memory_listed.get() == Some(*used));
            let Some(used) = used.filter(|used| used.0 > CheckRules::default().margin.0) else { continue };
            let same = before.remove(gpu);
            // Between two messages that far apart the extender may have counted the claims only.
            let same = same.filter(|one| one.used == used && heard.since(one.heard) < HEARD_WITHIN);
            let placed = same.map(|one| one.placed);
            let placed = placed.unwrap_or_else(|| node.ledger().claims().map(|(uid, _)| uid.clone()).collect());
            known.insert(gpu.clone(), KnownStranger { used, heard, placed });
        }
    }
    known
}

/// Checks that the leader knows the strangers of the settled cluster, except changes that are too small for a report.
pub(super) fn are_known(machines: &[Machine], leader: &Process) -> Result<(), String> {
    for machine in machines {
        for gpu in machine.gpus.iter().map(|gpu| &gpu.uuid) {
            let reported = |cluster: &ClusterState| {
                let (report, _) = cluster.agent_report(&node_name(&machine.name))?;
                report.gpus.get(gpu)?.memory_used.get()
            };
            let Some(believed) = leader.believes(reported) else { continue };
            let used = machine.stranger(gpu);
            if believed.0.abs_diff(used.0) >= MEMORY_DEAD_BAND.0 {
                return Err(format!(
                    "strangers use {} MiB of {gpu} on {}, and extender-{} believes {} MiB",
                    used.0 >> 20,
                    machine.name,
                    leader.number,
                    believed.0 >> 20
                ));
            }
        }
    }
    Ok(())
}
