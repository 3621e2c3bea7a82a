//! The watcher of `kube`, with a type that has only the fields that the follower keeps, and its reflector as the store.

use crate::count;
use futures::StreamExt;
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::runtime::reflector::store;
use kube::runtime::watcher::{Config, Event};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client, Resource};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::BTreeMap;

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct TrimmedPod {
    metadata: ObjectMeta,
    spec: Spec,
    status: Status,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    node_name: Option<String>,
    priority: Option<i32>,
    host_network: Option<bool>,
    runtime_class_name: Option<String>,
    restart_policy: Option<String>,
    init_containers: Vec<Container>,
    containers: Vec<Container>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Container {
    name: String,
    restart_policy: Option<String>,
    resources: Resources,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Resources {
    limits: BTreeMap<String, String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
struct Status {
    phase: Option<String>,
}

impl Resource for TrimmedPod {
    type DynamicType = ();
    type Scope = NamespaceResourceScope;

    fn kind(_: &()) -> Cow<'_, str> {
        "Pod".into()
    }

    fn group(_: &()) -> Cow<'_, str> {
        "".into()
    }

    fn version(_: &()) -> Cow<'_, str> {
        "v1".into()
    }

    fn plural(_: &()) -> Cow<'_, str> {
        "pods".into()
    }

    fn meta(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn meta_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }
}

/// Removes the fields that the follower does not keep.
fn trim(pod: &mut TrimmedPod) {
    pod.metadata.managed_fields = None;
    pod.metadata.labels = None;
    pod.metadata.finalizers = None;
    if let Some(annotations) = &mut pod.metadata.annotations {
        annotations.retain(|key, _| key.starts_with("hami.io/"));
    }
    for container in &mut pod.spec.containers {
        container.resources.limits.retain(|name, _| name.contains('/'));
    }
}

/// Follows all pods, until each has changed once.
pub(crate) async fn follow(client: Client, pods: usize) {
    let (reader, writer) = store::<TrimmedPod>();
    let watched = watcher(Api::all(client), Config::default().page_size(500)).modify(trim);
    let mut events = std::pin::pin!(reflector(writer, watched));
    let (mut added, mut changed) = (0, 0);
    while let Some(event) = events.next().await {
        match event.expect("an event") {
            Event::InitApply(_) => added += 1,
            Event::InitDone => {
                assert_eq!(reader.len(), pods);
                count("kube", (added, changed), pods);
            }
            Event::Apply(_) => {
                changed += 1;
                count("kube", (added + 1, changed), pods);
            }
            Event::Delete(_) | Event::Init => {}
        }
    }
}
