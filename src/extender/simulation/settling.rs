//! Ends all troubles, waits until nothing changes any more, and checks what must hold then.

use super::process::Process;
use super::settled;
use super::trouble::Troubles;
use super::weather::{SECOND, Weather};
use super::world::{Place, Step, World};
use wire::annotation_keys::EVICT;

/// A pod that was woken in vain several times waits up to five minutes for the next wake.
const LONGEST_PAUSE: u64 = 330 * SECOND;

impl World {
    /// Lets everything settle, and checks what must hold then.
    pub(super) fn settle(&mut self) -> Result<(), String> {
        self.heal();
        let (mut quiet, mut version) = (self.now, self.api.etcd.changed);
        let end = self.now + 1200 * SECOND;
        let marked = |pod: &std::sync::Arc<super::object::SimPod>| pod.annotations.contains_key(EVICT) && !pod.ended();
        // A marked pod may wait for the longest pause of the evictions.
        while self.now < quiet + if self.api.etcd.pods().any(marked) { 160 } else { 60 } * SECOND
            || self.now < quiet + LONGEST_PAUSE && self.waits_for_a_wake()
        {
            if self.now > end {
                return Err("the cluster does not settle within 20 minutes".to_owned());
            }
            let next = self.now + SECOND;
            self.run_until(next);
            if let Some(why) = self.failed.take() {
                return Err(why);
            }
            // An extender has not noticed yet that its connection has died.
            let unnoticed = self.api.watches.values().any(|watch| watch.died.is_some() && !watch.is_given_up());
            if self.api.etcd.changed != version || unnoticed {
                (quiet, version) = (self.now, self.api.etcd.changed);
            }
        }
        self.settled()
    }

    /// Whether a pod waits although the leader believes that it fits.
    fn waits_for_a_wake(&mut self) -> bool {
        let leader = self.places.iter_mut().position(|place| place.process.as_mut().is_some_and(Process::decides));
        let leader = leader.and_then(|leader| self.places[leader].process.as_ref());
        leader.is_some_and(|leader| settled::all_placed(&self.api.etcd, &self.machines, leader).is_err())
    }

    /// Ends all troubles: every process and machine runs, and the network is good.
    fn heal(&mut self) {
        (self.calm, self.weather) = (true, Weather::default());
        // The leader ends while strangers leave. Only the next leader sees the room for pods that were refused before its term.
        if self.random.chance(250) {
            for place in &mut self.places {
                if place.process.take_if(|process| process.decides()).is_some() {
                    place.paused = false;
                }
            }
        }
        for place in 0..self.places.len() {
            self.places[place].cut = false;
            match self.places[place].process.as_ref().map(|process| process.number) {
                None => self.start(place),
                Some(number) => self.resume(place, number),
            }
        }
        for reporter in &mut self.reporters {
            reporter.is_silent(0);
        }
        self.api.forbidden.clear();
        let unreadable: Vec<_> = self.api.etcd.pods().filter(|pod| pod.is_unreadable()).cloned().collect();
        for pod in unreadable {
            self.api.etcd.put_pod(pod.tampered(self.now, ""));
        }
        // kube-scheduler leaves room for a nominated pod, also while a stranger keeps this pod away.
        let may_stay = self.api.etcd.pods().all(|pod| pod.node.is_some() || pod.priority == 0);
        for machine in &mut self.machines {
            machine.strangers.retain(|_, _| may_stay && self.random.chance(500));
        }
        for machine in self.machines.iter_mut().filter(|machine| !machine.up) {
            machine.boots(&mut self.api, &mut self.random);
        }
    }

    /// Troubles begin again.
    pub(super) fn stir(&mut self) {
        (self.calm, self.weather) = (false, Weather::of(&mut self.random));
        self.troubles = Troubles::of(&mut self.random);
        self.after(SECOND, Step::Trouble);
    }

    fn settled(&mut self) -> Result<(), String> {
        let leader = self.places.iter_mut().position(|place| place.process.as_mut().is_some_and(Process::decides));
        let Some(leader) = leader else { return Err("nobody leads".to_owned()) };
        // A process that knows only what it reads now.
        self.places.push(Place { process: None, paused: false, cut: false, ..self.places[leader] });
        let fresh = self.places.len() - 1;
        self.start(fresh);
        let next = self.now + 5 * SECOND;
        self.run_until(next);
        if let Some(why) = self.failed.take() {
            return Err(why);
        }
        let process = |place: &'_ Place| place.process.is_some();
        let others = self.places.iter().enumerate().filter(|(at, place)| *at != leader && process(place));
        let others: Vec<&Process> = others.filter_map(|(_, place)| place.process.as_ref()).collect();
        let leader = self.places[leader].process.as_ref().ok_or("nobody leads")?;
        if let Some(at) = self.reporters.iter().position(|reporter| !reporter.reports_to(leader.number, self.now)) {
            return Err(format!("the agent of node-{at} does not report to extender-{}", leader.number));
        }
        let checked = settled::check(&self.api.etcd, &self.machines, leader, &others);
        self.places.truncate(fresh);
        checked
    }
}
