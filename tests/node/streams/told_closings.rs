//! Nodes that an agent closes and opens: the event on the Node is written without a change of any pod or Node.

use super::stream_client::{StreamClient, full};
use super::stream_extender::{SOON, StreamExtender, agent_token, node, trusted};
use crate::extender::events;
use lab::api_server::FakeApiServer;
use lab::eventually::eventually;
use proto::stream::Phase;

#[test]
fn a_node_whose_agent_is_not_back_in_time_is_told_and_so_is_its_return() {
    let server = FakeApiServer::start();
    node(&server, "n1", 1);
    let extender = StreamExtender::led(&server);
    let trusted = trusted(&server);
    let open = || {
        let token = agent_token(&server, "n1", 1);
        let mut stream = eventually("a stream", SOON, || StreamClient::open(extender.streams, &trusted, &token).ok());
        stream.send(full("n1", Phase::Serving, &[]));
        stream.hear_until("an open node", |message| message.closed.is_empty());
        stream
    };
    let told = |reason: &str, words: &str| {
        eventually(&format!("an event {reason} with {words}"), SOON, || {
            events(&server, reason).into_iter().find(|note| note.contains(words))
        });
    };
    drop(open());
    told("GPUsClosed", "the node's agent has lost its connection and has not connected again");
    let _stream = open();
    told("GPUsOpen", "takes GPU pods again");
    assert_eq!(events(&server, "GPUsClosed").len() + events(&server, "GPUsOpen").len(), 2);
}
