//! Settings: merges flags, environment and configuration file, and parses the values. It reads no file of the host
//! except the configuration file.
//!
//! ```text
//!   flags ─┐
//!   environment ─┼─layer─▶ text and origin of each key ──read──▶ typed values
//!   file ──┘
//! ```

pub(crate) mod raw_value;
pub(crate) mod table;
pub(crate) mod removed;
pub(crate) mod value;
pub(crate) mod file;
pub(crate) mod layer;
pub(crate) mod reader;
pub(crate) mod admin;
pub(crate) mod stream;
pub(crate) mod extender;
pub(crate) mod reload;

use agent::settings::{AgentSettings, Gpus, LiveSettings, RegisterFormat, SharingSettings, SourceSettings};
use decide::health::HealthPolicy;
use effects::http::MetricSets;
use layer::{Layers, Problem, RawSettings, RawValue};
use model::id::NodeName;
use reader::Reader;
use serve::log::LogFormat;
use serve::log::level::Verbosity;
use serve::server::certificate::Tls;
use sources::roots::HostRoots;
use std::collections::BTreeMap;

/// Merges all sources and parses the values of the agent's settings.
///
/// # Errors
/// All mistakes in the file and in values, not only the first.
pub(crate) fn load(raw: &RawSettings) -> Result<(AgentSettings, BTreeMap<&'static str, RawValue>), Vec<Problem>> {
    let Layers { values, faults, complete, .. } = raw.layer();
    match read(&values) {
        Ok(settings) if faults.is_empty() => Ok((settings, values)),
        Ok(_) => Err(faults),
        Err(mut more) => {
            // The missing setting may be in the part of the file that was not parsed.
            more.retain(|problem| complete || !matches!(problem, Problem::Together(_)));
            Err(faults.into_iter().chain(more).collect())
        }
    }
}

/// Parses the text of every setting of the agent.
///
/// # Errors
/// All mistakes, not only the first; the list is never empty.
pub(crate) fn read(values: &BTreeMap<&'static str, RawValue>) -> Result<AgentSettings, Vec<Problem>> {
    let mut reader = Reader::new(values);
    match reader.settings() {
        Some(settings) if reader.problems.is_empty() => Ok(settings),
        _ => Err(reader.problems),
    }
}

impl Reader<'_> {
    /// Parses every setting before it returns for the first mistake, so that one run finds all mistakes.
    fn settings(&mut self) -> Option<AgentSettings> {
        let standalone = self.take("standalone", value::switch);
        let node_name = self.take("node-name", |text| {
            value::unless_auto(text, |text| NodeName::of_host(text).map_err(|error| error.to_string()))
        });
        let kubeconfig = self.take("kubeconfig", |text| value::unless_auto(text, value::path));
        let state_dir = self.take("state-dir", value::path);
        let drain_timeout = self.take("drain-timeout", value::drain_timeout);
        let pod_labels = self.take("pod-labels", |text| value::unless_none(text, value::label_keys));
        let workload_profiles = self.take("workload-profiles", value::switch);
        let health = self.health();
        let names = self.names();
        let sharing = self.sharing();
        let report = self.report();
        let listen = self.take("listen", value::address);
        let admin = self.admin("admin-listen");
        let usage_socket = self.take("usage-socket", |text| value::unless_none(text, value::socket_path));
        let allowed_hosts = self.take("allowed-hosts", |text| value::unless_none(text, value::hosts));
        let tls = self.tls();
        let sources = self.sources();
        let log_format = self.take("log-format", LogFormat::parse);
        let live = self.live();
        Some(AgentSettings {
            standalone: standalone?,
            node_name: node_name?,
            kubeconfig: kubeconfig?,
            state_dir: state_dir?,
            drain_timeout: drain_timeout?,
            pod_labels: pod_labels?.unwrap_or_default(),
            workload_profiles: workload_profiles?,
            health: health?,
            sources: sources?,
            names: names?,
            sharing: sharing?,
            report: report?,
            listen: listen?,
            admin: admin?,
            usage_socket: usage_socket?,
            allowed_hosts: allowed_hosts?.unwrap_or_default(),
            tls: tls?,
            log_format: log_format?,
            live: live?,
        })
    }

    fn sources(&mut self) -> Option<SourceSettings> {
        let gpus = self.take("gpus", Gpus::parse);
        let nvml_library = self.take("nvml-library", |text| value::unless_auto(text, value::path));
        let kernel_log = self.take("kernel-log", |text| value::unless_none(text, value::path));
        let roots = self.roots();
        let period = self.take("period", value::period);
        let slow_period = self.take("slow-period", value::period);
        let process_period = self.take("process-period", value::period);
        Some(SourceSettings {
            gpus: gpus?,
            nvml_library: nvml_library?,
            kernel_log: kernel_log?,
            roots: roots?,
            period: period?,
            slow_period: slow_period?,
            process_period: process_period?,
        })
    }

    fn roots(&mut self) -> Option<HostRoots> {
        let procfs = self.take("procfs-root", value::path);
        let cgroup = self.take("cgroup-root", value::path);
        let sysfs = self.take("sysfs-root", value::path);
        Some(HostRoots { procfs: procfs?, cgroup: cgroup?, sysfs: sysfs? })
    }

    fn health(&mut self) -> Option<HealthPolicy> {
        let fatal = self.take("fatal-xids", |text| value::unless_auto(text, value::xids));
        let quiet = self.take("health-quiet-period", value::quiet);
        Some(HealthPolicy { fatal: fatal?.unwrap_or_else(|| HealthPolicy::default().fatal), quiet: quiet? })
    }

    fn names(&mut self) -> Option<sources::names::Settings> {
        let cri_socket = self.take("cri-socket", value::cri_socket);
        let log_links = self.take("log-links", value::path);
        let pod_resources_socket = self.take("pod-resources-socket", value::socket_path);
        Some(sources::names::Settings {
            cri_socket: cri_socket?,
            log_links: log_links?,
            pod_resources_socket: pod_resources_socket?,
        })
    }

    fn sharing(&mut self) -> Option<SharingSettings> {
        let split_count = self.take("split-count", |text| value::unless_auto(text, value::split_count));
        let split_counts = self.take("split-count-by-model", |text| value::unless_none(text, value::split_counts));
        let memory_scaling = self.take("memory-scaling", |text| value::unless_auto(text, value::scaling));
        let core_scaling = self.take("core-scaling", |text| value::unless_auto(text, value::scaling));
        let resources = self.resources();
        let device_config = self.take("device-config-file", |text| value::unless_none(text, value::paths));
        let without_claim = self.take("without-claim", value::without_claim);
        let same_gpu_twice = self.take("same-gpu-twice", value::same_gpu_twice);
        let topology = self.take("topology-policy", |text| value::unless_auto(text, value::topology));
        let host_cdi_dirs = self.take("host-cdi-dirs", |text| value::unless_none(text, value::paths));
        let limiter_library = self.take("limiter-library", |text| value::unless_none(text, value::path));
        let pod_files_limit = self.take("pod-files-limit", value::files_limit);
        let evict_over_use = self.take("evict-over-use", value::switch);
        let register_format = self.take("register-format", RegisterFormat::parse);
        let handshakes = self.take("handshake", value::switch);
        let labelling = self.take("node-labels", value::labelling);
        let profile_annotations = self.take("profile-annotations", value::profile_annotations);
        let kubelet_root = self.take("kubelet-root", value::path);
        let cdi_dir = self.take("cdi-dir", value::path);
        let dev_root = self.take("dev-root", value::path);
        let dev_root_mount = self.take("dev-root-mount", |text| value::unless_auto(text, value::path));
        Some(SharingSettings {
            split_count: split_count?,
            split_counts: split_counts?.unwrap_or_default(),
            memory_scaling: memory_scaling?,
            core_scaling: core_scaling?,
            resources: resources?,
            device_config: device_config?.unwrap_or_default(),
            without_claim: without_claim?,
            same_gpu_twice: same_gpu_twice?,
            topology: topology?,
            host_cdi_dirs: host_cdi_dirs?.unwrap_or_default(),
            limiter_library: limiter_library?,
            pod_files_limit: pod_files_limit?,
            evict_over_use: evict_over_use?,
            register_format: register_format?,
            handshakes: handshakes?,
            labelling: labelling?,
            profile_annotations: profile_annotations?,
            kubelet_root: kubelet_root?,
            cdi_dir: cdi_dir?,
            dev_root: dev_root?,
            dev_root_mount: dev_root_mount?,
        })
    }

    fn tls(&mut self) -> Option<Option<Tls>> {
        self.certificate_pair("tls-cert", "tls-key")
    }

    fn live(&mut self) -> Option<LiveSettings> {
        let verbosity = self.take("v", Verbosity::parse);
        let dcgm = self.take("metrics-dcgm", value::switch);
        let dcgm_renamed = self.take("metrics-dcgm-renamed", value::switch);
        let hami = self.take("metrics-hami", value::switch);
        let cadvisor = self.take("metrics-cadvisor", value::switch);
        let api_token_file = self.take("api-token-file", |text| value::unless_none(text, value::path));
        Some(LiveSettings {
            verbosity: verbosity?,
            sets: MetricSets { dcgm: dcgm?, dcgm_renamed: dcgm_renamed?, hami: hami?, cadvisor: cadvisor? },
            api_token_file: api_token_file?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use layer::Origin;
    use model::realtime::{CheckMode, NodeCheck};
    use std::collections::BTreeSet;

    fn defaults() -> BTreeMap<&'static str, RawValue> {
        let default = |key: &table::Key| RawValue { text: key.default.into(), origin: Origin::Default };
        table::KEYS.iter().map(|key| (key.name, default(key))).collect()
    }

    #[test]
    fn the_defaults_are_valid() {
        let settings = read(&defaults()).unwrap();
        assert_eq!(settings.listen.to_string(), "0.0.0.0:9410");
        assert_eq!(settings.live.sets, MetricSets { dcgm: true, dcgm_renamed: false, hami: false, cadvisor: false });
    }

    #[test]
    fn every_key_is_read() {
        for key in table::Key::of(table::Reader::Agent) {
            let mut values = defaults();
            values.get_mut(key.name).unwrap().text = "\0".into();
            let problems = read(&values).expect_err(key.name);
            assert!(problems[0].to_string().contains(key.name), "{}: {problems:?}", key.name);
        }
    }

    #[test]
    fn exactly_the_settings_of_the_table_are_read() {
        let problems = read(&BTreeMap::new()).unwrap_err();
        let read: BTreeSet<&str> = problems
            .iter()
            .map(|problem| match problem {
                Problem::NotASetting(name) => *name,
                other => panic!("{other}"),
            })
            .collect();
        assert_eq!(read, table::Key::of(table::Reader::Agent).map(|key| key.name).collect());
        assert!(problems[0].to_string().contains("a bug in gpu-steward"), "{}", problems[0]);
    }

    /// The mistakes of a configuration file together with one environment variable.
    fn problems_of(file: &str, variable: (&str, &str)) -> Vec<String> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("c.yaml");
        std::fs::write(&path, file).unwrap();
        let environment = [(variable.0.to_owned(), variable.1.to_owned())].into();
        let raw = RawSettings { file: Some(path), environment, ..RawSettings::default() };
        let problems = load(&raw).unwrap_err();
        let shown = |problem: &Problem| problem.to_string().replace(&format!("{}/", dir.path().display()), "");
        problems.iter().map(shown).collect()
    }

    #[test]
    fn faults_of_the_file_and_wrong_values_are_reported_together() {
        assert_eq!(
            problems_of("gpus: none\nperiod: 5\nusage_sockt: x\n", ("GPU_STEWARD_LISTEN", "here")),
            [
                "c.yaml:3: unknown key \"usage_sockt\"; did you mean usage-socket?",
                "invalid value \"here\" for listen (from GPU_STEWARD_LISTEN): expected ADDRESS:PORT with a numeric address, such as 127.0.0.1:9410, [::]:9410 or :9410",
                "invalid value \"5\" for period (from c.yaml:2): a time needs a unit: ms, s, m, h or d",
            ]
        );
    }

    #[test]
    fn of_a_file_that_is_not_yaml_only_the_syntax_error_is_reported() {
        let cert = ("GPU_STEWARD_ADMIN_TLS_CERT", "/c");
        let broken = problems_of("v: 0\nadmin-tls-key /k\n", cert);
        assert_eq!(broken.len(), 1, "the file may contain the key: {broken:?}");
        assert_eq!(problems_of("v: x\n", cert).len(), 2);
        assert_eq!(problems_of("v 0\n", ("GPU_STEWARD_PERIOD", "5")).len(), 2, "wrong variables are still reported");
    }

    #[test]
    fn an_agent_reports_only_what_is_set_of_the_real_time_check() {
        let settings = |variables: &[(&str, &str)]| {
            let streams = [
                ("GPU_STEWARD_EXTENDER_ADDRESS", "extender:9443"),
                ("GPU_STEWARD_EXTENDER_CA_FILE", "/ca"),
                ("GPU_STEWARD_STREAM_TOKEN_FILE", "/token"),
            ];
            let all = streams.iter().chain(variables);
            let environment = all.map(|(name, text)| ((*name).to_owned(), (*text).to_owned())).collect();
            let read = load(&RawSettings { environment, ..RawSettings::default() });
            read.map(|(settings, _)| settings.report.unwrap().check).map_err(|problems| problems[0].to_string())
        };
        assert_eq!(settings(&[]), Ok(NodeCheck::default()));
        let off = NodeCheck { enabled: Some(false), mode: None };
        assert_eq!(settings(&[("HAMI_ENABLE_REALTIME_CHECK", "false")]), Ok(off));
        let warns = NodeCheck { enabled: Some(true), mode: Some(CheckMode::Warning) };
        let both = [("HAMI_ENABLE_REALTIME_CHECK", "true"), ("HAMI_REALTIME_CHECK_MODE", "warning")];
        assert_eq!(settings(&both), Ok(warns));
        let why = settings(&[("HAMI_REALTIME_CHECK_MODE", "loose")]).unwrap_err();
        let expected = "invalid value \"loose\" for realtime-check-mode (from HAMI_REALTIME_CHECK_MODE): expected strict, \
                        warning or disabled";
        assert_eq!(why, expected);
    }

    #[test]
    fn the_cri_socket_is_searched_or_given_or_not_used() {
        use sources::names::CriSocket;
        for (text, expected) in
            [("auto", CriSocket::Auto), ("none", CriSocket::None), ("/run/a.sock", CriSocket::At("/run/a.sock".into()))]
        {
            let mut values = defaults();
            values.get_mut("cri-socket").unwrap().text = text.into();
            assert_eq!(read(&values).unwrap().names.cri_socket, expected);
        }
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let mut values = defaults();
        values.get_mut("period").unwrap().text = "5".into();
        values.get_mut("listen").unwrap().text = "here".into();
        values.get_mut("admin-tls-cert").unwrap().text = "/c".into();
        let problems = read(&values).unwrap_err();
        let texts: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert_eq!(texts.len(), 3, "{texts:?}");
        assert!(texts[2].contains("\"5\" for period (from default): a time needs a unit"), "{texts:?}");
    }
}
