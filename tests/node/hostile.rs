//! The built extender among pods whose owners want to stop it, and with an API server that fails. A user decides how
//! large a pod is, up to what etcd stores, and what JSON makes of its texts.

use crate::bad_questions::anon_mib;
use crate::extender::{CLAIM, Extender, SOON, events, node, pod, stored};
use crate::program::BINARY;
use lab::api_server::{ApiServerFault, FakeApiServer};
use lab::eventually::eventually;
use lab::extender::ExtenderProcess;
use lab::http::{self, read_answer};
use lab::relay::Relay;
use lab::slow_reader;
use serde_json::{Value, json};
use std::ffi::OsString;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::time::{Duration, Instant};

/// Bytes of text of the largest pod that etcd stores.
const LARGEST: usize = 3 << 19;
/// How long a watch may not run before a leader is blind, and a margin.
const BLIND: Duration = Duration::from_secs(70);

/// Adds a text of which JSON needs six bytes for each byte.
fn with_text(mut pod: Value, bytes: usize) -> Value {
    pod["spec"]["containers"][0]["env"] = json!([{ "name": "X", "value": "\u{1}".repeat(bytes) }]);
    pod
}

/// The memory of a process, in KiB.
fn resident(pid: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

/// Whether no node fits the pod, because its status may be too large.
fn is_too_large(extender: &Extender, asks: &Value) -> bool {
    let answer = extender.filter(asks, &["n1"]);
    let why = answer["FailedAndUnresolvableNodes"]["n1"].as_str().unwrap_or_default();
    why.contains("more than 1024 KiB together its status may not fit")
}

#[test]
fn pods_whose_json_is_far_larger_than_themselves_do_not_stop_the_extender() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let claims = json!({ CLAIM: "GPU-n1-0,NVIDIA,60000,0:;", "hami.io/vgpu-node": "n1" });
    for number in 100..130 {
        let bytes = if number == 129 { LARGEST } else { 256 << 10 };
        let mut large = with_text(pod(&server, number, 60_000), bytes);
        if number == 129 {
            large["spec"]["nodeName"] = "n1".into();
            large["metadata"]["annotations"] = claims.clone();
        }
        server.put("pods", large);
    }
    let extender = Extender::led(&server);
    assert_eq!(extender.get("/readyz").text(), "ready\n");
    let second = pod(&server, 1, 30_000);
    let answer = extender.filter(&second, &["n1"]);
    assert!(answer["NodeNames"].is_null(), "the claim of the largest pod counts: {answer}");
    // The history is forgotten, so the pods are listed again.
    server.forget();
    eventually("a new list", SOON, || {
        let lists = server.requests().into_iter().filter(|asked| asked.path == "/api/v1/pods" && !asked.is_watch());
        (lists.filter(|asked| asked.query.get("limit").is_some_and(|limit| limit == "500")).count() >= 2).then_some(())
    });
    server.remove("pods", "ml", "train-129");
    eventually("the GPU of the largest pod", SOON, || {
        (extender.filter(&second, &["n1"])["NodeNames"] == json!(["n1"])).then_some(())
    });
    assert_eq!(extender.bind(&second, "n1"), "");
    eventually("the watches after the list", SOON, || (extender.get("/readyz").text() == "ready\n").then_some(()));
    assert_eq!(extender.metric("gpu_steward_extender_left_out_objects{kind=\"pods\"}"), 0);
}

#[test]
fn pods_without_a_claim_take_little_memory_whatever_their_containers_request() {
    const PODS: u32 = 800;
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let before = anon_mib(&extender);
    for number in 100..100 + PODS {
        let mut odd = pod(&server, number, 3000);
        // No two containers have a text in common that could be shared.
        let container = |at: u32| {
            let own = number * 128 + at;
            let limits = match number % 4 {
                0 => json!({}),
                _ => json!({
                    "nvidia.com/gpu": own.to_string(), "nvidia.com/gpumem": (own + 1_000_000).to_string(),
                    "nvidia.com/gpucores": (own + 2_000_000).to_string(), "nvidia.com/priority": (own + 3_000_000).to_string(),
                }),
            };
            json!({ "name": format!("container-{own}"), "image": "x", "resources": { "limits": limits } })
        };
        odd["spec"]["containers"] = (0..128).map(container).collect();
        match number % 4 {
            // It requests no GPU, but has an annotation that users may write.
            0 => {
                odd["spec"]["nodeName"] = "n1".into();
                odd["metadata"]["annotations"] = json!({ "gpu-steward.io/leads": "x" });
            }
            1 => {
                odd["spec"]["nodeName"] = "n1".into();
                odd["status"]["phase"] = "Failed".into();
            }
            2 => odd["spec"]["nodeName"] = format!("ghost-{number}").into(),
            _ => {}
        }
        server.put("pods", odd);
    }
    let mut held = pod(&server, 1, 60_000);
    held["spec"]["nodeName"] = "n1".into();
    held["metadata"]["annotations"] = json!({ CLAIM: "GPU-n1-0,NVIDIA,60000,0:;", "hami.io/vgpu-node": "n1" });
    server.put("pods", held);
    eventually("the pod that came last", SOON, || {
        (extender.metric("gpu_steward_extender_claims{state=\"bound\"}") == 1).then_some(())
    });
    let more = anon_mib(&extender).saturating_sub(before);
    assert!(more <= 12, "{more} MiB more for {PODS} pods");
}

/// Everyone who may create pods can bind them to nodes that do not exist.
#[test]
fn more_names_of_nodes_than_there_may_be_nodes_cost_no_entries_and_a_later_node_has_its_claims() {
    const MOST: u64 = 15_000;
    let server = FakeApiServer::start();
    let bound = |number: u32, node: &str| {
        let mut pod = pod(&server, number, 60_000);
        pod["spec"]["nodeName"] = node.into();
        pod
    };
    for number in 100..100 + u32::try_from(MOST).unwrap() {
        server.put("pods", bound(number, &format!("ghost-{number}")));
    }
    let extender = Extender::led(&server);
    let closed = |extender: &Extender| extender.metric("gpu_steward_extender_nodes{state=\"closed\"}");
    eventually("the pods", SOON, || (closed(&extender) == MOST).then_some(()));
    let mut claimed = bound(1, "n1");
    claimed["metadata"]["annotations"] = json!({ CLAIM: "GPU-n1-0,NVIDIA,60000,0:;", "hami.io/vgpu-node": "n1" });
    server.put("pods", claimed);
    server.put("pods", bound(2, "another-ghost"));
    let asks = pod(&server, 3, 30_000);
    node(&server, "n1", 1);
    let counts = |extender: &Extender| {
        eventually("the claim on the late node", SOON, || {
            (extender.metric("gpu_steward_extender_claims{state=\"bound\"}") == 1).then_some(())
        });
        assert!(extender.filter(&asks, &["n1"])["NodeNames"].is_null());
    };
    counts(&extender);
    assert_eq!(closed(&extender), MOST, "only the Node n1 has got an entry");
    // After a restart, both watches begin anew.
    drop(extender);
    counts(&Extender::led(&server));
}

#[test]
fn a_large_pod_that_has_changed_before_its_binding_is_read_and_bound() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    server.put("pods", with_text(pod(&server, 1, 3000), 960 << 10));
    let first = server.object("pods", "ml", "train-1").unwrap();
    assert_eq!(extender.filter(&first, &["n1"])["NodeNames"], json!(["n1"]));
    server.put("pods", with_text(first.clone(), (960 << 10) - 1));
    // The API server refuses the binding of the former version, and the extender reads the pod, which has 6 MiB of JSON.
    assert_eq!(extender.bind(&first, "n1"), "", "{}", extender.log());
    assert_eq!(stored(&server, &first)["spec"]["nodeName"], "n1");
}

/// Its kubelet could not write its status.
#[test]
fn a_pod_as_large_as_etcd_stores_it_is_not_bound_and_holds_no_reservation_for_ever() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    pod(&server, 2, 3000);
    let second = server.object("pods", "ml", "train-2").unwrap();
    assert_eq!(extender.filter(&second, &["n1"])["NodeNames"], json!(["n1"]));
    server.put("pods", with_text(second.clone(), LARGEST));
    let why = extender.bind(&second, "n1");
    assert!(!why.is_empty() && stored(&server, &second)["spec"]["nodeName"].is_null(), "{why}");
    eventually("the end of the reservation", SOON, || {
        (extender.metric("gpu_steward_extender_claims{state=\"assumed\"}") == 0).then_some(())
    });
    let refused = |asks: &Value| is_too_large(&extender, asks);
    assert!(refused(&stored(&server, &second)));
    // kube-scheduler leaves the managed fields out of its calls.
    pod(&server, 3, 3000);
    let third = server.object("pods", "ml", "train-3").unwrap();
    let mut whole = third.clone();
    whole["metadata"]["managedFields"] = json!([{ "manager": "x".repeat(LARGEST) }]);
    server.put("pods", whole);
    eventually("the size that the pod watch shows", SOON, || refused(&third).then_some(()));
    server.put("pods", third.clone());
    eventually("its size without them", SOON, || {
        (extender.filter(&third, &["n1"])["NodeNames"] == json!(["n1"])).then_some(())
    });
}

/// The watch of kube-scheduler may be ahead of the extender's. Only that of the extender shows the managed fields.
#[test]
fn a_pod_that_the_pod_watch_has_not_shown_is_read_before_its_binding() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    // The pod watch breaks off, and no other begins. Reads of single pods go on.
    server.fault(ApiServerFault::RefuseExactly(403, "/api/v1/pods"));
    server.cut();
    eventually("the broken watch at /readyz", SOON, || {
        extender.get("/readyz").text().contains("the watch of pods is broken").then_some(())
    });
    let large = pod(&server, 1, 3000);
    let mut whole = large.clone();
    whole["metadata"]["managedFields"] = json!([{ "manager": "x".repeat(LARGEST) }]);
    server.put("pods", whole);
    let mut asks = stored(&server, &large);
    asks["metadata"].as_object_mut().unwrap().remove("managedFields");
    assert_eq!(extender.filter(&asks, &["n1"])["NodeNames"], json!(["n1"]));
    let why = extender.bind(&asks, "n1");
    assert!(why.contains("more than 1024 KiB together its status may not fit"), "{why}");
    assert!(stored(&server, &large)["spec"]["nodeName"].is_null());
    let asks = stored(&server, &pod(&server, 2, 3000));
    assert_eq!(extender.filter(&asks, &["n1"])["NodeNames"], json!(["n1"]));
    assert_eq!(extender.bind(&asks, "n1"), "");
}

/// A kubelet repeats images and mount paths in the status, and writes about 1 KiB about each container.
#[test]
fn a_pod_whose_status_may_be_larger_than_etcd_stores_is_not_bound() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let with = |number: u32, change: &dyn Fn(&mut Value)| {
        let mut changed = pod(&server, number, 3000);
        change(&mut changed["spec"]["containers"]);
        server.put("pods", changed.clone());
        stored(&server, &changed)
    };
    let image = |bytes: usize| move |containers: &mut Value| containers[0]["image"] = "A".repeat(bytes).into();
    let mount = json!([{ "name": "v", "mountPath": format!("/{}", "a".repeat(700_000)) }]);
    let plain = |number: usize| json!({ "name": format!("c{number}"), "image": "x" });
    for asks in [
        with(1, &image(300_000)),
        with(2, &|containers| containers[0]["volumeMounts"] = mount.clone()),
        with(3, &|containers| containers.as_array_mut().unwrap().extend((0..1300).map(plain))),
        // References to variables that do not end. If each were looked for to the end of the text, this would take longer than
        // the client waits.
        with(6, &|containers| containers[0]["command"] = json!(["$(".repeat(700_000)])),
    ] {
        let name = &asks["metadata"]["name"];
        assert!(is_too_large(&extender, &asks), "{name}");
        assert!(!extender.bind(&asks, "n1").is_empty(), "{name}");
        assert!(stored(&server, &asks)["spec"]["nodeName"].is_null(), "{name}");
    }
    // Only the pod watch shows the managed fields, and the status counts with them too.
    let asks = with(4, &image(80_000));
    assert_eq!(extender.filter(&asks, &["n1"])["NodeNames"], json!(["n1"]));
    let mut whole = asks.clone();
    whole["metadata"]["managedFields"] = json!([{ "manager": "x".repeat(300_000) }]);
    server.put("pods", whole);
    eventually("the size that the pod watch shows", SOON, || is_too_large(&extender, &asks).then_some(()));
    // A status does not repeat variables.
    let fits = with(5, &|containers| containers[0]["env"] = json!([{ "name": "X", "value": "x".repeat(700_000) }]));
    assert_eq!(extender.filter(&fits, &["n1"])["NodeNames"], json!(["n1"]));
    assert_eq!(extender.bind(&fits, "n1"), "");
}

#[test]
fn a_leader_whose_watch_has_been_broken_for_a_minute_binds_nothing_and_says_so() {
    let server = FakeApiServer::start();
    node(&server, "n1", 2);
    let extender = Extender::led(&server);
    let [first, second] = [pod(&server, 1, 3000), pod(&server, 2, 3000)];
    // The watch ends, and lists are refused. Reads and writes of single objects go on.
    server.fault(ApiServerFault::RefuseExactly(403, "/api/v1/nodes"));
    server.forget();
    eventually("the broken watch at /readyz", SOON, || {
        extender.get("/readyz").text().contains("the watch of nodes is broken").then_some(())
    });
    extender.filter(&first, &["n1"]);
    assert_eq!(extender.bind(&first, "n1"), "", "a short break does not matter");
    let broken = Instant::now();
    let why = eventually("a refused bind", BLIND, || {
        std::thread::sleep(Duration::from_secs(1));
        extender.filter(&second, &["n1"]);
        let ready = extender.get("/readyz").text();
        ready.contains("binds no pod that requests GPUs").then(|| extender.bind(&second, "n1"))
    });
    assert!(broken.elapsed() > Duration::from_secs(50), "{:?}", broken.elapsed());
    assert!(why.starts_with("the watch of nodes has not worked for"), "{why}");
    assert!(stored(&server, &second)["spec"]["nodeName"].is_null());
    assert_eq!(extender.get("/readyz").status, 503);
    assert!(extender.leads() && extender.log().contains("the watch of nodes has not worked for"));
    eventually("the event", SOON, || {
        events(&server, "BindingFailed").into_iter().find(|note| note.contains("has not worked for"))
    });
    server.fault(ApiServerFault::None);
    eventually("the watch", SOON, || (extender.get("/readyz").text() == "ready\n").then_some(()));
    extender.filter(&second, &["n1"]);
    assert_eq!(extender.bind(&second, "n1"), "");
}

#[test]
fn more_objects_than_are_followed_are_counted_and_the_extender_stays_ready() {
    let server = FakeApiServer::start();
    for number in 0..15_002 {
        server.put("nodes", json!({ "metadata": { "name": format!("n{number}"), "uid": format!("uid-{number}") } }));
    }
    let extender = Extender::led(&server);
    let line = "ready\n2 nodes are not followed: at most 15000 are; delete nodes that have ended or are not needed\n";
    let ready = eventually("the line about the nodes", SOON, || {
        Some(extender.get("/readyz")).filter(|answer| answer.text().lines().count() == 2)
    });
    assert_eq!((ready.status, ready.text().as_str()), (200, line));
    assert_eq!(extender.metric("gpu_steward_extender_left_out_objects{kind=\"nodes\"}"), 2);
    assert_eq!(extender.metric("gpu_steward_extender_left_out_objects{kind=\"pods\"}"), 0);
}

#[test]
fn clients_that_never_read_a_large_answer_take_little_memory_and_no_lease() {
    const NODES: usize = 1000;
    let server = FakeApiServer::start();
    (0..NODES).for_each(|number| node(&server, &format!("n{number}"), 8));
    let extender = Extender::led(&server);
    let whole = extender.get("/metrics/hami").body.len();
    assert!(whole > 4 << 20, "{whole}");
    let before = resident(extender.pid());
    let renewed = || server.objects("leases")[0]["spec"]["renewTime"].clone();
    let term = || server.objects("leases")[0]["spec"]["leaseTransitions"].clone();
    let (begun, first, asks) = (renewed(), term(), pod(&server, 1, 3000));
    let mut readers: Vec<TcpStream> = Vec::new();
    let mut most = 0;
    // Each wave gets a copy of its own, and keeps asking for the rest of it. The copy is made before, because few scrapes
    // of one address may wait for it.
    for wave in 1..=6 {
        assert_eq!(extender.get("/metrics/hami").status, 200);
        while readers.len() < wave * 50 {
            readers.push(slow_reader::ask(Ipv4Addr::LOCALHOST, extender.address, "/metrics/hami").unwrap());
        }
        let until = Instant::now() + Duration::from_millis(1300);
        while Instant::now() < until {
            assert_eq!(extender.filter(&asks, &["n1"])["NodeNames"], json!(["n1"]));
            most = resident(extender.pid()).max(most);
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    let more = most.saturating_sub(before) >> 10;
    assert!(more <= 64, "{more} MiB more for {} answers of {} MiB", readers.len(), whole >> 20);
    assert!(extender.leads() && renewed() != begun && term() == first);
    assert_eq!(extender.get("/metrics/hami").body.len(), whole, "others still get the whole answer");
    // They do not take their answers, so they are cut.
    eventually("the slow readers to be cut", SOON, || {
        (extender.metric("gpu_steward_extender_connections") < 50).then_some(())
    });
}

/// A connection whose request waits for the counts of a scrape is not closed for another one.
#[test]
fn scrapes_that_wait_keep_neither_a_probe_nor_kube_scheduler_away() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let question = json!({ "Pod": pod(&server, 1, 3000), "Nodes": null, "NodeNames": ["n1"] }).to_string();
    let head = "POST /filter HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length:";
    let call = format!("{head} {}\r\n\r\n{question}", question.len());
    // kube-scheduler keeps this connection.
    let mut kept = BufReader::new(TcpStream::connect(extender.address).unwrap());
    kept.get_ref().set_read_timeout(Some(SOON)).unwrap();
    let mut filter = || {
        kept.get_mut().write_all(call.as_bytes()).unwrap();
        read_answer(&mut kept).unwrap().status
    };
    assert_eq!(filter(), 200);
    // One address opens more connections than the port keeps. Each asks again and again, and the answers have no body that
    // the client would have to read.
    let asks = "HEAD /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n".repeat(100);
    let scrapers = (0..600).filter_map(|_| {
        let mut scraper = slow_reader::ask(Ipv4Addr::new(127, 0, 0, 2), extender.address, "/healthz").ok()?;
        // The extender may have closed it already.
        let _ = scraper.write_all(asks.as_bytes());
        Some(scraper)
    });
    let scrapers: Vec<TcpStream> = scrapers.collect();
    for _ in 0..20 {
        assert_eq!((extender.get("/healthz").status, filter()), (200, 200));
    }
    let refused = extender.metric("gpu_steward_extender_refused_scrapes_total");
    assert!(refused > 0 && scrapers.len() > 512, "{refused} of {} clients", scrapers.len());
}

#[test]
fn a_pod_is_bound_only_if_everything_that_is_written_on_it_later_has_room_in_its_annotations() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    let with = |number: u32, bytes: usize| {
        let mut full = pod(&server, number, 3000);
        full["metadata"]["annotations"] = json!({ "a": "x".repeat(bytes - 1) });
        server.put("pods", full.clone());
        stored(&server, &full)
    };
    // A real API server binds such a pod, and refuses every later write to it.
    let full = with(1, 262_100);
    let answer = extender.filter(&full, &["n1"]);
    let why = answer["FailedAndUnresolvableNodes"]["n1"].as_str().unwrap_or_default();
    assert!(why.contains("its annotations have 262100 bytes") && why.contains("make them shorter"), "{answer}");
    eventually("the event", SOON, || {
        events(&server, "FilteringFailed").into_iter().find(|note| note.contains("262100 bytes"))
    });
    // It has grown since its filter call.
    let grown = with(2, 1000);
    assert_eq!(extender.filter(&grown, &["n1"])["NodeNames"], json!(["n1"]));
    with(2, 262_100);
    let why = extender.bind(&grown, "n1");
    assert!(!why.is_empty() && stored(&server, &grown)["spec"]["nodeName"].is_null(), "{why}");
    // The largest one that is bound can be written.
    let fits = with(3, 245_760);
    assert_eq!(extender.filter(&fits, &["n1"])["NodeNames"], json!(["n1"]));
    assert_eq!(extender.bind(&fits, "n1"), "");
    let mark = json!({ "metadata": { "annotations": { "gpu-steward.io/evict": "x".repeat(100) } } });
    let kind = [("Content-Type", "application/merge-patch+json")];
    let path = "/api/v1/namespaces/ml/pods/train-3";
    let written = http::request(server.address(), "PATCH", path, &kind, mark.to_string().as_bytes()).unwrap();
    assert_eq!(written.status, 200, "{}", written.text());
    eventually("no reservation to be left", SOON, || {
        (extender.metric("gpu_steward_extender_claims{state=\"assumed\"}") == 0).then_some(())
    });
}

#[test]
fn connections_that_die_silently_cost_no_term_and_a_pods_end_is_seen_soon() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let mut held = pod(&server, 1, 60_000);
    held["spec"]["nodeName"] = "n1".into();
    held["metadata"]["annotations"] = json!({ CLAIM: "GPU-n1-0,NVIDIA,60000,0:;", "hami.io/vgpu-node": "n1" });
    server.put("pods", held.clone());
    let relay = Relay::to(server.address(), Duration::ZERO);
    let extender = ExtenderProcess::start(BINARY, |dir| {
        let kubeconfig = server.kubeconfig(dir);
        let text = std::fs::read_to_string(&kubeconfig).unwrap();
        std::fs::write(&kubeconfig, text.replace(&server.address().to_string(), &relay.address.to_string())).unwrap();
        // The usual times.
        let flags = ["--extender-listen", "127.0.0.1:0", "--lease-namespace", "gpu", "--lease-duration", "15s"];
        flags.map(OsString::from).into_iter().chain(["--kubeconfig".into(), kubeconfig.into()]).collect()
    });
    extender.wait_until_leads();
    let bound = || extender.metric("gpu_steward_extender_claims{state=\"bound\"}");
    assert_eq!(bound(), 1);
    let asks = pod(&server, 2, 60_000);
    relay.drop_silently();
    let dropped = Instant::now();
    server.remove("pods", "ml", "train-1");
    eventually("the end of the pod", Duration::from_secs(90), || {
        assert!(extender.leads(), "after {:?}: {}", dropped.elapsed(), extender.log());
        (bound() == 0).then_some(())
    });
    assert!(dropped.elapsed() < Duration::from_secs(90), "{:?}", dropped.elapsed());
    extender.filter(&asks, &["n1"]);
    assert_eq!(extender.bind(&asks, "n1"), "");
    let log = extender.log();
    assert!(!log.contains("no longer the leader") && log.matches("won the election").count() == 1, "{log}");
}

/// kube-scheduler may try a node first that it found for another pod, whose annotations it does not compare.
#[test]
fn a_node_that_was_found_for_another_pod_is_judged_for_this_one() {
    let server = FakeApiServer::start();
    (1..=3).for_each(|number| node(&server, &format!("n{number}"), 1));
    let extender = Extender::led(&server);
    let first = pod(&server, 1, 3000);
    assert_eq!(extender.filter(&first, &["n1", "n2", "n3"])["NodeNames"].as_array().unwrap().len(), 3);
    assert_eq!(extender.bind(&first, "n3"), "");
    let choosy = |number: u32, key: &str, value: &str| {
        let mut asks = pod(&server, number, 3000);
        asks["metadata"]["annotations"] = json!({ key: value });
        server.put("pods", asks.clone());
        stored(&server, &asks)
    };
    let other_type = choosy(2, "nvidia.com/use-gputype", "A100");
    let other_gpu = choosy(3, "nvidia.com/use-gpuuuid", "GPU-n2-0");
    // Bound to the hinted node without a filter call of its own.
    let why = extender.bind(&other_type, "n1");
    assert!(why.contains("no recent filter call"), "{why}");
    // Asked about the hinted node only, as for a node to which a pod is nominated.
    for asks in [&other_type, &other_gpu] {
        let answer = extender.filter(asks, &["n1"]);
        assert!(answer["NodeNames"].is_null() && !answer["FailedAndUnresolvableNodes"]["n1"].is_null(), "{answer}");
        assert!(!extender.bind(asks, "n1").is_empty());
        assert!(stored(&server, asks)["spec"]["nodeName"].is_null());
    }
    // Bound to another node than the filter has named.
    assert_eq!(extender.filter(&other_gpu, &["n1", "n2", "n3"])["NodeNames"], json!(["n2"]));
    assert!(!extender.bind(&other_gpu, "n1").is_empty());
    // Another annotation since its filter call, by which the node is judged.
    let changes = choosy(4, "nvidia.com/use-gputype", "H100");
    assert_eq!(extender.filter(&changes, &["n1"])["NodeNames"], json!(["n1"]));
    choosy(4, "nvidia.com/use-gputype", "A100");
    assert!(!extender.bind(&changes, "n1").is_empty());
    assert!(stored(&server, &changes)["spec"]["nodeName"].is_null());
    assert_eq!(extender.filter(&other_gpu, &["n2"])["NodeNames"], json!(["n2"]));
    assert_eq!(extender.bind(&other_gpu, "n2"), "");
}
