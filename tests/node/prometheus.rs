//! A real Prometheus scrapes the built program, which runs beside a GPU of the fake driver and a real pod. The test
//! sends the queries of dashboards to Prometheus. The tests of the metric texts check the queries in general.

use crate::program::BINARY;
use lab::agent::Agent;
use lab::pods::Pods;
use lab::prometheus::Prometheus;
use lab::scenario::{FakeGpu, FakeNvml, Scenario, fake_gpus, process};
use std::path::Path;

/// A pod number that no other test uses.
const NUMBER: u32 = 0x960;
const MIB: f64 = 1_048_576.0;
/// The memory that the pod holds on the first GPU, in MiB.
const HELD: u32 = 4096;

/// Query, number of series in the answer, and their sum if it is known. The numbers in the comments are dashboards of
/// grafana.com. Two kinds of queries of 21833 are left out: queries that need HAMi-core's shared region, and queries for
/// limits, which a standalone agent does not know (docs/specification.md).
fn queries() -> Vec<(&'static str, usize, Option<f64>)> {
    let held = f64::from(HELD);
    vec![
        // 12239
        (r#"DCGM_FI_DEV_GPU_TEMP{instance=~".+", gpu=~"0|1"}"#, 2, None),
        (r#"sum(DCGM_FI_DEV_POWER_USAGE{instance=~".+", gpu=~".*"})"#, 1, None),
        (r#"DCGM_FI_DEV_GPU_UTIL{instance=~".+", gpu=~".*"}"#, 2, None),
        // 25617
        (r#"sum by (exported_namespace, exported_pod) (DCGM_FI_DEV_FB_USED{exported_pod!=""})"#, 1, Some(held)),
        (r#"count by (UUID) (DCGM_FI_DEV_GPU_UTIL{Hostname="node-a"})"#, 2, Some(2.0)),
        // per pod, with no value twice
        (r#"gpu_steward_pod_gpu_memory_used_bytes{exported_pod="train-0"}"#, 1, Some(held * MIB)),
        (
            r"sum(gpu_steward_pod_gpu_memory_used_bytes) + sum(gpu_steward_gpu_unattributed_memory_bytes)
              == sum(gpu_steward_gpu_memory_used_bytes)",
            1,
            Some(held * MIB),
        ),
        // 21833
        (r#"HostGPUMemoryUsage{nodeid="node-a"}"#, 2, Some(held * MIB)),
        (r#"vGPU_device_memory_usage_in_bytes{podnamespace="ml", podname="train-0"}"#, 1, Some(held * MIB)),
        // kube-prometheus; without a container runtime there is no image, so the queries do not ask for one
        (
            r#"sum by (namespace, pod, container) (rate(container_cpu_usage_seconds_total{job="kubelet", metrics_path="/metrics/cadvisor", namespace="ml", container!=""}[1m])) > 0.1 < 1.5"#,
            1,
            None,
        ),
        (
            r#"sum(container_memory_working_set_bytes{job="kubelet", metrics_path="/metrics/cadvisor", namespace="ml", pod="train-0", container!=""}) by (container)"#,
            1,
            None,
        ),
    ]
}

/// Promise 20 in docs/specification.md.
#[test]
#[ignore = "needs prometheus: tests/run"]
fn a_real_prometheus_scrapes_the_program_and_each_query_answers_once() {
    let folder = tempfile::tempdir().unwrap();
    let mut pods = Pods::prepare(Path::new("/sys/fs/cgroup")).unwrap();
    let container = &pods.add(NUMBER, 1, &["sh", "-c", "while :; do :; done"]).unwrap().containers[0];
    let links = folder.path().join("links");
    container.named(&links, ("train-0", "ml", "main")).unwrap();
    let fake = FakeNvml::install(folder.path()).unwrap();
    let busy = FakeGpu { processes: vec![process(container.pid, u64::from(HELD) << 20, 50.0)], ..fake_gpus("H100", 1) };
    fake.write(&Scenario { gpus: vec![busy, fake_gpus("H100", 1)], ..Scenario::default() }).unwrap();
    let agent = Agent::standalone(BINARY)
        .with("--nvml-library", fake.library())
        .with("--log-links", &links)
        .with("--node-name", "node-a")
        .with("--slow-period", "1s")
        .with("--process-period", "1s")
        .start();
    // Service discovery would add the labels of the agent's own pod to the target, so the test adds them. The job `kubelet`
    // honours labels.
    let address = agent.metrics;
    let prometheus = Prometheus::start(&format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n\
         - job_name: gpu-steward\n  static_configs: &agent\n  - targets: ['{address}']\n    \
         labels: {{namespace: monitoring, pod: gpu-steward-x, container: agent}}\n\
         - job_name: hami\n  metrics_path: /metrics/hami\n  static_configs: *agent\n\
         - job_name: kubelet\n  metrics_path: /metrics/cadvisor\n  honor_labels: true\n  static_configs:\n  \
         - targets: ['{address}']\n    labels: {{metrics_path: /metrics/cadvisor}}\n"
    ));
    prometheus.until("min_over_time(up[1m]) == 1 and count_over_time(up[1m]) >= 4", |up| up.len() == 3);
    for (query, answers, sum) in queries() {
        prometheus.until(query, |values| values.len() == answers);
        if let Some(sum) = sum {
            let values = prometheus.values(query);
            assert!((values.iter().sum::<f64>() - sum).abs() <= sum * 1e-9, "{query}: {values:?}");
        }
    }
    assert_eq!(prometheus.values("min_over_time(up[5m])"), [1.0; 3], "every scrape succeeded");
    assert_eq!(agent.terminate().status.code(), Some(0));
}
