//! The messages of the streams between agents and the leader. Only the file of their decoder is compiled here, because the
//! rest of `stream` has many dependencies. What was read is written and read again.
#![no_main]

#[path = "../../../src/stream/convert.rs"]
mod convert;

use libfuzzer_sys::fuzz_target;
use prost::Message;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(message) = proto::stream::AgentMessage::decode(bytes)
        && let Ok(message) = convert::agent_message(message)
    {
        assert_eq!(convert::agent_message(convert::from_agent(&message)), Ok(message));
    }
    if let Ok(message) = proto::stream::LeaderMessage::decode(bytes)
        && let Ok(view) = convert::leader_view(message)
    {
        let again = convert::leader_view(convert::from_leader(&view)).expect("what was written is read");
        assert_eq!((again.epoch, again.awaited), (view.epoch, view.awaited));
    }
});
