//! Tests followers against a server on a real socket.

use crate::connect;
use crate::error::ApiError;
use crate::follow::{FollowListener, Follower};
use crate::kind::{AllNodes, AllPods, Followed, PodsOfNode};
use crate::store::{Delta, GoneEvidence, Store};
use lab::api_server::{ApiServerFault, FakeApiServer, ReceivedRequest, pod};
use model::id::{NodeName, PodUid};
use model::pod::{LabelKeys, MAX_POD_OBJECTS, MAX_UNPROVEN_PODS, Pod};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use wire::watch::{UnreadableObject, WatchedKind};

const NODE: &str = "n1";
const WEB: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const TRAIN: &str = "aaaaaaaa-0000-4000-8000-000000000002";

/// Forwards the changes, and how many objects are held after them.
struct ChangeSender<K: Followed>(UnboundedSender<(Vec<Delta<K::Object>>, usize)>);

impl<K: Followed> FollowListener<K> for ChangeSender<K> {
    fn received(&mut self) {}

    fn changed(&mut self, deltas: Vec<Delta<K::Object>>, held: Option<&Store<K>>) {
        if let Some(held) = held {
            let _ = self.0.send((deltas, held.objects().count()));
        }
    }

    fn unreadable(&mut self, _: &UnreadableObject<K::Uid>) {}

    fn failed(&mut self, _: &ApiError) -> Duration {
        Duration::from_millis(50)
    }

    fn works(&mut self) {}
}

/// A running follower.
struct Running<K: Followed> {
    changes: UnboundedReceiver<(Vec<Delta<K::Object>>, usize)>,
    held: usize,
    task: JoinHandle<()>,
}

impl<K: Followed> Running<K> {
    async fn start(server: &FakeApiServer, kind: K) -> Running<K> {
        let folder = tempfile::tempdir().unwrap();
        let connection = connect(Some(&server.kubeconfig(folder.path()))).await.unwrap();
        let (sender, changes) = unbounded_channel();
        let task = tokio::spawn(Follower::new(connection, kind, ChangeSender(sender)).run());
        Running { changes, held: 0, task }
    }

    /// The next changes, within ten seconds.
    async fn next(&mut self) -> Vec<Delta<K::Object>> {
        loop {
            let next = tokio::time::timeout(Duration::from_secs(10), self.changes.recv()).await;
            let (deltas, held) = next.expect("a change in time").expect("a follower that runs");
            self.held = held;
            if !deltas.is_empty() {
                return deltas;
            }
        }
    }

    /// Whether there is no change for this time.
    async fn quiet(&mut self, time: Duration) -> bool {
        tokio::time::timeout(time, self.next()).await.is_err()
    }
}

impl<K: Followed> Drop for Running<K> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

fn pods_of_node() -> PodsOfNode {
    PodsOfNode::new(NodeName::parse(NODE).unwrap(), LabelKeys::default())
}

/// A server with two pods of the node, and a follower that knows them.
async fn two_pods() -> (FakeApiServer, Running<PodsOfNode>) {
    let server = FakeApiServer::start();
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[]));
    server.put("pods", pod(NODE, "ml", "train-0", TRAIN, &[]));
    let mut follower = Running::start(&server, pods_of_node()).await;
    assert_eq!(follower.next().await.len(), 2);
    (server, follower)
}

/// Reads of the pod by its name, each with its resource version.
fn checks(server: &FakeApiServer) -> Vec<Option<String>> {
    let of_pod = server.requests().into_iter().filter(|request| request.path == "/api/v1/namespaces/ml/pods/train-0");
    of_pod.map(|request| request.query.get("resourceVersion").cloned()).collect()
}

/// Lets the follower list again.
async fn list_again(server: &FakeApiServer, follower: &mut Running<PodsOfNode>) {
    // Changes another pod: the watch then continues from a version that the server forgets, and the list shows the
    // change.
    let mut web = pod(NODE, "shop", "web-0", WEB, &[]);
    web["metadata"]["annotations"] = json!({ "hami.io/x": server.requests().len().to_string() });
    server.put("pods", web);
    let changed = follower.next().await;
    assert!(matches!(&changed[..], [Delta::Changed { .. }]), "{changed:?}");
    server.put("pods", pod("n2", "shop", "other", "aaaaaaaa-0000-4000-8000-000000000009", &[]));
    server.forget();
}

#[tokio::test]
async fn a_pod_that_vanishes_from_a_list_is_held_until_the_server_says_that_it_is_gone() {
    let (server, mut follower) = two_pods().await;
    server.hide("pods", "ml", "train-0");
    list_again(&server, &mut follower).await;
    assert!(follower.quiet(Duration::from_secs(3)).await, "it runs, so nothing has changed");
    assert_eq!((follower.held, checks(&server)), (2, vec![None]), "one read, by a quorum");

    // Now it is deleted while no watch can report it.
    list_again(&server, &mut follower).await;
    server.remove("pods", "ml", "train-0");
    server.forget();
    let gone = follower.next().await;
    let [Delta::Gone { before, evidence: GoneEvidence::NotFound }] = &gone[..] else { panic!("{gone:?}") };
    assert_eq!((&*before.name.name, follower.held), ("train-0", 1));
}

#[tokio::test]
async fn a_pod_is_gone_for_another_uid_but_not_for_a_missing_answer_or_a_refusal() {
    let (mut server, mut follower) = two_pods().await;
    server.hide("pods", "ml", "train-0");
    server.stop();
    assert!(follower.quiet(Duration::from_millis(500)).await);
    server.fault(ApiServerFault::Refuse(403));
    server.restart();
    assert!(follower.quiet(Duration::from_millis(2500)).await);
    server.put("pods", pod(NODE, "ml", "train-0", "aaaaaaaa-0000-4000-8000-000000000003", &[]));
    server.forget();
    server.fault(ApiServerFault::None);
    let gone = follower.next().await;
    let [Delta::Gone { evidence: GoneEvidence::OtherUid, .. }] = &gone[..] else { panic!("{gone:?}") };
}

#[tokio::test]
async fn all_pods_and_all_nodes_are_listed_in_pages_and_then_watched() {
    let server = FakeApiServer::start();
    for number in 0..1201 {
        let uid = format!("bbbbbbbb-0000-4000-8000-{number:012}");
        server.put(
            "pods",
            pod(&format!("n{}", number % 7), "ml", &format!("p{number}"), &uid, &[("main", &"a".repeat(64))]),
        );
        let metadata =
            json!({ "name": format!("n{number}"), "uid": uid, "annotations": { "hami.io/x": "1", "y": "2" } });
        server.put("nodes", json!({ "metadata": metadata, "status": { "images": [] } }));
    }
    let mut pods = Running::start(&server, AllPods::default()).await;
    let mut nodes = Running::start(&server, AllNodes).await;
    assert_eq!((pods.next().await.len(), nodes.next().await.len()), (1201, 1201));
    let limits =
        server.requests().into_iter().filter(|request| request.query.get("limit").is_some_and(|limit| limit == "500"));
    assert_eq!(limits.count(), 6, "three pages of each");

    server.put("pods", pod("n9", "ml", "p1", "bbbbbbbb-0000-4000-8000-000000000001", &[("main", &"a".repeat(64))]));
    let changed = pods.next().await;
    let [Delta::Changed { before, after }] = &changed[..] else { panic!("{changed:?}") };
    let node = |pod: &Arc<Pod>| pod.node.as_ref().map(NodeName::to_string);
    assert_eq!((node(before).as_deref(), node(after).as_deref()), (Some("n1"), Some("n9")));
    assert!(after.containers[0].image.is_none(), "a scheduler does not need it");
    server.remove("nodes", "", "n3");
    let gone = nodes.next().await;
    let [Delta::Gone { before, evidence: GoneEvidence::DeletedEvent }] = &gone[..] else { panic!("{gone:?}") };
    assert_eq!((before.name.as_str(), before.annotations.len(), nodes.held), ("n3", 1, 1200));
    assert_eq!(AllNodes::NAME, "node");
}

/// Sends the start time of each list, which has a version.
struct Lists(UnboundedSender<Instant>);

impl FollowListener<AllPods> for Lists {
    fn received(&mut self) {}

    fn changed(&mut self, _: Vec<Delta<Pod>>, _: Option<&Store<AllPods>>) {}

    fn unreadable(&mut self, _: &UnreadableObject<PodUid>) {}

    fn failed(&mut self, _: &ApiError) -> Duration {
        Duration::from_millis(50)
    }

    fn works(&mut self) {}

    fn listed(&mut self, begun: Instant, version: Option<u64>, _: &Store<AllPods>) {
        let _ = version.map(|_| self.0.send(begun));
    }
}

#[tokio::test]
async fn a_list_on_demand_is_begun_after_the_demand_and_read_from_etcd() {
    let server = FakeApiServer::start();
    let folder = tempfile::tempdir().unwrap();
    let connection = connect(Some(&server.kubeconfig(folder.path()))).await.unwrap();
    let (say, mut lists) = unbounded_channel();
    let relist = Arc::<Notify>::default();
    let follower = Follower::new(connection, AllPods::default(), Lists(say)).relist_on(Arc::clone(&relist));
    let task = tokio::spawn(follower.run());
    let first = lists.recv().await.unwrap();
    let demanded = Instant::now();
    relist.notify_one();
    let second = tokio::time::timeout(Duration::from_secs(10), lists.recv()).await.unwrap().unwrap();
    assert!(first < demanded && second >= demanded);
    // A requested list waits while the server cannot be reached.
    server.fault(ApiServerFault::Refuse(503));
    server.cut();
    relist.notify_one();
    assert!(tokio::time::timeout(Duration::from_millis(300), lists.recv()).await.is_err());
    server.fault(ApiServerFault::None);
    assert!(tokio::time::timeout(Duration::from_secs(10), lists.recv()).await.unwrap().unwrap() > second);
    let asked = server.requests().into_iter().filter(|asked| asked.path == "/api/v1/pods" && !asked.is_watch());
    assert!(asked.into_iter().all(|asked| !asked.query.contains_key("resourceVersion")));
    task.abort();
}

#[tokio::test]
async fn a_list_on_demand_begins_in_place_of_one_that_is_under_way() {
    let server = FakeApiServer::start();
    server.fault(ApiServerFault::Hang);
    let folder = tempfile::tempdir().unwrap();
    let connection = connect(Some(&server.kubeconfig(folder.path()))).await.unwrap();
    let (say, mut lists) = unbounded_channel();
    let relist = Arc::<Notify>::default();
    let follower = Follower::new(connection, AllPods::default(), Lists(say)).relist_on(Arc::clone(&relist));
    let task = tokio::spawn(follower.run());
    while server.requests().is_empty() {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    server.fault(ApiServerFault::None);
    let demanded = Instant::now();
    relist.notify_one();
    // The first request is never answered.
    let begun = tokio::time::timeout(Duration::from_secs(5), lists.recv()).await.unwrap().unwrap();
    assert!(begun >= demanded);
    assert!(tokio::time::timeout(Duration::from_millis(300), lists.recv()).await.is_err(), "one list is enough");
    assert_eq!(server.requests().iter().filter(|asked| !asked.is_watch()).count(), 2);
    task.abort();
}

/// A pod of the node with this many bytes in a variable. JSON needs six bytes for each of them.
fn escaped_pod(number: usize, bytes: usize) -> serde_json::Value {
    let uid = format!("cccccccc-0000-4000-8000-{number:012}");
    let mut pod = pod(NODE, "ml", &format!("p{number:02}"), &uid, &[("main", &"a".repeat(64))]);
    pod["spec"]["containers"][0]["env"] = json!([{ "name": "X", "value": "\u{1}".repeat(bytes) }]);
    pod
}

/// A server with pods that are far larger together than a list may be, and one as large as etcd stores it.
fn large_pods() -> FakeApiServer {
    let server = FakeApiServer::start();
    for number in 0..30 {
        server.put("pods", escaped_pod(number, 256 << 10));
    }
    server.put("pods", escaped_pod(30, 3 << 19));
    server
}

/// The limits of the lists so far, and whether each came from a cache.
fn lists(server: &FakeApiServer) -> Vec<(Option<u32>, bool)> {
    let lists = server.requests().into_iter().filter(|asked| asked.path == "/api/v1/pods" && !asked.is_watch());
    let limit = |text: &String| text.parse().unwrap();
    lists.map(|asked| (asked.query.get("limit").map(limit), asked.query.contains_key("resourceVersion"))).collect()
}

#[tokio::test]
async fn pages_are_halved_until_they_can_be_read_down_to_one_object() {
    let server = large_pods();
    let mut pods = Running::start(&server, AllPods::default()).await;
    assert_eq!(pods.next().await.len(), 31, "in one list, without a failure");
    let limits: Vec<u32> = lists(&server).into_iter().map(|(limit, _)| limit.unwrap()).collect();
    assert_eq!(limits[..7], [500, 250, 125, 62, 31, 15, 7]);
    assert!(limits[7..].iter().all(|limit| *limit <= 7), "{limits:?}");
    // The largest object comes through a watch and a read by name as well.
    server.put("pods", escaped_pod(30, (3 << 19) - 1));
    assert!(matches!(&pods.next().await[..], [Delta::Changed { .. }]));
}

#[tokio::test]
async fn a_page_that_is_too_much_for_the_server_is_read_again_in_smaller_pages() {
    let server = FakeApiServer::start();
    for number in 0..300 {
        server.put("pods", escaped_pod(number, 1));
    }
    server.fault(ApiServerFault::SlowLists(300));
    let mut pods = Running::start(&server, AllPods::default()).await;
    assert_eq!(pods.next().await.len(), 300);
    let limits: Vec<u32> = lists(&server).into_iter().map(|(limit, _)| limit.unwrap()).collect();
    assert_eq!(limits, [500, 250, 250], "one failure, and a list of two pages");
}

#[tokio::test]
async fn an_agent_lists_in_one_piece_and_in_pages_only_after_an_answer_that_was_too_large() {
    let (server, _follower) = two_pods().await;
    assert_eq!(lists(&server), [(None, true)]);

    let server = large_pods();
    let mut pods = Running::start(&server, pods_of_node()).await;
    assert_eq!(pods.next().await.len(), 31);
    let lists = lists(&server);
    assert_eq!(lists[..2], [(None, true), (Some(500), false)], "a cache would answer in one piece again");
    assert!(lists[2..].iter().all(|(limit, cached)| limit.is_some() && !cached), "{lists:?}");
}

#[tokio::test]
async fn of_too_many_pods_those_that_hold_nothing_are_left_out_wherever_they_are_in_the_list() {
    let server = FakeApiServer::start();
    let put = |number: usize, phase: &str| {
        let uid = format!("dddddddd-0000-4000-8000-{number:012}");
        let metadata = json!({ "name": format!("p{number:05}"), "namespace": "ml", "uid": uid });
        server.put("pods", json!({ "metadata": metadata, "spec": { "nodeName": NODE }, "status": { "phase": phase } }));
    };
    (0..MAX_POD_OBJECTS + 100).for_each(|number| put(number, "Succeeded"));
    (90_000..90_050).for_each(|number| put(number, "Running"));
    let mut pods = Running::start(&server, pods_of_node()).await;
    let added = pods.next().await;
    let running = added.iter().filter(|delta| matches!(delta, Delta::Added(pod) if !pod.ended()));
    assert_eq!(
        (running.count(), pods.held),
        (50, MAX_POD_OBJECTS),
        "the pods that have ended get the places that are left"
    );
}

/// A list that is read after a restart, in which a user's pods come first: they have the first names.
#[tokio::test]
async fn of_too_many_pods_that_request_gpus_those_that_the_kubelet_has_begun_with_are_held() {
    let server = FakeApiServer::start();
    let put = |number: usize, annotations: serde_json::Value, status: serde_json::Value| {
        let uid = format!("dddddddd-0000-4000-8000-{number:012}");
        let metadata =
            json!({ "name": format!("p{number:05}"), "namespace": "ml", "uid": uid, "annotations": annotations });
        let main = json!({ "name": "main", "resources": { "limits": { "nvidia.com/gpu": "1" } } });
        let spec = json!({ "nodeName": NODE, "containers": [main] });
        server.put("pods", json!({ "metadata": metadata, "spec": spec, "status": status }));
    };
    let mirror = json!({ "kubernetes.io/config.mirror": "x" });
    let begun = json!({ "phase": "Pending", "containerStatuses": [{ "name": "main", "state": { "waiting": {} } }] });
    (0..2 * MAX_POD_OBJECTS + 100).for_each(|number| put(number, mirror.clone(), json!({ "phase": "Pending" })));
    (90_000..90_050).for_each(|number| put(number, json!({}), begun.clone()));
    let claim = json!({ "hami.io/vgpu-devices-allocated": "GPU-1,NVIDIA,1,1:;" });
    (91_000..91_050).for_each(|number| put(number, claim.clone(), json!({ "phase": "Pending" })));
    let mut pods = Running::start(&server, pods_of_node()).await;
    let added = pods.next().await;
    let innocent = |pod: &Pod| *pod.name.name >= *"p90000";
    let innocents = added.iter().filter(|delta| matches!(delta, Delta::Added(pod) if innocent(pod)));
    assert_eq!((innocents.count(), pods.held), (100, 100 + MAX_UNPROVEN_PODS));
}

/// A user's pods that name their node and request GPUs, of which some are deleted and some are new again and again.
#[tokio::test]
async fn pods_that_are_left_out_are_listed_again_once_an_eighth_of_the_places_is_free_but_ever_more_seldom() {
    const FREE: usize = MAX_UNPROVEN_PODS / 8;
    const ALL: usize = MAX_UNPROVEN_PODS + FREE;
    let server = FakeApiServer::start();
    let name = |number: usize| format!("p{number:05}");
    let put = |number: usize, text: usize| {
        let mut asking = pod(NODE, "ml", &name(number), &format!("dddddddd-0000-4000-8000-{number:012}"), &[]);
        let limits = json!({ "nvidia.com/gpu": "1" });
        asking["metadata"]["annotations"] = json!({ "hami.io/x": text.to_string() });
        asking["spec"]["containers"] = json!([{ "name": "main", "resources": { "limits": limits } }]);
        asking["status"] = json!({ "phase": "Pending" });
        server.put("pods", asking);
    };
    let lists = || {
        let is_list = |request: &&ReceivedRequest| request.path == "/api/v1/pods" && !request.is_watch();
        server.requests().iter().filter(is_list).count()
    };
    (0..ALL).for_each(|number| put(number, 0));
    let mut pods = Running::start(&server, pods_of_node()).await;
    pods.next().await;
    assert_eq!((pods.held, lists()), (MAX_UNPROVEN_PODS, 1));
    (0..FREE).for_each(|number| server.remove("pods", "ml", &name(number)));
    while pods.held != MAX_UNPROVEN_PODS - FREE {
        pods.next().await;
    }
    // The follower looks for room whenever the server sends something.
    let mut text = 0;
    let mut change = async || {
        text += 1;
        assert!(text < 1000, "no list within 100 seconds");
        put(2 * FREE, text);
        tokio::time::sleep(Duration::from_millis(100)).await;
    };
    while lists() < 2 {
        change().await;
    }
    let since = Instant::now();
    while pods.held != MAX_UNPROVEN_PODS {
        pods.next().await;
    }
    (ALL..ALL + FREE).for_each(|number| put(number, 0));
    (FREE..2 * FREE).for_each(|number| server.remove("pods", "ml", &name(number)));
    // Longer than the first pause, and shorter than the second one on a machine that is not too busy.
    for _ in 0..60 {
        change().await;
    }
    let (lists, late) = (lists(), since.elapsed() > Duration::from_secs(9));
    assert!(lists == 2 || late, "{lists} lists");
}
