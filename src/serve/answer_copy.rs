//! A large answer that all its readers share. Anyone who can reach an open port may request it again and again without
//! reading it.
//!
//! ```text
//!   request ──▶ SharedAnswers::get ──▶ the newest copy of this kind, or one that is made now for all who wait
//!                                        └──▶ SharedBody: small pieces, until the deadline, or until the copy is taken away
//! ```
//!
//! Bounds: one copy is made at a time, and for each kind at most one in `FRESH`. The copies in memory have at most `KEPT`
//! bytes together, unless there are at most `LEAST` copies. A reader holds one piece. So the memory grows neither with the
//! number of readers nor with the time that they take.
//!
//! What must never happen here: a reader that keeps a copy in memory; a copy for each request.

use hyper::body::{Body, Bytes, Frame, SizeHint};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long new readers get a copy. With the time that the copy takes to make, its content is at most a second old.
const FRESH: Duration = Duration::from_millis(800);
/// Maximum bytes of all copies in memory, if there are more than [`LEAST`] copies. With 1,000 nodes of 8 GPUs a copy has 8
/// MiB, so two copies of both kinds stay.
const KEPT: usize = 32 << 20;
/// This number of the newest copies stays in memory, whatever their size. So even if two kinds are requested alternately, a
/// reader has at least [`FRESH`] before its copy is taken away. With 5,000 nodes and 50,000 claims a copy has 60 MiB. The
/// extender then takes 210 MiB itself and may take 512 MiB: it has room for two copies and a copy that is being made, and
/// not for five.
const LEAST: usize = 2;
/// Bytes of a piece. Every reader may hold a piece, and hyper's buffer holds as much again.
pub(crate) const PIECE: usize = 16 << 10;
/// Time limit for a reader to take the whole answer. Prometheus gives up after 10 s by default.
const WITHIN: Duration = Duration::from_secs(30);

/// The copies of one answer of the kinds `K`, such as text formats.
#[derive(Debug)]
pub struct SharedAnswers<K> {
    /// Held while a copy is made.
    copies: Arc<tokio::sync::Mutex<Copies<K>>>,
    cut: Arc<AtomicU64>,
}

/// The copies in memory, the newest last.
#[derive(Debug)]
struct Copies<K> {
    copies: VecDeque<(K, Arc<AnswerCopy>)>,
}

/// One copy; `bytes` is `None` once it was taken away.
#[derive(Debug)]
struct AnswerCopy {
    made: Instant,
    length: usize,
    bytes: Mutex<Option<Bytes>>,
}

/// The body of an answer, which a reader takes piece by piece.
#[derive(Debug)]
pub struct SharedBody {
    copy: Arc<AnswerCopy>,
    at: usize,
    until: Instant,
    cut: Arc<AtomicU64>,
}

/// The reader was too slow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the reader did not take the answer in time")]
pub struct ReaderTooSlow;

impl<K> Default for SharedAnswers<K> {
    fn default() -> Self {
        SharedAnswers {
            copies: Arc::new(tokio::sync::Mutex::new(Copies { copies: VecDeque::new() })),
            cut: Arc::default(),
        }
    }
}

impl<K: Copy + PartialEq + Send + 'static> SharedAnswers<K> {
    /// The answer of this kind, at most `FRESH` old. `make` runs on a thread for blocking work, if it runs; it gets the
    /// number of bytes of the last copy. `None` if it panics.
    pub async fn get(&self, kind: K, make: impl FnOnce(usize) -> Vec<u8> + Send + 'static) -> Option<SharedBody> {
        let mut copies = Arc::clone(&self.copies).lock_owned().await;
        let copy = match copies.fresh(kind) {
            Some(copy) => copy,
            None => {
                let all = Arc::clone(&self.copies);
                // A task of its own, so that the copy is also made for the others if this caller goes away.
                let making = tokio::spawn(async move {
                    let before = copies.copies.back().map_or(0, |(_, copy)| copy.length);
                    let bytes = tokio::task::spawn_blocking(move || make(before)).await.ok()?;
                    let copy = copies.add(kind, bytes.into());
                    drop(copies);
                    tokio::spawn(async move {
                        sleep(FRESH).await;
                        all.lock().await.forget_unread();
                    });
                    Some(copy)
                });
                making.await.ok()??
            }
        };
        Some(SharedBody { copy, at: 0, until: Instant::now() + WITHIN, cut: Arc::clone(&self.cut) })
    }

    /// Number of readers that were cut because they were too slow.
    #[must_use]
    pub fn cut(&self) -> u64 {
        self.cut.load(Ordering::Relaxed)
    }
}

impl<K: PartialEq> Copies<K> {
    /// The newest copy of this kind that is not too old.
    fn fresh(&self, kind: K) -> Option<Arc<AnswerCopy>> {
        let newest = self.copies.iter().rev().find(|(of, _)| *of == kind);
        newest.filter(|(_, copy)| copy.made.elapsed() < FRESH).map(|(_, copy)| Arc::clone(copy))
    }

    /// Adds a copy. If all copies together are too large, takes the oldest away from their readers.
    fn add(&mut self, kind: K, bytes: Bytes) -> Arc<AnswerCopy> {
        let copy = Arc::new(AnswerCopy { made: Instant::now(), length: bytes.len(), bytes: Mutex::new(Some(bytes)) });
        self.forget_unread();
        self.copies.push_back((kind, Arc::clone(&copy)));
        while self.copies.len() > LEAST && self.copies.iter().map(|(_, copy)| copy.length).sum::<usize>() > KEPT {
            self.copies.pop_front().inspect(|(_, oldest)| *oldest.bytes.lock() = None);
        }
        copy
    }

    /// Removes the copies that are too old for a new reader and have no reader.
    fn forget_unread(&mut self) {
        self.copies.retain(|(_, copy)| copy.made.elapsed() < FRESH || Arc::strong_count(copy) > 1);
    }
}

impl Body for SharedBody {
    type Data = Bytes;
    type Error = ReaderTooSlow;

    fn poll_frame(mut self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, ReaderTooSlow>>> {
        if self.is_end_stream() {
            return Poll::Ready(None);
        }
        let end = self.copy.length.min(self.at + PIECE);
        // The piece is copied: a slice of the shared copy would keep the whole copy in memory until the reader takes
        // it.
        let piece = self.copy.bytes.lock().as_ref().map(|bytes| Bytes::copy_from_slice(&bytes[self.at..end]));
        let Some(piece) = piece.filter(|_| Instant::now() < self.until) else {
            self.cut.fetch_add(1, Ordering::Relaxed);
            return Poll::Ready(Some(Err(ReaderTooSlow)));
        };
        self.at = end;
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.at == self.copy.length
    }

    fn size_hint(&self) -> SizeHint {
        SizeHint::with_exact((self.copy.length - self.at) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::BodyExt;
    use std::sync::atomic::AtomicUsize;
    use tokio::time::advance;

    /// Answers of this many bytes, and the number of copies that were made.
    struct Answers {
        answers: SharedAnswers<u8>,
        bytes: usize,
        made: Arc<AtomicUsize>,
    }

    impl Answers {
        fn of(bytes: usize) -> Answers {
            Answers { answers: SharedAnswers::default(), bytes, made: Arc::default() }
        }

        async fn get(&self, kind: u8) -> SharedBody {
            let (bytes, made) = (self.bytes, Arc::clone(&self.made));
            let make = move |_| vec![u8::try_from(made.fetch_add(1, Ordering::Relaxed) % 256).unwrap(); bytes];
            self.answers.get(kind, make).await.unwrap()
        }

        fn made(&self) -> usize {
            self.made.load(Ordering::Relaxed)
        }

        /// Bytes of the copies in memory.
        async fn kept(&self) -> usize {
            let copies = self.answers.copies.lock().await;
            copies.copies.iter().filter_map(|(_, copy)| Some(copy.bytes.lock().as_ref()?.len())).sum()
        }
    }

    #[tokio::test(start_paused = true)]
    async fn readers_share_one_copy_for_a_second_and_each_gets_all_of_it() {
        let answers = Answers::of(3 * PIECE + 1);
        let readers = futures_of((0..100).map(|_| answers.get(0))).await;
        assert_eq!(answers.made(), 1);
        for reader in readers {
            assert_eq!(reader.size_hint().exact(), Some(3 * PIECE as u64 + 1));
            let all = reader.collect().await.unwrap().to_bytes();
            assert!(all.len() == 3 * PIECE + 1 && all.iter().all(|byte| *byte == 0));
        }
        let other = answers.get(1).await;
        assert_eq!(answers.made(), 2, "another format is another copy");
        drop(other);
        advance(FRESH).await;
        let newer = answers.get(0).await.collect().await.unwrap().to_bytes();
        assert_eq!((newer[0], answers.made()), (2, 3));
        // After the last reader nothing stays in memory.
        tokio::time::sleep(2 * FRESH).await;
        assert_eq!(answers.kept().await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn readers_that_take_nothing_keep_no_more_than_the_bound_in_memory() {
        // The last case is the answer for the largest cluster.
        for (bytes, most) in [(KEPT / 4, KEPT), (KEPT, LEAST * KEPT), (60 << 20, 120 << 20)] {
            let answers = Answers::of(bytes);
            let mut slow = Vec::new();
            for _ in 0..8 {
                slow.push(answers.get(0).await);
                assert!(answers.kept().await <= most);
                advance(FRESH).await;
            }
            assert_eq!(answers.made(), 8);
            assert_eq!(slow.remove(0).collect().await.unwrap_err(), ReaderTooSlow);
            assert_eq!(answers.answers.cut(), 1);
            // The newest readers read on.
            assert_eq!(slow.pop().unwrap().collect().await.unwrap().to_bytes().len(), bytes);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_answer_stays_for_its_readers_while_both_kinds_are_requested() {
        let answers = Answers::of(KEPT);
        let first = answers.get(0).await;
        let second = answers.get(1).await;
        advance(FRESH - Duration::from_millis(1)).await;
        let _others = (answers.get(1).await, answers.get(0).await);
        assert_eq!(answers.made(), 2);
        for reader in [first, second] {
            assert_eq!(reader.collect().await.unwrap().to_bytes().len(), KEPT);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_one_piece_after_the_other_slowly_is_cut() {
        let answers = Answers::of(100 * PIECE);
        let mut reader = answers.get(0).await;
        let mut taken = 0;
        let error = loop {
            advance(WITHIN / 10).await;
            match reader.frame().await.unwrap() {
                Ok(_) => taken += 1,
                Err(error) => break error,
            }
        };
        assert_eq!((error, taken), (ReaderTooSlow, 9));
    }

    #[tokio::test]
    async fn a_copy_is_made_although_the_one_who_asked_goes_away() {
        let answers = Answers::of(1);
        {
            let mut get = std::pin::pin!(answers.get(0));
            // Begins to make it, and is dropped.
            let begun = std::future::poll_fn(|cx| Poll::Ready(get.as_mut().poll(cx).is_pending())).await;
            assert!(begun);
        }
        drop(answers.get(0).await);
        assert_eq!(answers.made(), 1);
    }

    /// The results of all.
    async fn futures_of<F: Future>(futures: impl Iterator<Item = F>) -> Vec<F::Output> {
        let mut futures: Vec<_> = futures.map(Box::pin).collect();
        let mut done = Vec::new();
        std::future::poll_fn(|cx| {
            futures.retain_mut(|future| match future.as_mut().poll(cx) {
                Poll::Ready(output) => {
                    done.push(output);
                    false
                }
                Poll::Pending => true,
            });
            if futures.is_empty() { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
        done
    }
}
