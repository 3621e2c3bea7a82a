//! Says and counts what the real-time check of memory finds. The three log lines have the words, fields and quotes of HAMi's design,
//! so that searches for them work.

use decide::cluster::{FailedCheck, UnknownMemory, UsageChange};
use model::histogram::ByteHistogram;
use model::id::{GpuUuid, PodRef};
use model::time::Monotonic;
use model::unit::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fmt::Display;
use std::time::Duration;

/// Time between two lines about the missing readings of one node.
const SAID_EVERY: Duration = Duration::from_secs(60);
/// Maximum number of nodes whose last line is remembered: as many as a call of kube-scheduler may name.
const MOST_NODES: usize = 15_000;
/// At the default level, one failed check is logged in this time. Thousands of pods without room are tried again and again.
const FAILED_EVERY: Duration = Duration::from_secs(1);

/// What the check has found since the start, and what was logged.
#[derive(Debug, Default)]
pub(super) struct RealtimeFindings {
    /// The difference between the claims on a GPU and the memory in use, at each report that changes it.
    gaps: Mutex<ByteHistogram>,
    /// When the missing readings of each node were logged last.
    said: Mutex<HashMap<Box<str>, Monotonic>>,
    /// When a failed check was logged last.
    failed: Mutex<Option<Monotonic>>,
}

impl RealtimeFindings {
    /// Takes in that reports have changed the memory of these GPUs.
    pub(super) fn changed(&self, changes: &[UsageChange]) {
        if changes.is_empty() {
            return;
        }
        let mut gaps = self.gaps.lock();
        for change in changes {
            gaps.add(Bytes(change.claimed.0.abs_diff(change.used.0)));
        }
        drop(gaps);
        if tracing::enabled!(tracing::Level::TRACE) {
            changes.iter().for_each(|change| tracing::trace!("{}", updated(change)));
        }
    }

    /// The differences between claims and use.
    pub(super) fn gaps(&self) -> ByteHistogram {
        *self.gaps.lock()
    }

    /// Whether to log that readings of this node are missing.
    pub(super) fn may_say(&self, node: &str, now: Monotonic) -> bool {
        let mut said = self.said.lock();
        if said.get(node).is_some_and(|at| now.since(*at) < SAID_EVERY) {
            return false;
        }
        if said.len() >= MOST_NODES {
            said.clear();
        }
        said.insert(node.into(), now);
        true
    }

    /// Whether to log a failed check at the default level.
    pub(super) fn may_say_failed(&self, now: Monotonic) -> bool {
        let mut failed = self.failed.lock();
        if failed.is_some_and(|at| now.since(at) < FAILED_EVERY) {
            return false;
        }
        *failed = Some(now);
        true
    }
}

/// The log line for a report that has changed the memory of a GPU.
fn updated(change: &UsageChange) -> String {
    let UsageChange { node, device, claimed, used, utilization, processes } = change;
    format!(
        "Updated real-time device usage nodeID={:?} deviceID={:?} cachedUsedMemMB={} realTimeUsedMemMB={} utilization={} \
         processCount={}",
        node.as_str(),
        device.as_str(),
        claimed.0 >> 20,
        used.0 >> 20,
        known(*utilization),
        known(*processes),
    )
}

fn known(number: Option<impl Display>) -> String {
    number.map_or_else(|| "unknown".to_owned(), |number| number.to_string())
}

/// The line for a GPU whose use is known only by claims, or only for all processes together.
pub(super) fn missing(node: &str, device: &GpuUuid, why: &UnknownMemory) -> String {
    let (device, why) = (device.as_str(), why.to_string());
    format!("Failed to get real-time usage, using cached data nodeID={node:?} deviceID={device:?} error={why:?}")
}

/// The line for a GPU that has less memory really free than the pod requests.
pub(super) fn failed(pod: &PodRef, check: &FailedCheck) -> String {
    format!(
        "Real-time memory check failed pod={:?} device={:?} requestedMem={} realUsedMem={} totalMem={}",
        pod.to_string(),
        check.device.as_str(),
        check.requested.0.div_ceil(1 << 20),
        check.total.less(check.really_free).0.div_ceil(1 << 20),
        check.total.0 >> 20,
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use decide::placement::{BeyondClaims, MemoryBasis};
    use model::id::NodeName;
    use model::reading::Absence;

    const MIB: u64 = 1 << 20;

    fn gpu() -> GpuUuid {
        GpuUuid::parse("GPU-12345").unwrap()
    }

    fn change(utilization: Option<u32>, processes: Option<u32>) -> UsageChange {
        let node = NodeName::parse("node-1").unwrap();
        UsageChange { node, device: gpu(), claimed: Bytes(0), used: Bytes(2048 * MIB), utilization, processes }
    }

    #[test]
    fn the_lines_have_the_words_fields_and_quotes_of_hamis_design() {
        assert_eq!(
            updated(&change(Some(45), Some(1))),
            "Updated real-time device usage nodeID=\"node-1\" deviceID=\"GPU-12345\" cachedUsedMemMB=0 \
             realTimeUsedMemMB=2048 utilization=45 processCount=1"
        );
        assert!(updated(&change(None, None)).ends_with(" utilization=unknown processCount=unknown"));
        assert_eq!(
            missing("node-1", &gpu(), &UnknownMemory::NoReading(Some(Absence::NotYet))),
            "Failed to get real-time usage, using cached data nodeID=\"node-1\" deviceID=\"GPU-12345\" error=\"NVML not \
             initialized\""
        );
        let beyond = BeyondClaims { taken: Bytes(6144 * MIB), strangers: Bytes(0), basis: MemoryBasis::Processes };
        let check = FailedCheck {
            device: gpu(),
            index: 0,
            requested: Bytes(4096 * MIB),
            free: Bytes(8192 * MIB),
            really_free: Bytes(2048 * MIB),
            total: Bytes(8192 * MIB),
            beyond,
            users: Box::default(),
        };
        let pod = PodRef { namespace: "default".into(), name: "my-pod".into() };
        assert_eq!(
            failed(&pod, &check),
            "Real-time memory check failed pod=\"default/my-pod\" device=\"GPU-12345\" requestedMem=4096 realUsedMem=6144 \
             totalMem=8192"
        );
    }

    #[test]
    fn the_cases_of_hamis_table_have_nvmls_words() {
        for (why, text) in [
            (
                UnknownMemory::NoReading(Some(Absence::DriverNotLoaded)),
                "failed to initialize NVML: NVML_ERROR_DRIVER_NOT_LOADED",
            ),
            (
                UnknownMemory::NoReading(Some(Absence::NoPermission)),
                "failed to get device handle: NVML_ERROR_NO_PERMISSION",
            ),
            (UnknownMemory::NoDevice(gpu()), "failed to get device handle for UUID GPU-12345: NVML_ERROR_NOT_FOUND"),
        ] {
            assert_eq!(why.to_string(), text);
        }
    }

    #[test]
    fn a_node_without_readings_is_named_once_a_minute_and_a_failed_check_once_a_second() {
        let (findings, at) = (RealtimeFindings::default(), |s: u64| Monotonic(s * 1_000_000_000));
        assert!(findings.may_say("n1", at(100)) && findings.may_say("n2", at(100)));
        assert!(!findings.may_say("n1", at(159)) && findings.may_say("n1", at(160)));
        for n in 0..MOST_NODES {
            findings.may_say(&format!("n{n}"), at(200));
        }
        assert!(findings.said.lock().len() <= MOST_NODES);
        assert_eq!([at(1), at(1), at(2)].map(|now| findings.may_say_failed(now)), [true, false, true]);
    }

    #[test]
    fn the_gap_between_claims_and_use_is_counted_in_both_directions() {
        let findings = RealtimeFindings::default();
        let claimed = UsageChange { claimed: Bytes(4096 * MIB), used: Bytes(0), ..change(None, None) };
        findings.changed(&[change(None, None), claimed]);
        let gaps = findings.gaps();
        assert_eq!((gaps.sum, gaps.counts[3]), (6144 * MIB, 2));
    }
}
