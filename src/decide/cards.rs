//! The GPUs of the node: what was last read of each, what happened to it, and what is worth saying.

use crate::health::{Change, Policy, Record, silence, untold};
use crate::occupants::Occupants;
use crate::remark::Remark;
use model::gpu::{Gpu, GpuSample, MAX_GPUS, Unidentified, Xid};
use model::id::GpuUuid;
use model::observation::GpuSourceState;
use model::process::{GpuProcess, GpuProcesses};
use model::reading::{Absence, Reading};
use model::time::Monotonic;
use model::unit::Bytes;
use model::usage::Rated;
use model::view::MAX_XID_CODES;
use std::collections::BTreeMap;
use std::sync::Arc;

/// One GPU.
#[derive(Debug)]
pub struct Card {
    /// Who.
    pub gpu: Arc<Gpu>,
    /// What was last read.
    pub sample: Arc<GpuSample>,
    /// Its processes.
    pub processes: Reading<Arc<[GpuProcess]>>,
    /// Processes beyond the bound.
    pub left_out: u32,
    /// Who has a part in it, by the last list that was read.
    pub occupants: Occupants,
    /// The last XID.
    pub last_xid: Option<Xid>,
    /// XIDs by code.
    pub xids: BTreeMap<u32, u64>,
    /// All of them.
    pub xid_count: u64,
    /// What goes over its NVLinks.
    pub nvlink: Rated<Bytes>,
    /// What condemns it.
    pub record: Record,
}

impl Card {
    fn new(gpu: Gpu) -> Self {
        Card {
            gpu: Arc::new(gpu),
            sample: Arc::default(),
            processes: Reading::NOT_YET,
            left_out: 0,
            occupants: Occupants::default(),
            last_xid: None,
            xids: BTreeMap::new(),
            xid_count: 0,
            nvlink: Rated::default(),
            record: Record::default(),
        }
    }

    /// The GPU and its MIG instances.
    pub fn devices(&self) -> impl Iterator<Item = &GpuUuid> {
        std::iter::once(&self.gpu.uuid).chain(self.gpu.instances().iter().map(|instance| &instance.uuid))
    }

    /// Takes new readings; says so when the card fell silent or speaks again, and what that makes of its health.
    fn read(&mut self, sample: Arc<GpuSample>, policy: &Policy, now: Monotonic) -> Vec<Remark> {
        let before = silence(&self.sample);
        let after = silence(&sample);
        let first = untold(&self.sample);
        self.sample = sample;
        self.nvlink.update(self.sample.nvlink_bytes, |bytes| bytes.0);
        let spoken = match (before, after) {
            (None, Some(why)) => Some(Remark::GpuSick(self.gpu.uuid.clone(), why)),
            (Some(old), Some(why)) if old != why => Some(Remark::GpuSick(self.gpu.uuid.clone(), why)),
            (Some(_), None) if !first => Some(Remark::GpuWell(self.gpu.uuid.clone())),
            _ => None,
        };
        let changes = self.record.read(&self.sample, policy, now);
        spoken.into_iter().chain(changes.into_iter().map(|change| self.changed(change))).collect()
    }

    fn changed(&self, change: Change) -> Remark {
        match change {
            Change::Condemned(incident) => Remark::GpuCondemned(self.gpu.uuid.clone(), incident),
            Change::Fit => Remark::GpuFit(self.gpu.uuid.clone()),
        }
    }

    fn silent(&mut self, why: Absence, policy: &Policy, now: Monotonic) {
        self.sample = Arc::new(GpuSample::absent(why));
        self.nvlink.update(self.sample.nvlink_bytes, |bytes| bytes.0);
        // The source's own remark says it of all cards.
        let _ = self.record.read(&self.sample, policy, now);
        self.processes = Reading::Absent(why);
        self.left_out = 0;
    }

    fn count(&mut self, xid: &Xid) {
        self.last_xid = Some(xid.clone());
        self.xid_count += 1;
        if self.xids.len() < MAX_XID_CODES || self.xids.contains_key(&xid.code) {
            *self.xids.entry(xid.code).or_default() += 1;
        }
    }
}

/// All of them, ordered by index.
#[derive(Debug)]
pub struct Cards {
    /// Whether they can be seen at all.
    pub source: GpuSourceState,
    /// Version of the driver that answered last.
    pub driver: Option<Arc<str>>,
    /// At most [`MAX_GPUS`].
    pub cards: Vec<Card>,
    /// Those that could never be identified, ordered by index; at most [`MAX_GPUS`].
    pub unidentified: Vec<Unidentified>,
    /// What condemns a card.
    pub policy: Policy,
}

impl Default for Cards {
    fn default() -> Self {
        Cards {
            source: GpuSourceState::Starting,
            driver: None,
            cards: Vec::new(),
            unidentified: Vec::new(),
            policy: Policy::default(),
        }
    }
}

impl Cards {
    /// The source changed. Cards that are known stay known; their readings become absent for the source's reason.
    pub fn source(&mut self, state: GpuSourceState, now: Monotonic) -> Vec<Remark> {
        if self.source == state {
            return Vec::new();
        }
        let why = match &state {
            GpuSourceState::Missing { why, .. } => Some(*why),
            GpuSourceState::Hanging => Some(Absence::CallHangs),
            GpuSourceState::SwitchedOff => Some(Absence::SwitchedOff),
            GpuSourceState::Starting | GpuSourceState::Working { .. } => None,
        };
        if let Some(why) = why {
            self.cards.iter_mut().for_each(|card| card.silent(why, &self.policy, now));
            self.unidentified.iter_mut().for_each(|gpu| gpu.why = why);
        }
        if let GpuSourceState::Working { driver, .. } = &state {
            self.driver = Some(Arc::clone(driver));
        }
        self.source = state.clone();
        vec![Remark::GpuSource(state)]
    }

    /// The list changed: what is new begins empty, what is known keeps its readings and counts, the rest is forgotten.
    pub fn listed(&mut self, gpus: Vec<Gpu>) -> Vec<Remark> {
        let mut remarks = Vec::new();
        let mut old = std::mem::take(&mut self.cards);
        for gpu in gpus.into_iter().take(MAX_GPUS) {
            if self.cards.iter().any(|card| card.gpu.uuid == gpu.uuid) {
                continue;
            }
            match old.iter().position(|card| card.gpu.uuid == gpu.uuid) {
                Some(place) => {
                    let mut card = old.swap_remove(place);
                    card.gpu = Arc::new(gpu);
                    self.cards.push(card);
                }
                None => {
                    remarks.push(Remark::GpuAppeared {
                        gpu: gpu.uuid.clone(),
                        model: Arc::clone(&gpu.model),
                        index: gpu.index,
                    });
                    self.cards.push(Card::new(gpu));
                }
            }
        }
        remarks.extend(old.into_iter().map(|card| Remark::GpuDisappeared(card.gpu.uuid.clone())));
        self.cards.sort_by(|a, b| (a.gpu.index, &a.gpu.uuid).cmp(&(b.gpu.index, &b.gpu.uuid)));
        remarks
    }

    /// The GPUs that could not be identified are these. The source has logged why.
    pub fn nameless(&mut self, mut gpus: Vec<Unidentified>) {
        gpus.sort_by_key(|gpu| gpu.index);
        gpus.dedup_by_key(|gpu| gpu.index);
        gpus.truncate(MAX_GPUS);
        self.unidentified = gpus;
    }

    /// Readings of one card. Of a card that is not listed they are dropped: the list comes first.
    pub fn read(&mut self, uuid: &GpuUuid, sample: GpuSample, now: Monotonic) -> Vec<Remark> {
        let Some(card) = self.cards.iter_mut().find(|card| &card.gpu.uuid == uuid) else { return Vec::new() };
        card.read(Arc::new(sample), &self.policy, now)
    }

    /// Processes of one card.
    pub fn processes(&mut self, told: GpuProcesses) {
        if let Some(card) = self.find(&told.gpu) {
            if let Some(list) = told.list.value() {
                card.occupants.told(list, told.left_out);
            }
            card.processes = told.list.map(Arc::from);
            card.left_out = told.left_out;
        }
    }

    /// A driver error: counted on its card, and said in any case.
    pub fn xid(&mut self, mut xid: Xid, now: Monotonic) -> Vec<Remark> {
        let card = match (&xid.gpu, &xid.pci_bus_id) {
            (Some(uuid), _) => self.cards.iter_mut().find(|card| &card.gpu.uuid == uuid),
            (None, Some(told)) => self.cards.iter_mut().find(|card| {
                card.gpu.pci_bus_id.value().is_some_and(|known| slot(known).is_some() && slot(known) == slot(told))
            }),
            (None, None) => None,
        };
        let mut change = None;
        if let Some(card) = card {
            xid.gpu = Some(card.gpu.uuid.clone());
            card.count(&xid);
            change = card.record.xid(xid.code, &self.policy, now).map(|change| card.changed(change));
        }
        std::iter::once(Remark::Xid(xid)).chain(change).collect()
    }

    /// The process behind an error that was counted already: known of the card's last one from now on, and said.
    pub fn xid_process(&mut self, xid: Xid) -> Vec<Remark> {
        let card = xid.gpu.as_ref().and_then(|uuid| self.find(uuid));
        if let Some(last) = card.and_then(|card| card.last_xid.as_mut()).filter(|last| last.code == xid.code) {
            last.pid = xid.pid;
            last.pod.clone_from(&xid.pod);
        }
        vec![Remark::XidProcess(xid)]
    }

    fn find(&mut self, uuid: &GpuUuid) -> Option<&mut Card> {
        self.cards.iter_mut().find(|card| &card.gpu.uuid == uuid)
    }
}

/// Domain, bus and device of a PCI address. NVML writes the domain with eight digits, the kernel with four, and the
/// kernel leaves the function away: `00000000:65:00.0` and `0000:65:00` are one slot.
fn slot(address: &str) -> Option<(u32, u32, u32)> {
    let hex = |text: &str| u32::from_str_radix(text, 16).ok();
    let mut parts = address.split(':');
    let (domain, bus, rest) = (parts.next()?, parts.next()?, parts.next()?);
    let device = rest.split('.').next()?;
    if parts.next().is_some() { None } else { Some((hex(domain)?, hex(bus)?, hex(device)?)) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::gpu::XidSource;
    use model::incident::Incident;
    use model::unit::Celsius;

    const AT: Monotonic = Monotonic(1);

    fn gpu(number: u32) -> Gpu {
        Gpu {
            uuid: GpuUuid::parse(&format!("GPU-{number}")).unwrap(),
            index: number,
            minor: Reading::NOT_YET,
            model: "H100".into(),
            pci_bus_id: Reading::Measured(format!("00000000:{number:02X}:00.0").into(), Monotonic(1)),
            numa_node: Reading::NOT_YET,
            architecture: Reading::NOT_YET,
            compute: Reading::NOT_YET,
            memory_total: Reading::Measured(Bytes(80 << 30), Monotonic(1)),
            power_limit: Reading::NOT_YET,
            mig_mode: Reading::NOT_YET,
            mig: Reading::NOT_YET,
            links: vec![],
            nvlinks_active: Reading::NOT_YET,
            board: model::upkeep::Board::default(),
        }
    }

    fn well() -> GpuSample {
        GpuSample { temperature: Reading::Measured(Celsius(40), Monotonic(1)), ..GpuSample::default() }
    }

    fn xid(pci: &str) -> Xid {
        Xid {
            gpu: None,
            mig: None,
            pci_bus_id: Some(pci.into()),
            code: 79,
            pid: None,
            pod: None,
            at: Monotonic(1),
            source: XidSource::KernelLog,
        }
    }

    #[test]
    fn a_card_that_falls_silent_and_speaks_again_is_told_once_each() {
        let mut cards = Cards::default();
        let uuid = gpu(0).uuid;
        assert_eq!(cards.listed(vec![gpu(0)]).len(), 1);
        assert_eq!(cards.read(&uuid, well(), AT), []);
        assert_eq!(
            cards.read(&uuid, GpuSample::absent(Absence::GpuLost), AT),
            [
                Remark::GpuSick(uuid.clone(), Absence::GpuLost),
                Remark::GpuCondemned(uuid.clone(), Incident::Silent(Absence::GpuLost)),
            ]
        );
        assert_eq!(cards.read(&uuid, GpuSample::absent(Absence::GpuLost), AT), []);
        assert_eq!(cards.read(&uuid, well(), AT), [Remark::GpuWell(uuid)]);
    }

    #[test]
    fn hot_plug_keeps_the_neighbours_readings_and_counts() {
        let mut cards = Cards::default();
        cards.listed(vec![gpu(0), gpu(1)]);
        cards.read(&gpu(1).uuid, well(), AT);
        cards.xid(xid("0000:01:00"), AT);
        let remarks = cards.listed(vec![gpu(2), gpu(1)]);
        assert_eq!(remarks.len(), 2, "one came, one went");
        assert_eq!(cards.cards[0].gpu.uuid, gpu(1).uuid, "ordered by index");
        assert_eq!(*cards.cards[0].sample, well());
        assert_eq!(cards.cards[0].xids, [(79, 1)].into());
    }

    #[test]
    fn the_kernels_address_and_nvmls_are_one_slot() {
        let mut cards = Cards::default();
        cards.listed(vec![gpu(0), gpu(0x65)]);
        let remarks = cards.xid(xid("0000:65:00"), AT);
        assert!(
            matches!(&remarks[..], [Remark::Xid(told), Remark::GpuCondemned(..)] if told.gpu == Some(gpu(0x65).uuid))
        );
        for (address, expect) in
            [("0000:65:00", Some((0, 0x65, 0))), ("65:00", None), ("x:65:00", None), ("0:1:2:3", None), ("", None)]
        {
            assert_eq!(slot(address), expect, "{address}");
        }
    }

    /// Promise 4 in docs/specification.md.
    #[test]
    fn without_a_source_every_reading_is_absent_for_its_reason() {
        let mut cards = Cards::default();
        cards.listed(vec![gpu(0)]);
        cards.read(&gpu(0).uuid, well(), AT);
        assert_eq!(cards.source(GpuSourceState::Hanging, AT).len(), 1);
        assert_eq!(cards.cards[0].sample.temperature.absence(), Some(Absence::CallHangs));
        assert_eq!(cards.source(GpuSourceState::Hanging, AT), [], "said once");
    }

    #[test]
    fn gpus_that_were_never_identified_are_kept_in_order_and_bounded() {
        let nameless = |index| Unidentified { index, pci_bus_id: Reading::NOT_YET, why: Absence::GpuLost };
        let mut cards = Cards::default();
        cards.nameless(vec![nameless(3), nameless(1), nameless(3)]);
        assert_eq!(cards.unidentified, [nameless(1), nameless(3)]);
        cards.source(GpuSourceState::Hanging, AT);
        assert!(cards.unidentified.iter().all(|gpu| gpu.why == Absence::CallHangs), "the source's reason is theirs");
        cards.nameless((0..1000).map(nameless).collect());
        assert_eq!(cards.unidentified.len(), MAX_GPUS);
        cards.nameless(Vec::new());
        assert_eq!(cards.unidentified, [], "identified after all, or gone");
    }

    /// Promise 33 in docs/specification.md.
    #[test]
    fn what_hits_one_card_condemns_no_neighbour() {
        let mut cards = Cards::default();
        cards.listed((0..4).map(gpu).collect());
        for number in 0..4 {
            cards.read(&gpu(number).uuid, well(), AT);
        }
        cards.xid(xid("0000:02:00"), AT);
        cards.read(&gpu(3).uuid, GpuSample::absent(Absence::GpuLost), AT);
        let fit: Vec<bool> = cards.cards.iter().map(|card| card.record.condition(&cards.policy).fit()).collect();
        assert_eq!(fit, [true, true, false, false]);
        cards.xid(xid("0000:77:00"), AT);
        let still: Vec<bool> = cards.cards.iter().map(|card| card.record.condition(&cards.policy).fit()).collect();
        assert_eq!(still, fit, "an error of no known card condemns none");
    }

    #[test]
    fn codes_of_xids_are_bounded() {
        let mut cards = Cards::default();
        cards.listed(vec![gpu(0)]);
        for code in 0..1000 {
            cards.xid(Xid { code, ..xid("0000:00:00") }, AT);
        }
        assert_eq!((cards.cards[0].xids.len(), cards.cards[0].xid_count), (MAX_XID_CODES, 1000));
    }
}
