//! Events wait in a queue while the API server does not accept them; no answer of a verb waits for events.

use crate::extender::{Extender, node, pod, stored};
use lab::api_server::{ApiServerFault, FakeApiServer};
use serde_json::json;

/// More pods than there are places in the queue, with one event each.
const PODS: u32 = 4300;

#[test]
fn a_server_that_takes_no_events_delays_no_answer_and_the_events_that_are_dropped_are_counted() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = Extender::led(&server);
    server.fault(ApiServerFault::HangPath("/events"));
    let asks = pod(&server, 0, 1000);
    let mut other = asks.clone();
    for number in 1..=PODS {
        other["metadata"]["uid"] = json!(format!("{number:08x}-0000-4000-8000-000000000001"));
        assert_eq!(extender.filter(&other, &["n1"])["NodeNames"], json!(["n1"]));
    }
    let dropped = extender.metric("gpu_steward_extender_events_dropped_total");
    assert!((1..u64::from(PODS)).contains(&dropped), "{dropped} of {PODS} are dropped");
    extender.filter(&asks, &["n1"]);
    assert_eq!(extender.bind(&asks, "n1"), "");
    assert_eq!(stored(&server, &asks)["spec"]["nodeName"], "n1");
}
