//! Tests the client's calls against a server on a real socket.

use crate::client::{ApiClient, ApiSelection, ObjectForm, ReadAge};
use crate::connect;
use crate::error::ApiFailure;
use crate::lease::LeaseClient;
use crate::resource::ApiResource;
use lab::api_server::{ApiServerFault, FakeApiServer, pod};
use lab::relay::Relay;
use model::id::{NodeName, PodRef, PodUid};
use model::lease::{LeaseRecord, StoredLease};
use model::time::WallTime;
use serde_json::{Value, json};
use std::time::Duration;

const UID: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const OTHER: &str = "aaaaaaaa-0000-4000-8000-000000000002";

async fn client(server: &FakeApiServer) -> ApiClient {
    let folder = tempfile::tempdir().unwrap();
    ApiClient::new(connect(Some(&server.kubeconfig(folder.path()))).await.unwrap())
}

fn uid(text: &str) -> PodUid {
    PodUid::parse(text).unwrap()
}

fn train() -> PodRef {
    PodRef { namespace: "ml".into(), name: "train-0".into() }
}

fn waiting() -> Value {
    let mut waiting = pod("", "ml", "train-0", UID, &[]);
    waiting["spec"]["nodeName"] = json!("");
    waiting
}

fn binding(uid: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Binding", "target": { "apiVersion": "v1", "kind": "Node", "name": "n1" },
        "metadata": { "name": "train-0", "namespace": "ml", "uid": uid, "annotations": { "a/b": "1" } },
    })
}

#[tokio::test]
async fn a_pod_is_bound_once_and_only_the_pod_of_this_uid() {
    let (server, node) = (FakeApiServer::start(), NodeName::parse("n1").unwrap());
    let client = client(&server).await;
    let unknown = client.bind_pod(&train(), &node, &binding(UID)).await.unwrap_err();
    assert_eq!(unknown.code(), Some(404));
    server.put("pods", waiting());
    assert_eq!(client.bind_pod(&train(), &node, &binding(OTHER)).await.unwrap_err().code(), Some(409));
    client.bind_pod(&train(), &node, &binding(UID)).await.unwrap();
    let bound = server.object("pods", "ml", "train-0").unwrap();
    assert_eq!((&bound["spec"]["nodeName"], &bound["metadata"]["annotations"]["a/b"]), (&json!("n1"), &json!("1")));
    let again = client.bind_pod(&train(), &node, &binding(UID)).await.unwrap_err();
    let expected = format!(
        "create binding of pod ml/train-0 to n1 at http://{}/: 409 pod is already assigned to node",
        server.address()
    );
    assert_eq!(again.to_string(), expected);
}

#[tokio::test]
async fn a_deletion_and_an_eviction_touch_no_other_pod_of_the_name() {
    let server = FakeApiServer::start();
    let client = client(&server).await;
    for evict in [false, true] {
        server.put("pods", waiting());
        for (of, code) in [(OTHER, Some(409)), (UID, None), (UID, Some(404))] {
            let done = match evict {
                true => client.evict_pod(&uid(of), &train()).await,
                false => client.delete_pod(&uid(of), &train()).await,
            };
            assert_eq!(done.err().and_then(|error| error.code()), code, "{of}, evicted: {evict}");
        }
        assert_eq!(server.objects("pods"), Vec::<Value>::new());
    }
}

#[tokio::test]
async fn of_two_writes_of_a_lease_with_the_same_version_one_is_refused() {
    let server = FakeApiServer::start();
    let connection = client(&server).await.connection().clone();
    let lease = LeaseClient::new(connection, ("kube-system".into(), "steward".into()), Duration::from_secs(10));
    assert_eq!(lease.get().await.unwrap(), None);
    let record = LeaseRecord {
        holder: Some("a".into()),
        duration: Duration::from_secs(15),
        renewed: Some(WallTime(1_795_256_507_000_001)),
        epoch: Some(3),
        ..LeaseRecord::default()
    };
    let created = lease.create(&record).await.unwrap();
    assert_eq!(created.record, record);
    assert_eq!(lease.create(&record).await.unwrap_err().code(), Some(409));
    let next = StoredLease { record: LeaseRecord { epoch: Some(4), ..record }, ..created.clone() };
    let replaced = lease.replace(&next).await.unwrap();
    assert!(replaced.version != created.version);
    assert_eq!(lease.replace(&next).await.unwrap_err().code(), Some(409));
    assert_eq!(lease.get().await.unwrap(), Some(replaced));
}

#[tokio::test]
async fn after_a_call_without_an_answer_the_next_one_gets_a_new_connection() {
    let (server, folder) = (FakeApiServer::start(), tempfile::tempdir().unwrap());
    let relay = Relay::to(server.address(), Duration::ZERO);
    let kubeconfig = server.kubeconfig(folder.path());
    let text = std::fs::read_to_string(&kubeconfig).unwrap();
    std::fs::write(&kubeconfig, text.replace(&server.address().to_string(), &relay.address.to_string())).unwrap();
    let connection = connect(Some(&kubeconfig)).await.unwrap();
    let (client, within) = (ApiClient::new(connection.clone()), Duration::from_millis(500));
    let lease = LeaseClient::new(connection, ("kube-system".into(), "steward".into()), within);
    server.put("pods", waiting());
    // Several connections wait in the pool, and all of them die.
    let read = || async { client.get_pod(&train(), &ReadAge::Newest).await };
    let (one, other, third) = tokio::join!(read(), read(), read());
    assert!(one.is_ok() && other.is_ok() && third.is_ok());
    relay.drop_silently();
    let why = lease.get().await.unwrap_err();
    assert_eq!(why.failure, ApiFailure::Slow(within));
    assert_eq!(lease.get().await.unwrap(), None);
    assert!(read().await.is_ok());
}

#[tokio::test]
async fn a_get_reads_the_cache_or_etcd_and_a_list_has_pages() {
    let server = FakeApiServer::start();
    let client = client(&server).await;
    server.put("pods", waiting());
    server.lag();
    server.remove("pods", "ml", "train-0");
    assert!(client.get_pod(&train(), &ReadAge::Any).await.is_ok(), "the cache lags");
    assert_eq!(client.get_pod(&train(), &ReadAge::Newest).await.unwrap_err().code(), Some(404));

    for number in 0..5 {
        server.put("nodes", json!({ "metadata": { "name": format!("n{number}") } }));
    }
    let nodes = ApiSelection::all(ApiResource::Nodes, ObjectForm::Metadata);
    let (mut age, mut pages) = (ReadAge::Newest, Vec::new());
    loop {
        let page = client.list(&nodes, &age, Some(2)).await.unwrap();
        let page = wire::node::decode_list(&page).unwrap();
        pages.push(page.nodes.iter().map(|node| node.name.clone()).collect::<Vec<_>>());
        if page.more.is_empty() {
            break;
        }
        age = ReadAge::Continued(page.more);
    }
    assert_eq!(pages, [vec!["n0", "n1"], vec!["n2", "n3"], vec!["n4"]]);

    let mut watch = client.watch(&nodes, "1", 10).await.unwrap();
    let piece = watch.piece().await.unwrap().expect("an event");
    assert!(String::from_utf8_lossy(piece.as_ref()).contains("ADDED"));
    server.fault(ApiServerFault::Garbage);
    let text = client.get_node(&NodeName::parse("n0").unwrap(), &ReadAge::Newest, ObjectForm::Whole).await.unwrap();
    assert!(wire::node::decode(&text).is_err());
}
