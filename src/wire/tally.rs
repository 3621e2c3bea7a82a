//! The file of the tallies: GPU time and energy of each pod, which the agent keeps on disk across restarts.
//!
//! ```text
//!   {"version":1,"tallies":[{"pod":"<uid>","gpu":"GPU-…","held_ns":7200500000000,"energy_mj":2161800000}]}
//! ```

use crate::decode_error::DecodeError;
use crate::kept_file::{KeptFile, Versioned};
use model::id::{GpuUuid, PodUid};
use model::tally::{GpuTally, MAX_TALLIES};
use model::unit::{Millijoules, Nanos};
use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Most bytes: the greatest number of tallies, in 256 bytes each.
pub const MAX_BYTES: usize = MAX_TALLIES * 256;
/// Name, version and size limit of the file.
const FILE: KeptFile = KeptFile { key: "tallies.json", version: 1, max_bytes: MAX_BYTES };

#[derive(Serialize, Deserialize)]
struct Document<'a> {
    version: u32,
    #[serde(borrow)]
    tallies: Vec<Entry<'a>>,
}

impl Versioned for Document<'_> {
    fn version(&self) -> u32 {
        self.version
    }
}

#[derive(Serialize, Deserialize)]
struct Entry<'a> {
    #[serde(borrow)]
    pod: Cow<'a, str>,
    #[serde(borrow)]
    gpu: Cow<'a, str>,
    held_ns: u64,
    energy_mj: u64,
}

/// Writes the tallies, with a newline at the end.
///
/// # Errors
/// [`DecodeError`] for more tallies than [`decode`] accepts.
pub fn encode(tallies: &[GpuTally]) -> Result<String, DecodeError> {
    if tallies.len() > MAX_TALLIES {
        return Err(FILE.too_many("tallies", MAX_TALLIES));
    }
    let entry = |tally: &GpuTally| Entry {
        pod: tally.pod.to_string().into(),
        gpu: tally.gpu.to_string().into(),
        held_ns: tally.held.0,
        energy_mj: tally.energy.0,
    };
    let document = Document { version: FILE.version, tallies: tallies.iter().map(entry).collect() };
    FILE.encode(&document)
}

/// Reads the tallies.
///
/// # Errors
/// [`DecodeError`] for another version or format, an incomplete file, or an invalid id.
pub fn decode(bytes: &[u8]) -> Result<Vec<GpuTally>, DecodeError> {
    let document: Document<'_> = FILE.decode(bytes)?;
    if document.tallies.len() > MAX_TALLIES {
        return Err(FILE.too_many("tallies", MAX_TALLIES));
    }
    let tally = |entry: Entry<'_>| {
        let fault = |error: &dyn std::fmt::Display| FILE.fault(error.to_string());
        Ok(GpuTally {
            pod: PodUid::parse(&entry.pod).map_err(|error| fault(&error))?,
            gpu: GpuUuid::parse(&entry.gpu).map_err(|error| fault(&error))?,
            held: Nanos(entry.held_ns),
            energy: Millijoules(entry.energy_mj),
        })
    };
    document.tallies.into_iter().map(tally).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn tally(number: u64) -> GpuTally {
        GpuTally {
            pod: PodUid::parse(&format!("{number:08x}-0d2c-4b7f-9a51-2f1f6a1f8d11")).unwrap(),
            gpu: GpuUuid::parse("GPU-1d8e9a1c-3b0a-4c0a-9f44-2f8e8d7a6b5c").unwrap(),
            held: Nanos(u64::MAX),
            energy: Millijoules(u64::MAX),
        }
    }

    #[test]
    fn the_largest_number_of_tallies_fits_into_the_size_limit() {
        let all: Vec<GpuTally> = (0..MAX_TALLIES as u64).map(tally).collect();
        let text = encode(&all).unwrap();
        assert!(text.len() <= MAX_BYTES, "{}", text.len());
        assert_eq!(decode(text.as_bytes()), Ok(all));
        assert!(encode(&vec![tally(1); MAX_TALLIES + 1]).is_err());
    }

    #[test]
    fn other_documents_are_refused() {
        for text in [
            "",
            "{}",
            r#"{"version":2,"tallies":[]}"#,
            r#"{"version":1,"tallies":[{"pod":"p","gpu":"g","held_ns":-1,"energy_mj":0}]}"#,
            r#"{"version":1,"tallies":[{"pod":"","gpu":"g","held_ns":1,"energy_mj":0}]}"#,
            r#"{"version":1,"tallies":[{"pod":"p""#,
        ] {
            assert!(decode(text.as_bytes()).is_err(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn encoded_values_are_decoded_unchanged(all in proptest::collection::vec((any::<u64>(), any::<u64>(), any::<u32>()), 0..20)) {
            let of = |(held, energy, number): (u64, u64, u32)| GpuTally {
                held: Nanos(held),
                energy: Millijoules(energy),
                ..tally(number.into())
            };
            let all: Vec<GpuTally> = all.into_iter().map(of).collect();
            prop_assert_eq!(decode(encode(&all).unwrap().as_bytes()), Ok(all));
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let _ = decode(&bytes);
            let _ = decode(&[br#"{"version":1,"tallies":["#, &bytes[..]].concat());
        }
    }
}
