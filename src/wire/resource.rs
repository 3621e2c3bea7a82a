//! Computes the GPU request of one container from the resource amounts in its specification.
//!
//! ```text
//!   limits, else requests:  nvidia.com/gpu 2 · nvidia.com/gpumem 3000 (MiB) · nvidia.com/gpumem-percentage 50
//!                           nvidia.com/gpucores 30 · nvidia.com/priority 0        ──▶ GpuRequest
//! ```
//!
//! The rules are HAMi's. An amount of MiB overrides a percentage. Without either, the request is the default amount, or the
//! whole GPU. A percentage of 0 or less counts as no percentage, and a percentage above 100 counts as 100. Three cases are
//! errors here, so that the owner of the pod sees them: an amount that is not a whole number, negative or beyond 31 bits,
//! which HAMi treats as no request; cores above 100, which HAMi reduces to 100; and a priority other than 0 and 1, which HAMi
//! does not define.
//!
//! What must never happen here: a change of the request. HAMi's webhook adds a count if a pod requests only memory or cores,
//! and all cores if a pod requests the whole memory. This file reads the amounts of the pod as they are.

use crate::decode_error::shown;
use crate::quantity::{self, Quantity};
use model::nvidia;
use model::request::{GpuRequest, MemoryRequest};
use model::unit::{CorePercent, Mib};
use std::collections::BTreeMap;

/// Resource amounts as the API server writes them: resource name to quantity.
pub type ResourceAmounts = BTreeMap<String, String>;

/// Maximum amount: HAMi's programs hold all amounts in signed 32-bit integers.
const MAX_NUMBER: i64 = i32::MAX as i64;
/// Maximum amount of cores, in percent of the SM time of one GPU.
const MAX_CORES: i64 = 100;
/// The lower of HAMi's two priorities; 0 is the higher priority.
const MAX_PRIORITY: i64 = 1;
/// Suffixes that mean bytes in an amount of memory. The API server itself writes `3k` for 3000, but no GPU has a million MiB.
const BYTE_SUFFIXES: [&str; 10] = ["Mi", "Gi", "Ti", "Pi", "Ei", "M", "G", "T", "P", "E"];

/// Names of the resources.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceNames {
    /// Number of GPUs.
    pub count: String,
    /// Memory of each GPU, in MiB.
    pub memory: String,
    /// Percent of the memory of each GPU.
    pub memory_percentage: String,
    /// Percent of the SM time of each GPU.
    pub cores: String,
    /// Priority: 0 is high, 1 is low.
    pub priority: String,
}

impl ResourceNames {
    /// All five names.
    #[must_use]
    pub fn all(&self) -> [&str; 5] {
        let ResourceNames { count, memory, memory_percentage, cores, priority } = self;
        [count, memory, memory_percentage, cores, priority]
    }

    /// Checks that no two resources have the same name.
    ///
    /// # Errors
    /// The text names two resources with the same name.
    pub fn distinct(&self) -> Result<(), String> {
        let ResourceNames { count, memory, memory_percentage, cores, priority } = self;
        let mut seen = BTreeMap::new();
        for (what, name) in [
            ("count", count),
            ("memory", memory),
            ("memory percentage", memory_percentage),
            ("cores", cores),
            ("priority", priority),
        ] {
            if let Some(other) = seen.insert(name, what) {
                return Err(format!("{} is the resource of both {other} and {what}", shown(name)));
            }
        }
        Ok(())
    }
}

impl Default for ResourceNames {
    fn default() -> Self {
        ResourceNames {
            count: nvidia::COUNT.into(),
            memory: nvidia::MEMORY.into(),
            memory_percentage: nvidia::MEMORY_PERCENTAGE.into(),
            cores: nvidia::CORES.into(),
            priority: nvidia::PRIORITY.into(),
        }
    }
}

/// Names that replace the names of a device configuration. A name that is `None` stays as it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceOverrides {
    /// See [`ResourceNames::count`].
    pub count: Option<String>,
    /// See [`ResourceNames::memory`].
    pub memory: Option<String>,
    /// See [`ResourceNames::memory_percentage`].
    pub memory_percentage: Option<String>,
    /// See [`ResourceNames::cores`].
    pub cores: Option<String>,
    /// See [`ResourceNames::priority`].
    pub priority: Option<String>,
}

impl ResourceOverrides {
    /// Replaces the names of the device configuration.
    ///
    /// # Errors
    /// If two resources then have the same name.
    pub fn replace(&self, names: &mut ResourceNames) -> Result<(), String> {
        for (name, own) in [
            (&mut names.count, &self.count),
            (&mut names.memory, &self.memory),
            (&mut names.memory_percentage, &self.memory_percentage),
            (&mut names.cores, &self.cores),
            (&mut names.priority, &self.priority),
        ] {
            if let Some(own) = own {
                name.clone_from(own);
            }
        }
        names.distinct().map_err(|why| format!("{why}; see --resource-name and the names of the other resources"))
    }
}

/// The rules by which amounts become a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestRules {
    /// Names of the resources.
    pub names: ResourceNames,
    /// Memory if the pod requests no memory; `None` is the whole GPU.
    pub default_memory: Option<Mib>,
    /// Cores if the pod requests no cores.
    pub default_cores: CorePercent,
    /// MiB in one unit of the memory resource.
    pub memory_factor: u32,
}

impl Default for RequestRules {
    fn default() -> Self {
        RequestRules {
            names: ResourceNames::default(),
            default_memory: None,
            default_cores: CorePercent(0),
            memory_factor: 1,
        }
    }
}

/// An invalid amount in a request.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{resource} {why}")]
pub struct BadAmount {
    /// Name of the resource.
    pub resource: String,
    /// What the resource counts, and what to write.
    pub why: String,
}

/// The request of a container with these limits and requests; `None` if it requests no GPU.
///
/// # Errors
/// [`BadAmount`] for the first invalid amount.
pub fn request(
    rules: &RequestRules,
    limits: &ResourceAmounts,
    requests: &ResourceAmounts,
) -> Result<Option<GpuRequest>, BadAmount> {
    let ResourceNames { count, memory, memory_percentage, cores, priority } = &rules.names;
    let read = |name: &String, read: &dyn Fn(&str) -> Result<i64, String>| {
        let text = limits.get(name).or_else(|| requests.get(name));
        text.map(|text| read(text).map_err(|why| BadAmount { resource: name.clone(), why })).transpose()
    };
    let Some(count) = read(count, &|text| whole(text, MAX_NUMBER, "counts GPUs"))?.filter(|count| *count > 0) else {
        return Ok(None);
    };
    let factor = i64::from(rules.memory_factor.max(1));
    let units = read(memory, &|text| memory_units(text, factor))?.filter(|units| *units > 0);
    let share = read(memory_percentage, &share)?.and_then(|share| u8::try_from(share).ok()).filter(|share| *share > 0);
    let memory = match (units, share, rules.default_memory) {
        (Some(units), _, _) => MemoryRequest::Amount(Mib((units * factor).unsigned_abs())),
        (None, Some(share), _) => MemoryRequest::Percent(share),
        (None, None, Some(amount)) => MemoryRequest::Amount(amount),
        (None, None, None) => MemoryRequest::WHOLE,
    };
    let cores = read(cores, &|text| whole(text, MAX_CORES, "counts percent of the SM time of a GPU"))?;
    let cores = cores.map_or(rules.default_cores.0, |cores| u32::try_from(cores).unwrap_or(100));
    let priority = read(priority, &|text| whole(text, MAX_PRIORITY, "is a priority, 0 for high and 1 for low"))?;
    Ok(Some(GpuRequest {
        count: u32::try_from(count).unwrap_or(u32::MAX),
        memory,
        cores: CorePercent(cores.min(100)),
        priority: priority.and_then(|priority| u32::try_from(priority).ok()),
    }))
}

/// The number of GPU slots that the kubelet allocates to a container with these limits, whether or not the rest of its
/// request is valid.
#[must_use]
pub fn count(rules: &RequestRules, limits: &ResourceAmounts) -> u32 {
    let count = limits.get(&rules.names.count).and_then(|text| whole(text, MAX_NUMBER, "").ok());
    count.and_then(|count| u32::try_from(count).ok()).unwrap_or(0)
}

/// A whole number from 0 to `most`. `counts` says what the resource counts.
fn whole(text: &str, most: i64, counts: &str) -> Result<i64, String> {
    let number = integer(text).filter(|number| (0..=most).contains(number));
    number.ok_or_else(|| format!("{counts}: write a whole number from 0 to {most} instead of {}", shown(text)))
}

/// An amount of memory in units of `factor` MiB. Most people who write a suffix mean bytes, as in an amount of host memory.
fn memory_units(text: &str, factor: i64) -> Result<i64, String> {
    let most = MAX_NUMBER / factor;
    let counts = match factor {
        1 => "counts whole MiB".to_owned(),
        _ => format!("counts units of {factor} MiB"),
    };
    let of_bytes = |bytes: i64| {
        let unit = factor.saturating_mul(1 << 20);
        bytes / unit + i64::from(bytes % unit != 0)
    };
    let is_bytes = BYTE_SUFFIXES.iter().any(|suffix| text.ends_with(suffix));
    let meant = integer(text).filter(|number| is_bytes || *number > most).map(of_bytes);
    match meant.filter(|meant| (1..=most).contains(meant)) {
        Some(meant) => Err(format!("{counts}: write {meant} instead of {}", shown(text))),
        None => whole(text, most, &counts),
    }
}

/// The percentage of memory, at most 100. As in HAMi, 0 or less counts as absent.
fn share(text: &str) -> Result<i64, String> {
    let counts = "counts percent of the memory of a GPU";
    let number = integer(text).map(|number| number.clamp(0, 100));
    number.ok_or_else(|| format!("{counts}: write a whole number from 1 to 100 instead of {}", shown(text)))
}

fn integer(text: &str) -> Option<i64> {
    quantity::parse(text).ok().and_then(Quantity::integer)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const GPU: &str = "nvidia.com/gpu";
    const MEMORY: &str = "nvidia.com/gpumem";
    const SHARE: &str = "nvidia.com/gpumem-percentage";
    const CORES: &str = "nvidia.com/gpucores";
    const PRIORITY: &str = "nvidia.com/priority";

    fn amounts(pairs: &[(&str, &str)]) -> ResourceAmounts {
        pairs.iter().map(|(name, amount)| ((*name).to_owned(), (*amount).to_owned())).collect()
    }

    fn requested(limits: &[(&str, &str)]) -> Option<GpuRequest> {
        request(&RequestRules::default(), &amounts(limits), &ResourceAmounts::new()).unwrap()
    }

    fn of(count: u32, memory: MemoryRequest, cores: u32) -> Option<GpuRequest> {
        Some(GpuRequest { count, memory, cores: CorePercent(cores), priority: None })
    }

    #[test]
    fn amounts_become_a_request_as_in_hami() {
        use MemoryRequest::{Amount, Percent};
        for (limits, expected) in [
            (&[(GPU, "1")][..], of(1, Percent(100), 0)),
            (&[(GPU, "2"), (MEMORY, "5k"), (CORES, "30")], of(2, Amount(Mib(5000)), 30)),
            (&[(GPU, "1"), (MEMORY, "0")], of(1, Percent(100), 0)),
            (&[(GPU, "1"), (SHARE, "0")], of(1, Percent(100), 0)),
            (&[(GPU, "1"), (SHARE, "-5")], of(1, Percent(100), 0)),
            (&[(GPU, "1"), (SHARE, "25")], of(1, Percent(25), 0)),
            (&[(GPU, "1"), (SHARE, "150")], of(1, Percent(100), 0)),
            (&[(GPU, "1"), (SHARE, "25"), (MEMORY, "3000")], of(1, Amount(Mib(3000)), 0)),
            (&[(GPU, "1"), (MEMORY, "1"), (CORES, "100")], of(1, Amount(Mib(1)), 100)),
            (&[(GPU, "0"), (MEMORY, "1")], None),
            (&[(MEMORY, "1"), (CORES, "10")], None),
            (&[("cpu", "1")], None),
            (&[], None),
        ] {
            assert_eq!(requested(limits), expected, "{limits:?}");
        }
        for (priority, number) in [("0", 0), ("1", 1)] {
            assert_eq!(requested(&[(GPU, "1"), (PRIORITY, priority)]).unwrap().priority, Some(number));
        }
        for (limits, number) in [(&[(GPU, "2"), (CORES, "150")][..], 2), (&[(GPU, "x")], 0), (&[(CORES, "1")], 0)] {
            assert_eq!(count(&RequestRules::default(), &amounts(limits)), number, "{limits:?}");
        }
    }

    #[test]
    fn each_resource_falls_back_separately_from_limits_to_requests() {
        let (limits, requests) = (amounts(&[(GPU, "1"), (MEMORY, "7")]), amounts(&[(MEMORY, "9"), (CORES, "50")]));
        let found = request(&RequestRules::default(), &limits, &requests).unwrap();
        assert_eq!(found, of(1, MemoryRequest::Amount(Mib(7)), 50));
    }

    #[test]
    fn names_defaults_and_factor_follow_the_configuration() {
        let names = ResourceNames { count: "example.com/gpu".into(), ..ResourceNames::default() };
        let rules =
            RequestRules { names, default_memory: Some(Mib(2000)), default_cores: CorePercent(10), memory_factor: 256 };
        let found = |limits: &[(&str, &str)]| request(&rules, &amounts(limits), &ResourceAmounts::new());
        assert_eq!(found(&[(GPU, "1")]), Ok(None));
        assert_eq!(found(&[("example.com/gpu", "1")]), Ok(of(1, MemoryRequest::Amount(Mib(2000)), 10)));
        assert_eq!(found(&[("example.com/gpu", "1"), (MEMORY, "2")]), Ok(of(1, MemoryRequest::Amount(Mib(512)), 10)));
        assert_eq!(found(&[("example.com/gpu", "1"), (SHARE, "50")]), Ok(of(1, MemoryRequest::Percent(50), 10)));
        assert!(found(&[("example.com/gpu", "1"), (MEMORY, "8388608")]).is_err(), "2^23 x 256 is beyond 31 bits");
        let why = found(&[("example.com/gpu", "1"), (MEMORY, "3Gi")]).unwrap_err().to_string();
        assert_eq!(why, "nvidia.com/gpumem counts units of 256 MiB: write 12 instead of \"3Gi\"");
        assert!(found(&[("example.com/gpu", "1"), (MEMORY, "8388607")]).is_ok());
    }

    #[test]
    fn an_impossible_request_is_reported_with_its_resource() {
        for (limits, text) in [
            (
                &[(GPU, "1.5")][..],
                "nvidia.com/gpu counts GPUs: write a whole number from 0 to 2147483647 instead of \"1.5\"",
            ),
            (&[(GPU, "-1")], "nvidia.com/gpu counts GPUs: write a whole number from 0 to 2147483647 instead of \"-1\""),
            (&[(GPU, "1"), (MEMORY, "3Gi")], "nvidia.com/gpumem counts whole MiB: write 3072 instead of \"3Gi\""),
            (&[(GPU, "1"), (MEMORY, "512Mi")], "nvidia.com/gpumem counts whole MiB: write 512 instead of \"512Mi\""),
            (&[(GPU, "1"), (MEMORY, "3G")], "nvidia.com/gpumem counts whole MiB: write 2862 instead of \"3G\""),
            (
                &[(GPU, "1"), (MEMORY, "3221225472")],
                "nvidia.com/gpumem counts whole MiB: write 3072 instead of \"3221225472\"",
            ),
            (
                &[(GPU, "1"), (MEMORY, "1.5")],
                "nvidia.com/gpumem counts whole MiB: write a whole number from 0 to 2147483647 instead of \"1.5\"",
            ),
            (
                &[(GPU, "1"), (MEMORY, "-3Gi")],
                "nvidia.com/gpumem counts whole MiB: write a whole number from 0 to 2147483647 instead of \"-3Gi\"",
            ),
            (
                &[(GPU, "1"), (MEMORY, "lots")],
                "nvidia.com/gpumem counts whole MiB: write a whole number from 0 to 2147483647 instead of \"lots\"",
            ),
            (
                &[(GPU, "1"), (SHARE, "12.5")],
                "nvidia.com/gpumem-percentage counts percent of the memory of a GPU: write a whole number from 1 to 100 instead \
                 of \"12.5\"",
            ),
            (
                &[(GPU, "1"), (CORES, "-1")],
                "nvidia.com/gpucores counts percent of the SM time of a GPU: write a whole number from 0 to 100 instead of \
                 \"-1\"",
            ),
            (
                &[(GPU, "1"), (CORES, "150")],
                "nvidia.com/gpucores counts percent of the SM time of a GPU: write a whole number from 0 to 100 instead of \
                 \"150\"",
            ),
            (
                &[(GPU, "1"), (PRIORITY, "7")],
                "nvidia.com/priority is a priority, 0 for high and 1 for low: write a whole number from 0 to 1 instead of \
                 \"7\"",
            ),
        ] {
            let error = request(&RequestRules::default(), &amounts(limits), &ResourceAmounts::new()).unwrap_err();
            assert_eq!(error.to_string(), text);
        }
    }

    proptest! {
        #[test]
        fn a_request_has_at_least_one_gpu_and_at_most_all_cores(
            limits in prop::collection::btree_map("nvidia.com/(gpu|gpumem|gpumem-percentage|gpucores|priority)", "-?[0-9]{1,10}[kmM]?|\\PC{0,4}", 0..5),
            factor: u32,
        ) {
            let rules = RequestRules { memory_factor: factor, ..RequestRules::default() };
            if let Ok(Some(found)) = request(&rules, &limits, &ResourceAmounts::new()) {
                prop_assert!(found.count >= 1 && found.cores.0 <= 100);
                let sound = match found.memory {
                    MemoryRequest::Amount(amount) => amount.0 >= 1 && i32::try_from(amount.0).is_ok(),
                    MemoryRequest::Percent(share) => (1..=100).contains(&share),
                };
                prop_assert!(sound);
            }
        }
    }
}
