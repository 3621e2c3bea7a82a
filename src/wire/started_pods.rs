//! The file of started pods. A line with a UID means that the agent has answered a container start of this pod. A line
//! with a minus before the UID means that the pod has ended since; agents of earlier releases skip these lines.
//!
//! A line starts with a line feed, because the line before it may be cut off. After a power loss, a file system may
//! show zero bytes in place of data.

use model::id::PodUid;
use std::collections::BTreeSet;

/// Name of the file in the state directory, next to the folders of the pods.
pub const FILE: &str = "started";
/// Maximum bytes: about 27,000 lines, for the pods of a full node and the pods that end between two sweeps.
pub const MAX_BYTES: usize = 1 << 20;

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StartedPods {
    /// The pods of all lines that can be read, except pods that have ended.
    pub pods: BTreeSet<PodUid>,
    /// The number of lines.
    pub lines: usize,
    /// The length of the file.
    pub bytes: u64,
}

/// The line of a pod.
#[must_use]
pub fn line(pod: &PodUid) -> String {
    format!("\n{pod}")
}

/// The line that says that a pod has ended.
#[must_use]
pub fn end_line(pod: &PodUid) -> String {
    format!("\n-{pod}")
}

/// Reads the file. A line that cannot be read is skipped: a line that was cut off is not the UID of any pod.
#[must_use]
pub fn decode(bytes: &[u8]) -> StartedPods {
    let text = String::from_utf8_lossy(bytes);
    let lines = || text.split(['\n', '\0']).filter(|line| !line.is_empty());
    let mut pods = BTreeSet::new();
    for line in lines() {
        match (line.strip_prefix('-').map(PodUid::parse), PodUid::parse(line)) {
            (Some(Ok(ended)), _) => drop(pods.remove(&ended)),
            (_, Ok(pod)) => drop(pods.insert(pod)),
            _ => {}
        }
    }
    StartedPods { pods, lines: lines().count(), bytes: bytes.len() as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn uid(n: usize) -> PodUid {
        PodUid::parse(&format!("{n:032x}")).unwrap()
    }

    #[test]
    fn a_damaged_line_does_not_affect_the_others() {
        let text = format!("{}{}\n\u{fffd}\0\n0000{}", line(&uid(1)), line(&uid(2)), line(&uid(1)));
        let StartedPods { pods, lines, bytes } = decode(text.as_bytes());
        assert_eq!((pods, lines), (BTreeSet::from([uid(1), uid(2)]), 5));
        assert_eq!(bytes, text.len() as u64);
        assert_eq!(decode(&[0; 4096]), StartedPods { bytes: 4096, ..StartedPods::default() });
    }

    #[test]
    fn a_pod_that_has_ended_is_no_started_pod_unless_it_starts_again() {
        let pods = |text: String| decode(text.as_bytes()).pods;
        let ended = line(&uid(1)) + &line(&uid(2)) + &end_line(&uid(1));
        assert_eq!(pods(ended.clone()), BTreeSet::from([uid(2)]));
        assert_eq!(pods(ended + &line(&uid(1))), BTreeSet::from([uid(1), uid(2)]));
        assert_eq!(pods(line(&uid(1)) + "\n-"), BTreeSet::from([uid(1)]), "a line that was cut off");
    }

    proptest! {
        #[test]
        fn encoded_values_are_decoded_unchanged(numbers in prop::collection::btree_set(0_usize..1000, 0..20), torn in "[a-z0-9]{0,5}") {
            let pods: BTreeSet<PodUid> = numbers.into_iter().map(uid).collect();
            let text: String = pods.iter().map(line).collect();
            prop_assert_eq!(decode((text + "\n" + &torn).as_bytes()).pods, pods);
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }
    }
}
