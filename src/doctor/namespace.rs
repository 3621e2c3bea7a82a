//! The namespace of gpu-steward, if the caller names none. Anyone who may create pods can give them its labels; such pods must not be
//! asked as the leader. So gpu-steward is where an extender has held its Lease: the chart names the Lease after the service account
//! of the extender. If Leases cannot be read, and for agents without an extender, all pods must be in one namespace.

use crate::cluster::{ClusterReader, MAX_LISTED};
use crate::finding::{Seen, Unread};
use model::lease::LeaseRecord;
use std::collections::BTreeSet;
use wire::described_pod::DescribedPod;

/// Maximum number of Leases that are read. No cluster has this many installations of gpu-steward.
const MAX_LEASES: usize = 8;
/// Maximum number of namespaces that a refusal names.
const MAX_NAMED: usize = 8;

/// A namespace, and the Lease there as an extender has left it; `None` if no extender has held it.
type LeaseSeen = (String, Seen<Option<LeaseRecord>>);

/// The pods of the extender. If the Lease was read, its holder is the first pod.
pub(crate) async fn extenders(cluster: &ClusterReader, namespace: Option<&str>) -> Seen<Vec<DescribedPod>> {
    let pods = cluster.steward_pods(namespace, "extender").await?;
    if namespace.is_some() || pods.is_empty() {
        return Ok(pods);
    }
    let accounts: BTreeSet<(&str, &str)> =
        pods.iter().map(|pod| (pod.namespace.as_str(), pod.account.as_str())).collect();
    if !is_whole(&pods) || accounts.len() > MAX_LEASES {
        return Err(refused(&namespaces(&pods), "too many pods have the labels of its extender"));
    }
    let mut leases: Vec<LeaseSeen> = Vec::new();
    for (namespace, account) in accounts {
        let lease = cluster.lease(namespace, account).await;
        let is_seen = lease.is_ok();
        leases.push((namespace.to_owned(), lease));
        if !is_seen {
            break;
        }
    }
    of_lease(pods, &leases)
}

/// The pods of the agents, in the namespace of the extenders if there are extenders.
pub(crate) async fn agents(
    cluster: &ClusterReader,
    namespace: Option<&str>,
    extenders: &Seen<Vec<DescribedPod>>,
) -> Seen<Vec<DescribedPod>> {
    let of_extenders = extenders.iter().flatten().next().map(|pod| pod.namespace.as_str());
    match namespace.or(of_extenders) {
        Some(namespace) => cluster.steward_pods(Some(namespace), "agent").await,
        None => in_one_namespace(cluster.steward_pods(None, "agent").await?),
    }
}

/// The pods in the namespace of the Lease. All pods are listed.
fn of_lease(mut pods: Vec<DescribedPod>, leases: &[LeaseSeen]) -> Seen<Vec<DescribedPod>> {
    if let Some(unseen) = leases.iter().find_map(|(_, lease)| lease.as_ref().err()) {
        return in_one_namespace(pods).map_err(|unread| Unread { why: format!("{}; {unseen}", unread.why), ..unread });
    }
    let held: Vec<(&str, &LeaseRecord)> = leases
        .iter()
        .filter_map(|(namespace, lease)| Some((namespace.as_str(), lease.as_ref().ok()?.as_ref()?)))
        .collect();
    let homes: BTreeSet<&str> = held.iter().map(|(namespace, _)| *namespace).collect();
    match homes.len() {
        0 => return Err(refused(&namespaces(&pods), "no extender has held a Lease where pods have its labels")),
        1 => {}
        _ => return Err(refused(&homes, "extenders in more than one namespace have held a Lease")),
    }
    pods.retain(|pod| homes.contains(pod.namespace.as_str()));
    // A holder's identity is the name of its pod, and random digits.
    let holds = |pod: &DescribedPod, lease: &LeaseRecord| {
        let name = lease.holder.as_deref().and_then(|holder| holder.rsplit_once('_'));
        name.is_some_and(|(name, _)| name == pod.name)
    };
    pods.sort_by_key(|pod| !held.iter().any(|(_, lease)| holds(pod, lease)));
    Ok(pods)
}

/// The pods, if the list has all pods and all are in one namespace.
fn in_one_namespace(pods: Vec<DescribedPod>) -> Seen<Vec<DescribedPod>> {
    let why = if !is_whole(&pods) {
        "too many pods have its labels"
    } else if namespaces(&pods).len() > 1 {
        "pods in more than one namespace have its labels"
    } else {
        return Ok(pods);
    };
    Err(refused(&namespaces(&pods), why))
}

/// Whether the list has all pods of the cluster.
fn is_whole(pods: &[DescribedPod]) -> bool {
    u32::try_from(pods.len()).is_ok_and(|listed| listed < MAX_LISTED)
}

fn namespaces(pods: &[DescribedPod]) -> BTreeSet<&str> {
    pods.iter().map(|pod| pod.namespace.as_str()).collect()
}

fn refused(namespaces: &BTreeSet<&str>, why: &str) -> Unread {
    let named: Vec<&str> = namespaces.iter().copied().take(MAX_NAMED).collect();
    let more = match namespaces.len() - named.len() {
        0 => String::new(),
        more => format!(" and {more} more"),
    };
    let named = named.join(", ");
    let why = format!("{why} ({named}{more}); name the one of gpu-steward with --steward-namespace");
    Unread::new("the namespace of gpu-steward", why)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(namespace: &str, name: &str) -> DescribedPod {
        DescribedPod { namespace: namespace.into(), name: name.into(), ..DescribedPod::default() }
    }

    fn names(pods: &Seen<Vec<DescribedPod>>) -> Vec<&str> {
        pods.iter().flatten().map(|pod| pod.name.as_str()).collect()
    }

    /// A Lease that this pod holds; `None`: no extender has held it.
    fn lease(namespace: &str, holder: Option<&str>) -> LeaseSeen {
        let held = |holder: &str| LeaseRecord { holder: Some(format!("{holder}_0f").into()), ..LeaseRecord::default() };
        (namespace.to_owned(), Ok(holder.map(held)))
    }

    fn unseen(namespace: &str) -> LeaseSeen {
        (namespace.to_owned(), Err(Unread::new("the Lease", "no right")))
    }

    #[test]
    fn pods_are_believed_in_the_namespace_of_the_lease_and_its_holder_comes_first() {
        let all = || vec![pod("aaa", "fake"), pod("gpu", "one"), pod("gpu", "two")];
        let found = of_lease(all(), &[lease("aaa", None), lease("gpu", Some("two"))]);
        assert_eq!(names(&found), ["two", "one"]);
        for (leases, why) in [
            (vec![lease("aaa", None), lease("gpu", None)], "no extender has held a Lease"),
            (vec![lease("aaa", Some("fake")), lease("gpu", Some("two"))], "extenders in more than one namespace"),
            (vec![unseen("aaa")], "pods in more than one namespace have its labels"),
            (vec![lease("aaa", Some("fake")), unseen("gpu")], "pods in more than one namespace have its labels"),
        ] {
            let unread = of_lease(all(), &leases).unwrap_err();
            assert!(unread.why.starts_with(why), "{unread}");
            assert!(unread.why.contains("(aaa, gpu)") && unread.why.contains("--steward-namespace"), "{unread}");
            assert_eq!(unread.why.ends_with("no right"), leases.iter().any(|(_, lease)| lease.is_err()), "{unread}");
        }
        let one = vec![pod("gpu", "one")];
        assert_eq!(names(&of_lease(one.clone(), &[unseen("gpu")])), ["one"]);
        assert!(of_lease(one, &[lease("gpu", None)]).is_err(), "no extender has led there");
    }

    #[test]
    fn a_list_that_may_have_no_end_is_refused_and_a_refusal_names_few_namespaces() {
        let agents = |number: u32| (0..number).map(|number| pod("gpu", &number.to_string())).collect::<Vec<_>>();
        assert!(in_one_namespace(agents(MAX_LISTED - 1)).is_ok());
        assert!(in_one_namespace(agents(MAX_LISTED)).unwrap_err().why.starts_with("too many pods"));
        let many = (0..20).map(|number| pod(&format!("n{number:02}"), "a")).collect();
        assert!(in_one_namespace(many).unwrap_err().why.contains("n07 and 12 more)"));
    }
}
