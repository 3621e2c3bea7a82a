//! Answers: a pool of large buffers, and the response body that carries a buffer to the client.

use crate::answer_queue::AnswerTurn;
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

/// Buffers kept for the next answers.
#[derive(Clone, Debug, Default)]
pub struct AnswerBuffers {
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl AnswerBuffers {
    /// An empty buffer that holds `turn`, its permit for an answer in progress.
    pub fn take(&self, turn: AnswerTurn) -> AnswerBuffer {
        AnswerBuffer { bytes: self.spare(), home: self.clone(), _turn: turn }
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

/// One buffer. It returns to the pool when the kernel has taken its last byte, or when the connection is cut.
#[derive(Debug)]
pub struct AnswerBuffer {
    /// The text.
    pub bytes: Vec<u8>,
    home: AnswerBuffers,
    _turn: AnswerTurn,
}

impl AnswerBuffer {
    /// Compresses with gzip at its fastest level. The compressor's own memory (some 300 KiB) lives only during this
    /// call.
    pub fn compress(&mut self) {
        let mut encoder = GzEncoder::new(self.home.spare(), Compression::fast());
        // Writing to memory does not fail.
        let _ = encoder.write_all(&self.bytes);
        if let Ok(packed) = encoder.finish() {
            let plain = std::mem::replace(&mut self.bytes, packed);
            self.home.keep(plain);
        }
    }
}

impl AsRef<[u8]> for AnswerBuffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for AnswerBuffer {
    fn drop(&mut self) {
        self.home.keep(std::mem::take(&mut self.bytes));
    }
}

/// The body of an answer, in one piece.
#[derive(Debug)]
pub struct AnswerBody {
    bytes: Option<Bytes>,
}

impl AnswerBody {
    /// A short text.
    pub fn text(text: impl Into<Bytes>) -> AnswerBody {
        AnswerBody { bytes: Some(text.into()) }
    }

    /// A pooled buffer.
    pub fn buffer(buffer: AnswerBuffer) -> AnswerBody {
        AnswerBody::text(Bytes::from_owner(buffer))
    }

    /// The length in bytes.
    pub fn length(&self) -> usize {
        self.bytes.as_ref().map_or(0, Bytes::len)
    }

    /// The same answer without its bytes, for `HEAD`.
    pub fn emptied(self) -> AnswerBody {
        AnswerBody { bytes: None }
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(mut self: Pin<&mut Self>, _cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        Poll::Ready(self.bytes.take().filter(|bytes| !bytes.is_empty()).map(|bytes| Ok(Frame::data(bytes))))
    }

    fn is_end_stream(&self) -> bool {
        self.length() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length() as u64)
    }
}
