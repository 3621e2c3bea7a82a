//! The node lock that HAMi's scheduler takes (`hami.io/mutex.lock`): `<RFC 3339 time>,<namespace>,<pod>`. Older
//! schedulers write only the time.

use crate::annotation_keys::NODE_LOCK;
use crate::decode_error::{DecodeError, shown};
use crate::timestamp;
use model::claim::NodeLock;
use model::id::PodRef;
use model::time::WallTime;

/// Maximum bytes: a time, a namespace of at most 63 and a pod name of at most 253 characters, with room to spare.
const MAX: usize = 512;

/// Reads the annotation's value.
///
/// # Errors
/// [`DecodeError`] for another number of parts, an empty name or an invalid time.
pub fn decode(text: &str) -> Result<NodeLock, DecodeError> {
    if text.len() > MAX {
        return Err(DecodeError::too_long(NODE_LOCK, text.len(), MAX));
    }
    let parts: Vec<&str> = text.split(',').collect();
    let (time, owner) = match parts.as_slice() {
        [time] => (*time, None),
        [time, namespace, name] if !namespace.is_empty() && !name.is_empty() => {
            (*time, Some(PodRef { namespace: (*namespace).into(), name: (*name).into() }))
        }
        [time, _, _] => return Err(DecodeError::new(NODE_LOCK, time.len() + 1, "names no pod")),
        other => {
            return Err(DecodeError::new(NODE_LOCK, 0, format!("has {} parts where 1 or 3 are expected", other.len())));
        }
    };
    let at = timestamp::rfc3339(time)
        .ok_or_else(|| DecodeError::new(NODE_LOCK, 0, format!("does not begin with a time: {}", shown(time))))?;
    Ok(NodeLock { at, owner })
}

/// Writes a lock taken at `at` for a pod.
#[must_use]
pub fn encode(at: WallTime, owner: &PodRef) -> String {
    format!("{},{},{}", timestamp::to_rfc3339(at), owner.namespace, owner.name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn pod(namespace: &str, name: &str) -> PodRef {
        PodRef { namespace: namespace.into(), name: name.into() }
    }

    #[test]
    fn both_forms_are_read() {
        let at = WallTime(1_795_256_507_000_000);
        let owner = pod("default", "one-slice");
        let text = "2026-11-21T10:21:47Z,default,one-slice";
        assert_eq!(decode(text), Ok(NodeLock { at, owner: Some(owner.clone()) }));
        assert_eq!(encode(at, &owner), text);
        assert_eq!(decode("2026-11-21T18:21:47+08:00"), Ok(NodeLock { at, owner: None }));
    }

    #[test]
    fn other_texts_are_refused_with_the_place() {
        for (text, at, what) in [
            ("", 0, "does not begin with a time"),
            ("now,default,a", 0, "does not begin with a time: \"now\""),
            ("2026-11-21T10:21:47Z,default", 0, "has 2 parts"),
            ("2026-11-21T10:21:47Z,default,a,b", 0, "has 4 parts"),
            ("2026-11-21T10:21:47Z,,a", 21, "names no pod"),
        ] {
            let fault = decode(text).unwrap_err();
            assert!(fault.at == at && fault.what.contains(what), "{text}: {fault}");
        }
        assert!(decode(&format!("2026-11-21T10:21:47Z,a,{}", "b".repeat(MAX))).is_err());
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(text in "\\PC{0,100}") {
            let _ = decode(&text);
        }

        #[test]
        fn encoded_values_are_decoded_unchanged(
            seconds in 0..253_402_300_800_u64, namespace in "[a-z0-9-]{1,63}", name in "[a-z0-9.-]{1,253}",
        ) {
            let (at, owner) = (WallTime(seconds * 1_000_000), pod(&namespace, &name));
            prop_assert_eq!(decode(&encode(at, &owner)), Ok(NodeLock { at, owner: Some(owner) }));
        }
    }
}
