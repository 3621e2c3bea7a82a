//! Living processes of this machine that are said to use the made-up cards: so that the way from a process to its
//! container is the real one. Those in containers are preferred.

use crate::owner::{Identified, Owners};
use crate::roots::HostRoots;
use model::process::Owner;

/// Processes on one card.
pub(super) const ON_EACH: usize = 2;
/// At most this many processes are looked at in one search: each costs a few reads of `/proc`, so this is some 20 ms, and
/// what was not found is looked for again with the next list.
const LOOKED_AT: usize = 512;

/// Who uses which card.
#[derive(Debug)]
pub(super) struct Tenants {
    roots: HostRoots,
    owners: Owners,
    wanted: usize,
    chosen: Vec<Identified>,
}

impl Tenants {
    /// For so many cards. Nobody is chosen yet.
    pub(super) fn new(roots: HostRoots, owners: Owners, cards: u32) -> Self {
        let wanted = ON_EACH * usize::try_from(cards).unwrap_or(usize::MAX);
        Tenants { roots, owners, wanted, chosen: Vec::new() }
    }

    /// Lets go of those that ended and looks for others in their place.
    pub(super) fn renew(&mut self) {
        let owners = &mut self.owners;
        self.chosen.retain_mut(|tenant| match owners.identify(tenant.key.pid) {
            Some(now) if now.key == tenant.key => {
                *tenant = now;
                true
            }
            _ => false,
        });
        if self.chosen.len() < self.wanted {
            let mut found = self.search();
            found.sort_by_key(|process| (!matches!(process.owner, Owner::Cgroup(_)), process.key));
            found.truncate(self.wanted - self.chosen.len());
            self.chosen.append(&mut found);
        }
    }

    /// Those on one card: the cards take turns, so that few processes are spread over many cards.
    pub(super) fn of(&self, card: u32) -> Vec<Identified> {
        let cards = self.wanted / ON_EACH;
        let first = usize::try_from(card).unwrap_or(usize::MAX);
        self.chosen.iter().skip(first).step_by(cards.max(1)).take(ON_EACH).cloned().collect()
    }

    /// Programs (not threads of the kernel, which have no command line) that are not chosen yet.
    fn search(&mut self) -> Vec<Identified> {
        let Ok(entries) = std::fs::read_dir(&self.roots.procfs) else { return Vec::new() };
        let mut pids: Vec<u32> =
            entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
        // The youngest are workloads rather than services of the machine.
        pids.sort_unstable_by(|one, other| other.cmp(one));
        let mut found = Vec::new();
        for pid in pids.into_iter().take(LOOKED_AT) {
            let known = self.chosen.iter().any(|tenant| tenant.key.pid == pid);
            let command_line = std::fs::read(self.roots.procfs.join(pid.to_string()).join("cmdline"));
            if !known && command_line.is_ok_and(|text| !text.is_empty()) {
                found.extend(self.owners.identify(pid));
            }
        }
        found
    }
}
