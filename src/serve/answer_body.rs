//! Answers: a pool of large buffers, and the response body that carries a buffer to the client in pieces.
//!
//! Bounds: all answers that clients are taking have at most `HELD` bytes together, unless there is only one. When a new one
//! would exceed that, answers of which nothing was taken for a second are lost first, then those of the address with the most bytes. The
//! owners of pods decide how long names are, and anyone who reaches an open port can request an answer and not read it.
//!
//! What must never happen here: memory that grows with the number of clients that do not read.

use crate::answer_copy::{PIECE, ReaderTooSlow};
use crate::answer_queue::AnswerTurn;
use crate::server::ConnectionCounts;
use flate2::Compression;
use flate2::write::GzEncoder;
use hyper::body::{Body, Bytes, Frame, SizeHint};
use parking_lot::Mutex;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::io::Write;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::Instant;

/// Number of buffers kept for the next answer: one for its text, one for the compressed text.
const KEPT: usize = 2;
/// Largest buffer that is kept. 8 GPUs with 200 containers need some 1.2 MB. The larger buffers that thousands of
/// containers need are freed after each answer.
const KEPT_BYTES: usize = 2 * 1024 * 1024;
/// Maximum bytes of the answers that clients are taking. The agent may take 256 MiB in the chart and takes some 45 MiB itself with
/// 2,000 containers, whose metrics are 26 MiB if all names are as long as Kubernetes allows: two of them and a third one fit, and there
/// is room for a text that is being written and its compressed form.
const HELD: usize = 64 << 20;

/// An answer of which the client has taken nothing for this long is lost before answers that move.
const STALLED: Duration = Duration::from_secs(1);

/// Buffers kept for the next answers, and the answers that clients are taking.
#[derive(Clone, Debug, Default)]
pub struct AnswerBuffers {
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
    /// The answers in progress. Those that have ended are sorted out when an answer begins.
    held: Arc<Mutex<Vec<Weak<HeldAnswer>>>>,
    counts: Arc<ConnectionCounts>,
}

/// An answer that a client is taking.
#[derive(Debug)]
struct HeldAnswer {
    peer: IpAddr,
    length: usize,
    capacity: usize,
    rest: Mutex<Rest>,
}

/// What is left of an answer.
#[derive(Debug)]
struct Rest {
    /// `None` once it was taken away.
    buffer: Option<AnswerBuffer>,
    /// When the client last took a piece, or the answer began.
    moved: Instant,
}

impl AnswerBuffers {
    /// No buffers yet. An answer that is taken away counts as a connection that was cut.
    pub fn counted(counts: Arc<ConnectionCounts>) -> AnswerBuffers {
        AnswerBuffers { counts, ..AnswerBuffers::default() }
    }

    /// An empty buffer that holds `turn`, its permit for an answer in progress.
    pub fn take(&self, turn: AnswerTurn) -> AnswerBuffer {
        AnswerBuffer { bytes: self.spare(), home: self.clone(), turn }
    }

    /// Adds an answer in progress. If all answers together are too large, takes others away from their clients.
    fn hold(&self, mut buffer: AnswerBuffer) -> Arc<HeldAnswer> {
        // A text that grew has up to twice the room that it needs.
        if buffer.bytes.capacity() > KEPT_BYTES {
            buffer.bytes.shrink_to_fit();
        }
        let (peer, length, capacity) = (buffer.turn.peer(), buffer.bytes.len(), buffer.bytes.capacity());
        let rest = Mutex::new(Rest { buffer: Some(buffer), moved: Instant::now() });
        let answer = Arc::new(HeldAnswer { peer, length, capacity, rest });
        let mut held = self.held.lock();
        held.retain(|answer| answer.strong_count() > 0);
        let mut others: Vec<Arc<HeldAnswer>> = held.iter().filter_map(Weak::upgrade).collect();
        held.push(Arc::downgrade(&answer));
        drop(held);
        let mut by_peer = HashMap::from([(peer, capacity)]);
        for other in &others {
            *by_peer.entry(other.peer).or_default() += other.capacity;
        }
        let now = Instant::now();
        others.sort_by_key(|other| {
            let moved = other.rest.lock().moved;
            let moves = now - moved < STALLED;
            (moves, Reverse(by_peer.get(&other.peer).copied().filter(|_| moves)), moved)
        });
        let mut total: usize = capacity + others.iter().map(|other| other.capacity).sum::<usize>();
        for stalled in others {
            if total <= HELD {
                break;
            }
            total -= stalled.capacity;
            if stalled.rest.lock().buffer.take().is_some() {
                self.counts.cut.fetch_add(1, Ordering::Relaxed);
            }
        }
        answer
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
    turn: AnswerTurn,
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

impl Drop for AnswerBuffer {
    fn drop(&mut self) {
        self.home.keep(std::mem::take(&mut self.bytes));
    }
}

/// The body of an answer.
#[derive(Debug)]
pub struct AnswerBody(Content);

#[derive(Debug)]
enum Content {
    /// A short text, in one piece.
    Text(Option<Bytes>),
    /// A large answer, and the number of bytes that the client has taken.
    Held { answer: Arc<HeldAnswer>, at: usize },
}

impl AnswerBody {
    /// A short text.
    pub fn text(text: impl Into<Bytes>) -> AnswerBody {
        AnswerBody(Content::Text(Some(text.into())))
    }

    /// A pooled buffer.
    pub fn buffer(buffer: AnswerBuffer) -> AnswerBody {
        let home = buffer.home.clone();
        AnswerBody(Content::Held { answer: home.hold(buffer), at: 0 })
    }

    /// The number of bytes that the client has not taken yet.
    pub fn length(&self) -> usize {
        match &self.0 {
            Content::Text(text) => text.as_ref().map_or(0, Bytes::len),
            Content::Held { answer, at } => answer.length - at,
        }
    }

    /// The same answer without its bytes, for `HEAD`.
    pub fn emptied(self) -> AnswerBody {
        AnswerBody(Content::Text(None))
    }
}

impl Body for AnswerBody {
    type Data = Bytes;
    type Error = ReaderTooSlow;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ReaderTooSlow>>> {
        let piece = match &mut self.0 {
            Content::Text(text) => text.take().filter(|text| !text.is_empty()),
            Content::Held { answer, at } if *at < answer.length => {
                let end = answer.length.min(*at + PIECE);
                // The piece is copied: a slice of the buffer would keep the whole buffer in memory until the client takes it.
                let mut rest = answer.rest.lock();
                rest.moved = Instant::now();
                let piece = rest.buffer.as_ref().map(|buffer| Bytes::copy_from_slice(&buffer.bytes[*at..end]));
                drop(rest);
                *at = end;
                let Some(piece) = piece else { return Poll::Ready(Some(Err(ReaderTooSlow))) };
                Some(piece)
            }
            Content::Held { .. } => None,
        };
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.length() == 0
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact(self.length() as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::answer_queue::{AnswerLimits, AnswerQueue};
    use http_body_util::BodyExt;

    /// A large answer for a client of its own.
    async fn answer(buffers: &AnswerBuffers, queue: &AnswerQueue, client: u8, bytes: usize) -> AnswerBody {
        let turn = queue.enter(IpAddr::from([10, 0, 0, client])).await.unwrap();
        let mut buffer = buffers.take(turn);
        buffer.bytes = vec![client; bytes];
        AnswerBody::buffer(buffer)
    }

    #[tokio::test]
    async fn clients_that_do_not_read_lose_their_answers_to_newer_ones_before_they_fill_the_memory() {
        let counts = Arc::<ConnectionCounts>::default();
        let (buffers, queue) = (AnswerBuffers::counted(Arc::clone(&counts)), AnswerQueue::new(AnswerLimits::default()));
        let mut first = answer(&buffers, &queue, 1, 20 << 20).await;
        let mut answers = Vec::new();
        for client in 2..=6 {
            answers.push(answer(&buffers, &queue, client, 20 << 20).await);
            assert!(first.frame().await.is_some_and(|piece| piece.is_ok()), "it goes on taking its answer");
        }
        answers.insert(0, first);
        let mut whole = Vec::new();
        for answer in answers {
            whole.push(answer.collect().await.ok().map(|all| all.to_bytes()));
        }
        let taken: Vec<bool> = whole.iter().map(Option::is_some).collect();
        assert_eq!(taken, [true, false, false, false, true, true], "64 MiB have room for three of 20 MiB");
        assert_eq!(whole[5].as_ref().map(|bytes| (bytes.len(), bytes[0])), Some((20 << 20, 6)));
        assert_eq!(counts.cut.load(Ordering::Relaxed), 3);
        // An address with two answers loses one of them before others lose theirs.
        let counts = Arc::<ConnectionCounts>::default();
        let buffers = AnswerBuffers::counted(counts);
        let (other, first) = (answer(&buffers, &queue, 1, 20 << 20).await, answer(&buffers, &queue, 2, 20 << 20).await);
        let (second, third) =
            (answer(&buffers, &queue, 2, 20 << 20).await, answer(&buffers, &queue, 3, 20 << 20).await);
        assert!(first.collect().await.is_err());
        for answer in [other, second, third] {
            assert!(answer.collect().await.is_ok());
        }
        let huge = answer(&buffers, &queue, 7, HELD + 1).await;
        assert_eq!(huge.length(), HELD + 1);
        assert!(huge.collect().await.is_ok(), "the only answer is never taken away");
    }
}
