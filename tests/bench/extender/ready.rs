//! The time from the start of an extender to its first answer, compared with a plain list of the same Nodes and pods.

use crate::cluster::{PODS_A_NODE, asking_pod, cluster, node_name};
use crate::outcome::{Figures, Outcome, median};
use crate::served::{Connection, SOON, Served};
use lab::api_server::FakeApiServer;
use serde_json::json;
use std::time::{Duration, Instant};

const NODES: usize = 5000;
/// Rounds in which both take turns. The median of their ratios counts.
const ROUNDS: usize = 5;
/// Objects of one page, as in the extender's requests.
const PAGE: usize = 500;
/// The fake API server answers from memory, so its plain list takes less time than that of a real server, where the limit is
/// 1.5 (`tests/cluster/ready.rs`). Here the first answer took 1.79 to 1.84 times as long as the list.
const MOST: f64 = 2.2;

/// Measures with 5,000 nodes and 50,000 pods.
pub(crate) fn measure(figures: &mut Figures) -> Outcome<()> {
    let server = cluster(NODES, 1);
    let (mut listed, mut answered, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (list, answer) = (plain_list(&server)?.as_secs_f64(), first_answer(&server)?.as_secs_f64());
        listed.push(list);
        answered.push(answer);
        ratios.push(answer / list);
    }
    let (list, answer) = (median(listed), median(answered));
    println!(
        "{NODES} nodes, {} pods: a plain list takes {list:.2} s, an extender answers {answer:.2} s after its start",
        NODES * PODS_A_NODE
    );
    figures.at_most("first answer after the start, by the time of a plain list", median(ratios), MOST);
    Ok(())
}

/// Reads all Nodes and then all pods in pages, and decodes nothing.
fn plain_list(server: &FakeApiServer) -> Outcome<Duration> {
    let begun = Instant::now();
    let mut connection = Connection::open(server.address())?;
    for plural in ["nodes", "pods"] {
        let mut next = String::new();
        loop {
            let path = format!("/api/v1/{plural}?limit={PAGE}&continue={next}");
            let page = connection.send("GET", &path, b"")?.text();
            let (_, rest) = page.split_once("\"continue\":\"").ok_or("a page without a token")?;
            next = rest.split_once('"').ok_or("a token without an end")?.0.to_owned();
            if next.is_empty() {
                break;
            }
        }
    }
    Ok(begun.elapsed())
}

/// Starts an extender, calls it until it answers, and stops it.
fn first_answer(server: &FakeApiServer) -> Outcome<Duration> {
    let question = json!({ "Pod": asking_pod(1, 1000), "Nodes": null, "NodeNames": [node_name(0), node_name(1)] });
    let body = question.to_string().into_bytes();
    let begun = Instant::now();
    let mut extender = Served::begun(server, |_| Ok(Vec::new()))?;
    // A refusal closes the connection, because the call was not read.
    while Connection::open(extender.address)?.send("POST", "/filter", &body)?.status != 200 {
        if begun.elapsed() > SOON {
            return Err(format!("no answer: {}", extender.log()).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    let took = begun.elapsed();
    // The Lease is free again for the next extender.
    extender.terminate()?;
    extender.ended()?;
    Ok(took)
}
