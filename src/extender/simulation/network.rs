//! The network between an extender and the API server: the extender's requests go into an outbox, and each waits there
//! until the simulation answers it.

use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame};
use hyper::{Method, Request, Response};
use model::time::Monotonic;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use tokio::sync::{mpsc, oneshot};

/// An answer whose body comes in pieces.
pub(super) type Answer = Result<Response<Pieces>, io::Error>;

/// A request that an extender has sent.
#[derive(Debug)]
pub(super) struct Outgoing {
    /// The time of the extender's own clock.
    pub(super) sent: Monotonic,
    pub(super) method: Method,
    /// The path's segments.
    pub(super) path: Vec<String>,
    pub(super) query: BTreeMap<String, String>,
    pub(super) body: Value,
    pub(super) answer: oneshot::Sender<Answer>,
}

/// The requests that were sent and not seen by the simulation yet.
pub(super) type Outbox = Arc<Mutex<Vec<Outgoing>>>;

/// Takes the requests of `kube::Client`.
#[derive(Clone, Debug)]
pub(super) struct SimulatedNetwork(pub(super) Outbox);

impl tower::Service<Request<kube::client::Body>> for SimulatedNetwork {
    type Response = Response<Pieces>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = Answer> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), io::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: Request<kube::client::Body>) -> Self::Future {
        let (outbox, sent) = (Arc::clone(&self.0), clock::monotonic());
        Box::pin(async move {
            let (head, body) = request.into_parts();
            let body = body.collect().await.map_err(io::Error::other)?.to_bytes();
            let pairs = head.uri.query().unwrap_or_default().split('&').filter_map(|pair| pair.split_once('='));
            let (answer, answered) = oneshot::channel();
            outbox.lock().push(Outgoing {
                sent,
                method: head.method,
                path: head.uri.path().split('/').skip(1).map(str::to_owned).collect(),
                query: pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect(),
                body: serde_json::from_slice(&body).unwrap_or(Value::Null),
                answer,
            });
            answered.await.unwrap_or_else(|_| Err(io::Error::other("connection reset by peer")))
        })
    }
}

/// A body in pieces. It ends when its sender is dropped.
#[derive(Debug)]
pub(super) struct Pieces(mpsc::UnboundedReceiver<Result<Bytes, io::Error>>);

pub(super) type PiecesSender = mpsc::UnboundedSender<Result<Bytes, io::Error>>;

impl Pieces {
    pub(super) fn new() -> (PiecesSender, Pieces) {
        let (sender, receiver) = mpsc::unbounded_channel();
        (sender, Pieces(receiver))
    }
}

impl Body for Pieces {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        self.0.poll_recv(cx).map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }
}
