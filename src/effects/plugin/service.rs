//! `v1beta1.DevicePlugin`, the service that the kubelet calls.

use super::call::{CallRefused, PluginCall, PluginCallSender, PluginDevice};
use super::under_way::Kind;
use model::id::Ticket;
use prost::Message;
use proto::device_plugin as v1beta1;
use proto::device_plugin::device_plugin_server::DevicePlugin;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::sync::watch;
use tokio_stream::wrappers::WatchStream;
use tokio_stream::{Stream, StreamExt};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::{Request, Response, Status};
use wire::ticket;

/// Maximum size of a list in bytes. The kubelet's limit is 4 MiB; a longer list ends the stream, and the node loses the
/// resource. A twentieth stays free for fields that a later kubelet may add to a device.
pub(super) const MAX_LIST: usize = 4 * 1024 * 1024 / 20 * 19;

const UNHEALTHY: &str = "Unhealthy";

/// The device plugin service of one registration.
#[derive(Clone, Debug)]
pub(super) struct Service {
    /// Sends calls to the sharing task.
    pub calls: PluginCallSender,
    /// The list of devices, always the newest.
    pub list: watch::Receiver<Arc<[PluginDevice]>>,
    /// Counts the kubelet's `ListAndWatch` streams.
    pub watched: watch::Sender<Watches>,
    /// When this is cancelled, each stream, even a new stream, sends a last list in which all devices are unhealthy,
    /// and nothing more.
    pub leaves: CancellationToken,
    /// The end of this registration: it ends the streams, and the kubelet then closes its connection.
    pub end: CancellationToken,
}

/// The counts of `ListAndWatch` streams of one registration.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Watches {
    pub(super) open: usize,
    pub(super) ended: usize,
}

/// Counts one `ListAndWatch` stream as open while this value exists.
#[derive(Debug)]
struct Watching(watch::Sender<Watches>);

impl Watching {
    fn new(count: &watch::Sender<Watches>) -> Watching {
        count.send_modify(|count| count.open += 1);
        Watching(count.clone())
    }
}

impl Drop for Watching {
    fn drop(&mut self) {
        self.0.send_modify(|count| {
            count.open = count.open.saturating_sub(1);
            count.ended = count.ended.saturating_add(1);
        });
    }
}

fn message(list: &[PluginDevice]) -> v1beta1::ListAndWatchResponse {
    let device = |device: &PluginDevice| v1beta1::Device {
        id: device.id.to_string(),
        health: if device.healthy { "Healthy" } else { UNHEALTHY }.into(),
        topology: device
            .numa
            .map(|node| v1beta1::TopologyInfo { nodes: vec![v1beta1::NumaNode { id: i64::from(node) }] }),
    };
    v1beta1::ListAndWatchResponse { devices: list.iter().map(device).collect() }
}

/// The size of the list on the wire, in bytes.
pub(super) fn encoded_len(list: &[PluginDevice]) -> usize {
    message(list).encoded_len()
}

fn ids(ids: Vec<String>) -> Vec<Arc<str>> {
    ids.into_iter().map(Arc::from).collect()
}

fn stopping() -> Status {
    Status::unavailable("gpu-steward is stopping")
}

fn refused(CallRefused(why): CallRefused) -> Status {
    Status::failed_precondition(why)
}

fn container(ticket: &Ticket) -> v1beta1::ContainerAllocateResponse {
    v1beta1::ContainerAllocateResponse {
        cdi_devices: vec![v1beta1::CdiDevice { name: ticket::qualified(ticket) }],
        ..Default::default()
    }
}

#[tonic::async_trait]
impl DevicePlugin for Service {
    async fn get_device_plugin_options(
        &self,
        _: Request<v1beta1::Empty>,
    ) -> Result<Response<v1beta1::DevicePluginOptions>, Status> {
        Ok(Response::new(v1beta1::DevicePluginOptions {
            pre_start_required: true,
            get_preferred_allocation_available: true,
        }))
    }

    type ListAndWatchStream = Pin<Box<dyn Stream<Item = Result<v1beta1::ListAndWatchResponse, Status>> + Send>>;

    async fn list_and_watch(&self, _: Request<v1beta1::Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let watching = Watching::new(&self.watched);
        // Only the newest list: a kubelet that reads slowly gets the current state, not a queue of changes.
        let lists = WatchStream::new(self.list.clone()).filter_map(move |list| {
            let _ = &watching;
            let message = message(&list);
            let len = message.encoded_len();
            if len > MAX_LIST {
                tracing::error!(
                    devices = list.len(),
                    bytes = len,
                    "the list of devices is too long for kubelet, which keeps the last one: lower --split-count"
                );
                return None;
            }
            tracing::debug!(devices = list.len(), "kubelet gets the list of devices");
            Some(Ok(message))
        });
        Ok(Response::new(Box::pin(ListStream {
            lists: Box::pin(lists),
            last: self.list.clone(),
            leaves: Some(Box::pin(self.leaves.clone().cancelled_owned())),
            end: Box::pin(self.end.clone().cancelled_owned()),
        })))
    }

    async fn get_preferred_allocation(
        &self,
        request: Request<v1beta1::PreferredAllocationRequest>,
    ) -> Result<Response<v1beta1::PreferredAllocationResponse>, Status> {
        let _under_way = self.calls.begin(Kind::Admission);
        let mut responses = Vec::new();
        for container_request in request.into_inner().container_requests {
            let (available, must) =
                (ids(container_request.available_device_ids), ids(container_request.must_include_device_ids));
            let size = usize::try_from(container_request.allocation_size).unwrap_or(0);
            let chosen = self
                .calls
                .send(|reply| PluginCall::Prefer { available, must, size, reply })
                .await
                .ok_or_else(stopping)?;
            let device_ids = chosen.iter().map(ToString::to_string).collect();
            responses.push(v1beta1::ContainerPreferredAllocationResponse { device_ids });
        }
        Ok(Response::new(v1beta1::PreferredAllocationResponse { container_responses: responses }))
    }

    async fn allocate(
        &self,
        request: Request<v1beta1::AllocateRequest>,
    ) -> Result<Response<v1beta1::AllocateResponse>, Status> {
        let _under_way = self.calls.begin(Kind::Admission);
        let mut responses = Vec::new();
        for container_request in request.into_inner().container_requests {
            let (ids, since) = (ids(container_request.device_ids), Instant::now());
            let answer = self.calls.allocate(ids).await.ok_or_else(stopping)?;
            self.calls.meter().allocate.answered(since);
            responses.push(container(&answer.map_err(refused)?));
        }
        Ok(Response::new(v1beta1::AllocateResponse { container_responses: responses }))
    }

    async fn pre_start_container(
        &self,
        request: Request<v1beta1::PreStartContainerRequest>,
    ) -> Result<Response<v1beta1::PreStartContainerResponse>, Status> {
        let _under_way = self.calls.begin(Kind::Start);
        let (ids, since) = (ids(request.into_inner().device_ids), Instant::now());
        let answer = self.calls.send(|reply| PluginCall::Start { ids, reply }).await.ok_or_else(stopping)?;
        self.calls.meter().start.answered(since);
        answer.map_err(refused)?;
        Ok(Response::new(v1beta1::PreStartContainerResponse {}))
    }
}

/// The answer of `ListAndWatch`: sends `lists` until `leaves` completes, then all devices of `last` as unhealthy;
/// ends when `end` completes.
///
/// The last list must name every device: the kubelet reads the device of an allocation that was just answered, and
/// crashes with a nil pointer if the device is not in the list any more (1.34, `allocateContainerResources`).
struct ListStream<S> {
    lists: Pin<Box<S>>,
    last: watch::Receiver<Arc<[PluginDevice]>>,
    /// `None` after the last list is sent.
    leaves: Option<Pin<Box<WaitForCancellationFutureOwned>>>,
    end: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S: Stream<Item = Result<v1beta1::ListAndWatchResponse, Status>>> Stream for ListStream<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        if self.leaves.as_mut().is_some_and(|leaves| leaves.as_mut().poll(cx).is_ready()) {
            self.leaves = None;
            let mut last = message(&self.last.borrow());
            last.devices.iter_mut().for_each(|device| device.health = UNHEALTHY.into());
            return Poll::Ready(Some(Ok(last)));
        }
        if self.end.as_mut().poll(cx).is_ready() {
            return Poll::Ready(None);
        }
        if self.leaves.is_none() { Poll::Pending } else { self.lists.as_mut().poll_next(cx) }
    }
}
