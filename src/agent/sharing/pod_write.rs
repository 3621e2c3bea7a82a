//! Tries once to write something on a pod, or to release the pod's lock on the agent's Node.

use apiserver::ApiError;
use apiserver::own_node::OwnNodeReader;
use apiserver::writes::ApiServer;
use decide::pod_writes::{PodWrite, PodWriteKind, PodWriteOutcome};
use model::id::PodRef;
use tokio::sync::mpsc;
use wire::{annotation_keys, node_lock};

/// The result of an attempt.
#[derive(Debug)]
pub(crate) struct Ended {
    /// The write that was tried.
    pub write: PodWrite,
    /// The outcome.
    pub outcome: PodWriteOutcome,
    /// The reason of a failure; empty after a success.
    pub why: String,
}

/// Tries once, and reports the result.
pub(super) async fn write(api: ApiServer, own: OwnNodeReader, write: PodWrite, ended: mpsc::Sender<Ended>) {
    let result = match write.kind {
        PodWriteKind::Lock => release(&api, &own, &write.pod).await.map_err(|why| (PodWriteOutcome::Failed, why)),
        PodWriteKind::Claim | PodWriteKind::Served | PodWriteKind::Evict => {
            let annotations: Vec<(&str, Option<&str>)> =
                write.annotations.iter().map(|(key, value)| (*key, value.as_deref())).collect();
            effects::failpoint!("annotation-due");
            let written = api.annotate_pod(&write.uid, &write.pod, &annotations).await;
            effects::failpoint!("annotation-written");
            written.map_err(|error| (outcome(&error), error.to_string()))
        }
    };
    let (outcome, why) = result.map_or_else(|failed| failed, |()| (PodWriteOutcome::Written, String::new()));
    // The receiver is gone only when the program ends.
    let _ = ended.send(Ended { write, outcome, why }).await;
}

/// A write ends when its pod is gone. Code 409 alone does not show this, because a conflict between two writes has the
/// same code.
fn outcome(error: &ApiError) -> PodWriteOutcome {
    match error.refusal() {
        Some(refusal) if refusal.code == 404 => PodWriteOutcome::Gone,
        Some(refusal) if refusal.code == 409 && refusal.message.contains("UID in precondition") => {
            PodWriteOutcome::Gone
        }
        Some(_) | None => PodWriteOutcome::Failed,
    }
}

/// Removes the node lock from this agent's Node if the lock belongs to this pod and has not changed since it was read.
/// If it has changed, the attempt fails, and the next attempt reads the lock again.
async fn release(api: &ApiServer, own: &OwnNodeReader, pod: &PodRef) -> Result<(), String> {
    let seen = own.read_now().await.map_err(|error| error.to_string())?;
    let Some(text) = seen.annotation(annotation_keys::NODE_LOCK) else { return Ok(()) };
    let lock = match node_lock::decode(text) {
        Ok(lock) => lock,
        Err(fault) => {
            tracing::warn!(%fault, "the node lock on this agent's Node cannot be read; it stays");
            return Ok(());
        }
    };
    if lock.owner.as_ref() != Some(pod) {
        return Ok(());
    }
    api.release_node(annotation_keys::NODE_LOCK, text).await.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use apiserver::resource::ApiResource;
    use apiserver::{ApiCall, ApiFailure, ApiVerb};
    use serde_json::json;
    use std::time::Duration;
    use wire::watch::ApiRefusal;

    #[test]
    fn only_a_pod_that_is_gone_ends_the_tries() {
        let of = |failure| ApiError {
            call: ApiCall::new(ApiVerb::Patch, ApiResource::Pods, "annotations of pod ml/a"),
            server: "https://10.0.0.1/".into(),
            failure,
        };
        let refused = |code, text: &str| {
            of(ApiFailure::Refused { refusal: ApiRefusal { code, message: text.into(), is_status: true }, wait: None })
        };
        for (error, expected) in [
            (refused(404, "pods \"a\" not found"), PodWriteOutcome::Gone),
            (refused(409, "Precondition failed: UID in precondition: a, UID in object meta: b"), PodWriteOutcome::Gone),
            (
                refused(409, "the object has been modified; please apply your changes to the latest version"),
                PodWriteOutcome::Failed,
            ),
            (refused(403, "denied by a policy of the cluster"), PodWriteOutcome::Failed),
            (refused(429, "too many requests"), PodWriteOutcome::Failed),
            (of(ApiFailure::Slow(Duration::from_secs(10))), PodWriteOutcome::Failed),
            (of(ApiFailure::Broken("connection refused".into())), PodWriteOutcome::Failed),
        ] {
            assert_eq!(outcome(&error), expected, "{error}");
        }
    }

    /// A cache may not show yet that a scheduler has just taken the lock for this pod, or may still show the lock of
    /// another pod.
    #[tokio::test]
    async fn the_current_lock_is_released_even_if_a_cache_shows_an_older_one() {
        const OTHER_LOCK: &str = "2026-11-21T10:21:47Z,ml,other";
        for cached in [None, Some(OTHER_LOCK), Some("2026-11-21T09:00:00Z,ml,train-0")] {
            let (server, folder) = (lab::api_server::FakeApiServer::start(), tempfile::tempdir().unwrap());
            let node = |lock: Option<&str>| {
                let annotations = lock.map_or_else(|| json!({}), |lock| json!({ (annotation_keys::NODE_LOCK): lock }));
                server.put("nodes", json!({ "metadata": { "name": "n1", "uid": "u-1", "annotations": annotations } }));
            };
            let lock = || {
                server.object("nodes", "", "n1").unwrap()["metadata"]["annotations"][annotation_keys::NODE_LOCK].clone()
            };
            node(cached);
            server.lag();
            node(Some("2026-11-21T10:21:48Z,ml,train-0"));
            let connection = apiserver::connect(Some(&server.kubeconfig(folder.path()))).await.unwrap();
            let name = model::id::NodeName::parse("n1").unwrap();
            let (api, own) = (ApiServer::new(connection.clone(), name.clone()), OwnNodeReader::new(connection, name));
            let pod = |name: &str| PodRef { namespace: "ml".into(), name: name.into() };
            assert_eq!(release(&api, &own, &pod("train-0")).await, Ok(()));
            assert_eq!(lock(), json!(null), "where the cache shows {cached:?}");

            node(Some(OTHER_LOCK));
            assert_eq!(release(&api, &own, &pod("train-0")).await, Ok(()), "the pod has no lock left to release");
            assert_eq!(lock(), OTHER_LOCK);
            let late =
                api.release_node(annotation_keys::NODE_LOCK, "2026-11-21T10:21:48Z,ml,train-0").await.unwrap_err();
            assert_eq!(outcome(&late), PodWriteOutcome::Failed, "written anew since it was read: {late}");
            assert_eq!(lock(), OTHER_LOCK);
        }
    }
}
