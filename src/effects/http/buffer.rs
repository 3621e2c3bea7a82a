//! Answers: a pool of large buffers, and the response body that carries a buffer to the client.

use super::queue::Turn;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::io::Write;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Number of buffers kept for the next answer: one for its text, one for the compressed text.
const KEPT: usize = 2;
/// Largest buffer that is kept. 8 GPUs with 200 containers need some 1.2 MB. The larger buffers that thousands of
/// containers need are freed after each answer.
const KEPT_BYTES: usize = 2 * 1024 * 1024;

/// Buffers waiting for the next answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers {
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Buffers {
    /// An empty buffer that holds `turn`, its permit for an answer in progress.
    pub(super) fn take(&self, turn: Turn) -> Buffer {
        Buffer { bytes: self.spare(), home: self.clone(), _turn: turn }
    }

    fn spare(&self) -> Vec<u8> {
        self.idle.lock().pop().unwrap_or_default()
    }

    fn keep(&self, mut bytes: Vec<u8>) {
        let mut idle = self.idle.lock();
        if idle.len() < KEPT && bytes.capacity() > 0 && bytes.capacity() <= KEPT_BYTES {
            bytes.clear();
            idle.push(bytes);
        }
    }
}

/// One buffer. It returns to the pool when the system has its last byte, or when the connection is cut.
#[derive(Debug)]
pub(super) struct Buffer {
    /// The text.
    pub(super) bytes: Vec<u8>,
    home: Buffers,
    _turn: Turn,
}

impl Buffer {
    /// Compresses with gzip at its fastest level. The compressor's own memory (some 300 KiB) lives only during this
    /// call.
    pub(super) fn compress(&mut self) {
        let mut encoder = GzEncoder::new(self.home.spare(), Compression::fast());
        // Writing to memory does not fail.
        let _ = encoder.write_all(&self.bytes);
        if let Ok(packed) = encoder.finish() {
            let plain = std::mem::replace(&mut self.bytes, packed);
            self.home.keep(plain);
        }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        self.home.keep(std::mem::take(&mut self.bytes));
    }
}

/// The body of an answer, in one piece.
pub(super) struct Answer {
    bytes: Option<Bytes>,
}

impl Answer {
    /// A short text.
    pub(super) fn text(text: impl Into<Bytes>) -> Answer {
        Answer { bytes: Some(text.into()) }
    }

    /// A pooled buffer.
    pub(super) fn buffer(buffer: Buffer) -> Answer {
        Answer::text(Bytes::from_owner(buffer))
    }

    /// The length in bytes.
    pub(super) fn len(&self) -> usize {
        self.bytes.as_ref().map_or(0, Bytes::len)
    }

    /// The same answer without its bytes, for `HEAD`.
    pub(super) fn emptied(self) -> Answer {
        Answer { bytes: None }
    }
}

impl Body for Answer {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.bytes.take().filter(|bytes| !bytes.is_empty()).map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.len() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.len() as u64)
    }
}
