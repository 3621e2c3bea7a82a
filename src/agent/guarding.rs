//! Finds out whether the chart's admission policies are in force: at the start, every hour while all are in force, and
//! otherwise more often. It sends dry-run writes (`dryRun=All`), which the API server checks but does not carry out:
//! for each policy, one write that the policy must refuse, and one write that the agent itself needs.

use apiserver::ApiError;
use apiserver::writes::{AnnotationPatch, ApiServer, DryRun};
use decide::guard::{TriedWrite, judge};
use model::backoff::Backoff;
use model::guard::{AdmissionPolicy, PolicyGuard};
use model::id::{PodRef, PodUid};
use model::pod::PodList;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use wire::annotation_keys;

/// Pause before the second check, doubled after each further check. A policy takes effect some seconds after its
/// creation, and two of the policies can be checked only when the node has a pod.
const FIRST: Duration = Duration::from_secs(10);
/// Longest pause while a policy is not in force. Some clusters never install the policies, and each check sends up to
/// six requests per node.
const LONGEST: Duration = Duration::from_secs(600);
/// Pause between two checks while all policies are in force. The metric and `/readyz` show a deleted policy within
/// about an hour, and a thousand nodes send less than two such writes a second.
const HOURLY: Duration = Duration::from_secs(3600);

/// The known state of each policy.
pub(crate) type Guards = BTreeMap<AdmissionPolicy, PolicyGuard>;

/// The results of the last check, and the pauses between checks.
#[derive(Debug)]
struct CheckHistory {
    last: Guards,
    backoff: Backoff,
}

impl Default for CheckHistory {
    fn default() -> CheckHistory {
        CheckHistory { last: Guards::new(), backoff: Backoff::new(FIRST, LONGEST) }
    }
}

impl CheckHistory {
    /// Selects the results that count. A policy counts as not in force only after two checks in a row with the same
    /// result, because the chart may be installing just now.
    fn counts<'a>(&self, found: &'a Guards) -> impl Iterator<Item = (&'a AdmissionPolicy, &'a PolicyGuard)> {
        found.iter().filter(|(policy, guard)| **guard == PolicyGuard::InForce || self.last.get(policy) == Some(guard))
    }

    /// The pause before the next check. A check without results did not reach the API server, and says nothing about
    /// the policies.
    fn pause(&mut self, found: Guards, guarded: bool) -> Duration {
        let holds = guarded && !found.is_empty() && found.values().all(|guard| *guard == PolicyGuard::InForce);
        self.last = found;
        if !holds {
            return self.backoff.pause();
        }
        self.backoff.reset();
        HOURLY
    }
}

/// The task that checks the policies.
#[derive(Debug)]
pub(crate) struct Guarding {
    /// Sends the dry-run writes.
    pub api: ApiServer,
    /// The pods of this node; dry-run writes to pods use one of these pods.
    pub pods: watch::Receiver<Option<Arc<PodList>>>,
    /// Whether this agent evicts pods.
    pub evicts: bool,
    /// Publishes the results.
    pub results: watch::Sender<Guards>,
}

impl Guarding {
    /// Runs until `stop` is cancelled.
    pub(crate) async fn run(self, stop: CancellationToken) {
        let work = async {
            let mut history = CheckHistory::default();
            loop {
                let found = self.check().await;
                self.publish(history.counts(&found));
                tokio::time::sleep(history.pause(found, self.is_guarded())).await;
            }
        };
        tokio::select! { () = stop.cancelled() => {}, () = work => {} }
    }

    fn policies(&self) -> impl Iterator<Item = AdmissionPolicy> {
        let evicts = self.evicts;
        AdmissionPolicy::ALL.into_iter().filter(move |policy| *policy != AdmissionPolicy::Evictions || evicts)
    }

    /// Whether every policy counts as in force.
    fn is_guarded(&self) -> bool {
        let known = self.results.borrow();
        self.policies().all(|policy| known.get(&policy) == Some(&PolicyGuard::InForce))
    }

    fn publish<'a>(&self, found: impl Iterator<Item = (&'a AdmissionPolicy, &'a PolicyGuard)>) {
        for (policy, guard) in found {
            if self.results.borrow().get(policy) == Some(guard) {
                continue;
            }
            let name = policy.code();
            match guard {
                PolicyGuard::InForce => tracing::info!(policy = name, "this policy of the chart is in force"),
                PolicyGuard::Open => tracing::warn!(
                    policy = name,
                    "the cluster is not guarded: {}; install the chart with guard.enabled=true",
                    exposure(*policy)
                ),
                PolicyGuard::Hinders => tracing::warn!(
                    policy = name,
                    "a policy of the chart refuses writes that this agent needs: check that its token is bound to its Node or to a \
                     pod there, and that its account may own systemkeys.gpu-steward.io"
                ),
            }
            self.results.send_modify(|guards| {
                guards.insert(*policy, *guard);
            });
        }
    }

    /// Checks every policy once.
    async fn check(&self) -> Guards {
        // Each write would change a value, so that the policies check it; the value itself does not matter.
        let forbidden: AnnotationPatch<'_> = &[(annotation_keys::GUARD_CHECK, Some("1"))];
        let mut tried: Vec<(AdmissionPolicy, TriedWrite, TriedWrite)> = Vec::new();
        let handshake = self.api.try_node(&[(annotation_keys::HANDSHAKE, Some("0"))]).await;
        let handshake = write_result("the handshake on the agent's Node", handshake);
        let on_node =
            write_result("an annotation that no agent writes on its Node", self.api.try_node(forbidden).await);
        tried.push((AdmissionPolicy::Nodes, on_node, handshake));
        let keys = self.api.try_node(&[(annotation_keys::GUARD_CHECK_KEYS, Some("1"))]).await;
        tried.push((AdmissionPolicy::Keys, write_result("a system-owned key that no agent writes", keys), handshake));
        if let Some((uid, pod)) = self.any_pod() {
            let mark = self.api.try_pod(&uid, &pod, &[(annotation_keys::EVICT, Some("guard-check"))]).await;
            let other = self.api.try_pod(&uid, &pod, forbidden).await;
            let other = write_result("an annotation that no agent writes on pods", other);
            tried.push((AdmissionPolicy::Pods, other, write_result("a mark on a pod of this node", mark)));
            if self.evicts {
                let none = write_result(
                    "the eviction of a pod that does not exist",
                    self.api.try_eviction(&pod.namespace).await,
                );
                tried.push((AdmissionPolicy::Evictions, none, TriedWrite::Unknown));
            }
        }
        tried.into_iter().filter_map(|(policy, no, yes)| Some((policy, judge(policy, no, yes)?))).collect()
    }

    /// A pod of this node that has not ended and is not being deleted.
    fn any_pod(&self) -> Option<(PodUid, PodRef)> {
        let pods = self.pods.borrow();
        let pod = pods.as_ref()?.pods.iter().find(|pod| pod.deleted_at.is_none() && !pod.ended())?;
        Some((pod.uid.clone(), pod.name.clone()))
    }
}

/// The possible damage while a policy is not in force.
fn exposure(policy: AdmissionPolicy) -> &'static str {
    match policy {
        AdmissionPolicy::Nodes => "with this agent's token every field of every Node can be written",
        AdmissionPolicy::Pods => "with this agent's token every pod of the cluster can be changed",
        AdmissionPolicy::Keys => "any account that may write to pods can take any GPU",
        AdmissionPolicy::Evictions => "with this agent's token every pod of the cluster can be evicted",
    }
}

fn write_result(what: &'static str, written: Result<(), ApiError>) -> TriedWrite {
    let Err(error) = written else { return TriedWrite::Passes };
    match error.refusal() {
        // The API server checks the policies before it looks for the pod, so this error means that the policies allow
        // the write.
        Some(refusal) if refusal.code == 404 && refusal.message.contains(DryRun::NO_POD) => TriedWrite::Passes,
        Some(refusal) => refused_by(&refusal.message).map_or_else(
            || {
                tracing::debug!(what, why = &*refusal.message, "a dry-run write failed");
                TriedWrite::Unknown
            },
            TriedWrite::RefusedBy,
        ),
        None => {
            tracing::debug!(what, %error, "a dry-run write failed");
            TriedWrite::Unknown
        }
    }
}

/// The policy that refuses the write. Only the end of its name is compared, because the name starts with the name of
/// the chart's release.
fn refused_by(text: &str) -> Option<AdmissionPolicy> {
    let (_, named) = text.split_once("ValidatingAdmissionPolicy '")?;
    let (name, _) = named.split_once('\'')?;
    AdmissionPolicy::ALL.into_iter().find(|policy| name.ends_with(policy.code()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use apiserver::resource::ApiResource;
    use apiserver::{ApiCall, ApiFailure, ApiVerb};
    use wire::watch::ApiRefusal;

    #[test]
    fn a_policy_counts_as_not_in_force_after_two_checks_in_a_row_and_is_then_checked_more_often() {
        let check =
            |pods| Guards::from([(AdmissionPolicy::Nodes, PolicyGuard::InForce), (AdmissionPolicy::Pods, pods)]);
        let pods = |history: &CheckHistory, found: &Guards| {
            history.counts(found).find(|(policy, _)| **policy == AdmissionPolicy::Pods).map(|(_, guard)| *guard)
        };
        let mut history = CheckHistory::default();
        for (found, guarded, counts, pause) in [
            (check(PolicyGuard::Open), false, None, FIRST),
            (check(PolicyGuard::InForce), true, Some(PolicyGuard::InForce), HOURLY),
            (check(PolicyGuard::InForce), true, Some(PolicyGuard::InForce), HOURLY),
            (check(PolicyGuard::Open), true, None, FIRST),
            (check(PolicyGuard::Open), false, Some(PolicyGuard::Open), FIRST * 2),
            (check(PolicyGuard::Open), false, Some(PolicyGuard::Open), FIRST * 4),
            (check(PolicyGuard::InForce), true, Some(PolicyGuard::InForce), HOURLY),
            (Guards::new(), true, None, FIRST),
        ] {
            assert_eq!(pods(&history, &found), counts, "{found:?}");
            assert_eq!(history.pause(found, guarded), pause);
        }
        for _ in 0..20 {
            assert!(history.pause(Guards::new(), false) <= LONGEST);
        }
    }

    fn failed(failure: ApiFailure) -> ApiError {
        let call = ApiCall::new(ApiVerb::Patch, ApiResource::Nodes, "a write");
        ApiError { call, server: "https://10.0.0.1/".into(), failure }
    }

    #[test]
    fn a_refusal_names_its_policy_and_any_other_error_counts_as_unknown() {
        let refused = |code, text: &str| {
            let refusal = ApiRefusal { code, message: text.into(), is_status: true };
            write_result("a write", Err(failed(ApiFailure::Refused { refusal, wait: None })))
        };
        let by = |name: &str| {
            format!(
                "nodes \"n\" is forbidden: ValidatingAdmissionPolicy '{name}' with binding '{name}' denied request: the agent \
                 of node n may not change these annotations of node n: gpu-steward.io/guard-check"
            )
        };
        for (code, text, expected) in [
            (403, by("gpu-steward-agent-nodes"), TriedWrite::RefusedBy(AdmissionPolicy::Nodes)),
            (422, by("other-release-agent-pods"), TriedWrite::RefusedBy(AdmissionPolicy::Pods)),
            (403, by("gpu-steward-system-keys"), TriedWrite::RefusedBy(AdmissionPolicy::Keys)),
            (403, by("gpu-steward-agent-evictions"), TriedWrite::RefusedBy(AdmissionPolicy::Evictions)),
            (403, by("another-policy"), TriedWrite::Unknown),
            (403, "User \"system:serviceaccount:a:b\" cannot patch resource \"nodes\"".into(), TriedWrite::Unknown),
            (400, "admission webhook \"a.b.c\" does not support dry run".into(), TriedWrite::Unknown),
            (404, "nodes \"n\" not found".into(), TriedWrite::Unknown),
            (404, "pods \"gpu-steward-guard-check\" not found".into(), TriedWrite::Passes),
            (403, "ValidatingAdmissionPolicy 'torn".into(), TriedWrite::Unknown),
        ] {
            assert_eq!(refused(code, &text), expected, "{code} {text}");
        }
        assert_eq!(write_result("a write", Ok(())), TriedWrite::Passes);
        assert_eq!(
            write_result("a write", Err(failed(ApiFailure::Slow(Duration::from_secs(10))))),
            TriedWrite::Unknown
        );
    }
}
