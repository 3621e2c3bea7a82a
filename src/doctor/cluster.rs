//! What the API server shows, with the rights of the caller.

use crate::finding::{Finding, Seen, Unread};
use apiserver::NotConnected;
use apiserver::client::{ApiClient, ApiSelection, ObjectForm, ReadAge};
use apiserver::error::ApiError;
use apiserver::lease::LeaseClient;
use apiserver::resource::ApiResource;
use model::followed_node::MAX_CLUSTER_NODES;
use model::id::{NodeName, PodRef};
use model::lease::LeaseRecord;
use model::time::WallTime;
use std::fmt::Display;
use std::future::Future;
use std::path::Path;
use std::time::Duration;
use tokio::time::timeout;
use wire::described_event::{self, DescribedEvent, DescribedEvents};
use wire::described_node::{self, DescribedNode};
use wire::described_pod::{self, DescribedPod};
use wire::timestamp;

/// Time limit for reading all objects of one kind. The lists of the largest clusters take seconds.
const WITHIN: Duration = Duration::from_secs(30);
/// Maximum number of Nodes in one page of at most 16 MiB: a whole Node takes 10 to 40 KiB, most of it for its images.
const PAGE: u32 = 250;
/// Maximum number of pods of a component that are read, and of events in one page.
pub(crate) const MAX_LISTED: u32 = 500;
/// Maximum number of pages of events. The API server keeps events for an hour; a large cluster has less than 10,000 in one
/// namespace.
const MAX_EVENT_PAGES: usize = 20;
/// The labels that the chart gives to each of its pods.
const LABELS: &str = "app.kubernetes.io/name=gpu-steward";

/// Reads from the API server.
#[derive(Clone, Debug)]
pub(crate) struct ClusterReader {
    pub(crate) client: ApiClient,
}

impl ClusterReader {
    /// Finds the API server and the caller's credentials.
    pub(crate) async fn open(kubeconfig: Option<&Path>) -> Seen<ClusterReader> {
        ClusterReader::find(kubeconfig).await.unwrap_or_else(Err)
    }

    /// Like [`ClusterReader::open`]; the outer error says that nothing names an API server, as a machine may need none.
    pub(crate) async fn find(kubeconfig: Option<&Path>) -> Seen<Seen<ClusterReader>> {
        let what = "the API server";
        match apiserver::connect(kubeconfig).await {
            Ok(connection) => Ok(Ok(ClusterReader { client: ApiClient::new(connection) })),
            Err(why @ NotConnected::Nowhere { .. }) => Err(Unread::new(what, why)),
            Err(why) => Ok(Err(Unread::new(what, why))),
        }
    }

    /// A pod: its description, and the JSON of the whole object.
    ///
    /// # Errors
    /// `None` if there is no such pod.
    pub(crate) async fn pod(&self, pod: &PodRef) -> Result<(DescribedPod, Vec<u8>), Option<Unread>> {
        let what = format!("pod {pod}");
        let read = async {
            match self.client.get_pod(pod, &ReadAge::Newest).await {
                Ok(json) => Ok((decoded(&what, described_pod::decode(&json))?, json)),
                Err(why) if why.code() == Some(404) => Err(None),
                Err(why) => Err(Some(Unread::new(&*what, why))),
            }
        };
        timeout(WITHIN, read).await.unwrap_or_else(|_| Err(Some(slow(&what))))
    }

    /// One Node.
    pub(crate) async fn node(&self, name: &NodeName) -> Seen<DescribedNode> {
        let what = format!("Node {name}");
        let read = self.client.get_node(name, &ReadAge::Newest, ObjectForm::Whole);
        let json = within(&what, read).await?;
        decoded(&what, described_node::decode(&json))
    }

    /// The API server's time, in whole seconds.
    pub(crate) async fn server_time(&self) -> Seen<WallTime> {
        let what = "the time of the API server";
        let date = within(what, self.client.date()).await?;
        timestamp::http_date(&date).ok_or_else(|| Unread::new(what, format!("{date:?} is not a date")))
    }

    /// All Nodes.
    pub(crate) async fn nodes(&self) -> Seen<Vec<DescribedNode>> {
        let what = "the Nodes";
        let all = ApiSelection::all(ApiResource::Nodes, ObjectForm::Whole);
        let read = async {
            let (mut nodes, mut age) = (Vec::new(), ReadAge::Newest);
            loop {
                let page = self.client.list(&all, &age, Some(PAGE)).await.map_err(|why| Unread::new(what, why))?;
                let page = decoded(what, described_node::decode_list(&page))?;
                nodes.extend(page.nodes);
                if page.more.is_empty() {
                    return Ok(nodes);
                }
                if nodes.len() >= MAX_CLUSTER_NODES {
                    return Err(Unread::new(what, format!("there are more than {MAX_CLUSTER_NODES}")));
                }
                age = ReadAge::Continued(page.more);
            }
        };
        timeout(WITHIN, read).await.unwrap_or_else(|_| Err(slow(what)))
    }

    /// The first [`MAX_LISTED`] pods of a component, `extender` or `agent`; in one namespace or in all.
    pub(crate) async fn steward_pods(&self, namespace: Option<&str>, component: &str) -> Seen<Vec<DescribedPod>> {
        let labels = format!("{LABELS},app.kubernetes.io/component={component}");
        let selection = ApiSelection {
            namespace: namespace.map(str::to_owned),
            labels: Some(labels.clone()),
            ..ApiSelection::all(ApiResource::Pods, ObjectForm::Whole)
        };
        let what = format!("the pods with the labels {labels}");
        let json = within(&what, self.client.list(&selection, &ReadAge::Newest, Some(MAX_LISTED))).await?;
        decoded(&what, described_pod::decode_list(&json))
    }

    /// A Lease that an extender has held; `None` if there is no such Lease.
    pub(crate) async fn lease(&self, namespace: &str, name: &str) -> Seen<Option<LeaseRecord>> {
        if name.is_empty() {
            return Ok(None);
        }
        let connection = self.client.connection().clone();
        let lease = LeaseClient::new(connection, (namespace.into(), name.into()), WITHIN);
        let lease = lease.get().await.map_err(|why| Unread::new(format!("the Lease {namespace}/{name}"), why))?;
        // Other programs name Leases after their accounts too, and write no epoch.
        Ok(lease.map(|lease| lease.record).filter(|record| record.epoch.is_some()))
    }

    /// The events about the object of this UID, the newest first.
    pub(crate) async fn events_about(&self, namespace: &str, uid: &str) -> Seen<Vec<DescribedEvent>> {
        Ok(self.events(namespace, Some(format!("involvedObject.uid={uid}"))).await?.events)
    }

    /// The events of a namespace, the newest first. If they need more than [`MAX_EVENT_PAGES`] pages, `more` is not empty.
    pub(crate) async fn events(&self, namespace: &str, fields: Option<String>) -> Seen<DescribedEvents> {
        let what = format!("the events in the namespace {namespace}");
        let selection = ApiSelection {
            namespace: Some(namespace.to_owned()),
            fields,
            ..ApiSelection::all(ApiResource::Events, ObjectForm::Whole)
        };
        let read = async {
            let (mut all, mut age) = (DescribedEvents::default(), ReadAge::Newest);
            for _ in 0..MAX_EVENT_PAGES {
                let page = self.client.list(&selection, &age, Some(MAX_LISTED)).await;
                let page = page.map_err(|why| Unread::new(&*what, why))?;
                let page = decoded(&what, described_event::decode_list(&page))?;
                all.events.extend(page.events);
                all.more = page.more;
                if all.more.is_empty() {
                    break;
                }
                age = ReadAge::Continued(all.more.clone());
            }
            all.events.sort_by_key(|event| std::cmp::Reverse(event.at));
            Ok::<_, Unread>(all)
        };
        timeout(WITHIN, read).await.unwrap_or_else(|_| Err(slow(&what)))
    }
}

/// The time by which ages are judged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TimeSeen {
    pub(crate) now: WallTime,
    /// Why `now` is the time of this machine; `None` if it is the time of the API server.
    pub(crate) own: Option<Unread>,
}

impl TimeSeen {
    /// The time of the API server; if it cannot be read, the time of this machine, which may be wrong.
    pub(crate) async fn look(cluster: Seen<&ClusterReader>) -> TimeSeen {
        let seen = match cluster {
            Ok(cluster) => cluster.server_time().await,
            Err(unread) => Err(unread),
        };
        match seen {
            Ok(now) => TimeSeen { now, own: None },
            Err(unread) => TimeSeen { now: clock::now().wall, own: Some(unread) },
        }
    }

    /// A note if ages are by the clock of this machine.
    pub(crate) fn note(&self) -> Option<Finding> {
        let unread = self.own.as_ref()?;
        Some(Finding::note("OwnClock", format!("ages are by the clock of this machine: {unread}")))
    }
}

/// What a call answers within [`WITHIN`].
async fn within<T>(what: &str, call: impl Future<Output = Result<T, ApiError>>) -> Seen<T> {
    match timeout(WITHIN, call).await {
        Ok(answer) => answer.map_err(|why| Unread::new(what, why)),
        Err(_) => Err(slow(what)),
    }
}

fn slow(what: &str) -> Unread {
    Unread::new(what, format!("no answer within {} s", WITHIN.as_secs()))
}

fn decoded<T, E: Display>(what: &str, decoded: Result<T, E>) -> Seen<T> {
    decoded.map_err(|why| Unread::new(what, why))
}
