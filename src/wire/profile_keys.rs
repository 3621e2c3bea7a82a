//! The keys of the annotations in which a Node describes the load of its GPUs. The key of one GPU has its index.
//!
//! ```text
//!   ai.centaurus.io/gpu-static   gpu-0   GPU-0-job-type   GPU-0-mem-util-max        Alnair's (crate::alnair)
//!   gpu-steward.io/gpu-0-profile                                                    (crate::gpu_profile)
//! ```
//!
//! What must never happen here: a key that the chart's policy does not know ([`crate::annotation_keys::GPU_LOAD_PATTERNS`]), or a
//! key of Alnair that the agent does not write.

use crate::annotation_keys::GPU_STATIC;

/// What stands before and after the index.
type Around = (&'static str, &'static str);

const SNAPSHOT: Around = ("ai.centaurus.io/gpu-", "");
const JOB: Around = ("ai.centaurus.io/GPU-", "-job-type");
const CYCLIC_MAXIMUM: Around = ("ai.centaurus.io/GPU-", "-mem-util-max");
const PROFILE: Around = ("gpu-steward.io/gpu-", "-profile");

/// One of these keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ProfileKey {
    /// What the GPUs are.
    Static,
    /// Memory, processes and load of the GPU with this index.
    Snapshot(u32),
    /// Its kind of job.
    Job(u32),
    /// Its highest memory-copy utilisation, while its load is cyclic.
    CyclicMaximum(u32),
    /// Its verdicts and forecasts.
    Profile(u32),
}

impl ProfileKey {
    /// The text of the key.
    #[must_use]
    pub fn text(self) -> String {
        let ((before, after), index) = match self {
            ProfileKey::Static => return GPU_STATIC.to_owned(),
            ProfileKey::Snapshot(index) => (SNAPSHOT, index),
            ProfileKey::Job(index) => (JOB, index),
            ProfileKey::CyclicMaximum(index) => (CYCLIC_MAXIMUM, index),
            ProfileKey::Profile(index) => (PROFILE, index),
        };
        format!("{before}{index}{after}")
    }

    /// The key with this text. The decoder of pods and Nodes calls this for each annotation, so it allocates no memory.
    #[must_use]
    pub fn parse(text: &str) -> Option<ProfileKey> {
        if text == GPU_STATIC {
            return Some(ProfileKey::Static);
        }
        let index = |(before, after): Around| {
            let number = text.strip_prefix(before)?.strip_suffix(after)?;
            let plain = number == "0" || !number.starts_with(['0', '+']);
            number.parse::<u32>().ok().filter(|_| plain)
        };
        index(SNAPSHOT)
            .map(ProfileKey::Snapshot)
            .or_else(|| index(JOB).map(ProfileKey::Job))
            .or_else(|| index(CYCLIC_MAXIMUM).map(ProfileKey::CyclicMaximum))
            .or_else(|| index(PROFILE).map(ProfileKey::Profile))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotation_keys::GPU_LOAD_PATTERNS;
    use proptest::prelude::*;

    fn of(index: u32) -> [ProfileKey; 4] {
        [
            ProfileKey::Snapshot(index),
            ProfileKey::Job(index),
            ProfileKey::CyclicMaximum(index),
            ProfileKey::Profile(index),
        ]
    }

    #[test]
    fn the_keys_are_those_of_the_charts_patterns() {
        for (key, pattern) in of(12).into_iter().zip(GPU_LOAD_PATTERNS) {
            let text =
                pattern.trim_start_matches('^').trim_end_matches('$').replace("[.]", ".").replace("[0-9]+", "12");
            assert_eq!(key.text(), text);
        }
    }

    #[test]
    fn other_keys_of_alnair_are_not_among_them() {
        for text in [
            "ai.centaurus.io/physical-gpu-count",
            "ai.centaurus.io/vitual-gpu-count",
            "ai.centaurus.io/gpu-memused",
            "ai.centaurus.io/gpu-",
            "ai.centaurus.io/gpu-01",
            "ai.centaurus.io/gpu-+1",
            "ai.centaurus.io/gpu--1",
            "ai.centaurus.io/gpu-4294967296",
            "ai.centaurus.io/GPU-0-MEM_UTIL_MAX",
            "ai.centaurus.io/GPU-0",
            "gpu-steward.io/gpu-0",
            "gpu-steward.io/gpu-0-profile-x",
            "aixcentaurus.io/gpu-0",
            "",
        ] {
            assert_eq!(ProfileKey::parse(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn each_key_is_read_back(index in any::<u32>()) {
            for key in of(index).into_iter().chain([ProfileKey::Static]) {
                prop_assert_eq!(ProfileKey::parse(&key.text()), Some(key));
            }
        }

        #[test]
        fn only_the_own_form_of_a_key_is_read(text in "(ai[.]centaurus[.]io/|gpu-steward[.]io/)(gpu|GPU)-[0-9+-]{0,12}(-job-type|-profile)?") {
            if let Some(key) = ProfileKey::parse(&text) {
                prop_assert_eq!(key.text(), text);
            }
        }
    }
}
