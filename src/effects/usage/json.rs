//! Turns a `NodeUsage` message into the JSON that `gpu-steward usage -o json` prints. The field names are the same as
//! in `usage.proto`, numbers are JSON numbers, and a reading has either `value` with its time or `absent`.

use proto::usage::{
    Absence, Bytes, Count, Gpu, GpuSource, Health, MigInstance, NodeUsage, Percent, PodShare, gpu_source,
};
use serde_json::{Value, json};

/// The whole document.
#[must_use]
pub fn of(state: &NodeUsage) -> Value {
    json!({
        "node": state.node,
        "sequence": state.sequence,
        "made_at_us": state.made_at_us,
        "simulated": state.simulated,
        "source": state.source.as_ref().map(source),
        "gpus": state.gpus.iter().map(gpu).collect::<Vec<_>>(),
    })
}

fn source(source: &GpuSource) -> Value {
    let state = match source.state() {
        gpu_source::State::Unspecified => "unspecified",
        gpu_source::State::Starting => "starting",
        gpu_source::State::Working => "working",
        gpu_source::State::Missing => "missing",
        gpu_source::State::Hanging => "hanging",
        gpu_source::State::SwitchedOff => "switched_off",
        gpu_source::State::Released => "released",
    };
    json!({
        "state": state,
        "driver_version": source.driver_version,
        "nvml_version": source.nvml_version,
        "cuda_version": source.cuda_version,
        "why": source.why.as_ref().map(absence),
        "advice": source.advice,
    })
}

fn gpu(gpu: &Gpu) -> Value {
    let health = match gpu.health() {
        Health::Unspecified => "unspecified",
        Health::Unknown => "unknown",
        Health::Healthy => "healthy",
        Health::Degraded => "degraded",
        Health::Unhealthy => "unhealthy",
    };
    json!({
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "health": health,
        "memory_total": bytes(gpu.memory_total.as_ref()),
        "memory_used": bytes(gpu.memory_used.as_ref()),
        "memory_reserved": bytes(gpu.memory_reserved.as_ref()),
        "memory_free": bytes(gpu.memory_free.as_ref()),
        "utilization": percent(gpu.utilization.as_ref()),
        "processes": count(gpu.processes.as_ref()),
        "strangers": gpu.strangers,
        "unattributed_memory": bytes(gpu.unattributed_memory.as_ref()),
        "unattributed_sm": percent(gpu.unattributed_sm.as_ref()),
        "mig": gpu.mig.iter().map(mig).collect::<Vec<_>>(),
        "mig_absent": gpu.mig_absent.as_ref().map(absence),
        "pods": gpu.pods.iter().map(pod).collect::<Vec<_>>(),
    })
}

fn mig(instance: &MigInstance) -> Value {
    json!({
        "uuid": instance.uuid,
        "index": instance.index,
        "gpu_instance": instance.gpu_instance,
        "compute_instance": instance.compute_instance,
        "profile": instance.profile,
        "memory_total": bytes(instance.memory_total.as_ref()),
        "memory_used": bytes(instance.memory_used.as_ref()),
        "memory_reserved": bytes(instance.memory_reserved.as_ref()),
        "memory_free": bytes(instance.memory_free.as_ref()),
    })
}

fn pod(share: &PodShare) -> Value {
    json!({
        "pod_uid": share.pod_uid,
        "namespace": share.namespace,
        "name": share.name,
        "mig_uuid": share.mig_uuid,
        "processes": share.processes,
        "memory_used": bytes(share.memory_used.as_ref()),
        "sm": percent(share.sm.as_ref()),
        "memory_claimed": share.memory_claimed,
    })
}

fn bytes(reading: Option<&Bytes>) -> Value {
    reading.map_or(Value::Null, |read| {
        self::reading(read.value.map(Value::from), read.absent.as_ref(), (read.sampled_at_us, read.age_us))
    })
}

fn percent(reading: Option<&Percent>) -> Value {
    reading.map_or(Value::Null, |read| {
        self::reading(read.value.map(Value::from), read.absent.as_ref(), (read.sampled_at_us, read.age_us))
    })
}

fn count(reading: Option<&Count>) -> Value {
    reading.map_or(Value::Null, |read| {
        self::reading(read.value.map(Value::from), read.absent.as_ref(), (read.sampled_at_us, read.age_us))
    })
}

fn reading(
    value: Option<Value>,
    absent: Option<&Absence>,
    (sampled_at_us, age_us): (Option<u64>, Option<u64>),
) -> Value {
    match value {
        Some(value) => json!({ "value": value, "sampled_at_us": sampled_at_us, "age_us": age_us }),
        None => json!({ "absent": absent.map(absence) }),
    }
}

fn absence(why: &Absence) -> Value {
    json!({ "code": why.code, "reason": why.reason })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reading_is_a_value_with_its_time_or_a_reason() {
        let absent = Absence { code: "not_supported".into(), reason: "not supported by this device".into() };
        let total =
            Bytes { value: Some(80 << 30), absent: None, sampled_at_us: Some(1_500_000), age_us: Some(500_000) };
        let nameless =
            PodShare { sm: Some(Percent { absent: Some(absent), ..Percent::default() }), ..PodShare::default() };
        let gpu = Gpu {
            health: Health::Healthy.into(),
            memory_total: Some(total),
            utilization: Some(Percent { value: Some(87.0), ..Percent::default() }),
            pods: vec![
                PodShare { name: Some("train-0".into()), memory_claimed: Some(5), ..PodShare::default() },
                nameless,
            ],
            ..Gpu::default()
        };
        let source = GpuSource { state: gpu_source::State::Working.into(), ..GpuSource::default() };
        let document = of(&NodeUsage { sequence: 7, source: Some(source), gpus: vec![gpu], ..NodeUsage::default() });
        assert_eq!((&document["sequence"], &document["source"]["state"]), (&json!(7), &json!("working")));
        let gpu = &document["gpus"][0];
        assert_eq!((&gpu["health"], &gpu["utilization"]["value"]), (&json!("healthy"), &json!(87.0)));
        let total = json!({ "value": 80_u64 << 30, "sampled_at_us": 1_500_000, "age_us": 500_000 });
        assert_eq!((&gpu["memory_total"], &gpu["memory_used"]), (&total, &Value::Null));
        assert_eq!((&gpu["pods"][0]["name"], &gpu["pods"][1]["name"]), (&json!("train-0"), &Value::Null));
        assert_eq!(gpu["pods"][1]["sm"]["absent"]["code"], "not_supported");
        let claimed = (&gpu["pods"][0]["memory_claimed"], &gpu["pods"][1]["memory_claimed"]);
        assert_eq!(claimed, (&json!(5), &Value::Null));
    }
}
