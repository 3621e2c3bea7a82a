//! Reports each driver error once. NVML's events and the kernel log report the same XIDs, at almost the same time.

use crate::nvml::inventory::KnownGpu;
use model::gpu::{MigInstance, Xid, XidSource};
use model::id::GpuUuid;
use model::switch::Sxid;
use model::time::Monotonic;
use model::xid::states_severity;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use wire::kernel_log::{KernelSxid, KernelXid, PciSlot, pci_slot};

/// The same GPU and code from the other source within this time is the same error. Both sources report within
/// milliseconds; the event thread may be a second late on a busy machine.
const SAME: Duration = Duration::from_secs(5);
/// Maximum number of errors that are kept for comparison. A failing machine reports a handful a second; 256 are more
/// than five seconds' worth.
const REMEMBERED: usize = 256;

/// The errors of the last seconds.
#[derive(Debug, Default)]
pub(super) struct Recent {
    errors: VecDeque<SeenXid>,
    /// Errors from NVML that wait for the kernel log, which states their severity. At most [`REMEMBERED`].
    waiting: VecDeque<Xid>,
}

#[derive(Debug)]
struct SeenXid {
    gpu: Option<GpuUuid>,
    pci_bus_id: Option<Arc<str>>,
    code: u32,
    named: bool,
    stated: bool,
    source: XidSource,
    at: Monotonic,
}

/// The part of a report that earlier reports did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The error itself.
    Error,
    /// Process or severity, or both, which an earlier report from NVML could not give.
    Details {
        /// The process.
        process: bool,
        /// The severity.
        severity: bool,
    },
    /// Nothing.
    None,
}

/// Whether both reports concern one GPU.
fn same_gpu(
    (one, its_slot): (&Option<GpuUuid>, &Option<Arc<str>>),
    (other, other_slot): (&Option<GpuUuid>, &Option<Arc<str>>),
) -> bool {
    match (one, other) {
        (Some(one), Some(other)) => one == other,
        _ => its_slot.is_some() && its_slot == other_slot,
    }
}

impl Recent {
    /// Keeps an error from NVML until the kernel log has reported it too, or until [`Recent::overdue`]: its number does
    /// not say whether it is fatal. Returns the error if it need not wait.
    pub(super) fn wait_for_log(&mut self, xid: Xid) -> Option<Xid> {
        let waits = xid.source == XidSource::Nvml && states_severity(xid.code) && self.waiting.len() < REMEMBERED;
        if waits {
            self.waiting.push_back(xid);
            return None;
        }
        Some(xid)
    }

    /// The report from the kernel log for which an error from NVML has waited, with the facts of both.
    pub(super) fn completed(&mut self, from_log: &Xid) -> Option<Xid> {
        let place = self.waiting.iter().position(|waiting| {
            waiting.code == from_log.code
                && same_gpu((&waiting.gpu, &waiting.pci_bus_id), (&from_log.gpu, &from_log.pci_bus_id))
        });
        let waiting = self.waiting.remove(place?)?;
        let Xid { severity, pid, source, .. } = *from_log;
        Some(Xid { severity, pid, source, mig: waiting.mig.or_else(|| from_log.mig.clone()), ..waiting })
    }

    /// The errors from NVML that the kernel log has not reported in time.
    pub(super) fn overdue(&mut self, now: Monotonic) -> Vec<Xid> {
        let count = self.waiting.iter().take_while(|xid| now.since(xid.at) > SAME).count();
        self.waiting.drain(..count).collect()
    }

    /// What is new in this report.
    pub(super) fn news(&mut self, xid: &Xid) -> News {
        self.errors.retain(|seen| xid.at.since(seen.at) <= SAME);
        let twins = self.errors.iter_mut().filter(|seen| {
            same_gpu((&seen.gpu, &seen.pci_bus_id), (&xid.gpu, &xid.pci_bus_id))
                && seen.code == xid.code
                && seen.source != xid.source
        });
        // If the error has happened twice, each report of the log belongs to another occurrence.
        if let Some(twin) = twins.min_by_key(|seen| seen.named || seen.stated) {
            let process = xid.pid.is_some() && !std::mem::replace(&mut twin.named, true);
            let severity = xid.severity.is_some() && !std::mem::replace(&mut twin.stated, true);
            return if process || severity { News::Details { process, severity } } else { News::None };
        }
        if self.errors.len() >= REMEMBERED {
            self.errors.pop_front();
        }
        self.errors.push_back(SeenXid {
            gpu: xid.gpu.clone(),
            pci_bus_id: xid.pci_bus_id.clone(),
            code: xid.code,
            named: xid.pid.is_some(),
            stated: xid.severity.is_some(),
            source: xid.source,
            at: xid.at,
        });
        News::Error
    }
}

/// The XID in a line of the kernel log; its GPU is found by PCI slot.
pub(super) fn from_log(line: &KernelXid, known: &[KnownGpu], at: Monotonic) -> Xid {
    let gpu = known
        .iter()
        .map(|known| &known.gpu)
        .find(|gpu| gpu.pci_bus_id.value().and_then(|id| pci_slot(id)) == Some(line.slot));
    let mig = line.gpu_instance.and_then(|number| instance(gpu?.instances(), number, line.compute_instance));
    let slot = line.slot;
    Xid {
        gpu: gpu.map(|gpu| gpu.uuid.clone()),
        mig: mig.map(|mig| mig.uuid.clone()),
        pci_bus_id: Some(bus_id(slot)),
        code: line.code,
        severity: line.severity,
        pid: line.pid,
        pod: None,
        at,
        source: XidSource::KernelLog,
    }
}

/// A slot as NVML spells it: `00000000:65:00.0`.
pub(super) fn bus_id(PciSlot { domain, bus, device }: PciSlot) -> Arc<str> {
    format!("{domain:08X}:{bus:02X}:{device:02X}.0").into()
}

/// The error in a line of the kernel log about an NVSwitch.
pub(super) fn of_switch(line: &KernelSxid, at: Monotonic) -> Sxid {
    let slot = line.slot;
    Sxid { switch: bus_id(slot), code: line.code, fatal: line.fatal, link: line.link, at }
}

/// The instance with these numbers; without a compute instance, only if the GPU instance holds a single one.
pub(super) fn instance(instances: &[MigInstance], gpu: u32, compute: Option<u32>) -> Option<&MigInstance> {
    let mut fitting = instances
        .iter()
        .filter(|mig| mig.gpu_instance == gpu && compute.is_none_or(|compute| mig.compute_instance == compute));
    let first = fitting.next()?;
    fitting.next().is_none().then_some(first)
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::gpu::XidSeverity;

    fn xid(gpu: &str, code: u32, source: XidSource, seconds: u64) -> Xid {
        Xid {
            gpu: GpuUuid::parse(gpu).ok(),
            mig: None,
            pci_bus_id: None,
            code,
            severity: None,
            pid: None,
            pod: None,
            at: Monotonic(seconds * 1_000_000_000),
            source,
        }
    }

    #[test]
    fn an_nvlink_error_from_nvml_waits_for_the_severity_in_the_log() {
        use XidSource::{KernelLog, Nvml};
        let mut recent = Recent::default();
        assert!(recent.wait_for_log(xid("GPU-a", 79, Nvml, 100)).is_some(), "its number says that it is fatal");
        assert!(recent.wait_for_log(xid("GPU-a", 145, KernelLog, 100)).is_some());
        for gpu in ["GPU-a", "GPU-b"] {
            assert!(recent.wait_for_log(xid(gpu, 145, Nvml, 100)).is_none());
        }
        let stated = Xid { severity: Some(XidSeverity::Nonfatal), pid: Some(7), ..xid("GPU-b", 145, KernelLog, 101) };
        assert_eq!(recent.completed(&xid("GPU-b", 144, KernelLog, 101)), None, "another error");
        let complete = recent.completed(&stated).expect("the one that waits");
        assert_eq!((complete.severity, complete.pid, complete.at.0), (stated.severity, Some(7), 100_000_000_000));
        assert_eq!(recent.completed(&stated), None, "once");
        let at = |seconds: u64| Monotonic(seconds * 1_000_000_000);
        assert_eq!(recent.overdue(at(105)), [], "the log may be a little late");
        assert_eq!(recent.overdue(at(106)), [xid("GPU-a", 145, Nvml, 100)]);
        assert_eq!(recent.overdue(at(200)), []);
    }

    #[test]
    fn the_same_error_from_both_sources_is_reported_once() {
        use XidSource::{KernelLog, Nvml};
        let mut recent = Recent::default();
        for (name, xid, first) in [
            ("the log reports it", xid("GPU-a", 79, KernelLog, 100), true),
            ("NVML reports it too", xid("GPU-a", 79, Nvml, 101), false),
            ("another GPU has it too", xid("GPU-b", 79, Nvml, 101), true),
            ("another error of the same GPU", xid("GPU-a", 63, Nvml, 102), true),
            ("the log reports it again: it happened again", xid("GPU-a", 79, KernelLog, 103), true),
            ("NVML reports it much later: it happened again", xid("GPU-a", 79, Nvml, 109), true),
        ] {
            assert_eq!(recent.news(&xid), if first { News::Error } else { News::None }, "{name}");
        }
    }

    #[test]
    fn a_process_that_only_the_log_names_is_reported_once() {
        let named = |xid: Xid| Xid { pid: Some(77), ..xid };
        let mut recent = Recent::default();
        assert_eq!(recent.news(&xid("GPU-a", 31, XidSource::Nvml, 100)), News::Error);
        let process = News::Details { process: true, severity: false };
        assert_eq!(recent.news(&named(xid("GPU-a", 31, XidSource::KernelLog, 100))), process);
        assert_eq!(recent.news(&named(xid("GPU-a", 31, XidSource::KernelLog, 100))), News::None);
        assert_eq!(recent.news(&named(xid("GPU-b", 31, XidSource::KernelLog, 100))), News::Error);
        assert_eq!(recent.news(&xid("GPU-b", 31, XidSource::Nvml, 100)), News::None, "it was named already");
    }

    #[test]
    fn a_severity_that_only_the_log_states_is_reported_once_for_each_error() {
        let stated = || Xid { severity: Some(XidSeverity::Nonfatal), ..xid("GPU-a", 48, XidSource::KernelLog, 101) };
        let mut recent = Recent::default();
        for _ in 0..2 {
            assert_eq!(recent.news(&xid("GPU-a", 48, XidSource::Nvml, 100)), News::Error);
        }
        for _ in 0..2 {
            assert_eq!(recent.news(&stated()), News::Details { process: false, severity: true });
        }
        assert_eq!(recent.news(&Xid { pid: Some(7), ..stated() }), News::Details { process: true, severity: false });
        assert_eq!(recent.news(&Xid { gpu: GpuUuid::parse("GPU-b").ok(), ..stated() }), News::Error);
        assert_eq!(recent.news(&xid("GPU-b", 48, XidSource::Nvml, 101)), News::None, "the log was first");
    }

    #[test]
    fn the_number_of_remembered_errors_is_bounded() {
        let mut recent = Recent::default();
        for code in 0..10_000 {
            assert_eq!(recent.news(&xid("GPU-a", code, XidSource::Nvml, 1)), News::Error);
        }
        assert_eq!(recent.errors.len(), REMEMBERED);
    }
}
