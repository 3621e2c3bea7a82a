//! Tests which pod the memory of a GPU belongs to, with real processes in real pods. No memory is counted twice or
//! lost, and the series of a GPU name a pod only if that pod has the GPU to itself.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::eventually::eventually;
use lab::pods::Pods;
use lab::scenario::{FakeGpu, FakeNvml, ReadingKind, Scenario, Value, fake_gpus, process};
use std::path::Path;
use std::time::Duration;

/// The first of the pod numbers that no other test uses.
const NUMBER: u32 = 0x5a7e;
const GIB: u64 = 1 << 30;

/// The series of a metric family on one GPU: line and value.
fn on_gpu(text: &str, family: &str, gpu: u32) -> Vec<(String, f64)> {
    let label = format!("gpu=\"{gpu}\"");
    let lines = text.lines().filter(|line| line.starts_with(&format!("{family}{{")) && line.contains(&label));
    lines.map(|line| (line.to_owned(), line.rsplit(' ').next().unwrap().parse().unwrap())).collect()
}

/// Promise 6 in docs/specification.md.
#[test]
#[ignore = "needs root: tests/run"]
fn pod_memory_and_unattributed_memory_add_up_and_only_a_sole_holder_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let links = folder.path().join("links");
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup")).unwrap();
    let pids = ["one", "two"].map(|name| {
        let number = NUMBER + u32::from(name == "two");
        let container = &pods.add(number, 1, &["sleep", "1000"]).unwrap().containers[0];
        container.named(&links, (name, "ml", "main")).unwrap();
        container.pid
    });
    let [one, two] = pids.map(|pid| move |gib: u64| process(pid, gib * GIB, 10.0));
    let without_pod = |gib: u64| process(std::process::id(), gib * GIB, 10.0);
    let of = |processes, used: u64| {
        #[expect(clippy::cast_precision_loss, reason = "a few GiB")]
        let used = Value::Constant((used * GIB) as f64);
        FakeGpu { processes, values: [(ReadingKind::MemoryUsedBytes, used)].into(), ..fake_gpus("H100", 1) }
    };
    let gpus = vec![
        of(vec![one(4)], 5),
        of(vec![one(3), two(2)], 5),
        of(vec![two(2), without_pod(1)], 4),
        of(vec![without_pod(2)], 2),
        of(vec![], 1),
    ];
    let fake = FakeNvml::install(folder.path()).unwrap();
    fake.write(&Scenario { gpus, ..Scenario::default() }).unwrap();
    let agent = Agent::standalone(BINARY)
        .with("--nvml-library", fake.library())
        .with("--log-links", &links)
        .with("--slow-period", "1s")
        .with("--process-period", "1s")
        .start();
    // For each GPU in GiB: the memory of each pod, and the unattributed memory. Then the pod that the GPU's own series
    // name.
    let expected = [(vec![4], 1, "one"), (vec![2, 3], 0, ""), (vec![2], 2, ""), (vec![], 2, ""), (vec![], 1, "")];
    #[expect(clippy::cast_precision_loss, reason = "a few GiB")]
    let gib = |bytes: f64| bytes / GIB as f64;
    eventually("the sums", Duration::from_secs(60), || {
        let (own, dcgm) = (agent.get("/metrics").text(), agent.get("/metrics/dcgm").text());
        let fits = expected.iter().zip(0..).all(|((held, unattributed, name), gpu)| {
            let mut of_pods: Vec<f64> = on_gpu(&own, "gpu_steward_pod_gpu_memory_used_bytes", gpu)
                .into_iter()
                .map(|(_, bytes)| gib(bytes))
                .collect();
            of_pods.sort_by(f64::total_cmp);
            let rest: Vec<f64> = on_gpu(&own, "gpu_steward_gpu_unattributed_memory_bytes", gpu)
                .into_iter()
                .map(|(_, bytes)| gib(bytes))
                .collect();
            let named = on_gpu(&dcgm, "DCGM_FI_DEV_GPU_UTIL", gpu).iter().all(|(line, _)| match *name {
                "" => !line.contains(",pod=\""),
                name => line.contains(&format!(",pod=\"{name}\"")),
            });
            let close = |one: f64, other: f64| (one - other).abs() < 0.001;
            let held: Vec<f64> = held.iter().map(|gib| f64::from(*gib)).collect();
            named
                && of_pods.len() == held.len()
                && of_pods.iter().zip(&held).all(|(one, other)| close(*one, *other))
                && rest.len() == 1
                && close(rest[0], f64::from(*unattributed))
        });
        fits.then_some(())
    });
}
