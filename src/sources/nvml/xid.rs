//! Reports each driver error once. NVML's events and the kernel log report the same XIDs, at almost the same time.

use crate::nvml::inventory::KnownGpu;
use model::gpu::{MigInstance, Xid, XidSource};
use model::switch::Sxid;
use model::time::Monotonic;
use std::collections::VecDeque;
use std::time::Duration;
use wire::kernel_log::{KernelSxid, KernelXid, pci_slot};

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
}

#[derive(Debug)]
struct SeenXid {
    gpu: Option<model::id::GpuUuid>,
    pci_bus_id: Option<std::sync::Arc<str>>,
    code: u32,
    named: bool,
    source: XidSource,
    at: Monotonic,
}

/// The part of a report that earlier reports did not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    /// The error itself.
    Error,
    /// The process, which an earlier report from NVML could not name.
    Process,
    /// Nothing.
    None,
}

impl Recent {
    /// What is new in this report.
    pub(super) fn news(&mut self, xid: &Xid) -> News {
        self.errors.retain(|seen| xid.at.since(seen.at) <= SAME);
        let twin = self.errors.iter_mut().find(|seen| {
            let same_gpu = match (&seen.gpu, &xid.gpu) {
                (Some(one), Some(other)) => one == other,
                _ => seen.pci_bus_id.is_some() && seen.pci_bus_id == xid.pci_bus_id,
            };
            same_gpu && seen.code == xid.code && seen.source != xid.source
        });
        if let Some(twin) = twin {
            let news = xid.pid.is_some() && !std::mem::replace(&mut twin.named, true);
            return if news { News::Process } else { News::None };
        }
        if self.errors.len() >= REMEMBERED {
            self.errors.pop_front();
        }
        self.errors.push_back(SeenXid {
            gpu: xid.gpu.clone(),
            pci_bus_id: xid.pci_bus_id.clone(),
            code: xid.code,
            named: xid.pid.is_some(),
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
        pci_bus_id: Some(format!("{:08X}:{:02X}:{:02X}.0", slot.domain, slot.bus, slot.device).into()),
        code: line.code,
        pid: line.pid,
        pod: None,
        at,
        source: XidSource::KernelLog,
    }
}

/// The error in a line of the kernel log about an NVSwitch.
pub(super) fn of_switch(line: &KernelSxid, at: Monotonic) -> Sxid {
    let slot = line.slot;
    Sxid {
        switch: format!("{:08X}:{:02X}:{:02X}.0", slot.domain, slot.bus, slot.device).into(),
        code: line.code,
        fatal: line.fatal,
        link: line.link,
        at,
    }
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
    use model::id::GpuUuid;

    fn xid(gpu: &str, code: u32, source: XidSource, seconds: u64) -> Xid {
        Xid {
            gpu: GpuUuid::parse(gpu).ok(),
            mig: None,
            pci_bus_id: None,
            code,
            pid: None,
            pod: None,
            at: Monotonic(seconds * 1_000_000_000),
            source,
        }
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
        assert_eq!(recent.news(&named(xid("GPU-a", 31, XidSource::KernelLog, 100))), News::Process);
        assert_eq!(recent.news(&named(xid("GPU-a", 31, XidSource::KernelLog, 100))), News::None);
        assert_eq!(recent.news(&named(xid("GPU-b", 31, XidSource::KernelLog, 100))), News::Error);
        assert_eq!(recent.news(&xid("GPU-b", 31, XidSource::Nvml, 100)), News::None, "it was named already");
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
