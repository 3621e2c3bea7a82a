//! A container is about to start: whose ids are these, and what was promised?

use super::ledger::of_pod;
use super::refusal::{Refusal, Scarce};
use super::state::{Share, WithoutClaim};
use model::id::{GpuUuid, PodRef, PodUid, Ticket};
use model::share::{Ask, Assignment, ContainerKey, Held, Issued, MemoryAsk, Portion, Slot, Tenant};
use model::unit::{Bytes, Mib};
use std::collections::BTreeSet;
use std::sync::Arc;

/// One container with all that it gets. All containers that share a set of ids are answered together: kubelet's call does
/// not say which of them starts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bound {
    /// Who.
    pub holder: ContainerKey,
    /// Names of the pod.
    pub pod: PodRef,
    /// The ticket that is to be filled.
    pub ticket: Ticket,
    /// What it may use, in the order of the claim.
    pub portions: Vec<Portion>,
    /// Whether kubelet counts other devices than those of the claim.
    pub differs: bool,
    /// Whether its devices were given already, at `Allocate`.
    pub early: bool,
}

/// What to do about a start.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Fill these tickets; then the container may start.
    Fill {
        /// The containers, in the order of kubelet's books.
        bound: Vec<Bound>,
        /// Whether the pod was placed by nobody and its claim, which was made up here, is whole now: it must be written on
        /// the pod.
        shared: bool,
    },
    /// Ids of a plugin that ran here before us: its answer is what the container gets, and nothing is to be done. Its ids may
    /// look like ours; then its answer does not.
    Foreign,
    /// Not known yet: look again when books or pods have changed.
    Wait(Waiting),
    /// It must not start.
    Refuse {
        /// The pod.
        uid: PodUid,
        /// Its names.
        pod: PodRef,
        /// The container; where several share the ids and the cause is not that of one of them, all of these.
        container: Arc<str>,
        /// Why.
        why: Refusal,
    },
}

/// What is waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// kubelet's books do not name the ids yet.
    Books,
    /// The pod has not been seen yet.
    Pod,
}

impl Waiting {
    /// One word for metrics.
    #[must_use]
    pub fn code(self) -> &'static str {
        match self {
            Waiting::Books => "Books",
            Waiting::Pod => "Pod",
        }
    }
}

impl Share {
    /// Judges a start of the container that holds `ids`, by kubelet's books as they are now; `None` where they cannot be
    /// read, which is not the same as empty: what was read before stays.
    pub fn start(&mut self, ids: &[Arc<str>], books: Option<&[Held]>) -> Verdict {
        let Some(books) = books else { return Verdict::Wait(Waiting::Books) };
        self.books_are(books);
        self.judge(ids, books)
    }

    /// The same by rows that need not be all of the books.
    pub(super) fn judge(&mut self, ids: &[Arc<str>], books: &[Held]) -> Verdict {
        let asked: BTreeSet<&str> = ids.iter().map(|id| &**id).collect();
        // Most rows end at their first id.
        let its = |row: &&Held| {
            row.ids.iter().all(|id| asked.contains(&**id))
                && asked.iter().all(|id| row.ids.iter().any(|own| **own == **id))
        };
        let rows: Vec<&Held> = books.iter().filter(its).collect();
        let Some(uid) = self.whose(&rows) else { return Verdict::Wait(Waiting::Books) };
        let rows: Vec<&Held> = rows.into_iter().filter(|row| row.holder.pod == uid).collect();
        if rows.iter().all(|row| foreign(row)) {
            return Verdict::Foreign;
        }
        let Some(tenant) = self.tenants.get(&uid).cloned() else { return Verdict::Wait(Waiting::Pod) };
        let refuse_of = |container: &Arc<str>, why| Verdict::Refuse {
            uid: uid.clone(),
            pod: tenant.pod.clone(),
            container: container.clone(),
            why,
        };
        let refuse = |why| {
            let names: Vec<&str> = rows.iter().map(|row| &*row.holder.container).collect();
            refuse_of(&names.join(", ").into(), why)
        };
        if tenant.finished {
            return refuse(Refusal::Finished);
        }
        if let Some(row) = rows.iter().find(|row| row.ticket.is_none() && !foreign(row)) {
            return refuse_of(&row.holder.container, Refusal::AnswerLost);
        }
        self.settle(books);
        self.follow_kubelet(&tenant, &rows);
        let (portions, shared) = match self.granted(&tenant, books) {
            Ok(granted) => granted,
            Err(why) => return refuse(why),
        };
        let bound = bind(&tenant, &portions, &rows).and_then(|bound| self.distinct(bound));
        let bound = match bound.and_then(|bound| self.confirmed(bound)) {
            Ok(bound) => bound,
            Err((container, why)) => return refuse_of(&container, why),
        };
        if let Err(why) = self.fits(&tenant, &portions) {
            return refuse(why);
        }
        for bound in &bound {
            self.known_now(bound);
        }
        self.keep(&tenant, &portions, &|name| bound.iter().any(|bound| *bound.holder.container == *name));
        if self.seated.contains_key(&uid) {
            self.due.rewritten.insert(uid.clone());
        }
        if shared {
            self.unwritten.insert(uid.clone());
        }
        // A start may be judged again before anything is done about it.
        let shared = self.unwritten.contains(&uid);
        self.started.insert(uid);
        Verdict::Fill { bound, shared }
    }

    /// What this pod was given is being written on it: no later start has to say so.
    pub fn share_is_written(&mut self, uid: &PodUid) {
        self.unwritten.remove(uid);
    }

    /// The claim that holds of a pod, and whether it was made up here and is whole now.
    fn granted(&self, tenant: &Tenant, books: &[Held]) -> Result<(Vec<Vec<Portion>>, bool), Refusal> {
        match self.assignment(tenant) {
            Assignment::Given(portions) => Ok((portions, false)),
            Assignment::Unreadable(why) => Err(Refusal::Unreadable(why)),
            Assignment::BadRequest(why) => Err(Refusal::BadRequest(why)),
            Assignment::None if !self.shares(&tenant.uid) => Err(Refusal::NotPlaced),
            Assignment::None => {
                let portions = self.share_out(tenant, books)?;
                let whole = tenant.is_whole(&portions);
                Ok((portions, whole))
            }
        }
    }

    /// Whether what was given early is its holder's, and what is to come late can come.
    fn confirmed(&self, bound: Vec<Bound>) -> Result<Vec<Bound>, (Arc<str>, Refusal)> {
        if let Some(late) = bound.iter().find(|bound| !bound.early && self.tickets_lost) {
            return Err((late.holder.container.clone(), Refusal::WithoutCdi));
        }
        for bound in bound.iter().filter(|bound| bound.early) {
            let why = match self.tickets.get(&bound.ticket) {
                None => Refusal::Forgotten,
                Some(issued) if issued.holder.as_ref() == Some(&bound.holder) => continue,
                Some(issued) => Refusal::Mistaken { what: self.mistaken(issued, &bound.portions) },
            };
            return Err((bound.holder.container.clone(), why));
        }
        Ok(bound)
    }

    /// Where kubelet keeps to a topology of its own, a claim that has not started yet moves to the NUMA node that kubelet
    /// chose, if all promises can be kept there.
    fn follow_kubelet(&mut self, tenant: &Tenant, rows: &[&Held]) {
        if !self.follows_kubelet {
            return;
        }
        for row in rows.iter().filter(|row| !row.early) {
            let new = row.ticket.as_ref().and_then(|ticket| self.tickets.get(ticket));
            let Some(issued) = new.filter(|issued| issued.holder.is_none()).cloned() else { continue };
            let Some(at) = tenant.asks.iter().position(|ask| ask.container == row.holder.container) else { continue };
            let own = self.claim(&tenant.uid).and_then(|claim| claim.get(at).cloned());
            let moved = own.and_then(|own| self.where_kubelet_is(&own, &row.ids));
            let Some(moved) = moved.filter(|moved| self.could_sit(&tenant.uid, at, moved)) else { continue };
            if self.seat((&tenant.uid, at), &moved, None).is_some() {
                self.due.reseated += 1;
                let kept = Issued { holder: Some(row.holder.clone()), given: Some(moved), ..issued };
                self.tickets.keep(kept.clone());
                self.due.tickets.insert(kept.ticket.clone(), kept);
            }
        }
    }

    /// Keeps whose a ticket is, for the time when the books cannot say it.
    fn known_now(&mut self, bound: &Bound) {
        let Some(issued) = self.tickets.get(&bound.ticket).filter(|issued| issued.holder.is_none()).cloned() else {
            return;
        };
        let known = Issued { holder: Some(bound.holder.clone()), ..issued };
        self.tickets.keep(known.clone());
        self.due.tickets.insert(known.ticket.clone(), known);
    }

    /// The pod that holds these rows. Two pods can stand there only while kubelet has not yet forgotten a finished one.
    fn whose(&self, rows: &[&Held]) -> Option<PodUid> {
        let pods: BTreeSet<&PodUid> = rows.iter().map(|row| &row.holder.pod).collect();
        let live = |uid: &&&PodUid| self.tenants.get(**uid).is_some_and(|tenant| !tenant.finished);
        match pods.len() {
            0 => None,
            1 => pods.first().map(|uid| (*uid).clone()),
            _ => {
                let mut alive = pods.iter().filter(live);
                match (alive.next(), alive.next()) {
                    (Some(one), None) => Some((*one).clone()),
                    _ => None,
                }
            }
        }
    }

    pub(super) fn may_share(&self) -> bool {
        match self.without_claim {
            WithoutClaim::Share => true,
            WithoutClaim::Refuse => false,
            WithoutClaim::Auto => !self.served_by_scheduler,
        }
    }

    /// Whether a pod that nobody placed gets something: one that has got something gets the rest too.
    pub(super) fn shares(&self, uid: &PodUid) -> bool {
        self.may_share() || self.kept.contains_key(uid)
    }

    /// What a pod that nobody placed gets: the devices of the slots that kubelet chose, limited only where the pod itself
    /// names a limit. A container of which it is not known what it holds has nothing in it yet.
    fn share_out(&self, tenant: &Tenant, books: &[Held]) -> Result<Vec<Vec<Portion>>, Refusal> {
        let before = self.kept.get(&tenant.uid);
        let asks = tenant.asks.iter().enumerate();
        let own = asks.map(|(at, ask)| {
            if let Some(own) = before.and_then(|before| before.get(at)).filter(|own| !own.is_empty()) {
                return Ok(own.clone());
            }
            let key = ContainerKey { pod: tenant.uid.clone(), container: ask.container.clone() };
            let row = books.iter().find(|row| row.holder == key).or_else(|| self.held.get(&key));
            let ids = row.map(|row| &row.ids).or_else(|| self.tickets.held_by(&key).map(|issued| &issued.ids));
            ids.map_or(Ok(Vec::new()), |ids| self.share_of(ask, ids))
        });
        own.collect()
    }

    /// The same for one container of it.
    pub(super) fn share_of(&self, ask: &Ask, ids: &[Arc<str>]) -> Result<Vec<Portion>, Refusal> {
        let portion = |slot: Slot| {
            let card = self.cards.get(&slot.device).ok_or_else(|| Refusal::NoSuchDevice(slot.device.clone()))?;
            let memory = ask.memory.map(|memory| match memory {
                MemoryAsk::Bytes(bytes) => bytes,
                MemoryAsk::Percent(percent) => Bytes(card.memory.0.saturating_mul(u64::from(percent)) / 100),
            });
            // In the unit of what is written on the pod, and as it is read back.
            let memory = memory.map(|memory| Mib::within(memory).bytes()).filter(|memory| *memory > Bytes(0));
            Ok(Portion { device: slot.device, memory, cores: ask.cores })
        };
        ids.iter().filter_map(|id| Slot::parse(id)).map(portion).collect()
    }

    /// Whether the claim fits beside what has started. What a pod that has started holds it holds: only what is more than
    /// that is judged again.
    pub(super) fn fits(&self, tenant: &Tenant, portions: &[Vec<Portion>]) -> Result<(), Refusal> {
        let devices: BTreeSet<&GpuUuid> = portions.iter().flatten().map(|portion| &portion.device).collect();
        for device in devices {
            let card = self.cards.get(device).ok_or_else(|| Refusal::NoSuchDevice(device.clone()))?;
            let (mut wanted, others) = (of_pod(tenant, portions, device), self.promised(device, &tenant.uid));
            let kept = self.kept.get(&tenant.uid).map_or(&[][..], Vec::as_slice);
            let held = of_pod(tenant, kept, device);
            // Without a limit that it had it wants all there is.
            if lost(kept, portions, device, |portion| portion.memory.is_some()) {
                wanted.memory = card.memory.0;
            }
            if lost(kept, portions, device, |portion| portion.cores.is_some()) {
                wanted.cores = u64::from(card.cores);
            }
            for (what, wanted, held, promised, total) in [
                (Scarce::Memory, wanted.memory, held.memory, others.memory, card.memory.0),
                (Scarce::Cores, wanted.cores, held.cores, others.cores, u64::from(card.cores)),
                (Scarce::Slots, wanted.containers, held.containers, others.containers, u64::from(card.slots)),
            ] {
                if wanted > held && promised.saturating_add(wanted) > total {
                    return Err(Refusal::DoesNotFit { device: device.clone(), what, total, promised, wanted });
                }
            }
            if wanted.clash(others, card) && !held.clash(others, card) {
                return Err(Refusal::NotAlone { device: device.clone(), own: wanted.alone > 0 });
            }
        }
        Ok(())
    }
}

/// Whether a container that had a limit of `device` has none by its claim as it is now.
fn lost(kept: &[Vec<Portion>], now: &[Vec<Portion>], device: &GpuUuid, limited: fn(&Portion) -> bool) -> bool {
    kept.iter().zip(now).any(|(kept, now)| {
        let had = kept.iter().any(|portion| portion.device == *device && limited(portion));
        had && now.iter().any(|portion| portion.device == *device && !limited(portion))
    })
}

/// Whether a row is another plugin's.
fn foreign(row: &Held) -> bool {
    row.ticket.is_none() && (row.foreign || row.ids.iter().any(|id| Slot::parse(id).is_none()))
}

/// Ties each row to the part of the claim that is its container's.
pub(super) fn bind(
    tenant: &Tenant,
    portions: &[Vec<Portion>],
    rows: &[&Held],
) -> Result<Vec<Bound>, (Arc<str>, Refusal)> {
    let mut bound = Vec::with_capacity(rows.len());
    for row in rows {
        let Some(ticket) = row.ticket.clone() else { continue };
        let at = tenant.asks.iter().position(|ask| ask.container == row.holder.container);
        let own = at.and_then(|at| portions.get(at)).cloned().unwrap_or_default();
        if own.len() != row.ids.len() {
            let why = Refusal::Count { claimed: own.len(), given: row.ids.len() };
            return Err((row.holder.container.clone(), why));
        }
        let mut counted: Vec<GpuUuid> =
            row.ids.iter().filter_map(|id| Slot::parse(id)).map(|slot| slot.device).collect();
        let mut claimed: Vec<GpuUuid> = own.iter().map(|portion| portion.device.clone()).collect();
        counted.sort();
        claimed.sort();
        bound.push(Bound {
            holder: row.holder.clone(),
            pod: tenant.pod.clone(),
            ticket,
            portions: own,
            differs: counted != claimed,
            early: row.early,
        });
    }
    Ok(bound)
}
