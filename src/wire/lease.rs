//! The Lease of a leader election (`coordination.k8s.io/v1`).
//!
//! ```text
//!   {"apiVersion":"coordination.k8s.io/v1","kind":"Lease",
//!    "metadata":{"name":…,"namespace":…,"resourceVersion":"7","annotations":{"gpu-steward.io/epoch":"3",
//!                "gpu-steward.io/address":"10.0.0.7:9443"}},
//!    "spec":{"holderIdentity":"a","leaseDurationSeconds":15,"acquireTime":"2026-11-21T10:21:47.000000Z",
//!            "renewTime":…,"leaseTransitions":2}}
//! ```
//!
//! A field that is missing or cannot be read gets the value of a new Lease; only the version is required.

use crate::annotation_keys::{EPOCH, LEADER_ADDRESS};
use crate::decode_error::DecodeError;
use crate::timestamp;
use model::lease::{LeaseRecord, StoredLease};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

const LEASE: &str = "Lease";
/// Maximum bytes of an address that is read: a DNS name has at most 253 characters, a port five.
const MAX_ADDRESS: usize = 260;

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    #[serde(default)]
    spec: Option<Spec>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Metadata {
    resource_version: String,
    #[serde(default)]
    annotations: Option<BTreeMap<String, Value>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    holder_identity: Option<String>,
    lease_duration_seconds: Option<i64>,
    acquire_time: Option<String>,
    renew_time: Option<String>,
    lease_transitions: Option<i64>,
}

/// Reads a Lease.
///
/// # Errors
/// [`DecodeError`] if the text is not the JSON of a Lease, or has no version.
pub fn decode(json: &[u8]) -> Result<StoredLease, DecodeError> {
    let Object { metadata, spec } =
        serde_json::from_slice(json).map_err(|error| DecodeError::json(LEASE, json, &error))?;
    let spec = spec.unwrap_or_default();
    let number = |number: Option<i64>| number.and_then(|number| u64::try_from(number).ok());
    let time = |text: Option<String>| text.as_deref().and_then(timestamp::rfc3339_micros);
    let mut annotations = metadata.annotations.unwrap_or_default();
    let (epoch, address) = (annotations.remove(EPOCH), annotations.remove(LEADER_ADDRESS));
    let address = address.as_ref().and_then(Value::as_str).filter(|address| (1..=MAX_ADDRESS).contains(&address.len()));
    Ok(StoredLease {
        version: metadata.resource_version.into(),
        record: LeaseRecord {
            holder: spec.holder_identity.filter(|holder| !holder.is_empty()).map(Arc::from),
            duration: Duration::from_secs(number(spec.lease_duration_seconds).unwrap_or(0)),
            acquired: time(spec.acquire_time),
            renewed: time(spec.renew_time),
            transitions: number(spec.lease_transitions).unwrap_or(0),
            epoch: epoch.as_ref().and_then(Value::as_str).and_then(|epoch| epoch.parse().ok()),
            address: address.map(Arc::from),
        },
    })
}

/// Writes a Lease; `version` is the version of the Lease that it replaces.
#[must_use]
pub fn encode(namespace: &str, name: &str, version: Option<&str>, record: &LeaseRecord) -> Value {
    let LeaseRecord { holder, duration, acquired, renewed, transitions, epoch, address } = record;
    let mut metadata = json!({ "name": name, "namespace": namespace });
    if let Some(version) = version {
        metadata["resourceVersion"] = version.into();
    }
    let epoch = epoch.map(|epoch| (EPOCH, epoch.to_string()));
    let address = address.as_ref().map(|address| (LEADER_ADDRESS, address.to_string()));
    let annotations: BTreeMap<&str, String> = epoch.into_iter().chain(address).collect();
    if !annotations.is_empty() {
        metadata["annotations"] = json!(annotations);
    }
    json!({
        "apiVersion": "coordination.k8s.io/v1", "kind": LEASE, "metadata": metadata,
        "spec": {
            // Released: client-go writes an empty text.
            "holderIdentity": holder.as_deref().unwrap_or_default(),
            "leaseDurationSeconds": duration.as_secs(),
            "acquireTime": acquired.map(timestamp::to_rfc3339_micros),
            "renewTime": renewed.map(timestamp::to_rfc3339_micros),
            "leaseTransitions": transitions,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::time::WallTime;
    use proptest::prelude::*;

    #[test]
    fn a_lease_of_client_go_is_read() {
        let text = br#"{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"kube-scheduler",
            "namespace":"kube-system","uid":"u","resourceVersion":"412","managedFields":[{}]},"spec":{
            "holderIdentity":"n1_0b","leaseDurationSeconds":15,"acquireTime":"2026-11-21T10:21:47.000001Z",
            "renewTime":"2026-11-21T10:21:49.500000Z","leaseTransitions":3}}"#;
        let lease = decode(text).unwrap();
        assert_eq!((&*lease.version, lease.record.holder.as_deref()), ("412", Some("n1_0b")));
        assert_eq!((lease.record.duration.as_secs(), lease.record.transitions, lease.record.epoch), (15, 3, None));
        assert_eq!(lease.record.acquired, Some(WallTime(1_795_256_507_000_001)));
        assert_eq!(lease.record.renewed, Some(WallTime(1_795_256_509_500_000)));
    }

    #[test]
    fn what_is_missing_or_odd_is_as_in_a_new_lease() {
        for spec in [r#""spec":null"#, r#""spec":{"holderIdentity":"","leaseDurationSeconds":-3,"renewTime":"x"}"#] {
            let text = format!(r#"{{"metadata":{{"resourceVersion":"1","annotations":{{"{EPOCH}":"x"}}}},{spec}}}"#);
            assert_eq!(decode(text.as_bytes()).unwrap().record, LeaseRecord::default(), "{text}");
        }
        for text in ["{}", "[]", "", r#"{"metadata":{}}"#] {
            assert!(decode(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn no_bytes_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn a_record_comes_back(
            holder in prop::option::of("[a-z0-9_-]{1,40}"), seconds in 0_u64..100_000, at in 0_u64..4_000_000_000_000_000,
            transitions in 0_u64..1_000_000, epoch in prop::option::of(any::<u64>()),
            address in prop::option::of("[a-z0-9.:]{1,40}"),
        ) {
            let record = LeaseRecord {
                holder: holder.map(Arc::from),
                duration: Duration::from_secs(seconds),
                acquired: Some(WallTime(at)),
                renewed: Some(WallTime(at + 1)),
                transitions,
                epoch,
                address: address.map(Arc::from),
            };
            let text = encode("kube-system", "steward", Some("7"), &record).to_string();
            prop_assert_eq!(decode(text.as_bytes()).unwrap(), StoredLease { version: "7".into(), record });
        }
    }
}
