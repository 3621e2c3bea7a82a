//! Tests the metrics with real tools: `promtool` and a Prometheus server from Debian's package `prometheus`.
//!
//! The queries are from Grafana's dashboards 12239, 25617 and 21833 and from kube-prometheus's container rules. Each
//! query must return one result for each object, and no sum may count anything twice.

use crate::api::history::ProfileSource;
use crate::http::{self, MetricSets, Settings, Shown};
use crate::sample_view;
use lab::prometheus::{self, Prometheus};
use model::view::NodeView;
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

const GIB: f64 = 1_073_741_824.0;
const MIB: f64 = 1_048_576.0;

/// A server on a real socket with the small view.
struct Node {
    address: SocketAddr,
    view: watch::Sender<Arc<NodeView>>,
    _ready: watch::Sender<Result<(), Arc<str>>>,
    _runtime: tokio::runtime::Runtime,
}

fn node() -> Node {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = serve::server::bind("127.0.0.1:0".parse().unwrap()).unwrap();
    let address = listener.local_addr().unwrap();
    let (view, view_shown) = watch::channel(Arc::new(sample_view::small()));
    let (ready, readiness) = watch::channel(Ok(()));
    let profiles = watch::channel(Arc::new(sample_view::profiles::small())).1;
    let source = ProfileSource { profiles, history: mpsc::channel(1).0 };
    let shown = Shown { view: view_shown, profiles: Some(source), ready: readiness };
    let sets = MetricSets { dcgm: true, dcgm_renamed: false, hami: false, cadvisor: false };
    let hosts = serve::caller::AllowedHosts::default();
    let settings = Settings { sets, api_token: None, hosts, certificates: None, clock: sample_view::clock };
    runtime.spawn(http::serve(listener, settings, shown, CancellationToken::new()));
    Node { address, view, _ready: ready, _runtime: runtime }
}

/// The body of an answer; empty if the server does not answer.
fn get(address: SocketAddr, path: &str, accept: &str) -> String {
    let ask = || -> std::io::Result<String> {
        let mut socket = TcpStream::connect(address)?;
        socket.set_read_timeout(Some(Duration::from_secs(10)))?;
        write!(socket, "GET {path} HTTP/1.0\r\nHost: n\r\nAccept: {accept}\r\n\r\n")?;
        let mut text = String::new();
        socket.read_to_string(&mut text)?;
        Ok(text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    };
    ask().unwrap_or_default()
}

/// Scrapes a node every second. `/metrics` already contains the series of `/metrics/dcgm` and `/metrics/gpu`.
/// Prometheus scrapes and parses these two paths too, but drops their series, which would otherwise count twice. The
/// target labels name the agent's own pod, as service discovery sets them. The jobs `kubelet` and `kube-state-metrics`
/// have `honor_labels`; the recording rules join with the pod list of kube-state-metrics.
fn scraping(node: SocketAddr) -> Prometheus {
    let state = prometheus::target(KUBE_POD_INFO);
    Prometheus::start(&format!(
        "global: {{scrape_interval: 1s, scrape_timeout: 1s}}\nscrape_configs:\n\
         - job_name: gpu-steward\n  static_configs: &agent\n  - targets: ['{node}']\n    \
         labels: {{namespace: monitoring, pod: gpu-steward-x, container: agent, node: node-a}}\n\
         - job_name: hami\n  metrics_path: /metrics/hami\n  static_configs: *agent\n\
         - job_name: dcgm\n  metrics_path: /metrics/dcgm\n  static_configs: *agent\n  \
         metric_relabel_configs: &none [{{source_labels: [__name__], regex: '.*', action: drop}}]\n\
         - job_name: gpu\n  metrics_path: /metrics/gpu\n  static_configs: *agent\n  metric_relabel_configs: *none\n\
         - job_name: kubelet\n  metrics_path: /metrics/cadvisor\n  honor_labels: true\n  static_configs:\n  \
         - targets: ['{node}']\n    labels: {{metrics_path: /metrics/cadvisor, node: node-a}}\n\
         - job_name: kube-state-metrics\n  honor_labels: true\n  static_configs:\n  - targets: ['{state}']\n"
    ))
}

/// The view's pods, as kube-state-metrics reports them.
const KUBE_POD_INFO: &str = "# TYPE kube_pod_info gauge\n\
    kube_pod_info{namespace=\"ml\",pod=\"train-0\",node=\"node-a\"} 1\n\
    kube_pod_info{namespace=\"ml\",pod=\"serve-a\",node=\"node-a\"} 1\n\
    kube_pod_info{namespace=\"ml\",pod=\"mig-a\",node=\"node-a\"} 1\n\
    kube_pod_info{namespace=\"web\",pod=\"serve-b\",node=\"node-a\"} 1\n\
    kube_pod_info{namespace=\"kube-system\",pod=\"proxy\",node=\"node-a\"} 1\n\
    kube_pod_info{namespace=\"ml\",pod=\"waiting\",node=\"\"} 1\n";

/// Query, number of results, and their sum if it is known. The queries of 21833 for `Device_memory_desc_of_container`
/// and `Device_last_kernel_of_container` are left out: these metrics need the memory region that HAMi-core shares
/// inside the container, so they have no series. One query checks this.
const QUERIES: &[(&str, usize, Option<f64>)] = &[
    // 12239
    (r#"DCGM_FI_DEV_GPU_TEMP{instance=~".+", gpu=~"0|1"}"#, 2, Some(122.0)),
    (r#"avg(DCGM_FI_DEV_GPU_TEMP{instance=~".+", gpu=~".*"})"#, 1, Some(61.0)),
    (r#"DCGM_FI_DEV_POWER_USAGE{instance=~".+", gpu=~".*"}"#, 3, None),
    (r#"sum(DCGM_FI_DEV_POWER_USAGE{instance=~".+", gpu=~".*"})"#, 1, Some(1537.5)),
    (r#"DCGM_FI_DEV_SM_CLOCK{instance=~".+", gpu=~"0"} * 1000000"#, 1, Some(1.98e9)),
    (r#"DCGM_FI_DEV_GPU_UTIL{instance=~".+", gpu=~".*"}"#, 2, Some(170.0)),
    (r#"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{instance=~".+", gpu=~"0|1"}"#, 2, Some(0.5)),
    (r#"DCGM_FI_DEV_FB_USED{instance=~".+", gpu=~"1"}"#, 1, Some(32.0 * 1024.0)),
    // 25617: labels become exported_* beside the labels of the scraped pod
    (
        r#"DCGM_FI_DEV_GPU_UTIL{Hostname=~"node-a", gpu="0", exported_namespace="ml", exported_pod="train-0", exported_container="main"}"#,
        1,
        Some(85.0),
    ),
    (r#"sum by (exported_namespace, exported_pod) (DCGM_FI_DEV_FB_USED{exported_pod!=""})"#, 2, Some(45.0 * 1024.0)),
    (r"sum by (Hostname) (DCGM_FI_DEV_FB_USED)", 1, Some(77.0 * 1024.0)),
    (r#"count by (UUID) (DCGM_FI_DEV_GPU_UTIL{Hostname="node-a"})"#, 2, Some(2.0)),
    (r#"DCGM_FI_DEV_FB_USED{gpu="1", exported_pod!=""}"#, 0, None),
    // alert rules
    (r"DCGM_FI_DEV_XID_ERRORS > 0", 1, Some(79.0)),
    (r#"DCGM_FI_DEV_XID_ERRORS{err_code="79"}"#, 1, Some(79.0)),
    (r#"gpu_steward_gpu_xids_total{xid="95"}"#, 1, Some(0.0)),
    (r"sum by (gpu) (gpu_steward_gpu_xid_events_total)", 4, Some(3.0)),
    (r#"DCGM_FI_DEV_POWER_USAGE{exported_pod!=""}"#, 1, Some(512.5)),
    // use per pod, and nothing counted twice
    (r"sum by (exported_pod) (gpu_steward_pod_gpu_memory_used_bytes)", 4, Some(75.0 * GIB)),
    (
        r"sum(gpu_steward_pod_gpu_memory_used_bytes) + sum(gpu_steward_gpu_unattributed_memory_bytes)
          == sum(gpu_steward_gpu_memory_used_bytes)",
        1,
        Some(77.0 * GIB),
    ),
    (r"sum(gpu_steward_container_gpu_memory_used_bytes)", 1, Some(75.0 * GIB)),
    // profiles of loads
    (r#"gpu_steward_gpu_load_period_seconds{gpu="0", quantity="utilization"}"#, 1, Some(6.0)),
    (r#"gpu_steward_gpu_load_period_seconds{mig_uuid!=""}"#, 1, Some(40.0)),
    (r"gpu_steward_gpu_load_period_score > 0.5", 2, Some(1.5)),
    (r"count by (verdict) (gpu_steward_gpu_load_verdict == 1)", 4, Some(5.0)),
    (r#"gpu_steward_gpu_load_forecast_ratio{horizon="5m", level="0.95"}"#, 1, Some(0.95)),
    (r#"gpu_steward_gpu_load_forecast_bytes{quantity="gpu_memory", level="0.5"}"#, 2, Some(48.0 * GIB)),
    (r#"gpu_steward_gpu_load_forecast_watts{horizon="30s", level="0.05"}"#, 1, Some(500.0)),
    (r#"gpu_steward_gpu_load_next_hour_maximum_ratio{level="0.9"}"#, 2, Some(0.99 + 0.65)),
    // the alerts of docs/workload-profiles.md
    (
        r#"gpu_steward_gpu_load_next_hour_maximum_bytes{mig_uuid=""} > on (gpu, uuid) 0.98 * gpu_steward_gpu_memory_total_bytes"#,
        1,
        Some(79.0 * GIB),
    ),
    (
        r#"gpu_steward_gpu_load_next_hour_maximum_bytes{mig_uuid!=""} > on (mig_uuid) 0.98 * gpu_steward_mig_memory_total_bytes"#,
        1,
        Some(10.0 * GIB),
    ),
    (r"gpu_steward_gpu_load_next_hour_maximum_watts", 1, Some(650.0)),
    (r#"gpu_steward_pod_load_period_seconds{exported_namespace="ml", exported_pod="train-0"}"#, 2, Some(66.5)),
    (r#"gpu_steward_pod_load_forecast_bytes{quantity="memory", level="0.5"}"#, 1, Some(4.0 * GIB)),
    (r#"gpu_steward_pod_load_next_hour_maximum_bytes{quantity="memory"}"#, 1, Some(6.0 * GIB)),
    (r#"gpu_steward_pod_load_period_seconds{exported_pod="gone"}"#, 0, None),
    (r"gpu_steward_profile_series", 1, Some(12.0)),
    (r#"gpu_steward_left_out{what="profile_series"}"#, 1, Some(3.0)),
    (r"gpu_steward_profile_memory_bytes + gpu_steward_profile_file_bytes", 1, Some(6.0 * MIB)),
    (r"gpu_steward_profile_kept", 1, Some(1.0)),
    (r"gpu_steward_profile_samples_missed_total", 1, Some(5.0)),
    (r"gpu_steward_profile_analyses_total", 1, Some(77.0)),
    (r"gpu_steward_profile_analysis_seconds_total", 1, Some(1.25)),
    (r"gpu_steward_profile_busiest_second_seconds", 1, Some(0.013)),
    // 21833
    (r#"{__name__=~"Device_memory_desc_of_container|Device_last_kernel_of_container"}"#, 0, None),
    (r#"vGPU_device_memory_limit_in_bytes{zone="vGPU", podname=~"train-0"}"#, 1, Some(48.0 * GIB)),
    (r"sum by (podnamespace, podname, ctrname, deviceuuid) (vGPU_device_memory_limit_in_bytes)", 4, Some(98.0 * GIB)),
    (r"vGPU_device_memory_usage_in_bytes / vGPU_device_memory_limit_in_bytes <= 1", 4, None),
    (r"hami_vgpu_memory_used_bytes / hami_vgpu_memory_limit_bytes <= 1", 4, None),
    (r#"HostGPUMemoryUsage{nodeid="node-a"}"#, 3, Some(77.0 * GIB)),
    (r#"avg(HostCoreUtilization{nodeid=~"node-a"})"#, 1, Some(85.0)),
    (r"sum by (podnamespace, podname, ctrname, deviceuuid) (vGPU_device_memory_usage_in_bytes)", 4, Some(75.0 * GIB)),
    (r#"Device_utilization_desc_of_container{podname="serve-a"}"#, 1, Some(20.0)),
    (r#"hami_vgpu_memory_used_bytes{exported_pod="serve-b", exported_container="server"}"#, 1, Some(20.0 * GIB)),
    // kube-prometheus, the recording rules of `k8s.rules` unchanged: each container once, without its pod's sum
    (
        r#"sum by (cluster, namespace, pod, container) (
             irate(container_cpu_usage_seconds_total{job="kubelet", metrics_path="/metrics/cadvisor", image!=""}[5m])
           ) * on (cluster, namespace, pod) group_left(node) topk by (cluster, namespace, pod) (
             1, max by(cluster, namespace, pod, node) (kube_pod_info{node!=""}))"#,
        6,
        Some(0.0),
    ),
    (
        r#"container_memory_working_set_bytes{job="kubelet", metrics_path="/metrics/cadvisor", image!=""}
           * on (namespace, pod) group_left(node) topk by(namespace, pod) (1,
             max by(namespace, pod, node) (kube_pod_info{node!=""}))"#,
        6,
        Some(3015.0 * MIB),
    ),
    (
        r#"container_memory_rss{job="kubelet", metrics_path="/metrics/cadvisor", image!=""}
           * on (namespace, pod) group_left(node) topk by(namespace, pod) (1,
             max by(namespace, pod, node) (kube_pod_info{node!=""}))"#,
        6,
        Some(2400.0 * MIB),
    ),
    (
        r#"container_memory_cache{job="kubelet", metrics_path="/metrics/cadvisor", image!=""}
           * on (namespace, pod) group_left(node) topk by(namespace, pod) (1,
             max by(namespace, pod, node) (kube_pod_info{node!=""}))"#,
        6,
        Some(900.0 * MIB),
    ),
    (
        r#"container_memory_swap{job="kubelet", metrics_path="/metrics/cadvisor", image!=""}
           * on (namespace, pod) group_left(node) topk by(namespace, pod) (1,
             max by(namespace, pod, node) (kube_pod_info{node!=""}))"#,
        6,
        Some(180.0 * MIB),
    ),
    // with `image` alone: two more containers, one of a pod without a known name and one that belongs to no pod
    (r#"container_memory_cache{image!=""}"#, 8, Some(1200.0 * MIB)),
    (r#"container_memory_working_set_bytes{image!=""}"#, 8, Some(4028.0 * MIB)),
    (r#"container_memory_swap{image!=""}"#, 8, Some(240.0 * MIB)),
    // kube-prometheus, its dashboards
    (
        r#"sum(container_memory_swap{job="kubelet", metrics_path="/metrics/cadvisor", namespace="web", container!=""}) by (pod)"#,
        1,
        Some(60.0 * MIB),
    ),
    (
        r#"sum by (cluster, namespace, pod, container) (rate(container_cpu_usage_seconds_total{job="kubelet", metrics_path="/metrics/cadvisor", image!="", container!=""}[5m]))"#,
        6,
        Some(0.0),
    ),
    (
        r#"sum(container_memory_working_set_bytes{job="kubelet", metrics_path="/metrics/cadvisor", namespace="web", pod="serve-b", container!="", image!=""}) by (container)"#,
        2,
        Some(1005.0 * MIB),
    ),
    (
        r#"sum(container_memory_rss{job="kubelet", metrics_path="/metrics/cadvisor", namespace="ml", pod="train-0", container!=""}) by (pod)"#,
        1,
        Some(400.0 * MIB),
    ),
    (
        r#"sum(rate(container_network_receive_bytes_total{job="kubelet", metrics_path="/metrics/cadvisor", namespace=~".+"}[5m])) by (namespace)"#,
        2,
        None,
    ),
    (
        r#"sum by(container) (rate(container_fs_reads_bytes_total{job="kubelet", metrics_path="/metrics/cadvisor", device=~"(/dev.+)|mmcblk.p.+|nvme.+|sd.+", container!="", namespace="web", pod="serve-b"}[5m]))"#,
        2,
        None,
    ),
    (
        r#"sum(increase(container_cpu_cfs_throttled_periods_total{job="kubelet", metrics_path="/metrics/cadvisor", namespace="web", container!=""}[5m])) by (container)"#,
        2,
        None,
    ),
    (
        r#"sum(container_memory_working_set_bytes{container!=""}) by (pod) / sum(container_spec_memory_limit_bytes{container!=""} > 0) by (pod)"#,
        3,
        None,
    ),
];

/// Promise 20 in docs/specification.md.
#[test]
#[ignore = "needs prometheus: tests/run"]
fn a_real_prometheus_answers_each_dashboard_query_once_and_drops_removed_pods() {
    let node = node();
    let prometheus = scraping(node.address);
    prometheus.until("min_over_time(up[1m]) == 1 and count_over_time(up[1m]) >= 4", |up| up.len() == 6);
    for (query, answers, sum) in QUERIES {
        let values = prometheus.values(query);
        assert_eq!(values.len(), *answers, "{query}: {values:?}");
        if let Some(sum) = sum {
            assert!((values.iter().sum::<f64>() - sum).abs() <= sum.abs() * 1e-9, "{query}: {values:?}");
        }
    }
    for (name, kind) in [
        ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "counter"),
        ("DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL", "counter"),
        ("DCGM_FI_DEV_POWER_USAGE", "gauge"),
        ("gpu_steward_gpu_xids_total", "counter"),
        ("gpu_steward_profile_analyses_total", "counter"),
    ] {
        assert_eq!(prometheus.kind(name), kind, "{name}, though Prometheus requests OpenMetrics first");
    }
    let mut view = sample_view::small();
    // XID 95 occurs for the first time, and an alert must see it.
    view.gpus[3].xids = vec![(48, 1), (79, 2), (95, 1)];
    view.pods.retain(|pod| pod.name.as_ref().is_none_or(|name| &*name.name != "serve-a"));
    node.view.send(Arc::new(view)).unwrap();
    let begun = Instant::now();
    for label in ["exported_pod", "podname", "pod"] {
        prometheus.until(&format!(r#"{{{label}="serve-a", __name__!~"ALERTS.*|kube_.*"}}"#), <[f64]>::is_empty);
    }
    prometheus.until(r#"increase(gpu_steward_gpu_xids_total{xid="95"}[5m]) > 0"#, |gpus| gpus.len() == 1);
    assert!(begun.elapsed() < Duration::from_secs(10), "one scrape: {:?}", begun.elapsed());
    assert_eq!(prometheus.values("min_over_time(up[5m])"), [1.0; 6], "every scrape was understood");
}

/// The lines that promtool prints about one path.
fn promtool(address: SocketAddr, path: &str) -> BTreeSet<String> {
    let text = get(address, path, "text/plain;version=0.0.4");
    assert!(text.starts_with("# HELP"), "{path}");
    let mut child = Command::new("promtool")
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("promtool is installed: tests/run programs");
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let words = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    words.lines().map(str::to_owned).collect()
}

#[test]
#[ignore = "needs prometheus: tests/run"]
fn promtool_reports_only_names_of_other_programs() {
    let node = node();
    assert_eq!(promtool(node.address, "/metrics/cadvisor"), BTreeSet::new());
    let chosen = |line: &String| {
        let (name, complaint) = line.split_once(' ').unwrap_or((line, ""));
        let dcgm = name.starts_with("DCGM_FI_")
            && (complaint == "label names should be written in 'snake_case' not 'camelCase'"
                || complaint == "counter metrics should have \"_total\" suffix"
                || complaint == "metric name should not include type 'counter'");
        let hami = [
            "HostCoreUtilization",
            "HostGPUMemoryUsage",
            "MigInfo",
            "vGPU_device_memory_usage_in_bytes",
            "vGPU_device_memory_limit_in_bytes",
        ];
        dcgm || (hami.contains(&name) && complaint == "metric names should be written in 'snake_case' not 'camelCase'")
    };
    for path in ["/metrics", "/metrics/dcgm", "/metrics/hami"] {
        let rest: Vec<String> = promtool(node.address, path).into_iter().filter(|line| !chosen(line)).collect();
        assert!(rest.is_empty(), "{path}: {rest:#?}");
    }
}
