//! Which scheduler wrote the claim of a pod, by the other annotations of the pod.

use crate::annotation_keys::{ALLOCATED, ASSIGNED_TIME, EPOCH, LEASE, PLACED_BY, PLACED_BY_AGENT};
use crate::timestamp;
use model::claim::ClaimOrigin;
use model::lease::LeaseName;
use model::pod::Pod;

/// Maximum number of characters of the name of another installation's Lease: its namespace, a slash, its name.
const MAX_LEASE: usize = 63 + 1 + 253;

/// Which scheduler wrote the pod's claim, from the view of the extenders with the Lease `own`. `None` if the pod has no
/// claim, or if the agent made it. Earlier releases of gpu-steward wrote no Lease into a claim; such a claim counts as
/// written by these extenders.
#[must_use]
pub fn of(pod: &Pod, own: &LeaseName) -> Option<ClaimOrigin> {
    pod.annotation(ALLOCATED)?;
    if pod.annotation(PLACED_BY) == Some(PLACED_BY_AGENT) {
        return None;
    }
    let at = pod.annotation(ASSIGNED_TIME).and_then(timestamp::unix_seconds);
    Some(match (pod.annotation(EPOCH), pod.annotation(LEASE)) {
        (None, None) => ClaimOrigin::Other(at),
        (_, Some(lease)) if lease != own.as_str() => {
            ClaimOrigin::OtherLease(at, lease.chars().take(MAX_LEASE).collect::<String>().into())
        }
        _ => ClaimOrigin::Own(at),
    })
}

/// The epoch of the leader that wrote the pod's claim.
#[must_use]
pub fn epoch(pod: &Pod) -> Option<u64> {
    pod.annotation(EPOCH)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::WallTime;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn lease() -> LeaseName {
        LeaseName::new("gpu", "gpu-steward-extender")
    }

    #[test]
    fn a_claim_says_which_installation_wrote_it() {
        let at = Some(WallTime(1_795_256_507_000_000));
        let other = || ClaimOrigin::OtherLease(at, "b/gpu-steward-extender".into());
        let newest = include_str!("../../tests/golden/claims/version-1.json");
        let before = include_str!("../../tests/golden/claims/version-0.json");
        for (claim, changed, expected) in [
            (newest, json!({}), Some(ClaimOrigin::Own(at))),
            (newest, json!({ LEASE: "b/gpu-steward-extender" }), Some(other())),
            (newest, json!({ LEASE: "b/gpu-steward-extender", EPOCH: null }), Some(other())),
            // A release before wrote no Lease.
            (before, json!({}), Some(ClaimOrigin::Own(at))),
            (before, json!({ ASSIGNED_TIME: "soon" }), Some(ClaimOrigin::Own(None))),
            (before, json!({ EPOCH: null }), Some(ClaimOrigin::Other(at))),
            (newest, json!({ PLACED_BY: PLACED_BY_AGENT }), None),
            (newest, json!({ ALLOCATED: null }), None),
        ] {
            let mut annotations: Value = serde_json::from_str(claim).unwrap();
            for (key, value) in changed.as_object().unwrap() {
                annotations[key] = value.clone();
            }
            annotations.as_object_mut().unwrap().retain(|_, value| !value.is_null());
            let pod = json!({ "metadata": { "name": "a", "namespace": "b", "uid": "1".repeat(32), "annotations": annotations } });
            let pod = crate::pod::decode(pod.to_string().as_bytes()).unwrap();
            assert_eq!(of(&pod, &lease()), expected, "{annotations}");
        }
        let long = json!({ "metadata": {
            "name": "a", "namespace": "b", "uid": "1".repeat(32), "annotations": { ALLOCATED: ";", LEASE: "é".repeat(5000) },
        } });
        let pod = crate::pod::decode(long.to_string().as_bytes()).unwrap();
        let Some(ClaimOrigin::OtherLease(None, name)) = of(&pod, &lease()) else { panic!("{pod:?}") };
        assert_eq!(name.chars().count(), MAX_LEASE);
    }

    proptest! {
        #[test]
        fn no_annotation_causes_a_panic(epoch in "\\PC{0,24}", lease in "\\PC{0,40}", at in "\\PC{0,24}") {
            let annotations = json!({ ALLOCATED: ";", EPOCH: epoch, LEASE: lease, ASSIGNED_TIME: at });
            let pod = json!({ "metadata": { "name": "a", "namespace": "b", "uid": "1".repeat(32), "annotations": annotations } });
            if let Ok(pod) = crate::pod::decode(pod.to_string().as_bytes()) {
                prop_assert!(of(&pod, &self::lease()).is_some());
                prop_assert_eq!(super::epoch(&pod), epoch.parse().ok());
            }
        }
    }
}
