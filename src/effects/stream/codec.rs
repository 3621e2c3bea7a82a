//! Encodes and decodes the messages of one stream at the leader, with small buffers: tonic's own would take 16 KiB for each of
//! 5,000 streams.

use proto::stream::{AgentMessage, LeaderMessage};
use tonic::codec::{BufferSettings, Codec};
use tonic_prost::{ProstDecoder, ProstEncoder};

/// Bytes of a buffer at first. A change and an answer have some hundred; a buffer grows for larger messages.
const BUFFER: usize = 512;
/// Bytes of messages that go into one frame.
const TOGETHER: usize = 16 << 10;

/// The codec of the leader.
#[derive(Clone, Copy, Debug, Default)]
pub struct LeaderCodec;

fn settings() -> BufferSettings {
    BufferSettings::new(BUFFER, TOGETHER)
}

impl Codec for LeaderCodec {
    type Encode = LeaderMessage;
    type Decode = AgentMessage;
    type Encoder = ProstEncoder<LeaderMessage>;
    type Decoder = ProstDecoder<AgentMessage>;

    fn encoder(&mut self) -> Self::Encoder {
        ProstEncoder::new(settings())
    }

    fn decoder(&mut self) -> Self::Decoder {
        ProstDecoder::new(settings())
    }
}
