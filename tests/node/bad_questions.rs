//! The built extender with calls that no kube-scheduler would send: each is bounded, answered and counted. After each case
//! the extender answers an ordinary call.

use crate::extender::{Extender, SOON, node, pod};
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use lab::http::{self, HttpResponse, read_answer};
use serde_json::{Value, json};
use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

const JSON: [(&str, &str); 1] = [("Content-Type", "application/json")];

/// An extender with a node with one GPU, and the pod of an ordinary call.
fn started(server: &FakeApiServer) -> (Extender, Value) {
    node(server, "n1", 1);
    let extender = Extender::led(server);
    let asks = pod(server, 1, 3000);
    works(&extender, &asks);
    (extender, asks)
}

fn works(extender: &Extender, asks: &Value) {
    assert_eq!(extender.filter(asks, &["n1"])["NodeNames"], json!(["n1"]));
}

fn post(extender: &Extender, path: &str, body: &[u8]) -> HttpResponse {
    http::request(extender.address, "POST", path, &JSON, body).unwrap()
}

fn metric(extender: &Extender, series: &str) -> f64 {
    let text = extender.get("/metrics").text();
    let line = text.lines().find(|line| line.starts_with(series)).unwrap_or_else(|| panic!("{series}: {text}"));
    line.rsplit(' ').next().unwrap().parse().unwrap()
}

/// The resident memory of the process in MiB, without the pages of its file.
pub(crate) fn anon_mib(extender: &Extender) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", extender.pid())).unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() >> 10
}

/// The reason why no node fits.
fn refusal(extender: &Extender, pod: &Value) -> String {
    let answer = extender.filter(pod, &["n1"]);
    assert_eq!(answer["NodeNames"], Value::Null, "{answer}");
    answer["FailedAndUnresolvableNodes"]["n1"].as_str().unwrap_or_else(|| panic!("{answer}")).to_owned()
}

#[test]
fn a_pod_that_is_too_large_or_has_odd_amounts_is_refused_with_a_reason() {
    let server = FakeApiServer::start();
    let (extender, asks) = started(&server);
    let with = |change: &dyn Fn(&mut Value)| {
        let mut pod = asks.clone();
        change(&mut pod);
        pod
    };
    let annotated = |key: &str| with(&|pod| pod["metadata"]["annotations"] = json!({ key: "x".repeat(200_000) }));
    // Annotations of other programs are skipped. An unread annotation about GPUs could be a condition, so the pod is refused.
    assert_eq!(extender.filter(&annotated("example.com/notes"), &["n1"])["NodeNames"], json!(["n1"]));
    let why = refusal(&extender, &annotated("nvidia.com/nouse-gputype"));
    assert!(why.contains("are not read: together they are longer than"), "{why}");
    let many = with(&|pod| {
        let one = pod["spec"]["containers"][0].clone();
        let named = |n: usize| {
            let mut container = one.clone();
            container["name"] = format!("c{n}").into();
            container
        };
        pod["spec"]["containers"] = (0..10_000).map(named).collect();
    });
    let why = refusal(&extender, &many);
    assert!(why.contains("containers more than the"), "{why}");
    for (resource, amount) in [
        ("nvidia.com/gpu", "-1"),
        ("nvidia.com/gpu", "1e300"),
        ("nvidia.com/gpu", "9223372036854775807"),
        ("nvidia.com/gpu", "99999999999999999999999999"),
        ("nvidia.com/gpu", "1n"),
        ("nvidia.com/gpu", ""),
        ("nvidia.com/gpumem", "-3000"),
        ("nvidia.com/gpumem", "8Ei"),
        ("nvidia.com/gpumem", "0.5"),
        ("nvidia.com/gpumem-percentage", "many"),
        ("nvidia.com/gpucores", "-5"),
        ("nvidia.com/gpucores", "101"),
        ("nvidia.com/priority", "7"),
    ] {
        let odd = with(&|pod| pod["spec"]["containers"][0]["resources"]["limits"][resource] = amount.into());
        let why = refusal(&extender, &odd);
        assert!(why.contains("container main: ") && why.contains(resource), "{resource} {amount}: {why}");
        assert!(why.len() < 400, "{why}");
    }
    let counted = metric(&extender, "gpu_steward_extender_refused_pods_total");
    assert!((counted - 15.0).abs() < 0.5, "{counted}");
    // A request for more GPUs than a node has is valid, unless its claim would be too long for the pod.
    let of =
        |gpus: &str| with(&|pod| pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] = gpus.into());
    assert_eq!(refusal(&extender, &of("98")), "NodeInsufficientDevice");
    for (gpus, words) in [("99", "request 99 GPUs together"), ("2147483647", "request 2147483647 GPUs together")] {
        let why = refusal(&extender, &of(gpus));
        assert!(why.starts_with("the pod cannot be placed: ") && why.contains(words), "{why}");
    }
    let limits = json!({ "nvidia.com/gpu": "8", "nvidia.com/gpumem": "1" });
    let init = |n: usize| json!({ "name": format!("i{n}"), "resources": { "limits": limits } });
    let many = with(&|pod| pod["spec"]["initContainers"] = (0..40).map(init).collect());
    let why = refusal(&extender, &many);
    assert!(why.contains("request 321 GPUs together"), "{why}");
    works(&extender, &asks);
    assert!(anon_mib(&extender) < 100, "{} MiB", anon_mib(&extender));
}

#[test]
fn a_body_that_is_no_question_is_refused_and_counted() {
    let server = FakeApiServer::start();
    let (extender, asks) = started(&server);
    let question = json!({ "Pod": asks, "Nodes": null, "NodeNames": ["n1"] }).to_string();
    let mut bodies: Vec<Vec<u8>> =
        (0..question.len()).step_by(7).map(|end| question.as_bytes()[..end].to_vec()).collect();
    let names: Vec<String> = (0..15_001).map(|n| format!("n{n}")).collect();
    bodies.extend([
        "[".repeat(100_000).into_bytes(),
        format!(r#"{{"Pod":{}}}"#, "[".repeat(100_000)).into_bytes(),
        vec![0xff; 1000],
        br#"{"Pod":{},"NodeNames":["n1"]}"#.to_vec(),
        br#"{"Pod":null,"pod":null,"NodeNames":["n1"]}"#.to_vec(),
        json!({ "Pod": asks, "NodeNames": names }).to_string().into_bytes(),
        json!({ "Pod": asks, "NodeNames": ["n1"], "Nodes": { "items": [{ "metadata": { "name": "n1" } }] } })
            .to_string()
            .into_bytes(),
        json!({ "Pod": asks, "NodeNames": [7] }).to_string().into_bytes(),
        json!({ "Pod": asks, "NodeNames": { "n1": 1 } }).to_string().into_bytes(),
    ]);
    for verb in ["filter", "prioritize", "preempt", "bind"] {
        let series = format!("gpu_steward_extender_unanswered_total{{verb=\"{verb}\"}}");
        let before = metric(&extender, &series);
        let mut refused = 0.0;
        for body in &bodies {
            let answer = post(&extender, &format!("/{verb}"), body);
            // A bind has a lower limit. The victims of a preemption have other fields than the nodes of a filter.
            let expected: &[u16] = if verb == "bind" { &[400, 413] } else { &[400] };
            let other = verb == "preempt" && answer.status == 200;
            let shown = String::from_utf8_lossy(&body[..body.len().min(80)]).into_owned();
            assert!(expected.contains(&answer.status) || other, "{verb} {shown}: {} {}", answer.status, answer.text());
            assert!(answer.body.len() < 1000, "{verb} {shown}: {}", answer.text());
            refused += if other { 0.0 } else { 1.0 };
        }
        assert!((metric(&extender, &series) - before - refused).abs() < 0.5, "{verb}: {refused} after {before}");
    }
    // A body beyond the limit is not read.
    let begun = Instant::now();
    assert_eq!(post(&extender, "/filter", &vec![b' '; (32 << 20) + 1]).status, 413);
    assert!(begun.elapsed() < Duration::from_secs(10));
    for (method, kind, status) in
        [("PUT", "application/json", 405), ("POST", "text/plain", 415), ("POST", "application/xml", 415)]
    {
        let answer = http::request(extender.address, method, "/filter", &[("Content-Type", kind)], b"{}").unwrap();
        assert_eq!(answer.status, status, "{method} {kind}: {}", answer.text());
    }
    let unknown = ["/permit", "/filter/x", "/Filter", "/", "//filter", "/filter%00"];
    for verb in unknown {
        assert_eq!(post(&extender, verb, b"{}").status, 404, "{verb}");
    }
    assert_eq!(post(&extender, "/metrics", b"{}").status, 405);
    let counted = metric(&extender, "gpu_steward_extender_unknown_paths_total");
    assert!((counted - unknown.len() as f64 - 1.0).abs() < 0.5, "{counted}");
    works(&extender, &asks);
}

#[test]
fn slow_clients_and_ten_thousand_connections_keep_nobody_out() {
    let server = FakeApiServer::start();
    let (extender, asks) = started(&server);
    let head = format!(
        "POST /filter HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n",
        extender.address
    );
    // These clients send a part of the body and wait.
    let slow: Vec<TcpStream> = (0..100)
        .map(|_| {
            let mut stream = TcpStream::connect(extender.address).unwrap();
            stream.write_all(head.as_bytes()).unwrap();
            stream.write_all(b"{").unwrap();
            stream
        })
        .collect();
    works(&extender, &asks);
    // The test opens ten thousand connections, and keeps open as many as its limit of file descriptors allows.
    let (mut open, mut refused, most) = (Vec::new(), 0_u32, 700);
    for _ in 0..10_000 {
        let mut stream = TcpStream::connect(extender.address).unwrap();
        if stream.write_all(b"POST /filter HTTP/1.1\r\n").is_err() {
            refused += 1;
        }
        open.push(stream);
        if open.len() > most {
            open.remove(0);
        }
    }
    works(&extender, &asks);
    // A connection that is being closed for a newer one counts until its task has ended.
    eventually("at most 512 connections", SOON, || {
        (metric(&extender, "gpu_steward_extender_connections ") <= 512.0).then_some(())
    });
    let cut = metric(&extender, "gpu_steward_extender_connections_cut_total ");
    // The number depends on how fast the extender accepts connections: it does not cut a client that is already gone.
    assert!(cut > 0.0, "{cut} were cut, and {refused} could not be written to");
    assert!(anon_mib(&extender) < 150, "{} MiB", anon_mib(&extender));
    drop(open);
    // The extender gives up on a body that does not arrive; the client gets an answer or the end of the connection.
    let begun = Instant::now();
    for stream in slow {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        match read_answer(&mut BufReader::new(&stream)) {
            Ok(answer) => assert!([408, 503].contains(&answer.status), "{} {}", answer.status, answer.text()),
            Err(error) => assert!(!matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut), "{error}"),
        }
    }
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    works(&extender, &asks);
}

/// If a client does not read its answer, the extender gives up after the write timeout.
#[test]
fn a_client_that_does_not_read_its_answer_is_cut() {
    let server = FakeApiServer::start();
    let (extender, asks) = started(&server);
    // The answer for a pod without GPUs contains the whole Nodes, more than fits the kernel's buffers.
    let notes = "x".repeat(2000);
    let nodes: Vec<Value> =
        (0..14_000).map(|n| json!({ "metadata": { "name": format!("n{n}") }, "notes": notes })).collect();
    let plain = json!({ "metadata": { "name": "web", "namespace": "ml", "uid": "1".repeat(32) }, "spec": { "containers": [] } });
    let body = json!({ "Pod": plain, "Nodes": { "items": nodes } }).to_string();
    let mut streams = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(extender.address).unwrap();
        let head = format!(
            "POST /filter HTTP/1.1\r\nHost: {}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            extender.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).unwrap();
        stream.write_all(body.as_bytes()).unwrap();
        streams.push(stream);
    }
    works(&extender, &asks);
    // The scrape has its own connection.
    eventually("the connections to be closed", SOON, || {
        (metric(&extender, "gpu_steward_extender_connections ") <= 1.0).then_some(())
    });
    for mut stream in streams {
        stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        assert!(rest.len() < body.len() / 2, "the whole answer was sent to a client that did not read");
    }
    works(&extender, &asks);
}
