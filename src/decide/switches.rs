//! Errors of NVSwitches, counted since the agent's start.

use crate::node_event::NodeEvent;
use model::switch::{MAX_SWITCHES, MAX_SXID_CODES, SwitchView, Sxid};

/// The switches that have reported errors.
#[derive(Debug, Default)]
pub struct Switches {
    list: Vec<SwitchView>,
}

impl Switches {
    /// Counts an error. Returns it as an event, even if there is no room to count it.
    pub fn sxid(&mut self, sxid: Sxid) -> Vec<NodeEvent> {
        let place = match self.list.binary_search_by(|switch| switch.pci_bus_id.cmp(&sxid.switch)) {
            Ok(place) => Some(place),
            Err(place) if self.list.len() < MAX_SWITCHES => {
                self.list.insert(place, SwitchView { pci_bus_id: sxid.switch.clone(), sxids: Vec::new() });
                Some(place)
            }
            Err(_) => None,
        };
        if let Some(switch) = place.and_then(|place| self.list.get_mut(place)) {
            let same = |(code, fatal, _): &&mut (u32, bool, u64)| (*code, *fatal) == (sxid.code, sxid.fatal);
            if let Some((_, _, count)) = switch.sxids.iter_mut().find(same) {
                *count += 1;
            } else if switch.sxids.len() < MAX_SXID_CODES {
                switch.sxids.push((sxid.code, sxid.fatal, 1));
            }
        }
        vec![NodeEvent::Sxid(sxid)]
    }

    /// All switches that have reported errors.
    #[must_use]
    pub fn view(&self) -> Vec<SwitchView> {
        self.list.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::Monotonic;

    fn sxid(switch: u32, code: u32, fatal: bool) -> Sxid {
        Sxid { switch: format!("{switch:08x}").into(), code, fatal, link: None, at: Monotonic(1) }
    }

    #[test]
    fn errors_are_counted_by_switch_code_and_severity() {
        let mut switches = Switches::default();
        for one in [sxid(2, 20_034, true), sxid(1, 22_013, false), sxid(2, 20_034, true), sxid(2, 20_034, false)] {
            assert_eq!(switches.sxid(one.clone()), [NodeEvent::Sxid(one)], "each error is an event");
        }
        let counted: Vec<_> =
            switches.view().into_iter().map(|switch| (switch.pci_bus_id.to_string(), switch.sxids)).collect();
        let second = vec![(20_034, true, 2), (20_034, false, 1)];
        assert_eq!(counted, [("00000001".to_owned(), vec![(22_013, false, 1)]), ("00000002".to_owned(), second)]);
    }

    #[test]
    fn switches_and_codes_are_bounded() {
        let mut switches = Switches::default();
        for number in 0..1000 {
            switches.sxid(sxid(number, 1, true));
            switches.sxid(sxid(0, number, true));
        }
        assert_eq!(switches.view().len(), MAX_SWITCHES);
        assert!(switches.view().iter().all(|switch| switch.sxids.len() <= MAX_SXID_CODES));
    }
}
