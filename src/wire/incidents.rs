//! The file of the incidents of GPUs, which the agent keeps in the state directory across restarts.
//!
//! ```text
//!   {"version":1,"boot":"6f1b8a0e-…","gpus":[
//!     {"uuid":"GPU-…","last_ns":81234567890,"incidents":[{"incident":"xid_95","since_ns":81234567890,"at":"2026-…Z"}],
//!      "awaits_reset":{"energy_mj":123456,"ecc_uncorrected":2},"driver_load":4711}]}
//! ```
//!
//! Times are nanoseconds since the boot `boot`, so a change of the wall clock does not shift them. `at` is for people
//! and is not read. A file of another boot is not used, because every GPU has been reset since.

use crate::decode_error::{DecodeError, shown};
use crate::kept_file::{KeptFile, Versioned};
use crate::timestamp;
use model::gpu::MAX_GPUS;
use model::id::{BootId, GpuUuid};
use model::incident::{CounterMarks, Incident, KeptIncidents};
use model::time::{Monotonic, Now};
use model::view::MAX_XID_CODES;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Maximum size in bytes: 64 GPUs with 64 incidents of 100 bytes each, with room to spare.
pub const MAX_BYTES: usize = 1 << 20;
/// Maximum number of incidents of one GPU: one for each XID that is counted, one for ECC errors, and one for a GPU that
/// has fallen off the bus.
const MAX_INCIDENTS: usize = MAX_XID_CODES + 2;
/// Name, version and size limit of the file.
const FILE: KeptFile = KeptFile { key: "incidents.json", version: 1, max_bytes: MAX_BYTES };

#[derive(Serialize, Deserialize)]
struct Document<'a> {
    version: u32,
    #[serde(borrow)]
    boot: Cow<'a, str>,
    #[serde(borrow)]
    gpus: Vec<Gpu<'a>>,
}

impl Versioned for Document<'_> {
    fn version(&self) -> u32 {
        self.version
    }
}

#[derive(Serialize, Deserialize)]
struct Gpu<'a> {
    #[serde(borrow)]
    uuid: Cow<'a, str>,
    last_ns: u64,
    #[serde(borrow)]
    incidents: Vec<One<'a>>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    awaits_reset: Option<Counters>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    driver_load: Option<u64>,
}

#[derive(Serialize, Deserialize)]
struct One<'a> {
    #[serde(borrow)]
    incident: Cow<'a, str>,
    since_ns: u64,
    #[serde(skip_deserializing)]
    at: Cow<'a, str>,
}

#[derive(Serialize, Deserialize)]
struct Counters {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    energy_mj: Option<u64>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    ecc_uncorrected: Option<u64>,
}

/// Writes the incidents, with a newline at the end. Incidents that follow from current readings are left out; the agent
/// finds them again in the next readings.
///
/// # Errors
/// [`DecodeError`] for more GPUs or incidents than [`decode`] accepts.
pub fn encode(boot: &BootId, kept: &[KeptIncidents], now: Now) -> Result<String, DecodeError> {
    if kept.len() > MAX_GPUS {
        return Err(FILE.too_many("GPUs", MAX_GPUS));
    }
    if kept.iter().any(|gpu| gpu.incidents.len() > MAX_INCIDENTS) {
        return Err(FILE.too_many("incidents of a GPU", MAX_INCIDENTS));
    }
    let one = |(incident, since): &(Incident, Monotonic)| One {
        incident: incident.code().into(),
        since_ns: since.0,
        at: timestamp::to_rfc3339(now.wall_of(*since)).into(),
    };
    let gpu = |kept: &KeptIncidents| Gpu {
        uuid: kept.gpu.to_string().into(),
        last_ns: kept.last.0,
        incidents: kept.incidents.iter().filter(|(incident, _)| incident.is_event()).map(one).collect(),
        awaits_reset: kept.awaits.map(|marks| Counters { energy_mj: marks.energy, ecc_uncorrected: marks.uncorrected }),
        driver_load: kept.driver_load,
    };
    let document = Document { version: FILE.version, boot: boot.as_str().into(), gpus: kept.iter().map(gpu).collect() };
    FILE.encode(&document)
}

/// Reads the boot in which the file was written, and the incidents.
///
/// # Errors
/// [`DecodeError`] for another version, another format, or an unknown incident.
pub fn decode(bytes: &[u8]) -> Result<(BootId, Vec<KeptIncidents>), DecodeError> {
    let document: Document<'_> = FILE.decode(bytes)?;
    let fault = |what: String| FILE.fault(what);
    if document.gpus.len() > MAX_GPUS {
        return Err(FILE.too_many("GPUs", MAX_GPUS));
    }
    let boot = BootId::parse(&document.boot).map_err(|error| fault(error.to_string()))?;
    let kept = document.gpus.into_iter().map(gpu).collect::<Result<_, _>>()?;
    Ok((boot, kept))
}

fn gpu(gpu: Gpu<'_>) -> Result<KeptIncidents, DecodeError> {
    if gpu.incidents.len() > MAX_INCIDENTS {
        return Err(FILE.too_many("incidents of a GPU", MAX_INCIDENTS));
    }
    let one = |one: &One<'_>| Ok((incident(&one.incident)?, Monotonic(one.since_ns)));
    Ok(KeptIncidents {
        gpu: GpuUuid::parse(&gpu.uuid).map_err(|error| FILE.fault(error.to_string()))?,
        incidents: gpu.incidents.iter().map(one).collect::<Result<_, DecodeError>>()?,
        last: Monotonic(gpu.last_ns),
        awaits: gpu
            .awaits_reset
            .map(|counters| CounterMarks { energy: counters.energy_mj, uncorrected: counters.ecc_uncorrected }),
        driver_load: gpu.driver_load,
    })
}

fn incident(word: &str) -> Result<Incident, DecodeError> {
    let code = word.strip_prefix("xid_").filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()));
    match (code.and_then(|digits| digits.parse().ok()), word) {
        (Some(code), _) => Ok(Incident::Xid(code)),
        (None, "fallen_off_bus") => Ok(Incident::FallenOff),
        (None, "ecc_uncorrected") => Ok(Incident::EccUncorrected),
        (None, other) => Err(FILE.fault(format!("{} is not an incident that is saved", shown(other)))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::reading::Absence;
    use proptest::prelude::*;

    fn boot() -> BootId {
        BootId::parse("6f1b8a0e-2c5d-4f3a-9b7c-0123456789ab").unwrap()
    }

    fn one() -> KeptIncidents {
        KeptIncidents {
            gpu: GpuUuid::parse("GPU-1").unwrap(),
            incidents: vec![(Incident::Xid(95), Monotonic(5_000_000_000))],
            last: Monotonic(6_000_000_000),
            awaits: Some(CounterMarks { energy: Some(7), uncorrected: None }),
            driver_load: Some(4711),
        }
    }

    #[test]
    fn another_version_or_an_unknown_word_is_refused() {
        let now = Now { monotonic: Monotonic(9_000_000_000), wall: model::time::WallTime(1_700_000_004_000_000) };
        let text = encode(&boot(), &[one()], now).unwrap();
        assert_eq!(
            text,
            "{\"version\":1,\"boot\":\"6f1b8a0e-2c5d-4f3a-9b7c-0123456789ab\",\"gpus\":[{\"uuid\":\"GPU-1\",\
             \"last_ns\":6000000000,\"incidents\":[{\"incident\":\"xid_95\",\"since_ns\":5000000000,\
             \"at\":\"2023-11-14T22:13:20Z\"}],\"awaits_reset\":{\"energy_mj\":7},\"driver_load\":4711}]}\n"
        );
        assert_eq!(decode(text.as_bytes()), Ok((boot(), vec![one()])));
        let before = text.replace(",\"driver_load\":4711", "");
        assert_eq!(decode(before.as_bytes()).unwrap().1[0].driver_load, None, "as an earlier version wrote it");
        for (from, to) in [
            ("\"version\":1", "\"version\":2"),
            ("6f1b8a0e-", "x"),
            ("xid_95", "xid_+95"),
            ("xid_95", "xid_"),
            ("xid_95", "gpu_lost"),
            ("xid_95", "xid_4294967296"),
            ("GPU-1", "GPU 1"),
            ("6000000000", "-6"),
        ] {
            assert!(decode(text.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
        }
        let many = vec![one(); MAX_GPUS + 1];
        assert!(encode(&boot(), &many, now).is_err());
        let condition = KeptIncidents { incidents: vec![(Incident::Silent(Absence::GpuLost), Monotonic(1))], ..one() };
        let text = encode(&boot(), &[condition], now).unwrap();
        assert!(
            decode(text.as_bytes()).is_ok_and(|(_, kept)| kept[0].incidents.is_empty()),
            "a condition is not saved"
        );
    }

    fn marks() -> impl Strategy<Value = CounterMarks> {
        (any::<Option<u64>>(), any::<Option<u64>>())
            .prop_map(|(energy, uncorrected)| CounterMarks { energy, uncorrected })
    }

    prop_compose! {
        fn kept()(
            name in "GPU-[0-9a-f]{1,36}",
            codes in prop::collection::vec((prop::option::of(any::<u32>()), any::<u64>()), 0..9),
            last in any::<u64>(),
            awaits in prop::option::of(marks()),
            driver_load in any::<Option<u64>>(),
        ) -> KeptIncidents {
            let other = [Incident::EccUncorrected, Incident::FallenOff];
            let one = |(code, since): &(Option<u32>, u64)| {
                (code.map_or(other[usize::from(since % 2 == 0)], Incident::Xid), Monotonic(*since))
            };
            KeptIncidents {
                gpu: GpuUuid::parse(&name).unwrap(),
                incidents: codes.iter().map(one).collect(),
                last: Monotonic(last),
                driver_load,
                awaits,
            }
        }
    }

    proptest! {
        #[test]
        fn encoded_values_are_decoded_unchanged(kept in prop::collection::vec(kept(), 0..5)) {
            let text = encode(&boot(), &kept, Now::default()).unwrap();
            prop_assert_eq!(decode(text.as_bytes()), Ok((boot(), kept)));
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode(&bytes);
        }

        #[test]
        fn no_damaged_text_causes_a_panic(place in 0..200_usize, byte in any::<u8>()) {
            let mut bytes = encode(&boot(), &[one()], Now::default()).unwrap().into_bytes();
            if let Some(old) = bytes.get_mut(place) {
                *old = byte;
            }
            let _ = decode(&bytes);
        }
    }
}
