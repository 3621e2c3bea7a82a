//! One `Watch`: waits until a state is due, then takes the newest there is. No state is kept for a reader, so a slow one
//! can only ever get the newest.

use super::connection::Peer;
use super::convert;
use futures_core::Stream;
use model::view::NodeView;
use proto::usage::NodeUsage;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio::time::{Instant, sleep, sleep_until, timeout_at};
use tokio_util::sync::CancellationToken;
use tonic::Status;

/// How often a state is sent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pace {
    /// Never sooner than this after the one before.
    pub(super) least: Duration,
    /// Never later than this, changed or not: the reader sees that we live.
    pub(super) most: Duration,
    /// A peer that has not read the state before is looked at again after this.
    pub(super) recheck: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            least: Duration::from_secs(1),
            most: Duration::from_secs(10),
            // Only readers that stall are looked at: 64 of them cost 256 system calls a second.
            recheck: Duration::from_millis(250),
        }
    }
}

/// What one stream needs to know.
pub(super) struct Watcher {
    pace: Pace,
    view: watch::Receiver<Arc<NodeView>>,
    peer: Peer,
    stop: CancellationToken,
    sent: Option<Sent>,
    ended: bool,
}

/// The state that was sent last.
struct Sent {
    values: NodeUsage,
    at: Instant,
}

type Item = Result<NodeUsage, Status>;
type Step = Pin<Box<dyn Future<Output = (Watcher, Option<Item>)> + Send>>;

/// The stream that tonic pulls from: it asks for a state only when the peer's window has room for one.
pub(super) struct States {
    step: Step,
    _slot: OwnedSemaphorePermit,
}

// === impl Watcher ===

impl Watcher {
    pub(super) fn new(
        pace: Pace,
        view: watch::Receiver<Arc<NodeView>>,
        peer: Peer,
        stop: CancellationToken,
    ) -> Watcher {
        Watcher { pace, view, peer, stop, sent: None, ended: false }
    }

    async fn step(mut self) -> (Watcher, Option<Item>) {
        if self.ended {
            return (self, None);
        }
        let stop = self.stop.clone();
        let goes_on = tokio::select! {
            biased;
            () = stop.cancelled() => false,
            goes_on = self.due() => goes_on,
        };
        let item = if goes_on {
            Ok(self.newest())
        } else {
            self.ended = true;
            Err(Status::unavailable("gpu-steward is stopping"))
        };
        (self, Some(item))
    }

    /// Waits until a state is due; `false` when there will be no more.
    async fn due(&mut self) -> bool {
        let Some(last) = self.sent.as_ref().map(|sent| sent.at) else { return true };
        sleep_until(last + self.pace.least).await;
        let goes_on = timeout_at(last + self.pace.most, self.changed()).await.unwrap_or(true);
        while goes_on && !self.peer.has_read() {
            sleep(self.pace.recheck).await;
        }
        goes_on
    }

    /// Waits until a value differs from what was sent; `false` when there will be no more views.
    async fn changed(&mut self) -> bool {
        loop {
            let newest = self.view.borrow_and_update().clone();
            if self.sent.as_ref().is_none_or(|sent| sent.values != convert::values(&newest)) {
                return true;
            }
            if self.view.changed().await.is_err() {
                return false;
            }
        }
    }

    fn newest(&mut self) -> NodeUsage {
        let newest = self.view.borrow_and_update().clone();
        self.sent = Some(Sent { values: convert::values(&newest), at: Instant::now() });
        convert::state(&newest)
    }
}

// === impl States ===

impl States {
    pub(super) fn new(watcher: Watcher, slot: OwnedSemaphorePermit) -> States {
        States { step: Box::pin(watcher.step()), _slot: slot }
    }
}

impl Stream for States {
    type Item = Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Item>> {
        let (watcher, item) = ready!(self.step.as_mut().poll(cx));
        self.step = Box::pin(watcher.step());
        Poll::Ready(item)
    }
}
