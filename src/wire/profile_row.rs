//! One row of the file of histories: the steps of one block of one series, as quantised means and maxima.
//!
//! ```text
//!   version (1 byte) · exponent (1 byte, signed) · first step (1 byte) · then for each step, in order:
//!   mean (2 bytes, little-endian) · maximum (2 bytes)          value = number * 2^exponent; all bits set: no measurement
//! ```
//!
//! Steps before the first and after the last measurement are not in the row, so a pod that lived for a minute takes a few bytes.

use crate::decode_error::DecodeError;
use model::quantised::{EXPONENTS, NO_MEASUREMENT, can_be_kept, exponent_of, number_of, value_of};
use model::stored_history::{HistoryKey, StepValue};
use model::workload_profile::ProfiledSubject;

/// Upper bound on the steps of a block: a day of quarters of an hour.
pub const MAX_STEPS: usize = 96;
/// The version that is written, and the only one that is read.
const VERSION: u8 = 1;
const HEAD: usize = 3;
const STEP: usize = 4;
/// The row, in errors.
const KEY: &str = "row of a history";

/// The steps of a block as a row; `None` if it has no measurement. A value that is negative or not a number is no
/// measurement, and a value beyond the largest number becomes that number. Steps beyond [`MAX_STEPS`] are left out.
#[must_use]
pub fn encode(steps: &[Option<StepValue>]) -> Option<Vec<u8>> {
    let steps = &steps[..steps.len().min(MAX_STEPS)];
    let measured =
        |step: &Option<StepValue>| step.filter(|value| can_be_kept(value.mean) && can_be_kept(value.maximum));
    let first = steps.iter().position(|step| measured(step).is_some())?;
    let end = steps.iter().rposition(|step| measured(step).is_some())? + 1;
    let largest = steps.iter().filter_map(measured).map(|value| value.maximum.max(value.mean)).fold(0.0, f64::max);
    let exponent = exponent_of(largest);
    let mut row = Vec::with_capacity(HEAD + STEP * (end - first));
    row.extend([VERSION, exponent.to_le_bytes()[0], u8::try_from(first).ok()?]);
    for step in &steps[first..end] {
        let numbers = measured(step).map_or([NO_MEASUREMENT; 2], |value| {
            [value.mean, value.maximum.max(value.mean)].map(|value| number_of(value, exponent))
        });
        numbers.iter().for_each(|number| row.extend(number.to_le_bytes()));
    }
    Some(row)
}

/// The steps of a row, for a block of `steps` steps. A row of numbers that were encoded is encoded to the same row again.
///
/// # Errors
/// [`DecodeError`] if no release wrote such a row.
pub fn decode(row: &[u8], steps: usize) -> Result<Vec<Option<StepValue>>, DecodeError> {
    let fault = |at: usize, what: String| DecodeError::new(KEY, at, what);
    let Some((&[version, exponent, first], body)) = row.split_first_chunk::<HEAD>() else {
        return Err(fault(0, format!("is {} bytes long, shorter than its head", row.len())));
    };
    if version != VERSION {
        return Err(fault(0, format!("has version {version}; only version {VERSION} can be read")));
    }
    let exponent = i8::from_le_bytes([exponent]);
    if !EXPONENTS.contains(&exponent) {
        return Err(fault(1, format!("has the exponent {exponent}, which is not used")));
    }
    let (numbers, rest) = body.as_chunks::<STEP>();
    let steps = steps.min(MAX_STEPS);
    let first = usize::from(first);
    if !rest.is_empty() || numbers.is_empty() || first + numbers.len() > steps {
        return Err(fault(HEAD, format!("has {} bytes of steps, for a block of {steps} steps", body.len())));
    }
    let mut block = vec![None; steps];
    for (step, [a, b, c, d]) in block.iter_mut().skip(first).zip(numbers) {
        let (mean, maximum) = (u16::from_le_bytes([*a, *b]), u16::from_le_bytes([*c, *d]));
        *step = match (mean, maximum) {
            (NO_MEASUREMENT, NO_MEASUREMENT) => None,
            (mean, maximum) if maximum != NO_MEASUREMENT && mean <= maximum => {
                Some(StepValue { mean: value_of(mean, exponent), maximum: value_of(maximum, exponent) })
            }
            _ => return Err(fault(HEAD, format!("has a mean of {mean} and a maximum of {maximum}"))),
        };
    }
    Ok(block)
}

/// The subject of a series, as it stands in the file.
#[must_use]
pub fn subject(key: &HistoryKey) -> String {
    match &key.subject {
        ProfiledSubject::Gpu(uuid) => format!("gpu:{uuid}"),
        ProfiledSubject::Pod(uid) => format!("pod:{uid}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::id::{GpuUuid, PodUid};
    use model::workload_profile::ProfiledQuantity;
    use proptest::prelude::*;

    fn value(mean: f64, maximum: f64) -> Option<StepValue> {
        Some(StepValue { mean, maximum })
    }

    #[test]
    fn a_row_has_only_the_measured_part_of_its_block_and_gaps_stay_gaps() {
        let mut steps = vec![None; 60];
        (steps[7], steps[9]) = (value(50.0, 100.0), value(0.0, 0.0));
        let row = encode(&steps).unwrap();
        assert_eq!(row.len(), HEAD + 3 * STEP);
        assert_eq!(decode(&row, 60), Ok(steps), "numbers that a power of two divides are exact");
        assert_eq!(encode(&[None; 60]), None);
        assert_eq!(encode(&[value(f64::NAN, 1.0), value(-1.0, 1.0)]), None, "neither is a measurement");
    }

    #[test]
    fn a_malformed_row_is_an_error() {
        let row = encode(&[value(1.0, 2.0), value(3.0, 4.0)]).unwrap();
        let changed = |at: usize, byte: u8| {
            let mut row = row.clone();
            row[at] = byte;
            row
        };
        for (bad, steps) in [
            (row[..0].to_vec(), 60),
            (row[..2].to_vec(), 60),
            (row[..HEAD].to_vec(), 60),
            (row[..row.len() - 1].to_vec(), 60),
            (row.clone(), 1),
            (changed(0, 2), 60),
            (changed(1, 45), 60),
            (changed(1, 0x80), 60),
            (changed(2, 59), 60),
            (changed(2, 255), MAX_STEPS * 9),
            (changed(4, 0xff), 60),
        ] {
            assert!(decode(&bad, steps).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn the_names_of_subjects_differ_by_kind() {
        let quantity = ProfiledQuantity::GpuMemory;
        let gpu = HistoryKey { subject: ProfiledSubject::Gpu(GpuUuid::parse("GPU-1").unwrap()), quantity };
        assert_eq!(subject(&gpu), "gpu:GPU-1");
        let uid = PodUid::parse("0f5b9a3e-0d2c-4b7f-9a51-2f1f6a1f8d11").unwrap();
        assert!(subject(&HistoryKey { subject: ProfiledSubject::Pod(uid), quantity }).starts_with("pod:0f5b"));
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic_and_what_is_read_is_written_again(
            row in prop::collection::vec(any::<u8>(), 0..420),
            head in any::<bool>(),
            steps in 0_usize..200,
        ) {
            // Random bytes have no valid head, so half of the rows get one.
            let row = if head { [&[VERSION, 3, 0], &*row].concat() } else { row };
            if let Ok(block) = decode(&row, steps) {
                prop_assert!(block.len() <= MAX_STEPS);
                let Some(again) = encode(&block) else { return Ok(()) };
                prop_assert_eq!(decode(&again, steps), Ok(block));
            }
        }

        #[test]
        fn a_value_is_kept_within_a_thirty_thousandth_of_the_largest(
            values in prop::collection::vec(prop::option::of((0.0_f64..1e12, 0.0_f64..1e12)), 1..96),
        ) {
            let steps: Vec<_> =
                values.iter().map(|pair| pair.and_then(|(a, b)| value(a.min(b), a.max(b)))).collect();
            let Some(row) = encode(&steps) else { return Ok(()) };
            let decoded = decode(&row, steps.len()).unwrap();
            let largest = steps.iter().flatten().map(|step| step.maximum).fold(0.0, f64::max);
            for (was, is) in steps.iter().zip(&decoded) {
                prop_assert_eq!(was.is_some(), is.is_some());
                if let (Some(was), Some(is)) = (was, is) {
                    prop_assert!((was.mean - is.mean).abs() <= largest / 30_000.0 + 2e-5);
                    prop_assert!((was.maximum - is.maximum).abs() <= largest / 30_000.0 + 2e-5);
                }
            }
        }
    }
}
