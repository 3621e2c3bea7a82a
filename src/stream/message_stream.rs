//! Messages on a connection. Each message is its length in four bytes, big-endian, and then its bytes as protobuf
//! (`proto/stream.proto`).
//!
//! A leader may have 5,000 such connections, and each is idle most of the time. So a connection holds memory for a
//! message only while the message arrives.
//!
//! What must never happen here: memory is allocated for a length whose bytes have not arrived; half a message is lost
//! because the caller dropped the future that was reading it.

use prost::Message;
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// Maximum bytes of a message. A message about 1,024 pods, with the UUIDs of the GPUs that they use, has about 150 KiB.
pub const MAX_MESSAGE: usize = 256 << 10;
/// When a connection closes, at most this many bytes are read and discarded. This is about what the socket buffers of
/// both sides hold.
const MAX_REST: usize = 1 << 20;
/// Maximum bytes that one read takes.
const STEP: usize = 4 << 10;

/// A connection with messages in both directions.
#[derive(Debug)]
pub struct MessageStream<S> {
    connection: S,
    /// The part of the current message that has arrived: first its length, then its bytes (`body`). `read` counts the
    /// bytes of both.
    length: [u8; 4],
    body: Vec<u8>,
    read: usize,
}

/// Why there is no further message.
#[derive(Debug, thiserror::Error)]
pub enum MessageError {
    /// The connection is broken.
    #[error("the connection is broken: {0}")]
    Connection(#[from] io::Error),
    /// The connection has ended within a message.
    #[error("the connection has ended within a message")]
    Truncated,
    /// The message is larger than [`MAX_MESSAGE`].
    #[error("the message has {0} bytes, more than the allowed {MAX_MESSAGE}")]
    TooLarge(usize),
    /// The bytes are not a valid message of the schema.
    #[error("not a valid message of the schema: {0}")]
    Schema(#[from] prost::DecodeError),
}

impl<S: AsyncRead + AsyncWrite + Unpin> MessageStream<S> {
    /// Messages on this connection.
    pub fn new(connection: S) -> MessageStream<S> {
        MessageStream { connection, length: [0; 4], body: Vec::new(), read: 0 }
    }

    /// The next message; `None` if the connection has ended after a whole message. If the future is dropped, no bytes
    /// are lost.
    ///
    /// # Errors
    /// [`MessageError`]; nothing more can be read then.
    pub async fn next<M: Message + Default>(&mut self) -> Result<Option<M>, MessageError> {
        let head = self.length.len();
        while let Some(rest) = self.length.get_mut(self.read..).filter(|rest| !rest.is_empty()) {
            match self.connection.read(rest).await? {
                0 if self.read == 0 => return Ok(None),
                0 => return Err(MessageError::Truncated),
                read => self.read += read,
            }
        }
        let length = usize::try_from(u32::from_be_bytes(self.length)).unwrap_or(usize::MAX);
        if length > MAX_MESSAGE {
            return Err(MessageError::TooLarge(length));
        }
        while self.read < head + length {
            let at = self.read - head;
            self.body.resize(length.min(at + STEP), 0);
            let rest = self.body.get_mut(at..).unwrap_or_default();
            match self.connection.read(rest).await? {
                0 => return Err(MessageError::Truncated),
                read => self.read += read,
            }
        }
        self.read = 0;
        let body = std::mem::take(&mut self.body);
        Ok(Some(M::decode(body.as_slice())?))
    }

    /// Sends a message. If the future is dropped, the connection cannot be used any more.
    ///
    /// # Errors
    /// An error of the connection.
    pub async fn send(&mut self, message: &impl Message) -> io::Result<()> {
        let length = message.encoded_len();
        let mut bytes = Vec::with_capacity(self.length.len() + length);
        bytes.extend(u32::try_from(length).map_err(io::Error::other)?.to_be_bytes());
        message.encode(&mut bytes).map_err(io::Error::other)?;
        self.connection.write_all(&bytes).await?;
        self.connection.flush().await
    }

    /// Closes this side, and waits until the other side has closed too. Bytes that the other side sends until then are
    /// discarded.
    ///
    /// # Errors
    /// An error of the connection.
    pub async fn close(&mut self) -> io::Result<()> {
        self.connection.shutdown().await?;
        let (mut rest, mut read) = ([0; 512], 0);
        while read < MAX_REST {
            match self.connection.read(&mut rest).await? {
                0 => break,
                more => read += more,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use proto::stream::LeaderMessage;
    use std::time::Duration;
    use tokio::time::timeout;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
    }

    fn said(epoch: u64, closed: usize) -> LeaderMessage {
        LeaderMessage { version: 1, epoch, closed: "x".repeat(closed), ..LeaderMessage::default() }
    }

    /// Reads messages from these bytes. Returns their number, and how the reading ended.
    async fn read(bytes: &[u8]) -> (usize, Result<(), MessageError>) {
        let (mut far, near) = tokio::io::duplex(1 << 20);
        far.write_all(bytes).await.unwrap();
        drop(far);
        let (mut stream, mut messages) = (MessageStream::new(near), 0);
        loop {
            match stream.next::<LeaderMessage>().await {
                Ok(Some(_)) => messages += 1,
                Ok(None) => return (messages, Ok(())),
                Err(why) => return (messages, Err(why)),
            }
        }
    }

    #[test]
    fn messages_arrive_whole_also_byte_by_byte_beside_other_work() {
        runtime().block_on(async {
            // The pipe holds one byte, so a read gets one byte at a time.
            let (far, near) = tokio::io::duplex(1);
            let (mut far, mut near) = (MessageStream::new(far), MessageStream::new(near));
            let sender = tokio::spawn(async move {
                for (epoch, length) in [(1, 0), (2, 3), (3, 5000), (4, 9000)] {
                    far.send(&said(epoch, length)).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
                far.close().await.unwrap();
            });
            let (mut heard, mut given_up) = (Vec::new(), 0);
            loop {
                // The future is dropped again and again, as it would be for a timer.
                match timeout(Duration::from_micros(300), near.next::<LeaderMessage>()).await {
                    Err(_) => given_up += 1,
                    Ok(Ok(Some(message))) => heard.push((message.epoch, message.closed.len())),
                    Ok(end) => {
                        assert!(end.unwrap().is_none());
                        break;
                    }
                }
            }
            assert_eq!(heard, [(1, 0), (2, 3), (3, 5000), (4, 9000)]);
            assert!(given_up > 0);
            assert_eq!(near.body.capacity(), 0, "nothing is kept between two messages");
            // The sender's `close` waits until this side has closed.
            drop(near);
            sender.await.unwrap();
        });
    }

    #[test]
    fn the_bytes_of_a_message() {
        runtime().block_on(async {
            let (mut far, near) = tokio::io::duplex(64);
            MessageStream::new(near).send(&said(7, 0)).await.unwrap();
            let mut bytes = Vec::new();
            far.read_to_end(&mut bytes).await.unwrap();
            assert_eq!(bytes, [0, 0, 0, 4, 0x08, 1, 0x10, 7]);
        });
    }

    #[test]
    fn a_length_that_only_promises_gets_no_memory() {
        runtime().block_on(async {
            let largest = u32::try_from(MAX_MESSAGE).unwrap().to_be_bytes();
            let (mut far, near) = tokio::io::duplex(64);
            far.write_all(&[&largest[..], b"abc"].concat()).await.unwrap();
            let mut stream = MessageStream::new(near);
            assert!(timeout(Duration::from_millis(20), stream.next::<LeaderMessage>()).await.is_err());
            assert!(stream.body.capacity() <= 2 * STEP, "{}", stream.body.capacity());
            let too_large = u32::try_from(MAX_MESSAGE + 1).unwrap().to_be_bytes();
            assert!(matches!(read(&too_large).await, (0, Err(MessageError::TooLarge(_)))));
            assert!(matches!(read(&[0xff; 400]).await, (0, Err(MessageError::TooLarge(_)))));
            assert!(matches!(read(&[0, 0, 0, 9, 1]).await, (0, Err(MessageError::Truncated))));
            assert!(matches!(read(&[0, 0]).await, (0, Err(MessageError::Truncated))));
            assert!(matches!(read(&[0, 0, 0, 2, 0xff, 0xff]).await, (0, Err(MessageError::Schema(_)))));
            assert!(matches!(read(&[0, 0, 0, 0]).await, (1, Ok(()))), "a message without a field");
        });
    }

    proptest! {
        #[test]
        fn whatever_bytes_come_nothing_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200), zeros in 0..5_usize) {
            let bytes = [&[0; 4][..zeros.min(4)], &bytes[..]].concat();
            let _ = runtime().block_on(read(&bytes));
        }
    }
}
