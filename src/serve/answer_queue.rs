//! The queue for large answers. It bounds the answers in progress and the waiting requests: in total, and for each
//! client address.
//!
//! ```text
//!   request ──▶ permit of its own address ──▶ one of the permits that all addresses share
//!               (waits in a queue of its own)  (waits in the common queue; while a request waits there,
//!                                               clients that stop reading are cut early)
//! ```
//!
//! An address has at most `answers_per_peer` requests in the common queue and in progress together, so a few addresses
//! cannot fill the queue. The queue always moves on: a client that stops reading is cut after
//! [`crate::server::ConnectionLimits::busy_write_timeout`]. With queues of length 0, a request that gets no permit is
//! refused at once.

use crate::server::host;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How many answers may be in progress, and how many requests may wait for an answer.
#[derive(Clone, Copy, Debug)]
pub struct AnswerLimits {
    /// Maximum number of answers with a large body at once. One scraper and one `top` are usual. [`crate::answer_body`] bounds
    /// their bytes.
    pub answers: usize,
    /// Maximum number of answers in progress for one address. Two scrapers behind one address run side by side. Four
    /// addresses can hold all answers; their stalled clients are then cut after
    /// [`crate::server::ConnectionLimits::busy_write_timeout`].
    pub answers_per_peer: usize,
    /// Length of the common queue: requests that wait for one of the `answers` permits. An address has at most
    /// `answers_per_peer` requests in this queue and in progress together, so 20 addresses are needed to fill both.
    pub waiting: usize,
    /// Length of the queue of requests that wait for a permit of their own address. When it is full, an address that
    /// has `answers_per_peer` requests in progress gets 503; other addresses do not. The limit of connections is far
    /// above the number of requests that wait or are answered, so one connection is always idle and can be closed for a
    /// health check.
    pub waiting_for_peers: usize,
    /// Maximum requests of one address in that queue. One Prometheus that scrapes all sets of names has four requests.
    pub waiting_per_peer: usize,
    /// How long a request waits; it is below Prometheus's 10 s.
    pub wait: Duration,
}

impl Default for AnswerLimits {
    fn default() -> Self {
        AnswerLimits {
            answers: 8,
            answers_per_peer: 2,
            waiting: 32,
            waiting_for_peers: 64,
            waiting_per_peer: 8,
            wait: Duration::from_secs(5),
        }
    }
}

/// The queue of all clients.
#[derive(Debug)]
pub struct AnswerQueue {
    answers: Arc<Semaphore>,
    common: Line,
    own: Line,
    peers: Arc<Mutex<HashMap<IpAddr, Peer>>>,
    limits: AnswerLimits,
}

/// A bounded queue of waiting requests.
#[derive(Clone, Debug)]
struct Line {
    permits: Arc<Semaphore>,
    length: usize,
}

impl Line {
    fn new(length: usize) -> Line {
        Line { permits: Arc::new(Semaphore::new(length)), length }
    }

    /// Whether a request waits here.
    fn is_waited_in(&self) -> bool {
        self.permits.available_permits() < self.length
    }

    /// Takes one permit of `semaphore`. If no permit is free, the request waits in this queue, first come first served.
    /// `None` when the queue is full.
    async fn wait_for(&self, semaphore: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
        if let Ok(permit) = Arc::clone(semaphore).try_acquire_owned() {
            return Some(permit);
        }
        let _permit = self.permits.try_acquire().ok()?;
        Arc::clone(semaphore).acquire_owned().await.ok()
    }
}

/// One client address. An entry exists only while its address has a request here, so there are at most as many entries
/// as connections.
#[derive(Debug)]
struct Peer {
    answers: Arc<Semaphore>,
    requests: usize,
}

/// The permits of one answer in progress. Dropping it lets the next request go on.
#[derive(Debug)]
pub struct AnswerTurn {
    _answer: OwnedSemaphorePermit,
    _own: OwnedSemaphorePermit,
    counted: Counted,
}

impl AnswerTurn {
    /// The address of the client.
    pub fn peer(&self) -> IpAddr {
        self.counted.address
    }
}

/// A request that is counted for its address.
#[derive(Debug)]
struct Counted {
    peers: Arc<Mutex<HashMap<IpAddr, Peer>>>,
    address: IpAddr,
}

impl AnswerQueue {
    /// An empty queue.
    pub fn new(limits: AnswerLimits) -> AnswerQueue {
        let answers = Arc::new(Semaphore::new(limits.answers));
        let (common, own) = (Line::new(limits.waiting), Line::new(limits.waiting_for_peers));
        AnswerQueue { answers, common, own, peers: Arc::default(), limits }
    }

    /// Whether a request waits in the common queue.
    pub fn is_waited_in(&self) -> bool {
        self.common.is_waited_in()
    }

    /// Waits for a turn; `None` when too many requests wait already, or when the time runs out.
    pub async fn enter(&self, peer: IpAddr) -> Option<AnswerTurn> {
        let (own, counted) = self.count(host(peer))?;
        let turn = async {
            // The limit of the address comes first: a request that waits for it is not in the common queue.
            let own = self.own.wait_for(&own).await?;
            let answer = self.common.wait_for(&self.answers).await?;
            Some(AnswerTurn { _answer: answer, _own: own, counted })
        };
        tokio::time::timeout(self.limits.wait, turn).await.ok()?
    }

    fn count(&self, address: IpAddr) -> Option<(Arc<Semaphore>, Counted)> {
        let mut peers = self.peers.lock();
        let fresh = || Peer { answers: Arc::new(Semaphore::new(self.limits.answers_per_peer)), requests: 0 };
        let peer = peers.entry(address).or_insert_with(fresh);
        if peer.requests >= self.limits.answers_per_peer + self.limits.waiting_per_peer {
            return None;
        }
        peer.requests += 1;
        Some((Arc::clone(&peer.answers), Counted { peers: Arc::clone(&self.peers), address }))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut peers = self.peers.lock();
        if let Some(peer) = peers.get_mut(&self.address) {
            peer.requests -= 1;
            if peer.requests == 0 {
                peers.remove(&self.address);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> AnswerQueue {
        AnswerQueue::new(AnswerLimits { wait: Duration::from_millis(50), ..AnswerLimits::default() })
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([10, 0, 0, last])
    }

    #[tokio::test]
    async fn one_address_cannot_take_all_answers() {
        let queue = queue();
        let mut held = Vec::new();
        while let Some(turn) = queue.enter(address(1)).await {
            held.push(turn);
        }
        assert_eq!(held.len(), AnswerLimits::default().answers_per_peer);
        assert!(queue.enter(address(2)).await.is_some());
        held.pop();
        assert!(queue.enter(address(1)).await.is_some(), "the address has a free permit again");
    }

    #[tokio::test]
    async fn without_queues_a_request_is_refused_at_once() {
        let queue = AnswerQueue::new(AnswerLimits {
            answers: 3,
            answers_per_peer: 2,
            waiting: 0,
            waiting_for_peers: 0,
            waiting_per_peer: 0,
            wait: Duration::ZERO,
        });
        let first = queue.enter(address(1)).await;
        let _second = queue.enter(address(1)).await;
        assert!(first.is_some() && queue.enter(address(1)).await.is_none(), "two of one address");
        let _third = queue.enter(address(2)).await;
        assert!(queue.enter(address(3)).await.is_none(), "three of all addresses");
        drop(first);
        assert!(queue.enter(address(3)).await.is_some());
    }

    #[tokio::test]
    async fn one_address_cannot_fill_the_queue() {
        let queue = AnswerQueue::new(AnswerLimits::default());
        let all: Vec<_> = (0..100).map(|_| queue.enter(address(1))).collect();
        let mut all: Vec<_> = all.into_iter().map(Box::pin).collect();
        let mut refused = 0;
        let mut held = Vec::new();
        for one in &mut all {
            match futures_poll(one.as_mut()).await {
                Some(Some(turn)) => held.push(turn),
                Some(None) => refused += 1,
                None => {}
            }
        }
        let limits = AnswerLimits::default();
        assert_eq!(held.len(), limits.answers_per_peer);
        assert_eq!(refused, 100 - limits.answers_per_peer - limits.waiting_per_peer);
        assert!(queue.enter(address(2)).await.is_some());
        drop((all, held));
        assert!(queue.peers.lock().is_empty(), "an address without a request is forgotten");
    }

    #[tokio::test]
    async fn a_fifth_address_waits_while_four_addresses_have_all_answers() {
        let queue = AnswerQueue::new(AnswerLimits::default());
        let all = (1..=4).flat_map(|last| (0..10).map(move |_| address(last)));
        let mut all: Vec<_> = all.map(|address| Box::pin(queue.enter(address))).collect();
        let mut held = Vec::new();
        for one in &mut all {
            held.extend(futures_poll(one.as_mut()).await.flatten());
        }
        assert_eq!(held.len(), AnswerLimits::default().answers);
        let mut fifth = Box::pin(queue.enter(address(5)));
        assert!(futures_poll(fifth.as_mut()).await.is_none(), "it waits and is not refused");
        assert!(queue.is_waited_in());
        held.pop();
        assert!(futures_poll(fifth.as_mut()).await.flatten().is_some(), "the next answer is the fifth address's");
        assert!(!queue.is_waited_in());
    }

    /// Polls the future once.
    async fn futures_poll<F: Future>(mut future: std::pin::Pin<&mut F>) -> Option<F::Output> {
        std::future::poll_fn(|cx| {
            std::task::Poll::Ready(match future.as_mut().poll(cx) {
                std::task::Poll::Ready(output) => Some(output),
                std::task::Poll::Pending => None,
            })
        })
        .await
    }

    #[test]
    fn ipv6_addresses_of_one_network_count_as_one_host() {
        let parse = |text: &str| text.parse::<IpAddr>().unwrap();
        assert_eq!(host(parse("fd00::1:2")), host(parse("fd00::ffff:3:4")));
        assert_ne!(host(parse("fd00:0:0:1::1")), host(parse("fd00::1")));
        assert_eq!(host(parse("::ffff:10.0.0.1")), parse("10.0.0.1"));
    }
}
