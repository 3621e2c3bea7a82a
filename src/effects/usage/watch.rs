//! One `Watch` stream. It waits until a state is due, then sends the newest state. No states are queued for a client,
//! so a slow client also gets only the newest state.

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
    /// Shortest time between two states.
    pub(super) least: Duration,
    /// Longest time between two states, even without a change, so that the client sees that the agent runs.
    pub(super) most: Duration,
    /// Time between two checks of a client that has not read the last state.
    pub(super) recheck: Duration,
}

impl Default for Pace {
    fn default() -> Self {
        Pace {
            least: Duration::from_secs(1),
            most: Duration::from_secs(10),
            // Only stalled clients are checked: 64 stalled clients cost 256 system calls a second.
            recheck: Duration::from_millis(250),
        }
    }
}

/// The state of one stream.
pub(super) struct Watcher {
    pace: Pace,
    view: watch::Receiver<Arc<NodeView>>,
    peer: Peer,
    stop: CancellationToken,
    sent: Option<Sent>,
    ended: bool,
}

/// The last state sent.
struct Sent {
    values: NodeUsage,
    at: Instant,
}

type Item = Result<NodeUsage, Status>;
type Step = Pin<Box<dyn Future<Output = (Watcher, Option<Item>)> + Send>>;

/// The stream that tonic polls. tonic polls it only when a state fits into the client's flow-control window.
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
        let more_views = tokio::select! {
            biased;
            () = stop.cancelled() => false,
            more_views = self.due() => more_views,
        };
        let item = if more_views {
            Ok(self.newest())
        } else {
            self.ended = true;
            Err(Status::unavailable("gpu-steward is stopping"))
        };
        (self, Some(item))
    }

    /// Waits until a state is due; `false` if there will be no more views.
    async fn due(&mut self) -> bool {
        let Some(last) = self.sent.as_ref().map(|sent| sent.at) else { return true };
        sleep_until(last + self.pace.least).await;
        let more_views = timeout_at(last + self.pace.most, self.changed()).await.unwrap_or(true);
        while more_views && !self.peer.has_read() {
            sleep(self.pace.recheck).await;
        }
        more_views
    }

    /// Waits until a value differs from the last state sent; `false` if there will be no more views.
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
