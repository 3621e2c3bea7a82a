//! Reads the settings of the extender.

use super::layer::{Layers, Problem, RawSettings, RawValue};
use super::reader::Reader;
use super::value;
use decide::cluster::ClusterRules;
use decide::election::ElectionTimes;
use decide::placement::PlacementRules;
use extender::settings::{ExtenderSettings, LeaseSettings};
use model::realtime::CheckRules;
use serve::log::LogFormat;
use serve::log::level::Verbosity;
use std::collections::BTreeMap;
use std::path::PathBuf;
use wire::resource::{RequestRules, ResourceOverrides};

/// The settings of the extender, and the settings by which the amounts in pods become requests.
#[derive(Debug)]
pub(crate) struct ReadExtender {
    pub settings: ExtenderSettings,
    resources: ResourceOverrides,
    /// The files of the device configuration; without files, the defaults apply.
    device_config: Vec<PathBuf>,
}

impl ReadExtender {
    /// The rules by which the amounts in pods become requests: the device configuration with the resource names of
    /// the settings.
    ///
    /// # Errors
    /// A sentence that names the file.
    pub(crate) fn request_rules(&self) -> Result<RequestRules, String> {
        // The agents log the parts that are not understood.
        let read = sources::device_config::read_common(&self.device_config);
        let mut rules = read.map_err(|why| format!("device configuration {why}"))?.0.rules;
        self.resources.replace(&mut rules.names)?;
        Ok(rules)
    }
}

/// Merges all sources and parses the values.
///
/// # Errors
/// All mistakes in the file and in values, not only the first.
pub(crate) fn load(raw: &RawSettings) -> Result<ReadExtender, Vec<Problem>> {
    let Layers { values, faults, .. } = raw.layer();
    match read(&values) {
        Ok(settings) if faults.is_empty() => Ok(settings),
        Ok(_) => Err(faults),
        Err(more) => Err(faults.into_iter().chain(more).collect()),
    }
}

/// Parses the text of every setting of the extender.
///
/// # Errors
/// All mistakes, not only the first; the list is never empty.
pub(crate) fn read(values: &BTreeMap<&'static str, RawValue>) -> Result<ReadExtender, Vec<Problem>> {
    let mut reader = Reader::new(values);
    match reader.extender() {
        Some(settings) if reader.problems.is_empty() => Ok(settings),
        _ => Err(reader.problems),
    }
}

impl Reader<'_> {
    /// Parses every setting before it returns for the first mistake, so that one run finds all mistakes.
    fn extender(&mut self) -> Option<ReadExtender> {
        let kubeconfig = self.take("kubeconfig", |text| value::unless_auto(text, value::path));
        let drain_timeout = self.take("drain-timeout", value::drain_timeout);
        let listen = self.take("extender-listen", value::address);
        let admin = self.admin("extender-admin-listen");
        let allowed_hosts = self.take("allowed-hosts", |text| value::unless_none(text, value::hosts));
        let streams = self.streams();
        let lease = self.lease();
        let assume_annotation = self.take("assume-annotation", value::switch);
        let rules = self.cluster_rules();
        let scheduler_name = self.take("scheduler-name", value::object_name);
        let resources = self.resources();
        let device_config = self.take("device-config-file", |text| value::unless_none(text, value::paths));
        let log_format = self.take("log-format", LogFormat::parse);
        let verbosity = self.take("v", Verbosity::parse);
        let (resources, device_config) = (resources?, device_config?.unwrap_or_default());
        let settings = ExtenderSettings {
            kubeconfig: kubeconfig?,
            drain_timeout: drain_timeout?,
            listen: listen?,
            admin: admin?,
            allowed_hosts: allowed_hosts?.unwrap_or_default(),
            streams: streams?,
            lease: lease?,
            assume_annotation: assume_annotation?,
            rules: rules?,
            scheduler_name: scheduler_name?.into(),
            log_format: log_format?,
            verbosity: verbosity?,
        };
        Some(ReadExtender { settings, resources, device_config })
    }

    fn lease(&mut self) -> Option<LeaseSettings> {
        let name = self.take("lease-name", value::object_name);
        let namespace = self.take("lease-namespace", |text| value::unless_auto(text, value::object_name));
        let lease = self.take("lease-duration", value::time);
        let renew_deadline = self.take("renew-deadline", value::time);
        let retry = self.take("retry-period", value::time);
        let times = ElectionTimes { lease: lease?, renew_deadline: renew_deadline?, retry: retry? };
        match times.check() {
            Ok(times) => Some(LeaseSettings { name: name?, namespace: namespace?, times }),
            Err(why) => {
                let why = format!("lease-duration, renew-deadline and retry-period do not fit together: {why}");
                self.problems.push(Problem::Together(why));
                None
            }
        }
    }

    fn check_rules(&mut self) -> Option<CheckRules> {
        let enabled = self.take("enable-realtime-check", value::switch);
        let mode = self.take("realtime-check-mode", value::check_mode);
        let margin = self.take("realtime-check-margin", value::margin);
        let only_on = self.take("realtime-check-override", value::check_override);
        Some(CheckRules { enabled: enabled?, mode: mode?, margin: margin?, only_on: only_on? })
    }

    fn cluster_rules(&mut self) -> Option<ClusterRules> {
        let node_policy = self.take("node-scheduler-policy", value::node_policy);
        let gpu_policy = self.take("gpu-scheduler-policy", value::gpu_policy);
        let weights = self.take("scoring-weights", value::score_weights);
        let node_choice = self.take("node-choice", value::node_choice);
        let answered_nodes = self.take("answered-nodes", value::answered_nodes);
        let score_step = self.take("score-step", value::score_step);
        let check = self.check_rules();
        let placement =
            PlacementRules { node_policy: node_policy?, gpu_policy: gpu_policy?, weights: weights?, check: check? };
        Some(ClusterRules {
            placement,
            node_choice: node_choice?,
            answered_nodes: answered_nodes?,
            score_step: score_step?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::layer::Origin;
    use super::super::table::{Key, Reader as ReaderName};
    use super::*;
    use decide::cluster::{AnsweredNodes, NodeChoice};
    use model::placement::{GpuOrder, GpuPolicy, NodePolicy};
    use model::realtime::CheckMode;
    use model::unit::Bytes;
    use std::num::NonZeroUsize;

    fn defaults() -> BTreeMap<&'static str, RawValue> {
        let values = |key: &Key| RawValue { text: key.default.into(), origin: Origin::Default };
        Key::of(ReaderName::Extender).map(|key| (key.name, values(key))).collect()
    }

    fn with(words: &[(&'static str, &str)]) -> Result<ExtenderSettings, String> {
        let mut values = defaults();
        for (name, text) in words {
            values.get_mut(name).unwrap().text = (*text).into();
        }
        read(&values).map(|read| read.settings).map_err(|problems| problems[0].to_string())
    }

    #[test]
    fn the_defaults_are_those_of_the_decisions() {
        let settings = with(&[]).unwrap();
        assert_eq!((settings.rules, settings.lease.times), (ClusterRules::default(), ElectionTimes::default()));
        assert_eq!((settings.listen.to_string(), &*settings.scheduler_name), ("127.0.0.1:9444".into(), "gpu-steward"));
    }

    #[test]
    fn the_choice_of_the_node_the_number_of_nodes_and_the_step_of_scores_are_read() {
        let rules = with(&[("node-choice", "extender"), ("score-step", "7")]).unwrap().rules;
        assert_eq!((rules.node_choice, rules.score_step), (NodeChoice::Extender, 7));
        let answered = |text| with(&[("answered-nodes", text)]).unwrap().rules.answered_nodes;
        let forty = NonZeroUsize::new(40).map(AnsweredNodes::AtMost).unwrap();
        assert_eq!(
            [answered("auto"), answered("0"), answered("40")],
            [AnsweredNodes::Share, AnsweredNodes::All, forty]
        );
    }

    #[test]
    fn the_rules_of_the_real_time_check_are_read() {
        let rules = |words: &[(&'static str, &str)]| with(words).unwrap().rules.placement.check;
        assert_eq!(rules(&[]), CheckRules::default());
        let words = [
            ("enable-realtime-check", "false"),
            ("realtime-check-mode", "warning"),
            ("realtime-check-margin", "1GiB"),
            ("realtime-check-override", "only-on"),
        ];
        let expected = CheckRules { enabled: false, mode: CheckMode::Warning, margin: Bytes(1 << 30), only_on: true };
        assert_eq!(rules(&words), expected);
        for (name, text) in [
            ("enable-realtime-check", "maybe"),
            ("realtime-check-mode", "Strict"),
            ("realtime-check-margin", "100"),
            ("realtime-check-margin", "1025GiB"),
            ("realtime-check-override", "never"),
        ] {
            let why = with(&[(name, text)]).unwrap_err();
            assert!(why.contains(&format!("invalid value {text:?} for {name}")), "{why}");
        }
    }

    #[test]
    fn every_setting_of_the_extender_is_read_and_no_other() {
        let problems = read(&BTreeMap::new()).unwrap_err();
        let asked: std::collections::BTreeSet<String> = problems.iter().map(ToString::to_string).collect();
        let unread = Key::of(ReaderName::Extender).map(|key| Problem::NotASetting(key.name).to_string());
        assert_eq!(asked, unread.collect());
        for key in Key::of(ReaderName::Extender) {
            let why = with(&[(key.name, "\0")]).expect_err(key.name);
            assert!(why.contains(key.name), "{}: {why}", key.name);
        }
    }

    #[test]
    fn policies_and_weights_are_read_as_hami_writes_them() {
        let rules = |words: &[(&'static str, &str)]| with(words).unwrap().rules.placement;
        assert_eq!(rules(&[("node-scheduler-policy", "spread")]).node_policy, NodePolicy::Spread);
        let gpu_policy = rules(&[("gpu-scheduler-policy", "numa,binpack,topology-aware")]).gpu_policy;
        let order = vec![GpuOrder::Numa, GpuOrder::Binpack];
        assert_eq!(gpu_policy, GpuPolicy { order, idle_only: false, topology: true });
        let weights = rules(&[("scoring-weights", "memory=3,slot=0,core=1")]).weights;
        assert_eq!((weights.slots, weights.cores, weights.memory), (0, 1, 3));
        for (name, text) in [
            ("node-scheduler-policy", "fullest"),
            ("gpu-scheduler-policy", "binpack,fullest"),
            ("scoring-weights", "slot=0,core=0,memory=0"),
            ("scoring-weights", "slot=1,core=1"),
            ("score-step", "0"),
            ("node-choice", "both"),
            ("answered-nodes", "-1"),
            ("answered-nodes", "5%"),
            ("lease-name", "a/b"),
        ] {
            assert!(with(&[(name, text)]).is_err(), "{name} {text}");
        }
    }

    #[test]
    fn streams_are_off_until_an_address_is_given() {
        let settings = |words: &[(&'static str, &str)]| with(words).unwrap().streams;
        assert_eq!(settings(&[("stream-accounts", "gpu:agent")]), None);
        let given = [("stream-listen", "127.0.0.1:0"), ("stream-accounts", "gpu:agent, gpu:service")];
        let streams = settings(&given).unwrap();
        assert_eq!(streams.accounts, ["system:serviceaccount:gpu:agent", "system:serviceaccount:gpu:service"]);
        assert_eq!((&*streams.audience, streams.address, streams.token_file), ("gpu-steward", None, None));
        for (name, text) in [
            ("stream-accounts", "agent"),
            ("stream-accounts", "gpu:a:b"),
            ("stream-address", "host"),
            ("stream-address", "a,b:1"),
            ("stream-address", "host:0"),
            ("stream-audience", "a b"),
        ] {
            assert!(with(&[(name, text)]).is_err(), "{name} {text}");
        }
    }

    #[test]
    fn an_admin_port_that_other_machines_reach_needs_https_and_callers_with_a_proof() {
        assert_eq!(with(&[]).unwrap().admin.listen, Some("127.0.0.1:9445".parse().unwrap()));
        assert_eq!(with(&[("extender-admin-listen", "none")]).unwrap().admin.listen, None);
        let open = ("extender-admin-listen", "0.0.0.0:9445");
        let https = [open, ("admin-tls-cert", "/c"), ("admin-tls-key", "/k")];
        for words in [&[open][..], &[open, ("admin-token-file", "/t")], &https] {
            let why = with(words).unwrap_err();
            assert!(why.contains("extender-admin-listen 0.0.0.0:9445 can be reached from other machines"), "{why}");
        }
        for proof in ["admin-token-file", "admin-client-ca"] {
            assert!(with(&[&https[..], &[(proof, "/p")]].concat()).is_ok(), "{proof}");
        }
    }

    #[test]
    fn times_that_would_let_two_extenders_lead_are_refused() {
        let why = with(&[("lease-duration", "10s")]).unwrap_err();
        assert!(why.contains("renew-deadline") && why.contains("longer"), "{why}");
        let short = [("lease-duration", "3s"), ("renew-deadline", "2s"), ("retry-period", "500ms")];
        assert!(with(&short).is_ok());
    }
}
