//! The kubelet's PodResources: which devices a container holds. Its response has neither pod UID nor container id, so
//! it can be matched to running containers only by names from another source.

use super::socket::{MAX_RESPONSE, PolledSource, RequestError, connect, response};
use crate::report::Reporter;
use model::observation::{ContainerDevices, Fact};
use proto::pod_resources::pod_resources_lister_client::PodResourcesListerClient;
use proto::pod_resources::{ListPodResourcesRequest, ListPodResourcesResponse};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tonic::Code;
use tonic::transport::Channel;

/// Maximum number of device ids that are kept: 16 GPUs with 100 slots each, and forty times as many for other plugins' devices.
const MAX_DEVICES: usize = 65_536;

/// Reads the devices of containers from the kubelet.
pub(super) struct PodResources {
    path: PathBuf,
    client: Option<PodResourcesListerClient<Channel>>,
    reported: Option<Vec<ContainerDevices>>,
    reporter: Reporter,
}

impl PodResources {
    pub(super) fn at(path: PathBuf, reporter: Reporter) -> Self {
        PodResources { path, client: None, reported: None, reporter }
    }
}

impl PolledSource for PodResources {
    const PERIOD: Duration = Duration::from_secs(15);

    async fn poll(&mut self) -> Result<(), RequestError> {
        let mut client = match self.client.take() {
            Some(client) => client,
            None => PodResourcesListerClient::new(connect(&self.path).await?).max_decoding_message_size(MAX_RESPONSE),
        };
        let listed = match response("List", &self.path, client.list(ListPodResourcesRequest {})).await {
            // The kubelet works, but limits the requests of all clients together to bursts of ten. The agent repeats
            // the request in the next period.
            Err(RequestError::Refused { status, .. }) if status.code() == Code::ResourceExhausted => {
                self.client = Some(client);
                return Ok(());
            }
            other => other?,
        };
        self.client = Some(client);
        let devices = gather(listed);
        if self.reported.as_ref() != Some(&devices) {
            self.reporter.fact(Fact::Devices(devices.clone()));
            self.reported = Some(devices);
        }
        Ok(())
    }
}

/// Sends one request, for callers that cannot wait for the next periodic request.
///
/// # Errors
/// A sentence that names the request and the socket.
pub async fn list_once(path: &Path) -> Result<Vec<ContainerDevices>, String> {
    let request = async {
        let client = PodResourcesListerClient::new(connect(path).await?);
        let mut client = client.max_decoding_message_size(MAX_RESPONSE);
        response("List", path, client.list(ListPodResourcesRequest {})).await
    };
    request.await.map(gather).map_err(|why| why.to_string())
}

/// One entry for each container and resource, sorted, with at most `MAX_DEVICES` ids together. The kubelet sends one entry for
/// each device.
#[must_use]
pub fn gather(listed: ListPodResourcesResponse) -> Vec<ContainerDevices> {
    let mut gathered: BTreeMap<[Arc<str>; 4], Vec<Arc<str>>> = BTreeMap::new();
    let mut left = MAX_DEVICES;
    for pod in listed.pod_resources {
        let (namespace, name): (Arc<str>, Arc<str>) = (pod.namespace.into(), pod.name.into());
        for container in pod.containers {
            let container_name: Arc<str> = container.name.into();
            for device in container.devices.into_iter().filter(|device| !device.device_ids.is_empty()) {
                let key = [namespace.clone(), name.clone(), container_name.clone(), device.resource_name.into()];
                let taken = device.device_ids.len().min(left);
                left -= taken;
                if taken > 0 {
                    let ids = gathered.entry(key).or_default();
                    ids.extend(device.device_ids.into_iter().take(taken).map(Arc::from));
                }
            }
        }
    }
    let whole = |([namespace, pod, container, resource], mut ids): ([Arc<str>; 4], Vec<Arc<str>>)| {
        ids.sort();
        ids.dedup();
        ContainerDevices { namespace, pod, container, resource, ids }
    };
    gathered.into_iter().map(whole).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto::pod_resources::{ContainerDevices as Listed, ContainerResources, PodResources as Pod};

    fn pod(name: &str, devices: &[(&str, &[&str])]) -> Pod {
        let device = |(resource, ids): &(&str, &[&str])| Listed {
            resource_name: (*resource).into(),
            device_ids: ids.iter().map(|id| (*id).into()).collect(),
        };
        let container = ContainerResources { name: "main".into(), devices: devices.iter().map(device).collect() };
        Pod { name: name.into(), namespace: "ml".into(), containers: vec![container] }
    }

    #[test]
    fn the_devices_of_a_container_are_in_one_entry_for_each_resource() {
        let devices: [(&str, &[&str]); 4] = [
            ("nvidia.com/gpu", &["g-2"]),
            ("example.com/nic", &["n-1"]),
            ("nvidia.com/gpu", &["g-1"]),
            ("nvidia.com/gpu", &["g-2"]),
        ];
        let gathered = gather(ListPodResourcesResponse { pod_resources: vec![pod("a", &devices)] });
        let ids: Vec<(&str, Vec<&str>)> =
            gathered.iter().map(|one| (&*one.resource, one.ids.iter().map(|id| &**id).collect())).collect();
        assert_eq!(ids, [("example.com/nic", vec!["n-1"]), ("nvidia.com/gpu", vec!["g-1", "g-2"])]);
    }

    #[test]
    fn containers_without_devices_are_not_reported() {
        let listed = ListPodResourcesResponse { pod_resources: vec![pod("a", &[]), pod("b", &[("x", &[])])] };
        assert_eq!(gather(listed), []);
    }

    #[test]
    fn devices_beyond_the_limit_are_left_out() {
        let many: Vec<String> = (0..MAX_DEVICES + 10).map(|n| n.to_string()).collect();
        let many: Vec<&str> = many.iter().map(String::as_str).collect();
        let reported =
            gather(ListPodResourcesResponse { pod_resources: vec![pod("a", &[("x", &many), ("y", &["1"])])] });
        assert_eq!(reported.iter().map(|devices| devices.ids.len()).sum::<usize>(), MAX_DEVICES);
    }

    proptest! {
        #[test]
        fn gathered_devices_are_sorted_and_unique_and_those_of_the_response(
            listed in prop::collection::vec(
                (("[ab]?", "[ab]?"), "[ab]?", "[ab]?", prop::collection::vec("[a-d]?", 0..4)), 0..12),
        ) {
            let pods = listed.iter().map(|((namespace, pod), container, resource, ids)| {
                let device = Listed { resource_name: resource.clone(), device_ids: ids.clone() };
                let container = ContainerResources { name: container.clone(), devices: vec![device] };
                Pod { name: pod.clone(), namespace: namespace.clone(), containers: vec![container] }
            });
            let reported = gather(ListPodResourcesResponse { pod_resources: pods.collect() });
            let key =
                |one: &ContainerDevices| [&one.namespace, &one.pod, &one.container, &one.resource].map(Arc::clone);
            prop_assert!(reported.is_sorted_by(|one, other| key(one) < key(other)));
            prop_assert!(reported.iter().all(|one| !one.ids.is_empty() && one.ids.is_sorted_by(|a, b| a < b)));
            let expected: std::collections::BTreeSet<[&str; 5]> = listed.iter().flat_map(|((namespace, pod), container, resource, ids)| {
                ids.iter().map(move |id| [&**namespace, &**pod, &**container, &**resource, &**id])
            }).collect();
            let found: std::collections::BTreeSet<[&str; 5]> = reported.iter().flat_map(|one| {
                one.ids.iter().map(move |id| [&*one.namespace, &*one.pod, &*one.container, &*one.resource, &**id])
            }).collect();
            prop_assert_eq!(expected, found);
        }

        #[test]
        fn any_bytes_decoded_as_a_response_give_devices_or_none(bytes: Vec<u8>) {
            let listed: ListPodResourcesResponse = prost::Message::decode(&*bytes).unwrap_or_default();
            prop_assert!(gather(listed).iter().all(|devices| !devices.ids.is_empty()));
        }
    }
}
