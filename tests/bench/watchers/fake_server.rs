//! An API server of generated pods: a list in pages, and one watch that changes every pod once.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};

/// A pod as a server sends it: two containers, one pod in five with a claim on GPUs.
pub(crate) fn pod(number: usize, version: usize) -> String {
    let environment: Vec<String> =
        (0..20).map(|n| format!(r#"{{"name":"VARIABLE_{n}","value":"{}"}}"#, "x".repeat(40))).collect();
    let managed: Vec<String> = (0..30)
        .map(|n| format!(r#"{{"manager":"kubelet","operation":"Update","apiVersion":"v1","fieldsType":"FieldsV1","fieldsV1":{{"f:status-{n}":{{".":{{}}}}}}}}"#))
        .collect();
    let gpus = number.is_multiple_of(5);
    let limits = if gpus { r#","nvidia.com/gpu":"1","nvidia.com/gpumem":"8000""# } else { "" };
    let claim = match gpus {
        true => format!(
            r#","hami.io/bind-phase":"success","hami.io/vgpu-devices-allocated":"GPU-{number:032x},NVIDIA,8000,30:;""#
        ),
        false => String::new(),
    };
    let container = |name: &str| {
        format!(
            r#"{{"name":"{name}","image":"registry.example/{name}:1","env":[{}],"resources":{{"limits":{{"cpu":"1","memory":"1Gi"{limits}}}}},"volumeMounts":[{{"name":"v","mountPath":"/v"}}]}}"#,
            environment.join(",")
        )
    };
    let status = |name: &str| {
        format!(
            r#"{{"name":"{name}","containerID":"containerd://{number:064x}","ready":true,"restartCount":0,"state":{{"running":{{"startedAt":"2026-11-21T10:00:00Z"}}}},"lastState":{{}}}}"#
        )
    };
    format!(
        r#"{{"kind":"Pod","apiVersion":"v1","metadata":{{"name":"train-{number}","namespace":"ml-{}","uid":"{:08x}-0000-4000-8000-{number:012x}","resourceVersion":"{version}","creationTimestamp":"2026-11-21T10:00:00Z","labels":{{"app":"train","team":"t{}"}},"annotations":{{"kubectl.kubernetes.io/last-applied-configuration":"{}"{claim}}},"ownerReferences":[{{"apiVersion":"batch/v1","kind":"Job","name":"train-{number}","uid":"{number:08x}-1111-4000-8000-000000000000","controller":true}}],"managedFields":[{}]}},"spec":{{"nodeName":"node-{}","restartPolicy":"Always","priority":0,"containers":[{},{}]}},"status":{{"phase":"Running","containerStatuses":[{},{}]}}}}"#,
        number % 40,
        number.wrapping_mul(2_654_435_761) % (1 << 32),
        number % 9,
        "y".repeat(500),
        managed.join(","),
        number % 5000,
        container("main"),
        container("sidecar"),
        status("main"),
        status("sidecar"),
    )
}

/// Serves this many pods on a loopback port, until the program ends.
pub(crate) fn serve(pods: usize) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("an address").port();
    std::thread::spawn(move || {
        for connection in listener.incoming().flatten() {
            std::thread::spawn(move || answer(connection, pods));
        }
    });
    port
}

/// Answers the requests of one connection.
fn answer(connection: TcpStream, pods: usize) -> Option<()> {
    let mut reader = BufReader::new(connection.try_clone().ok()?);
    let mut connection = connection;
    loop {
        let mut first = String::new();
        if reader.read_line(&mut first).ok()? == 0 {
            return None;
        }
        let mut line = String::new();
        while reader.read_line(&mut line).ok()? > 2 {
            line.clear();
        }
        if first.contains("watch=true") {
            return watch(&mut connection, pods);
        }
        let after = first.split_once("continue=").map(|(_, token)| token);
        let begin = after
            .map_or(0, |token| token.chars().take_while(char::is_ascii_digit).collect::<String>().parse().unwrap_or(0));
        list(&mut connection, begin, pods)?;
    }
}

fn list(connection: &mut TcpStream, begin: usize, pods: usize) -> Option<()> {
    let end = pods.min(begin + 500);
    let items: Vec<String> = (begin..end).map(|number| pod(number, number + 1)).collect();
    let next = if end < pods { end.to_string() } else { String::new() };
    let body = format!(
        r#"{{"kind":"PodList","apiVersion":"v1","metadata":{{"resourceVersion":"{}","continue":"{next}"}},"items":[{}]}}"#,
        pods + 1,
        items.join(",")
    );
    let head = format!("HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    connection.write_all(head.as_bytes()).ok()?;
    connection.write_all(body.as_bytes()).ok()
}

/// Sends a change of every pod, and then nothing more.
fn watch(connection: &mut TcpStream, pods: usize) -> Option<()> {
    let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
    connection.write_all(head.as_bytes()).ok()?;
    for number in 0..pods {
        let mut chunk = String::new();
        let line = format!("{{\"type\":\"MODIFIED\",\"object\":{}}}\n", pod(number, pods + 2 + number));
        let _ = write!(chunk, "{:x}\r\n{line}\r\n", line.len());
        connection.write_all(chunk.as_bytes()).ok()?;
    }
    std::thread::sleep(std::time::Duration::from_secs(600));
    None
}
