//! This node's pods at the API server: the last list, and the state of the watch.

use model::id::PodUid;
use model::pod::{Pod, PodController, PodLabels, PodList, PodWatchState};
use model::view::PodWatchView;
use std::sync::Arc;

/// What the API server reported last. It stays while the API server is unreachable.
#[derive(Debug, Default)]
pub struct ApiPods {
    list: PodList,
    owners: Arc<[(PodUid, PodController)]>,
    labels: Arc<[(PodUid, PodLabels)]>,
    watch: Option<PodWatchState>,
}

impl ApiPods {
    /// Replaces the list.
    pub fn replace(&mut self, list: PodList) {
        let owner = |pod: &Arc<Pod>| Some((pod.cgroup_uid().clone(), pod.controller.clone()?));
        self.owners = list.pods.iter().filter_map(owner).collect();
        let labelled = list.pods.iter().filter(|pod| !pod.labels.is_empty());
        self.labels = labelled.map(|pod| (pod.cgroup_uid().clone(), pod.labels.clone())).collect();
        self.list = list;
    }

    /// Replaces the state of the watch.
    pub fn set_watch(&mut self, watch: PodWatchState) {
        self.watch = Some(watch);
    }

    /// The controller of each pod that has a controller.
    #[must_use]
    pub fn owners(&self) -> Arc<[(PodUid, PodController)]> {
        Arc::clone(&self.owners)
    }

    /// The labels to show, by pod.
    #[must_use]
    pub fn labels(&self) -> Arc<[(PodUid, PodLabels)]> {
        Arc::clone(&self.labels)
    }

    /// All pods, ordered by UID.
    #[must_use]
    pub fn all(&self) -> &[Arc<Pod>] {
        &self.list.pods
    }

    /// The pod with this UID of the API server.
    #[must_use]
    pub fn get(&self, uid: &PodUid) -> Option<&Arc<Pod>> {
        let place = self.list.pods.binary_search_by(|pod| pod.uid.cmp(uid)).ok()?;
        self.list.pods.get(place)
    }

    /// Number of pods beyond the bound of the list.
    #[must_use]
    pub fn left_out(&self) -> u32 {
        self.list.left_out
    }

    /// The state for the view; `None` if the agent does not watch pods.
    #[must_use]
    pub fn view(&self) -> Option<PodWatchView> {
        self.watch.clone().map(|watch| PodWatchView {
            watch,
            pods: u32::try_from(self.list.pods.len()).unwrap_or(u32::MAX),
            left_out: self.list.left_out,
            unreadable: self.list.unreadable,
        })
    }
}
