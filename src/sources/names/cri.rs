//! The container runtime's CRI socket: names, UIDs and images of containers, and which containers are sandboxes.

use super::socket::{MAX_RESPONSE, PolledSource, RequestError, connect, response};
use crate::report::Reporter;
use model::cgroup::{ContainerName, MAX_CGROUPS, NameSource};
use model::id::{ContainerId, PodRef, PodUid};
use model::observation::Fact;
use proto::cri::runtime_service_client::RuntimeServiceClient;
use proto::cri::{
    Container, ContainerFilter, ContainerState, ContainerStateValue, ListContainersRequest, ListPodSandboxRequest,
    PodSandbox, PodSandboxFilter, PodSandboxState, PodSandboxStateValue, VersionRequest,
};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tonic::transport::Channel;

/// The version that the kubelet sends in its own `Version` request.
pub(super) const KUBELET_API: &str = "0.1.0";
/// Maximum size of a name that is kept, in bytes: the limit of Kubernetes for a pod's name.
const MAX_NAME: usize = 253;
/// Maximum size of an image reference that is kept, in bytes: registries allow 255 for the name, a digest is 71.
const MAX_IMAGE: usize = 512;

/// Reads the names of containers from the container runtime.
pub(super) struct Cri {
    paths: Vec<PathBuf>,
    runtime: Option<Runtime>,
    reported: Option<Vec<ContainerName>>,
    reporter: Reporter,
}

struct Runtime {
    path: PathBuf,
    client: RuntimeServiceClient<Channel>,
}

impl Cri {
    /// A source that uses the first of `paths` at which a runtime answers.
    pub(super) fn at(paths: Vec<PathBuf>, reporter: Reporter) -> Self {
        Cri { paths, runtime: None, reported: None, reporter }
    }

    async fn find(&self) -> Result<Runtime, RequestError> {
        let mut broken = None;
        for path in &self.paths {
            match Runtime::open(path).await {
                Ok(runtime) => return Ok(runtime),
                Err(RequestError::Absent { .. }) => {}
                Err(error) => broken = broken.or(Some(error)),
            }
        }
        let paths = || self.paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
        Err(broken.unwrap_or_else(|| RequestError::Absent { paths: paths() }))
    }
}

impl PolledSource for Cri {
    const PERIOD: Duration = Duration::from_secs(5);

    async fn poll(&mut self) -> Result<(), RequestError> {
        // The connection is taken out during the request. After a failure it is dropped, and the next poll searches for
        // the runtime again.
        let mut runtime = match self.runtime.take() {
            Some(runtime) => runtime,
            None => self.find().await?,
        };
        let names = runtime.names().await?;
        self.runtime = Some(runtime);
        if self.reported.as_ref() != Some(&names) {
            self.reporter.fact(Fact::Names { source: NameSource::Cri, names: names.clone() });
            self.reported = Some(names);
        }
        Ok(())
    }
}

// === impl Runtime ===

impl Runtime {
    async fn open(path: &Path) -> Result<Runtime, RequestError> {
        let mut client = RuntimeServiceClient::new(connect(path).await?).max_decoding_message_size(MAX_RESPONSE);
        let request = VersionRequest { version: KUBELET_API.to_owned() };
        let version = response("Version", path, client.version(request)).await?;
        let (runtime, version) = (version.runtime_name, version.runtime_version);
        tracing::info!(runtime, version, socket = %path.display(), "names of containers come from the runtime");
        Ok(Runtime { path: path.to_owned(), client })
    }

    /// Names of all running containers and ready sandboxes, ordered by id.
    async fn names(&mut self) -> Result<Vec<ContainerName>, RequestError> {
        let running = ContainerStateValue { state: ContainerState::ContainerRunning.into() };
        let request = ListContainersRequest { filter: Some(ContainerFilter { state: Some(running) }) };
        let containers = response("ListContainers", &self.path, self.client.list_containers(request)).await?.containers;

        let ready = PodSandboxStateValue { state: PodSandboxState::SandboxReady.into() };
        let request = ListPodSandboxRequest { filter: Some(PodSandboxFilter { state: Some(ready) }) };
        let sandboxes = response("ListPodSandbox", &self.path, self.client.list_pod_sandbox(request)).await?.items;

        Ok(names(&containers, &sandboxes))
    }
}

/// The names in the two responses of a runtime, ordered by id, at most [`MAX_CGROUPS`]. Entries without valid names are
/// left out.
#[must_use]
pub fn names(containers: &[Container], sandboxes: &[PodSandbox]) -> Vec<ContainerName> {
    let containers = containers.iter().filter_map(of_container);
    let mut names: Vec<_> = containers.chain(sandboxes.iter().filter_map(of_sandbox)).take(MAX_CGROUPS).collect();
    names.sort_by(|one, other| one.id.cmp(&other.id));
    names
}

/// The names of a container from the labels that the kubelet sets; `None` for a container that the kubelet did not
/// create.
fn of_container(container: &Container) -> Option<ContainerName> {
    let label = |key: &str| container.labels.get(key).map(String::as_str);
    Some(ContainerName {
        id: ContainerId::parse(&container.id).ok()?,
        uid: label("io.kubernetes.pod.uid").and_then(|uid| PodUid::parse(uid).ok()),
        pod: PodRef {
            namespace: kept(label("io.kubernetes.pod.namespace")?, MAX_NAME)?,
            name: kept(label("io.kubernetes.pod.name")?, MAX_NAME)?,
        },
        container: Some(kept(label("io.kubernetes.container.name")?, MAX_NAME)?),
        image: image(container),
    })
}

/// The image as the pod's author wrote it, otherwise as the runtime resolved it.
fn image(container: &Container) -> Option<Arc<str>> {
    let spec = container.image.as_ref();
    let author = spec.map(|spec| spec.user_specified_image.as_str());
    let resolved = spec.map(|spec| spec.image.as_str());
    [author, resolved, Some(container.image_ref.as_str())].into_iter().flatten().find_map(|text| kept(text, MAX_IMAGE))
}

fn of_sandbox(sandbox: &PodSandbox) -> Option<ContainerName> {
    let pod = sandbox.metadata.as_ref()?;
    Some(ContainerName {
        id: ContainerId::parse(&sandbox.id).ok()?,
        uid: PodUid::parse(&pod.uid).ok(),
        pod: PodRef { namespace: kept(&pod.namespace, MAX_NAME)?, name: kept(&pod.name, MAX_NAME)? },
        container: None,
        image: None,
    })
}

/// The text, if it can be shown: not empty, not too long, without control characters.
fn kept(text: &str, max_length: usize) -> Option<Arc<str>> {
    let fit = !text.is_empty() && text.len() <= max_length && !text.chars().any(char::is_control);
    fit.then(|| Arc::from(text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto::cri::{ImageSpec, PodSandboxMetadata};

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn labelled(labels: &[(&str, &str)]) -> Container {
        Container {
            id: ID.into(),
            labels: labels.iter().map(|(key, value)| ((*key).into(), (*value).into())).collect(),
            ..Container::default()
        }
    }

    #[test]
    fn the_image_is_the_one_that_the_user_specified_if_the_runtime_reports_it() {
        let spec = |image: &str, user: &str| Some(ImageSpec { image: image.into(), user_specified_image: user.into() });
        for (spec, reference, expect) in [
            (spec("sha256:1", "app:1"), "sha256:2", Some("app:1")),
            (spec("app:2", ""), "sha256:2", Some("app:2")),
            (None, "sha256:2", Some("sha256:2")),
            (spec("", ""), "", None),
        ] {
            let container = Container { image: spec, image_ref: reference.into(), ..Container::default() };
            assert_eq!(image(&container).as_deref(), expect);
        }
    }

    #[test]
    fn a_container_that_the_kubelet_did_not_create_has_no_names() {
        assert_eq!(of_container(&labelled(&[("io.kubernetes.pod.name", "train-0")])), None);
        assert_eq!(of_container(&labelled(&[])), None);
    }

    /// Valid ids and labels, and arbitrary ones.
    fn text(good: &'static str, max_length: usize) -> impl Strategy<Value = String> {
        prop_oneof![
            Just(good.to_owned()),
            ".{0,40}",
            proptest::string::string_regex(&format!("x{{0,{max_length}}}")).unwrap()
        ]
    }

    proptest! {
        #[test]
        fn any_response_of_a_runtime_gives_printable_names_or_none(
            id in text(ID, 80), name in text("train-0", 300), uid in ".{0,40}", namespace in text("nlp", 300),
            container in text("main", 300), image in text("app:1", 600),
        ) {
            let labels = [("pod.name", &name), ("pod.namespace", &namespace), ("pod.uid", &uid), ("container.name", &container)];
            let labels = labels.map(|(key, value)| (format!("io.kubernetes.{key}"), value.clone()));
            let one = Container { id: id.clone(), labels: labels.into(), image_ref: image, ..Container::default() };
            let metadata = Some(PodSandboxMetadata { name, uid, namespace });
            for named in names(&[one], &[PodSandbox { id, metadata }]) {
                let shown = [Some(&named.pod.name), Some(&named.pod.namespace), named.container.as_ref()];
                for text in shown.into_iter().flatten() {
                    prop_assert!(!text.is_empty() && text.len() <= MAX_NAME && !text.contains(char::is_control));
                }
                prop_assert!(named.image.is_none_or(|image| image.len() <= MAX_IMAGE));
            }
        }

        #[test]
        fn any_bytes_decoded_as_responses_give_sorted_names_or_none(bytes: Vec<u8>) {
            use prost::Message;
            let containers = proto::cri::ListContainersResponse::decode(&*bytes).unwrap_or_default().containers;
            let sandboxes = proto::cri::ListPodSandboxResponse::decode(&*bytes).unwrap_or_default().items;
            prop_assert!(names(&containers, &sandboxes).is_sorted_by(|one, other| one.id <= other.id));
        }
    }
}
