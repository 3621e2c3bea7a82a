//! The profile of a GPU on its Node (`gpu-steward.io/gpu-N-profile`): JSON with a verdict and forecasts for each quantity.
//!
//! ```text
//!   {"gpu":"GPU-…","at":1795256507,"hour_at":1795255900,
//!    "utilization":{"verdict":"periodic","period_seconds":6.02,"interval_seconds":[5.98,6.05],"score":0.94,"cycles":20,
//!                   "forecasts":{"30":[50.0,3.0,97.0],"300":[51.0,3.0,98.0]},"next_hour_maximum":99.0},
//!    "memory_copy":{"verdict":"aperiodic"},"gpu_memory":{…},"power":{…}}
//! ```
//!
//! Percent, bytes and watts. `interval_seconds` is the 90 % interval of the period. A forecast has the seconds after `at` (Unix
//! seconds) as its key, and the expected value with both ends of its 90 % interval as its value. The forecast of an hour (3600) and
//! `next_hour_maximum` count from `hour_at`. `"simulated":true` marks simulated GPUs. What is not known is left out.
//!
//! What must never happen here: a text that is longer than [`MAX_TEXT`].

use crate::decode_error::DecodeError;
use model::id::GpuUuid;
use model::node_profile::{GpuProfile, QuantityProfile};
use model::time::WallTime;
use model::workload_profile::{CyclePeriod, ProfiledForecast, ProfiledQuantity, VerdictKind};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::Duration;

/// Maximum size of the text in bytes. All GPUs of a node together must leave room for the other annotations of the Node, and each
/// watcher of Nodes gets them with every change of the Node.
pub const MAX_TEXT: usize = 1024;
/// Maximum number of forecasts of one quantity. There are four horizons at most.
const MAX_FORECASTS: usize = 8;
/// Longest period in seconds: three years. The history of a node has five weeks.
const MAX_PERIOD: f64 = 1e8;
/// The name of the annotation in errors.
const KEY: &str = "gpu-steward.io/gpu-N-profile";
const MICROS: u64 = 1_000_000;

#[derive(Serialize, Deserialize)]
struct Profile {
    gpu: String,
    at: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    hour_at: Option<u64>,
    #[serde(default, skip_serializing_if = "is_false")]
    simulated: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    utilization: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    memory_copy: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    gpu_memory: Option<Quantity>,
    #[serde(skip_serializing_if = "Option::is_none")]
    power: Option<Quantity>,
}

#[derive(Serialize, Deserialize)]
struct Quantity {
    #[serde(skip_serializing_if = "Option::is_none")]
    verdict: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    period_seconds: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    interval_seconds: Option<[f64; 2]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    score: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cycles: Option<u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    forecasts: BTreeMap<u64, [f64; 3]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    next_hour_maximum: Option<f64>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(flag: &bool) -> bool {
    !flag
}

/// Writes the profile. Where it would be too long, the last quantities are left out.
#[must_use]
pub fn encode(profile: &GpuProfile) -> String {
    let mut quantities: Vec<&QuantityProfile> = profile.quantities.iter().collect();
    loop {
        let of = |quantity: ProfiledQuantity| {
            quantities.iter().find(|profile| profile.quantity == quantity).map(|profile| Quantity::of(profile))
        };
        let text = serde_json::to_string(&Profile {
            gpu: profile.gpu.as_str().to_owned(),
            at: profile.at.0 / MICROS,
            hour_at: profile.hour_at.map(|at| at.0 / MICROS),
            simulated: profile.simulated,
            utilization: of(ProfiledQuantity::Utilization),
            memory_copy: of(ProfiledQuantity::MemoryCopy),
            gpu_memory: of(ProfiledQuantity::GpuMemory),
            power: of(ProfiledQuantity::Power),
        });
        // Texts and numbers always have a JSON form.
        let text = text.unwrap_or_default();
        if text.len() <= MAX_TEXT || quantities.pop().is_none() {
            return text;
        }
    }
}

/// Reads a profile.
///
/// # Errors
/// [`DecodeError`] if the text is not such a profile.
pub fn decode(text: &str) -> Result<GpuProfile, DecodeError> {
    if text.len() > MAX_TEXT {
        return Err(DecodeError::too_long(KEY, text.len(), MAX_TEXT));
    }
    let profile: Profile =
        serde_json::from_str(text).map_err(|error| DecodeError::json(KEY, text.as_bytes(), &error))?;
    let wrong = |what: String| DecodeError::new(KEY, 0, what);
    let named = [
        (ProfiledQuantity::Utilization, profile.utilization),
        (ProfiledQuantity::MemoryCopy, profile.memory_copy),
        (ProfiledQuantity::GpuMemory, profile.gpu_memory),
        (ProfiledQuantity::Power, profile.power),
    ];
    let known = named.into_iter().filter_map(|(quantity, text)| Some((quantity, text?)));
    let quantities = known.map(|(quantity, text)| text.read(quantity).map_err(wrong)).collect::<Result<_, _>>()?;
    Ok(GpuProfile {
        gpu: GpuUuid::parse(&profile.gpu).map_err(|error| wrong(error.to_string()))?,
        at: WallTime(profile.at.saturating_mul(MICROS)),
        hour_at: profile.hour_at.map(|at| WallTime(at.saturating_mul(MICROS))),
        simulated: profile.simulated,
        quantities,
    })
}

impl Quantity {
    fn of(profile: &QuantityProfile) -> Quantity {
        let period = profile.period.as_ref();
        let seconds = |span: Duration| rounded(span.as_secs_f64(), 1000.0);
        let value = |number: f64| rounded(number, decimals(profile.quantity));
        let finite = |one: &&ProfiledForecast| [one.value, one.low, one.high].iter().all(|number| number.is_finite());
        let forecasts = profile.forecasts.iter().filter(finite).take(MAX_FORECASTS);
        Quantity {
            verdict: profile.verdict.map(|kind| kind.code().to_owned()),
            period_seconds: period.map(|period| seconds(period.length)),
            interval_seconds: period.map(|period| [seconds(period.shortest), seconds(period.longest)]),
            score: period.map(|period| rounded(period.score, 100.0)).filter(|score| score.is_finite()),
            cycles: period.map(|period| period.cycles),
            forecasts: forecasts
                .map(|one| (one.horizon.as_secs(), [value(one.value), value(one.low), value(one.high)]))
                .collect(),
            next_hour_maximum: profile.next_hour_maximum.map(value).filter(|number| number.is_finite()),
        }
    }

    fn read(self, quantity: ProfiledQuantity) -> Result<QuantityProfile, String> {
        let wrong = |what: &str| format!("{}: {what}", quantity.code());
        let span = |seconds: f64| {
            let span = Duration::try_from_secs_f64(seconds).ok().filter(|_| seconds <= MAX_PERIOD);
            span.ok_or_else(|| wrong("a period is not a time"))
        };
        let kind = |code: &String| {
            let known = VerdictKind::ALL.into_iter().find(|kind| kind.code() == code);
            known.ok_or_else(|| wrong("the verdict is not known"))
        };
        let period = match (self.period_seconds, self.interval_seconds) {
            (None, None) => None,
            (Some(length), Some([shortest, longest])) => Some(CyclePeriod {
                length: span(length)?,
                shortest: span(shortest)?,
                longest: span(longest)?,
                score: self.score.unwrap_or_default(),
                cycles: self.cycles.unwrap_or_default(),
            }),
            _ => return Err(wrong("period and interval do not come together")),
        };
        if self.forecasts.len() > MAX_FORECASTS {
            return Err(wrong("too many forecasts"));
        }
        let forecast = |(seconds, [value, low, high]): (u64, [f64; 3])| {
            let horizon = Duration::from_secs(seconds);
            ProfiledForecast { horizon, value, low, high }
        };
        Ok(QuantityProfile {
            quantity,
            verdict: self.verdict.as_ref().map(kind).transpose()?,
            period,
            forecasts: self.forecasts.into_iter().map(forecast).collect(),
            next_hour_maximum: self.next_hour_maximum,
        })
    }
}

/// How finely a value is written: whole bytes, and tenths of a percent or a watt.
fn decimals(quantity: ProfiledQuantity) -> f64 {
    match quantity.unit() {
        "bytes" => 1.0,
        _ => 10.0,
    }
}

fn rounded(number: f64, steps: f64) -> f64 {
    let scaled = number * steps;
    if scaled.is_finite() { scaled.round() / steps } else { number }
}

#[cfg(test)]
mod tests;
