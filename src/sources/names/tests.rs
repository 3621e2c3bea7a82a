//! Tests of the sources of names over real sockets, with a fake runtime and a fake kubelet.

use super::cri::Cri;
use super::pod_resources::PodResources;
use super::socket::{PolledSource, RequestError};
use super::*;
use model::cgroup::{ContainerName, NameSource};
use model::observation::{ContainerDevices, Fact, Observation, SourceEvent};
use proto::cri::runtime_service_server::{RuntimeService, RuntimeServiceServer};
use proto::cri::{
    Container, ImageSpec, ListContainersRequest, ListContainersResponse, ListPodSandboxRequest, ListPodSandboxResponse,
    PodSandbox, PodSandboxMetadata, StatusRequest, StatusResponse, VersionRequest, VersionResponse,
};
use proto::pod_resources::pod_resources_lister_server::{PodResourcesLister, PodResourcesListerServer};
use proto::pod_resources::{
    AllocatableResourcesRequest, AllocatableResourcesResponse, ContainerDevices as Listed, ContainerResources,
    GetPodResourcesRequest, GetPodResourcesResponse, ListPodResourcesRequest, ListPodResourcesResponse,
    PodResources as Pod,
};
use std::path::Path;

use crate::report::Observations;
use std::time::{Duration, Instant};
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::timeout;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::transport::Server;
use tonic::{Code, Request, Response, Status};

const LIMIT: Duration = Duration::from_secs(20);
const UID: &str = "0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11";

/// A container runtime that answers as the test sets, or refuses when the test sets an error.
struct FakeRuntime(watch::Receiver<Result<Vec<Container>, Status>>);

#[tonic::async_trait]
impl RuntimeService for FakeRuntime {
    async fn version(&self, _: Request<VersionRequest>) -> Result<Response<VersionResponse>, Status> {
        Ok(Response::new(VersionResponse { runtime_name: "fake".into(), runtime_version: "1".into() }))
    }

    async fn status(&self, request: Request<StatusRequest>) -> Result<Response<StatusResponse>, Status> {
        let config = r#"{"containerd":{"defaultRuntimeName":"nvidia","runtimes":{"nvidia":{"options":{"BinaryName":"/usr/bin/nvidia-container-runtime"}}}},"enableCDI":true}"#;
        let info = [("config".to_owned(), config.to_owned())].into();
        Ok(Response::new(if request.into_inner().verbose {
            StatusResponse { info }
        } else {
            StatusResponse::default()
        }))
    }

    async fn list_pod_sandbox(
        &self,
        _: Request<ListPodSandboxRequest>,
    ) -> Result<Response<ListPodSandboxResponse>, Status> {
        let metadata = Some(PodSandboxMetadata { name: "train-0".into(), uid: UID.into(), namespace: "ml".into() });
        Ok(Response::new(ListPodSandboxResponse { items: vec![PodSandbox { id: "f".repeat(64), metadata }] }))
    }

    async fn list_containers(
        &self,
        _: Request<ListContainersRequest>,
    ) -> Result<Response<ListContainersResponse>, Status> {
        self.0.borrow().clone().map(|containers| Response::new(ListContainersResponse { containers }))
    }
}

/// The kubelet's PodResources.
struct FakeKubelet(watch::Receiver<Result<Vec<Pod>, Status>>);

#[tonic::async_trait]
impl PodResourcesLister for FakeKubelet {
    async fn list(&self, _: Request<ListPodResourcesRequest>) -> Result<Response<ListPodResourcesResponse>, Status> {
        self.0.borrow().clone().map(|pod_resources| Response::new(ListPodResourcesResponse { pod_resources }))
    }

    async fn get_allocatable_resources(
        &self,
        _: Request<AllocatableResourcesRequest>,
    ) -> Result<Response<AllocatableResourcesResponse>, Status> {
        Err(Status::unimplemented("not used"))
    }

    async fn get(&self, _: Request<GetPodResourcesRequest>) -> Result<Response<GetPodResourcesResponse>, Status> {
        Err(Status::unimplemented("not used"))
    }
}

fn serve_runtime(path: &Path, responses: &watch::Sender<Result<Vec<Container>, Status>>) -> JoinHandle<()> {
    let incoming = UnixListenerStream::new(UnixListener::bind(path).unwrap());
    let service = RuntimeServiceServer::new(FakeRuntime(responses.subscribe())).max_encoding_message_size(usize::MAX);
    tokio::spawn(async move { Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap() })
}

fn serve_kubelet(path: &Path, responses: &watch::Sender<Result<Vec<Pod>, Status>>) -> JoinHandle<()> {
    let incoming = UnixListenerStream::new(UnixListener::bind(path).unwrap());
    let service = PodResourcesListerServer::new(FakeKubelet(responses.subscribe()));
    tokio::spawn(async move { Server::builder().add_service(service).serve_with_incoming(incoming).await.unwrap() })
}

fn container(digit: &str, name: &str) -> Container {
    let labels = [
        ("io.kubernetes.pod.name", "train-0"),
        ("io.kubernetes.pod.namespace", "ml"),
        ("io.kubernetes.pod.uid", UID),
        ("io.kubernetes.container.name", name),
    ];
    Container {
        id: digit.repeat(64),
        image: Some(ImageSpec { image: "sha256:1".into(), user_specified_image: "app:1".into() }),
        image_ref: "sha256:1".into(),
        labels: labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
    }
}

fn names(seen: &mut Observations) -> Option<Vec<ContainerName>> {
    match seen.try_recv() {
        Ok(Observation::Fact(Fact::Names { source: NameSource::Cri, names })) => Some(names),
        Ok(other) => panic!("{other:?}"),
        Err(_) => None,
    }
}

fn devices(seen: &mut Observations) -> Option<Vec<ContainerDevices>> {
    match seen.try_recv() {
        Ok(Observation::Fact(Fact::Devices(devices))) => Some(devices),
        Ok(other) => panic!("{other:?}"),
        Err(_) => None,
    }
}

async fn links(seen: &mut Observations) -> Vec<ContainerName> {
    match timeout(LIMIT, seen.recv()).await {
        Ok(Some(Observation::Fact(Fact::Names { source: NameSource::LogLinks, names }))) => names,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn containers_and_sandboxes_get_their_names_and_only_changes_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let responses = watch::Sender::new(Ok(vec![container("a", "main")]));
    let _served = serve_runtime(&path, &responses);
    let (reporter, mut seen) = Reporter::channel();
    let mut cri = Cri::at(vec![folder.path().join("absent.sock"), path], reporter);

    cri.poll().await.unwrap();
    let reported = names(&mut seen).unwrap();
    assert_eq!(reported.len(), 2);
    assert_eq!((reported[0].container.as_deref(), reported[0].image.as_deref()), (Some("main"), Some("app:1")));
    assert_eq!((reported[0].pod.to_string(), reported[0].uid.as_ref().unwrap().as_str()), ("ml/train-0".into(), UID));
    assert_eq!(
        (reported[1].container.as_deref(), reported[1].pod.to_string()),
        (None, "ml/train-0".into()),
        "the sandbox"
    );

    cri.poll().await.unwrap();
    assert_eq!(names(&mut seen), None, "nothing new");
    responses.send(Ok(vec![container("a", "main"), container("b", "side")])).unwrap();
    cri.poll().await.unwrap();
    assert_eq!(names(&mut seen).unwrap().len(), 3);
}

#[tokio::test]
async fn a_runtime_that_stops_and_returns_is_found_again() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let responses = watch::Sender::new(Ok(vec![container("a", "main")]));
    let (reporter, mut seen) = Reporter::channel();
    let mut cri = Cri::at(vec![path.clone()], reporter);
    let absent = cri.poll().await.unwrap_err();
    assert!(matches!(absent, RequestError::Absent { .. }), "{absent}");
    assert!(absent.to_string().contains(path.to_str().unwrap()), "{absent}");

    for round in 0..2 {
        let served = serve_runtime(&path, &responses);
        // The first request after the runtime ended may use the connection that died with it.
        let answered = timeout(LIMIT, async { while cri.poll().await.is_err() {} }).await;
        assert!(answered.is_ok(), "round {round}");
        served.abort();
        let _ = served.await;
        std::fs::remove_file(&path).unwrap();
    }
    assert_eq!(names(&mut seen).map(|reported| reported.len()), Some(2));
    assert_eq!(names(&mut seen), None, "the same names are not reported again");
}

#[tokio::test]
async fn a_request_to_a_hanging_socket_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let _listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let (reporter, _seen) = Reporter::channel();
    let begun = Instant::now();
    let error = Cri::at(vec![path], reporter).poll().await.unwrap_err();
    assert!(matches!(error, RequestError::Slow { call: "Version", .. }), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn garbage_from_a_socket_is_an_error_that_names_the_socket() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubelet.sock");
    let listener = UnixListener::bind(&path).unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            stream.writable().await.unwrap();
            let _ = stream.try_write(&[b'x'; 4096]);
        }
    });
    let (reporter, _seen) = Reporter::channel();
    let error = PodResources::at(path.clone(), reporter).poll().await.unwrap_err();
    assert!(matches!(error, RequestError::Refused { .. }), "{error}");
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
}

#[tokio::test]
async fn a_response_beyond_the_size_limit_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let mut huge = container("a", "main");
    huge.image_ref = "x".repeat(17 << 20);
    let responses = watch::Sender::new(Ok(vec![huge]));
    let _served = serve_runtime(&path, &responses);
    let (reporter, _seen) = Reporter::channel();
    match Cri::at(vec![path], reporter).poll().await.unwrap_err() {
        RequestError::Refused { call: "ListContainers", status, .. } => assert_eq!(status.code(), Code::OutOfRange),
        other => panic!("{other}"),
    }
}

#[tokio::test]
async fn the_kubelet_lists_devices_and_its_rate_limit_is_not_a_failure() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubelet.sock");
    let device = Listed { resource_name: "nvidia.com/gpu".into(), device_ids: vec!["GPU-1-0".into()] };
    let main = ContainerResources { name: "main".into(), devices: vec![device] };
    let pod = Pod { name: "train-0".into(), namespace: "ml".into(), containers: vec![main] };
    let responses = watch::Sender::new(Ok(vec![pod]));
    let _served = serve_kubelet(&path, &responses);
    let (reporter, mut seen) = Reporter::channel();
    let mut kubelet = PodResources::at(path, reporter);

    kubelet.poll().await.unwrap();
    let reported = devices(&mut seen).unwrap();
    assert_eq!((&*reported[0].namespace, &*reported[0].pod, &*reported[0].container), ("ml", "train-0", "main"));
    assert_eq!((&*reported[0].resource, &*reported[0].ids[0]), ("nvidia.com/gpu", "GPU-1-0"));

    responses.send(Err(Status::resource_exhausted("rejected by rate limit"))).unwrap();
    kubelet.poll().await.expect("a rate limit is not a failure");
    assert_eq!(devices(&mut seen), None, "and removes no devices");
    responses.send(Ok(vec![])).unwrap();
    kubelet.poll().await.unwrap();
    assert_eq!(devices(&mut seen), Some(vec![]), "the pod is gone");
}

#[tokio::test]
async fn added_and_removed_log_links_are_reported() {
    let folder = tempfile::tempdir().unwrap();
    let folder_path = folder.path().join("containers");
    std::fs::create_dir(&folder_path).unwrap();
    let (reporter, mut seen) = Reporter::channel();
    let reading = tokio::spawn(links::follow(folder_path.clone(), reporter));
    assert_eq!(links(&mut seen).await, []);

    let link = folder_path.join(format!("train-0_ml_main-{}.log", "a".repeat(64)));
    // The kubelet's links may point to nothing: only their names count.
    std::os::unix::fs::symlink("/nowhere", &link).unwrap();
    let reported = links(&mut seen).await;
    assert_eq!((reported.len(), reported[0].container.as_deref(), reported[0].uid.as_ref()), (1, Some("main"), None));
    std::fs::remove_file(&link).unwrap();
    assert_eq!(links(&mut seen).await, []);

    std::fs::remove_dir(&folder_path).unwrap();
    std::fs::create_dir(&folder_path).unwrap();
    std::os::unix::fs::symlink("/nowhere", &link).unwrap();
    assert_eq!(links(&mut seen).await.len(), 1, "a folder that was made again is watched again");
    reading.abort();
}

#[tokio::test]
async fn without_sources_no_error_is_counted_and_stop_ends_the_task() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        cri_socket: CriSocket::Auto,
        log_links: folder.path().join("no-links"),
        pod_resources_socket: folder.path().join("no-kubelet.sock"),
    };
    let (reporter, mut seen) = Reporter::channel();
    let stop = CancellationToken::new();
    let running = tokio::spawn(run(settings, reporter, stop.clone()));
    stop.cancel();
    timeout(LIMIT, running).await.unwrap().unwrap();
    let counted = std::iter::from_fn(|| seen.try_recv().ok())
        .find(|observation| matches!(observation, Observation::Event(SourceEvent::Trouble(_))));
    assert!(counted.is_none(), "{counted:?}: a machine without Kubernetes has no failures");
}

#[tokio::test]
async fn a_missing_socket_that_a_setting_names_is_counted() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        cri_socket: CriSocket::At(folder.path().join("no-runtime.sock")),
        log_links: folder.path().to_owned(),
        pod_resources_socket: folder.path().join("no-kubelet.sock"),
    };
    let (reporter, mut seen) = Reporter::channel();
    let running = tokio::spawn(run(settings, reporter, CancellationToken::new()));
    let counted = async {
        loop {
            if let Some(Observation::Event(SourceEvent::Trouble(trouble))) = seen.recv().await {
                break trouble;
            }
        }
    };
    assert_eq!(timeout(LIMIT, counted).await.unwrap(), ErrorCounter::CriFailed);
    running.abort();
}

#[tokio::test]
async fn five_thousand_containers_are_named_in_one_response() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let many = (0..5000).map(|n| Container { id: format!("{n:064x}"), ..container("a", "main") }).collect();
    let responses = watch::Sender::new(Ok(many));
    let _served = serve_runtime(&path, &responses);
    let (reporter, mut seen) = Reporter::channel();
    Cri::at(vec![path], reporter).poll().await.unwrap();
    let reported = names(&mut seen).unwrap();
    assert_eq!(reported.len(), 5001);
}

#[tokio::test]
async fn a_runtime_reports_its_configuration_in_a_verbose_status() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("cri.sock");
    let responses = watch::Sender::new(Ok(vec![]));
    let _served = serve_runtime(&path, &responses);
    let (runtime, config) = runtime_config(CriSocket::At(path.clone())).await.unwrap();
    assert_eq!(runtime, "fake://1");
    assert_eq!(runtime_cdi(CriSocket::At(path)).await, Ok(("fake://1".to_owned(), Some(true))));
    assert!(config.nvidia_injects());
    assert_eq!((config.default_handler.as_deref(), config.cdi), (Some("nvidia"), Some(true)));
    let alone = runtime_cdi(CriSocket::None).await.unwrap_err();
    assert!(alone.contains("--cri-socket=none"), "{alone}");
    let absent = runtime_config(CriSocket::At(folder.path().join("absent.sock"))).await.unwrap_err();
    assert!(absent.contains("absent.sock"), "{absent}");
}
