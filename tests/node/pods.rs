//! Tests pod names from the API server: the server answers, sends bad data, forgets versions, refuses requests or is
//! unreachable.

use crate::program::BINARY;
use lab::agent::{Agent, Recipe};
use lab::api_server::{ApiServerFault, FakeApiServer, ReceivedRequest, TOKEN, pod};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const SOON: Duration = Duration::from_secs(20);
const NODE: &str = "n1";
const WEB: &str = "aaaaaaaa-0000-4000-8000-000000000001";
const TRAIN: &str = "aaaaaaaa-0000-4000-8000-000000000002";

fn id(digit: char) -> String {
    digit.to_string().repeat(64)
}

/// A cgroup v2 hierarchy of plain files, with the files that are needed to find pod names.
struct Tree(PathBuf);

impl Tree {
    fn under(directory: &Path) -> Tree {
        let root = directory.join("cgroup");
        fs::create_dir(&root).unwrap();
        fs::write(root.join("cgroup.controllers"), "cpu memory\n").unwrap();
        Tree(root)
    }

    fn pod_folder(&self, uid: &str) -> PathBuf {
        self.0.join("kubepods/burstable").join(format!("pod{uid}"))
    }

    fn add(&self, uid: &str, container: char) {
        let container = self.pod_folder(uid).join(id(container));
        fs::create_dir_all(&container).unwrap();
        for group in [&container, &self.pod_folder(uid)] {
            fs::write(group.join("cgroup.procs"), "").unwrap();
            fs::write(group.join("cpu.stat"), "usage_usec 5\nuser_usec 3\nsystem_usec 2\n").unwrap();
        }
    }

    fn remove(&self, uid: &str) {
        fs::remove_dir_all(self.pod_folder(uid)).unwrap();
    }
}

/// A node: the API server, the cgroup tree, and an agent.
struct Node {
    server: FakeApiServer,
    tree: Tree,
    agent: Agent,
}

impl Node {
    fn with(server: FakeApiServer) -> Node {
        let (recipe, tree) = recipe(Agent::in_cluster(BINARY, &server, NODE));
        Node { server, tree, agent: recipe.start() }
    }

    /// `namespace/name/container` of each pod with its first named container, in order.
    fn names(&self) -> Vec<String> {
        let text = |value: &Value| value.as_str().unwrap_or("?").to_owned();
        let pods = self.agent.get("/api/v1/pods").json();
        let shown = |pod: &Value| {
            let container = pod["containers"].as_array().into_iter().flatten().find(|c| c["name"].is_string());
            let container = container.map_or("?".to_owned(), |container| text(&container["name"]));
            format!("{}/{}/{container}", text(&pod["namespace"]), text(&pod["name"]))
        };
        pods["pods"].as_array().unwrap().iter().map(shown).collect()
    }

    #[track_caller]
    fn shows(&self, names: &[&str]) {
        let mut seen = Vec::new();
        let deadline = std::time::Instant::now() + SOON;
        while std::time::Instant::now() < deadline {
            seen = self.names();
            if seen == names {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        panic!("{seen:?} and not {names:?}; {}\n{}", self.watch(), self.agent.log());
    }

    fn watch(&self) -> Value {
        self.agent.get("/api/v1/node").json()["pod_watch"].clone()
    }

    fn state(&self, expected: &str) -> Value {
        eventually(&format!("a watch that is {expected}: {}", self.agent.log()), SOON, || {
            let watch = self.watch();
            (watch["state"] == expected).then_some(watch)
        })
    }

    fn errors(&self, kind: &str) -> u64 {
        let node = self.agent.get("/api/v1/node").json();
        let errors = node["troubles"].as_array().unwrap().clone();
        errors.iter().find(|error| error["kind"] == kind).map_or(0, |error| error["count"].as_u64().unwrap())
    }

    fn watches(&self) -> Vec<String> {
        let requests = self.server.requests();
        requests
            .iter()
            .filter(|request| request.is_watch())
            .map(|request| request.query["resourceVersion"].clone())
            .collect()
    }
}

/// The recipe, with its own cgroup tree.
fn recipe(recipe: Recipe) -> (Recipe, Tree) {
    let tree = Tree::under(recipe.dir());
    let recipe = recipe.with("--gpus", "none").with("--cgroup-root", &tree.0).with("--period", "200ms");
    (recipe, tree)
}

#[test]
fn names_come_from_the_api_server_and_go_with_the_cgroup() {
    let server = FakeApiServer::start();
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]));
    server.put("pods", pod("n2", "shop", "elsewhere", TRAIN, &[("main", &id('c'))]));
    let node = Node::with(server);
    node.tree.add(WEB, 'a');
    node.shows(&["shop/web-0/main"]);

    let hash = "bbbbbbbb000040008000000000000003";
    let mut mirror = pod(NODE, "kube-system", "etcd-n1", "cccccccc-0000-4000-8000-000000000003", &[("etcd", &id('b'))]);
    mirror["metadata"]["annotations"] = json!({"kubernetes.io/config.hash": hash, "kubernetes.io/config.mirror": hash});
    mirror["metadata"]["ownerReferences"] =
        json!([{"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": "n", "controller": true}]);
    node.server.put("pods", mirror);
    node.tree.add(hash, 'b');
    node.shows(&["kube-system/etcd-n1/etcd", "shop/web-0/main"]);

    let pods = node.agent.get("/api/v1/pods?pod=web-0").json();
    assert_eq!(pods["pods"][0]["containers"][0]["image"], "registry.example/main:1");
    node.server.remove("pods", "shop", "web-0");
    eventually("one pod less", SOON, || (node.watch()["pods"] == 1).then_some(()));
    node.shows(&["kube-system/etcd-n1/etcd", "shop/web-0/main"]);
    node.tree.remove(WEB);
    node.shows(&["kube-system/etcd-n1/etcd"]);
    node.tree.add(WEB, 'a');
    node.shows(&["kube-system/etcd-n1/etcd", "?/?/?"]);
}

/// The requests for pods that the server has received. The agent also asks for its own Node.
fn about_pods(server: &FakeApiServer) -> Vec<ReceivedRequest> {
    server.requests().into_iter().filter(|request| request.path == "/api/v1/pods").collect()
}

#[test]
fn the_agent_lists_only_its_nodes_pods_from_the_cache_and_watches_on_from_a_bookmark() {
    let server = FakeApiServer::start();
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]));
    let node = Node::with(server);
    eventually("a watch", SOON, || (node.watches().len() == 1).then_some(()));
    let requests = about_pods(&node.server);
    let [list, watch] = &requests[..] else { panic!("{requests:?}") };
    assert_eq!(
        (list.path.as_str(), list.query["resourceVersion"].as_str(), list.is_watch()),
        ("/api/v1/pods", "0", false)
    );
    for request in [list, watch] {
        assert_eq!(request.query["fieldSelector"], format!("spec.nodeName={NODE}"));
        assert_eq!(request.authorization.as_deref(), Some(&*format!("Bearer {TOKEN}")));
    }
    assert_eq!((watch.query["allowWatchBookmarks"].as_str(), watch.query["resourceVersion"].as_str()), ("true", "2"));
    let seconds: u32 = watch.query["timeoutSeconds"].parse().unwrap();
    assert!((150..=300).contains(&seconds), "{seconds}");

    // Pods of other nodes increase the resource version; a bookmark tells the agent the new version.
    for number in 0..5 {
        let uid = format!("dddddddd-0000-4000-8000-{number:012x}");
        node.server.put("pods", pod("n2", "shop", &format!("other-{number}"), &uid, &[]));
    }
    node.server.bookmark();
    node.server.put("pods", pod(NODE, "shop", "web-1", TRAIN, &[]));
    eventually("two pods", SOON, || (node.watch()["pods"] == 2).then_some(()));
    node.server.bookmark();
    let at = eventually("another watch", SOON, || {
        node.server.cut();
        node.watches().get(1).cloned()
    });
    assert_eq!(at, "9", "the bookmark after the eighth change, not the pod's version");
    node.state("following");
    assert_eq!(node.watch()["pods"], 2);
}

/// Promise 25 in docs/specification.md.
#[test]
fn while_the_api_server_is_away_names_stay_and_it_is_logged_once() {
    let server = FakeApiServer::start();
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]));
    let mut node = Node::with(server);
    node.tree.add(WEB, 'a');
    node.shows(&["shop/web-0/main"]);
    assert!(node.agent.get("/readyz").text().starts_with("ready\nwatch of pods at the API server: heard"));
    node.state("following");

    node.server.stop();
    let watch = node.state("broken");
    let reason = watch["reason"].as_str().unwrap().to_owned();
    assert!(reason.contains(&node.server.address().to_string()) && watch["age_seconds"].is_f64(), "{reason}");
    eventually("three failures", SOON, || (node.errors("pod_watch_failed") >= 3).then_some(()));
    node.shows(&["shop/web-0/main"]);
    let ready = node.agent.get("/readyz");
    let broken = ready.text().lines().any(|line| line.ends_with("s ago, broken"));
    assert_eq!((ready.status, broken), (200, true), "{}", ready.text());
    let metrics = node.agent.get("/metrics").text();
    assert!(metrics.contains("\ngpu_steward_pod_watch_up 0\n"), "{metrics}");
    assert!(metrics.contains("\ngpu_steward_pod_watch_age_seconds "), "{metrics}");

    node.server.put("pods", pod(NODE, "ml", "train-0", TRAIN, &[("worker", &id('b'))]));
    node.tree.add(TRAIN, 'b');
    node.server.restart();
    node.shows(&["ml/train-0/worker", "shop/web-0/main"]);
    node.state("following");
    node.agent.logs("watch of pods at the API server answered");
    let log = node.agent.terminate().log;
    let failed = log.lines().filter(|line| line.contains("watch of pods at the API server failed"));
    assert_eq!(failed.count(), 1, "{log}");
    assert!(!log.contains("kube_client") && !log.contains("panicked"), "{log}");
}

#[test]
fn if_the_server_forgot_a_version_the_agent_lists_again_and_counts_no_failure() {
    let server = FakeApiServer::start();
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]));
    let node = Node::with(server);
    node.tree.add(WEB, 'a');
    node.shows(&["shop/web-0/main"]);
    node.server.put("pods", pod("n2", "shop", "other", TRAIN, &[]));
    node.server.forget();
    // The agent counts the broken connection as a failure. The expired version after it is not a failure.
    node.server.put("pods", pod(NODE, "ml", "train-0", TRAIN, &[("worker", &id('b'))]));
    node.tree.add(TRAIN, 'b');
    node.shows(&["ml/train-0/worker", "shop/web-0/main"]);
    let lists = about_pods(&node.server).iter().filter(|request| !request.is_watch()).count();
    assert_eq!(lists, 2, "{:?}", node.server.requests());
    assert!(node.errors("pod_watch_failed") <= 1);
}

#[test]
fn broken_watch_streams_cost_no_name_and_no_restart() {
    let server = FakeApiServer::start();
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]));
    let node = Node::with(server);
    node.tree.add(WEB, 'a');
    node.shows(&["shop/web-0/main"]);
    for (number, noise) in
        [&b"\xff\xfe\n"[..], b"<html>\n", b"{}\n", b"{\"type\":\"ODD\",\"object\":{}}\n"].iter().enumerate()
    {
        let before = node.watches().len();
        node.server.raw_bytes(noise);
        eventually("a new watch after nonsense", SOON, || (node.watches().len() > before).then_some(()));
        node.server.put(
            "pods",
            pod(NODE, "shop", &format!("more-{number}"), &format!("eeeeeeee-0000-4000-8000-{number:012x}"), &[]),
        );
        eventually("one pod more", SOON, || (node.watch()["pods"] == number + 2).then_some(()));
    }
    node.server.cut();
    node.state("following");
    node.shows(&["shop/web-0/main"]);
    assert!(node.errors("pod_watch_failed") >= 4);
    assert!(!node.agent.log().contains("panicked"), "{}", node.agent.log());
}

#[test]
fn a_server_that_sends_garbage_or_closes_at_once_gets_requests_with_backoff() {
    for fault in [ApiServerFault::Garbage, ApiServerFault::EndAtOnce, ApiServerFault::Refuse(500)] {
        let server = FakeApiServer::start();
        server.fault(fault.clone());
        let (recipe, tree) = recipe(Agent::in_cluster(BINARY, &server, NODE));
        let node = Node { server, tree, agent: recipe.launch() };
        node.state("broken");
        eventually("a second failure", SOON, || (node.errors("pod_watch_failed") >= 2).then_some(()));
        let count = about_pods(&node.server).len();
        assert!(count <= 8, "{fault:?}: {count} requests");
        node.server.fault(ApiServerFault::None);
        node.state("following");
        assert_eq!(node.agent.get("/readyz").status, 200);
    }
}

#[test]
fn an_unreadable_pod_is_counted_and_logged_once_and_affects_no_other_pod() {
    let server = FakeApiServer::start();
    let mut bad = pod(NODE, "shop", "odd", TRAIN, &[]);
    bad["spec"]["containers"] = json!("none");
    server.put("pods", bad.clone());
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]));
    let node = Node::with(server);
    node.tree.add(WEB, 'a');
    node.shows(&["shop/web-0/main"]);
    for _ in 0..5 {
        node.server.put("pods", bad.clone());
    }
    eventually("six unreadable versions", SOON, || (node.errors("pod_unreadable") == 6).then_some(()));
    assert_eq!((&node.watch()["pods"], &node.watch()["unreadable"]), (&json!(1), &json!(1)));
    let log = node.agent.terminate().log;
    assert_eq!(log.matches("a pod cannot be read").count(), 1, "{log}");
    assert!(log.contains("shop/odd"), "{log}");
}

#[test]
fn without_the_right_to_list_pods_the_agent_is_not_ready_and_says_what_to_do() {
    let server = FakeApiServer::start();
    server.fault(ApiServerFault::Refuse(403));
    let (recipe, tree) = recipe(Agent::in_cluster(BINARY, &server, NODE));
    let node = Node { server, tree, agent: recipe.launch() };
    node.agent.logs("403 the lab refuses; allow this identity to list and watch pods (ClusterRole)");
    let ready = node.agent.get("/readyz");
    assert_eq!(ready.status, 503);
    assert!(ready.text().contains("first list of pods"), "{}", ready.text());
    assert_eq!(node.agent.get("/metrics").status, 200, "everything else works");
    node.server.fault(ApiServerFault::None);
    eventually("ready", SOON, || (node.agent.get("/readyz").status == 200).then_some(()));
}

#[test]
fn standalone_asks_no_api_server_unless_a_kubeconfig_is_given() {
    let server = FakeApiServer::start();
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]));
    let alone = Agent::standalone(BINARY);
    let kubeconfig = server.kubeconfig(alone.dir());
    let (recipe_alone, _tree) = recipe(alone.env("KUBECONFIG", &kubeconfig).with("--node-name", NODE));
    let agent = recipe_alone.start();
    assert_eq!(agent.get("/api/v1/node").json().get("pod_watch"), None);
    assert!(!agent.get("/metrics").text().contains("\ngpu_steward_pod_watch_"));
    drop(agent);
    assert_eq!(server.requests(), []);

    let alone = Agent::standalone(BINARY);
    let kubeconfig = server.kubeconfig(alone.dir());
    let (recipe, tree) = recipe(alone.with("--kubeconfig", kubeconfig).with("--node-name", NODE));
    let node = Node { server, tree, agent: recipe.start() };
    node.tree.add(WEB, 'a');
    node.shows(&["shop/web-0/main"]);
    assert!(node.server.requests().iter().all(|request| request.method == "GET"), "nothing is written");
}

#[test]
fn the_api_server_is_found_in_the_usual_order_and_mistakes_are_reported() {
    let server = FakeApiServer::start();
    let dir = tempfile::tempdir().unwrap();
    let good = server.kubeconfig(dir.path());
    let (recipe, tree) = recipe(Recipe::of(BINARY).env("KUBECONFIG", &good).env("NODE_NAME", NODE));
    let node = Node { server, tree, agent: recipe.start() };
    assert_eq!(about_pods(&node.server)[0].query["fieldSelector"], format!("spec.nodeName={NODE}"));
    drop(node);

    let home = dir.path().join("home/.kube");
    fs::create_dir_all(&home).unwrap();
    fs::write(home.join("config"), "clusters: 7\n").unwrap();
    let (odd, home) = (home.join("config"), dir.path().join("home"));
    let missing = dir.path().join("missing");
    let (odd, missing, home) = (odd.to_str().unwrap(), missing.to_str().unwrap(), home.to_str().unwrap());
    for (args, environment, message) in [
        (vec![], vec![], "give --kubeconfig PATH, or run with --standalone".to_owned()),
        (vec!["--kubeconfig", missing], vec![], format!("cannot use the kubeconfig {missing}")),
        (
            vec!["--kubeconfig", odd],
            vec![("KUBECONFIG", good.to_str().unwrap())],
            format!("cannot use the kubeconfig {odd}"),
        ),
        (vec![], vec![("KUBECONFIG", missing)], format!("cannot use the kubeconfig {missing} (KUBECONFIG)")),
        (
            vec![],
            vec![("KUBERNETES_SERVICE_HOST", "192.0.2.1"), ("HOME", home)],
            "cannot use the pod's service account".to_owned(),
        ),
        (vec![], vec![("HOME", home)], format!("cannot use the kubeconfig {odd}")),
    ] {
        let mut command = Command::new(BINARY);
        command
            .args(["agent", "--listen", "127.0.0.1:0", "--admin-listen", "none", "--usage-socket", "none"])
            .args(&args);
        let output = command.env_clear().envs(environment).output().unwrap();
        let log = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(64), "{args:?}: {log}");
        assert!(log.contains(&message), "{message:?} in {log}");
    }
}

#[test]
fn a_tls_server_is_trusted_only_with_a_certificate_of_the_given_authority() {
    let server = FakeApiServer::start_tls();
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]));
    let node = Node::with(server);
    node.tree.add(WEB, 'a');
    node.shows(&["shop/web-0/main"]);

    let other = FakeApiServer::start_tls();
    let (recipe, _tree) = recipe(Agent::in_cluster(BINARY, &other, NODE));
    node.server.authority(&recipe.dir().join("ca.crt"));
    let agent = recipe.launch();
    agent.logs("invalid peer certificate");
    assert_eq!(other.requests(), []);
}

#[test]
#[ignore = "needs root: tests/run"]
fn in_a_pod_the_service_account_is_used() {
    let server = FakeApiServer::start_tls();
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]));
    let (recipe, tree) = recipe(Recipe::of(BINARY).with("--node-name", NODE));
    server.authority(&recipe.dir().join("ca.crt"));
    let account = "/var/run/secrets/kubernetes.io/serviceaccount";
    // `/var/run` is a link to `/run` on most systems, so a new `/run` covers both.
    let script = format!(
        "mount -t tmpfs tmpfs $(readlink -f /var/run) && mkdir -p {account} && cp $DIR/ca.crt {account}/ && \
         printf {TOKEN} >{account}/token && printf gpu >{account}/namespace"
    );
    let recipe = recipe.within(&script).env("KUBERNETES_SERVICE_HOST", "127.0.0.1");
    let recipe = recipe.env("KUBERNETES_SERVICE_PORT", server.address().port().to_string());
    let node = Node { server, tree, agent: recipe.start() };
    node.tree.add(WEB, 'a');
    node.shows(&["shop/web-0/main"]);
    assert_eq!(node.server.requests()[0].authorization.as_deref(), Some(&*format!("Bearer {TOKEN}")));
}

/// The list brings the first labels, and the watch brings a change of a label.
#[test]
fn labels_of_pods_are_shown_if_the_operator_names_them() {
    let server = FakeApiServer::start();
    let labelled = |team: &str| {
        let mut web = pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]);
        web["metadata"]["labels"] = json!({"app.kubernetes.io/name": "web", "team": team, "secret": "x"});
        web
    };
    server.put("pods", labelled("blue"));
    let (recipe, tree) = recipe(Agent::in_cluster(BINARY, &server, NODE));
    let agent = recipe.with("--pod-labels", "team,app.kubernetes.io/name").start();
    tree.add(WEB, 'a');
    let shown = |labels: &str| {
        eventually(labels, SOON, || {
            let text = agent.get("/metrics").text();
            let line = text.lines().find(|line| line.starts_with("gpu_steward_pod_labels_info{"))?;
            line.ends_with(&format!(",{labels}}} 1")).then_some(())
        });
    };
    shown(r#"label_app_kubernetes_io_name="web",label_team="blue""#);
    server.put("pods", labelled("green"));
    shown(r#"label_app_kubernetes_io_name="web",label_team="green""#);
}

/// The server's cache is older than what the agent already knows. A running pod must not vanish then: the agent could
/// give its device shares to another pod.
#[test]
fn a_list_of_pods_is_never_older_than_what_the_agent_knows() {
    let server = FakeApiServer::start();
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]));
    let node = Node::with(server);
    node.tree.add(WEB, 'a');
    node.shows(&["shop/web-0/main"]);
    node.server.lag();
    node.server.put("pods", pod(NODE, "shop", "train-0", TRAIN, &[("main", &id('b'))]));
    node.tree.add(TRAIN, 'b');
    node.shows(&["shop/train-0/main", "shop/web-0/main"]);
    let lists = || about_pods(&node.server).into_iter().filter(|request| !request.is_watch()).collect::<Vec<_>>();
    let before = lists().len();
    // The server forgets the version from which the watch would continue. So the agent lists the pods again, first from the
    // cache, which is too old.
    node.server.forget();
    eventually("a list from etcd after those from the cache", Duration::from_secs(60), || {
        assert_eq!(node.watch()["pods"], 2, "no pod vanishes in the meantime");
        lists().get(before..)?.iter().find(|request| !request.query.contains_key("resourceVersion")).map(drop)
    });
    let again = lists().split_off(before);
    for request in again.iter().filter(|request| request.query.contains_key("resourceVersion")) {
        assert_eq!(request.query["resourceVersionMatch"], "NotOlderThan", "{request:?}");
        assert_ne!(request.query["resourceVersion"], "0", "{request:?}");
    }
    assert!(again.len() > 1, "the first request reads the cache: {again:?}");
    node.shows(&["shop/train-0/main", "shop/web-0/main"]);
    // The cache is up to date again, so a list from the cache is enough.
    node.state("following");
    node.server.catch_up();
    let before = lists().len();
    node.server.forget();
    eventually("one more list", SOON, || (lists().len() > before).then_some(()));
    assert!(lists()[before].query.contains_key("resourceVersion"), "{:?}", lists()[before]);
}

/// If a list leaves out a running pod, whatever the list's version says, the agent reads the pod itself, and the pod stays.
#[test]
fn a_pod_that_a_list_does_not_show_stays_until_the_server_says_that_it_is_gone() {
    let server = FakeApiServer::start();
    server.put("pods", pod(NODE, "shop", "web-0", WEB, &[("main", &id('a'))]));
    server.put("pods", pod(NODE, "shop", "train-0", TRAIN, &[("main", &id('b'))]));
    let node = Node::with(server);
    node.tree.add(WEB, 'a');
    node.tree.add(TRAIN, 'b');
    node.shows(&["shop/train-0/main", "shop/web-0/main"]);
    node.server.hide("pods", "shop", "train-0");
    node.server.forget();
    let reads = |server: &FakeApiServer| {
        server
            .requests()
            .into_iter()
            .filter(|request| request.path == "/api/v1/namespaces/shop/pods/train-0")
            .collect::<Vec<_>>()
    };
    let first = eventually("a read of the pod that the list does not show", SOON, || {
        assert_eq!(node.watch()["pods"], 2, "the pod stays in the meantime");
        reads(&node.server).first().cloned()
    });
    assert!(!first.query.contains_key("resourceVersion"), "this is a quorum read: {first:?}");
    std::thread::sleep(Duration::from_secs(1));
    assert_eq!((&node.watch()["pods"], reads(&node.server).len()), (&json!(2), 1));
    node.shows(&["shop/train-0/main", "shop/web-0/main"]);
    // The pod is deleted, but no watch reports this.
    node.server.remove("pods", "shop", "train-0");
    node.server.forget();
    eventually("one pod less", SOON, || (node.watch()["pods"] == 1).then_some(()));
}
