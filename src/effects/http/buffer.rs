//! Answers: a few large buffers that are used again and again, and the body that carries one to its reader.

use hyper::body::{Body, Bytes, Frame, SizeHint};
use parking_lot::Mutex;
use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::OwnedSemaphorePermit;

/// Buffers that are kept for the next answer: Prometheus and one more.
const KEPT: usize = 2;
/// Largest buffer that is kept. 8 GPUs with 200 containers need some 1.2 MB; what thousands of containers need is given
/// back to the system after each answer.
const KEPT_BYTES: usize = 2 * 1024 * 1024;

/// Buffers waiting for the next answer.
#[derive(Clone, Debug, Default)]
pub(super) struct Buffers {
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Buffers {
    /// An empty buffer, with the place it occupies among the answers under way.
    pub(super) fn take(&self, place: OwnedSemaphorePermit) -> Buffer {
        let bytes = self.idle.lock().pop().unwrap_or_default();
        Buffer { bytes, home: self.clone(), _place: place }
    }
}

/// One buffer; goes home when the last byte was handed to the system, or the connection is cut.
#[derive(Debug)]
pub(super) struct Buffer {
    /// The text.
    pub(super) bytes: Vec<u8>,
    home: Buffers,
    _place: OwnedSemaphorePermit,
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        let mut bytes = std::mem::take(&mut self.bytes);
        let mut idle = self.home.idle.lock();
        if idle.len() < KEPT && bytes.capacity() <= KEPT_BYTES {
            bytes.clear();
            idle.push(bytes);
        }
    }
}

/// The body of an answer: one piece.
pub(super) struct Answer {
    bytes: Option<Bytes>,
    _busy: Option<Box<dyn Send>>,
}

impl Answer {
    /// A short text.
    pub(super) fn text(text: impl Into<Bytes>) -> Answer {
        Answer { bytes: Some(text.into()), _busy: None }
    }

    /// A pooled buffer.
    pub(super) fn buffer(buffer: Buffer) -> Answer {
        Answer::text(Bytes::from_owner(buffer))
    }

    /// How long it is.
    pub(super) fn len(&self) -> usize {
        self.bytes.as_ref().map_or(0, Bytes::len)
    }

    /// Without its bytes, for `HEAD`.
    pub(super) fn emptied(self) -> Answer {
        Answer { bytes: None, ..self }
    }

    /// The same; `guard` lives until the body is dropped.
    pub(super) fn holding(self, guard: impl Send + 'static) -> Answer {
        Answer { _busy: Some(Box::new(guard)), ..self }
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
