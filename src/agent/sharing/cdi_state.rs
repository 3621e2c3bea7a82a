//! Applies what is known about CDI. Without CDI the node offers no free slot, and the log, an event on the Node and
//! `/readyz` say what to change.

use super::cdi_check::CdiCheckResult;
use super::sharing_task::Sharing;
use crate::event_log::{PodEvent, log_pod_event};
use apiserver::writes::EventType;
use decide::allocator::BoundContainer;
use model::id::{ContainerKey, PodRef};
use model::observation::ErrorCounter;
use model::plugin::CdiState;
use model::request::ContainerRole;
use std::collections::BTreeSet;
use std::sync::Arc;

impl Sharing {
    /// Applies what is known about CDI when it has changed. Without CDI the plugin offers no free slot, but stays
    /// registered, because the kubelet calls the plugin before it restarts a container.
    pub(super) fn apply_cdi(&mut self) {
        let Some(before) = self.cdi.take() else { return };
        let Some(now) = self.cdi.finding().cloned() else { return };
        let was_missing = before.is_some_and(|before| !before.works());
        if now.works() {
            tracing::info!(why = &*now.why, "containers get their GPUs by CDI");
            if was_missing {
                let note =
                    format!("Containers get their GPUs by CDI again, and this node offers its GPUs: {}.", now.why);
                self.status.write_on_node(EventType::Normal, "CdiWorks", note);
            }
        } else {
            tracing::error!("this node offers no GPU, because containers would not get their limits: {}", now.why);
            let note = format!("This node offers no GPU, because containers would not get their limits: {}.", now.why);
            self.status.write_on_node(EventType::Warning, "CdiMissing", note);
        }
        self.allocator.set_tickets_lost(now.lost);
        self.allocator.close(!now.works() || self.allocator.unreadable_specs().is_some());
        self.publish_list();
        self.check_all_by_ticket();
    }

    /// Counts whether CDI works, and how many running pods an earlier release started without CDI.
    pub(super) fn count_cdi(&mut self) {
        let state = match self.cdi.finding() {
            None => CdiState::Unknown,
            Some(finding) if finding.works() => CdiState::Works,
            Some(finding) => {
                let pods: BTreeSet<_> = self.allocator.early_tickets().into_iter().map(|(pod, _)| pod).collect();
                let earlier_pods = u32::try_from(pods.len()).unwrap_or(u32::MAX);
                CdiState::Missing { why: Arc::clone(&finding.why), earlier_pods }
            }
        };
        self.counts.cdi_is(state);
    }

    /// Starts checks of whether the first containers have their devices.
    pub(super) fn check_first_containers(&mut self, bound: &[BoundContainer]) {
        let works = self.cdi.finding().is_some_and(decide::cdi::CdiFinding::works);
        // An init container may end before the check.
        let stays = |bound: &&BoundContainer| {
            let holder = &bound.limits.holder;
            let requests = self.allocator.gpu_pod(&holder.pod).map_or(&[][..], |gpu_pod| &gpu_pod.requests);
            requests.iter().any(|request| request.container == holder.container && request.role != ContainerRole::Init)
        };
        let stays: Vec<&BoundContainer> = bound.iter().filter(|bound| works && !bound.early).filter(stays).collect();
        stays.into_iter().for_each(|one| self.cdi.check_first(&one.limits.holder, &one.limits.pod));
    }

    /// If it is known that the runtime ignores CDI devices, checks every container that may have started with a ticket.
    pub(super) fn check_all_by_ticket(&mut self) {
        if self.cdi.finding().is_some_and(|finding| finding.lost) {
            self.allocator.started_by_ticket().into_iter().for_each(|about| self.cdi.check_any(about));
        }
    }

    /// Handles the result of a check: whether a container really has its devices.
    pub(super) fn handle_cdi_check(&mut self, result: &CdiCheckResult) {
        let CdiCheckResult { key, pod, has } = result;
        self.cdi.has_checked(result);
        match has {
            // One container with devices is enough, even if another container lacked its devices before, for example
            // because the runtime's configuration was different then.
            Some(true) if self.cdi.has_devices() => {
                tracing::info!(%pod, container = &*key.container, "a container has what its CDI device stands for: CDI works here");
            }
            Some(true) => {
                tracing::debug!(%pod, container = &*key.container, "a container has what its CDI device stands for")
            }
            None => {
                tracing::info!(%pod, container = &*key.container, "could not check whether this container got its CDI devices");
            }
            Some(false) => self.handle_missing_devices(key, pod),
        }
    }

    /// Handles a container that runs without the devices of its ticket. Once this was seen in two namespaces, the node
    /// offers no GPU, so that no other container starts without its devices, and every container with a ticket is
    /// checked. If the runtime reports that CDI is enabled, the report overrides the checks.
    fn handle_missing_devices(&mut self, key: &ContainerKey, pod: &PodRef) {
        if self.status.not_applied(&key.pod, pod) {
            self.counts.error(ErrorCounter::EditsNotApplied);
            log_pod_event(pod, &PodEvent::LimitsNotApplied { container: &key.container });
        }
        self.cdi.lacks_devices(pod);
    }
}
