//! The chart's accounts, rights and policies on the real cluster, as helm renders them. Programs under test get their
//! rights only from there.

use lab::bearer::Bearer;
use lab::cluster::Cluster;
use lab::eventually::eventually;
use lab::kubectl::Kubectl;
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::time::Duration;

/// The namespace of the chart.
pub(crate) const NAMESPACE: &str = "gpu-steward";
pub(crate) const AGENT: &str = "gpu-steward-agent";
/// The account of extenders, and of the kube-scheduler in the same pod.
pub(crate) const EXTENDER: &str = "gpu-steward-extender";
/// The account of agents under systemd.
pub(crate) const SERVICE: &str = "gpu-steward-service";
/// The templates that need no image.
const RIGHTS: [&str; 7] =
    ["accounts", "agent/rbac", "guard/access", "guard/keys", "guard/agent", "guard/reserved", "guard/shape"];
/// Values for features that are off by default: agents evict pods that use more than they claim, and renew their tokens.
pub(crate) const EXTRAS: [&str; 4] = [
    "agent.settings.evict-over-use=true",
    "service.enabled=true",
    "service.audiences[0]=https://kubernetes.default.svc",
    // The chart itself allows this where it installs an extender.
    "service.audiences[1]=gpu-steward",
];
pub(crate) const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/gpu-steward");

/// Renders the chart with these values (`guard.hami[0].name=…`). This needs no cluster.
pub(crate) fn render(templates: &[&str], values: &[&str]) -> String {
    try_render(templates, values).unwrap_or_else(|why| panic!("helm: {why}"))
}

/// The rendered chart, or helm's error message.
fn try_render(templates: &[&str], values: &[&str]) -> Result<String, String> {
    let mut helm = Command::new(lab::cluster::helm());
    helm.args(["template", "gpu-steward", CHART, "--namespace", NAMESPACE]);
    helm.args(templates.iter().flat_map(|name| ["-s".to_owned(), format!("templates/{name}.yaml")]));
    helm.args(values.iter().flat_map(|value| ["--set", value]));
    let output = helm.output().expect("helm can be run");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8(output.stdout).expect("UTF-8"))
}

/// The manifests of accounts, rights and policies with these values.
fn rights(values: &[&str]) -> String {
    let mut templates = RIGHTS.to_vec();
    // helm reports an error for a template that renders nothing.
    if EXTRAS.iter().all(|extra| values.contains(extra)) {
        templates.extend(["guard/eviction", "guard/tokens"]);
    }
    render(&templates, values)
}

/// The annotation of the chart's namespace with the hash of the installed manifests.
const INSTALLED: &str = "gpu-steward.test/installed";

/// Applies accounts, rights and policies, and waits until the policies are in force. Does nothing if they are already
/// installed. A chart with [`EXTRAS`] is also good for a test without special values, because tests run in parallel.
pub(crate) fn install(cluster: &Cluster, values: &[&str]) {
    // The lock keeps two tests from creating the same objects.
    let _lock = lab::cluster::exclusive_lock("/run/lock/gpu-steward-cluster-chart");
    let admin = cluster.admin();
    let mark = |manifests: &str| {
        let mut hasher = DefaultHasher::new();
        manifests.hash(&mut hasher);
        format!("{:x}", hasher.finish())
    };
    let manifests = rights(values);
    let namespace_state =
        admin.run(&["get", "namespace", NAMESPACE, "-o", "jsonpath={.metadata.annotations}/{.status.phase}"]);
    let installed =
        |manifests: &str| namespace_state.out.contains(&mark(manifests)) && namespace_state.out.ends_with("/Active");
    if installed(&manifests) || (values.is_empty() && installed(&rights(&EXTRAS))) {
        return;
    }
    let _ = admin.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}")).ok();
    let _ = admin.apply(&manifests).ok();
    // A new policy comes into force some seconds after its creation. The test tries a write that the policy must refuse
    // until it is refused.
    let node = cluster.status().nodes.first().map_or(lab::vm::NODE, |node| &node.name);
    let kubelet = admin.impersonating(&format!("system:node:{node}"), &["system:nodes", "system:authenticated"]);
    eventually("the guard of keys", Duration::from_secs(30), || {
        let probe = ["annotate", "node", node, "hami.io/node-nvidia-register=probe", "--dry-run=server", "--overwrite"];
        let output = kubelet.run(&probe);
        output.err.contains("gpu-steward-system-keys").then_some(())
    });
    let unbound = cluster.caller(&token(&admin, AGENT, &[]));
    let patch = json!({ "metadata": { "annotations": { "probe": "1" } } });
    eventually("the guard of agents", Duration::from_secs(30), || {
        let answer = unbound.patch(&format!("/api/v1/nodes/{node}?dryRun=All"), &patch);
        answer.body["message"].as_str()?.contains("names no node").then_some(())
    });
    if values.contains(&EXTRAS[1]) {
        let unbound = cluster.bearer(&token(&admin, SERVICE, &[]));
        eventually("the guard of tokens", Duration::from_secs(30), || {
            unbound.run(&["create", "token", SERVICE, "-n", NAMESPACE]).err.contains("names no node").then_some(())
        });
    }
    let _ = admin
        .run(&["annotate", "--overwrite", "namespace", NAMESPACE, &format!("{INSTALLED}={}", mark(&manifests))])
        .ok();
}

/// Notes that helm has removed the chart, so that the next test installs it again.
pub(crate) fn uninstalled(cluster: &Cluster) {
    let _ = cluster.admin().run(&["annotate", "namespace", NAMESPACE, &format!("{INSTALLED}-")]).ok();
}

/// A token of an account, from `kubectl create token`.
pub(crate) fn token(by: &Kubectl, account: &str, more: &[&str]) -> String {
    let mut words = vec!["create", "token", account, "-n", NAMESPACE];
    words.extend(more);
    by.run(&words).ok().trim().to_owned()
}

/// A token of an account that is bound to this Node.
pub(crate) fn bound(cluster: &Cluster, account: &str, node: &str) -> String {
    token(&cluster.admin(), account, &["--bound-object-kind", "Node", "--bound-object-name", node])
}

/// The agent of a node, which has only a token that is bound to that Node.
pub(crate) fn agent_of(cluster: &Cluster, node: &str) -> Bearer {
    cluster.caller(&bound(cluster, AGENT, node))
}

/// A file of the tree.
fn text(path: &str) -> String {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
    std::fs::read_to_string(format!("{root}/{path}")).expect("a file of the tree")
}

/// Every key of `wire::annotation_keys`, with those that it takes from `model::nvidia`.
pub(crate) fn annotation_keys() -> Vec<String> {
    let (own, vendor) = (text("src/wire/annotation_keys.rs"), text("src/model/nvidia.rs"));
    let taken = own.split_once("pub use model::nvidia::{").and_then(|(_, rest)| rest.split_once('}'));
    let (taken, own) = taken.expect("the names of the vendor's keys");
    let constants = taken.split(',').map(str::trim).filter(|name| !name.is_empty()).map(|name| {
        let (_, value) =
            vendor.split_once(&format!("pub const {name}:")).unwrap_or_else(|| panic!("no constant {name}"));
        value.split_once(";\n").map_or(value, |(value, _)| value).to_owned()
    });
    let words = |text: &str| text.split('"').skip(1).step_by(2).map(str::to_owned).collect::<Vec<_>>();
    let all = constants.flat_map(|value| words(&value)).chain(words(own));
    // A test in the file names a path.
    all.filter(|word| word.contains('/') && !word.starts_with("..")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of the program is either guarded by the chart or listed here as free.
    #[test]
    fn each_key_is_guarded_or_free() {
        // A key of administrators, a key of another program, a key that is never written, a key of the Lease, which only the
        // extender's account may write, two keys that no program reads, a key whose value cannot be known before it is written,
        // and the keys of users.
        const FREE: [&str; 17] = [
            "hami.io/device-cordon",
            "nvidia.com/gfd.timestamp",
            "gpu-steward.io/guard-check",
            "gpu-steward.io/address",
            "gpu-steward.io/fence",
            "gpu-steward.io/wake",
            "gpu-steward.io/leads",
            "nvidia.com/use-gputype",
            "nvidia.com/nouse-gputype",
            "nvidia.com/use-gpuuuid",
            "nvidia.com/nouse-gpuuuid",
            "nvidia.com/numa-bind",
            "nvidia.com/vgpu-mode",
            "hami.io/node-scheduler-policy",
            "hami.io/gpu-scheduler-policy",
            "hami.io/device-scoring-weights",
            "hami.io/enable-realtime-check",
        ];
        let guarded = text("charts/gpu-steward/templates/guard/_keys.tpl");
        let keys = annotation_keys();
        assert!(keys.len() >= 13, "{keys:?}");
        for key in keys {
            let holds = guarded.contains(&format!("'{key}'"));
            assert!(holds != FREE.contains(&&*key), "{key}: guard it in _keys.tpl, or list it as free here");
        }
    }

    /// The chart's agents use the API server, and only those mount the folders of a device plugin.
    #[test]
    #[ignore = "needs helm: tests/run"]
    fn agents_use_the_api_server_unless_they_are_standalone() {
        let folders = ["/var/lib/kubelet/device-plugins", "/var/lib/kubelet/plugins_registry", "/var/run/cdi"];
        // The agent only reads these folders.
        let seen = [("/host/dev", "/dev", "Directory"), ("/etc/cdi", "/etc/cdi", "DirectoryOrCreate")];
        for (values, standalone) in
            [(&[][..], false), (&["agent.settings.v=4"], false), (&["agent.settings.standalone=true"], true)]
        {
            let text = render(&["agent/daemonset"], values);
            assert!(text.contains(&format!("- --standalone={standalone}\n")), "{text}");
            assert!(text.contains("{name: state, mountPath: /var/lib/gpu-steward}"), "{text}");
            for folder in folders {
                let mounted = text.contains(&format!("mountPath: {folder}}}"));
                let of_the_host = text.contains(&format!("hostPath: {{path: {folder}, type: DirectoryOrCreate}}"));
                assert_eq!((mounted, of_the_host), (!standalone, !standalone), "{folder}: {text}");
            }
            for (here, folder, kind) in seen {
                let mounted = text.contains(&format!("mountPath: {here}, readOnly: true}}"));
                let of_the_host = text.contains(&format!("hostPath: {{path: {folder}, type: {kind}}}"));
                assert_eq!((mounted, of_the_host), (!standalone, !standalone), "{folder}: {text}");
            }
        }
    }

    /// No account or right exists for a program that is not installed or does not need it.
    #[test]
    #[ignore = "needs helm: tests/run"]
    fn accounts_and_rights_come_with_the_workload_that_needs_them() {
        let whole = |values: &[&str]| render(&[], values);
        let bare = whole(&[]);
        for word in ["gpu-steward-extender", SERVICE, "serviceaccounts/token", "resources: [pods/eviction]", "leases"] {
            assert!(!bare.contains(word), "{word}: {bare}");
        }
        assert!(!bare.contains("resources: [pods/binding]"), "{bare}");
        let service = whole(&["service.enabled=true"]);
        // Only the account of agents under systemd may create tokens, and only for itself.
        let role = service.split("\n---").find(|object| object.contains("kind: Role\n")).expect("a Role");
        assert!(role.contains("resources: [serviceaccounts/token]"), "{role}");
        assert!(role.contains(&format!("resourceNames: [{SERVICE}]")), "{role}");
        assert!(whole(&["extender.enabled=true"]).contains("name: gpu-steward-extender"));
        // An extender may write to Nodes only if it must, and there one annotation only.
        for (assumes, rights) in [("false", "[get, list, watch]"), ("true", "[get, list, watch, patch]")] {
            let setting = format!("extender.settings.assume-annotation={assumes}");
            let text = whole(&["extender.enabled=true", &setting]);
            let mut objects = text.split("\n---");
            let of_extender =
                |object: &&str| object.contains("kind: ClusterRole\n") && object.contains("[pods/binding]");
            let role = objects.find(of_extender).expect("the ClusterRole of the extender");
            let nodes = role.split_once("resources: [nodes]").and_then(|(_, rest)| rest.split_once("- apiGroups"));
            assert!(nodes.expect("its rights on Nodes").0.contains(&format!("verbs: {rights}\n")), "{role}");
            assert_eq!(text.contains("name: gpu-steward-extender-nodes\n"), assumes == "true", "{text}");
        }
        let output = try_render(&[], &["guard.enabled=false"])
            .expect_err("an unguarded cluster without the flag that accepts it");
        assert!(output.contains("guard.acceptUnguarded=true") && output.contains("any GPU"), "{output}");
        let output = try_render(&[], &["service.enabled=true", "service.audiences=null"]).expect_err("no audience");
        assert!(output.contains("service.audiences is empty"), "{output}");
    }

    /// The runtime's socket makes an agent root on its node. Without its path the chart mounts neither the socket nor
    /// its volume.
    #[test]
    #[ignore = "needs helm: tests/run"]
    fn the_chart_mounts_the_runtimes_socket_only_if_it_is_named() {
        let text = |values: &[&str]| render(&["agent/daemonset"], values);
        let usual = text(&[]);
        assert!(
            usual.contains("{name: GPU_STEWARD_CRI_SOCKET, value: \"/run/containerd/containerd.sock\"}"),
            "{usual}"
        );
        assert_eq!(usual.matches("{name: runtime,").count(), 2, "{usual}");
        let without = text(&["agent.runtimeSocket="]);
        assert!(without.contains("{name: GPU_STEWARD_CRI_SOCKET, value: \"none\"}"), "{without}");
        assert!(!without.contains("{name: runtime,") && !without.contains("containerd"), "{without}");
    }

    /// With a certificate the agents' port serves HTTPS only, so the probes must use it too.
    #[test]
    #[ignore = "needs helm: tests/run"]
    fn with_a_certificate_the_port_and_its_probes_use_https() {
        for (values, scheme, mounts) in [(&[][..], "HTTP", 0), (&["agent.tlsSecret=steward-tls"], "HTTPS", 1)] {
            let text = render(&["agent/daemonset"], values);
            assert_eq!(text.matches(&format!("port: metrics, scheme: {scheme}}}")).count(), 2, "{values:?}: {text}");
            for part in [
                "{name: GPU_STEWARD_TLS_CERT, value: /etc/gpu-steward/tls/tls.crt}",
                "{name: GPU_STEWARD_TLS_KEY, value: /etc/gpu-steward/tls/tls.key}",
                "{name: tls, mountPath: /etc/gpu-steward/tls, readOnly: true}",
                "{name: tls, secret: {secretName: steward-tls, defaultMode: 0400}}",
            ] {
                assert_eq!(text.matches(part).count(), mounts, "{values:?} {part}: {text}");
            }
        }
    }

    /// The kernel log needs one capability, and neither a device nor a privileged container. By default the agent does
    /// not read it.
    #[test]
    #[ignore = "needs helm: tests/run"]
    fn the_chart_gives_access_to_the_kernel_log_only_if_it_is_switched_on() {
        const LIMITER: &str = "agent.limiterLibrary=/opt/hami/libvgpu.so";
        for (values, source, capabilities) in [
            (&[][..], "none", "{drop: [ALL]}"),
            (&["agent.kernelLog=false"], "none", "{drop: [ALL]}"),
            (&[LIMITER], "none", "{drop: [ALL], add: [DAC_OVERRIDE, FOWNER]}"),
            (&["agent.kernelLog=true"], "syslog", "{drop: [ALL], add: [SYSLOG]}"),
            (&["agent.kernelLog=true", "agent.settings.standalone=true"], "syslog", "{drop: [ALL], add: [SYSLOG]}"),
            (&["agent.kernelLog=true", LIMITER], "syslog", "{drop: [ALL], add: [DAC_OVERRIDE, FOWNER, SYSLOG]}"),
        ] {
            let text = render(&["agent/daemonset"], values);
            assert!(
                text.contains(&format!("{{name: GPU_STEWARD_KERNEL_LOG, value: {source}}}\n")),
                "{values:?}: {text}"
            );
            assert!(text.contains(&format!("capabilities: {capabilities}\n")), "{values:?}: {text}");
            assert!(text.contains("privileged: false\n") && !text.contains("path: /dev/kmsg"), "{values:?}: {text}");
        }
    }

    /// If the chart installs an extender, an agent under systemd gets everything to report to it: tokens of the extender's
    /// audience, the right to read the extenders' certificates, and access to the port.
    #[test]
    #[ignore = "needs helm: tests/run"]
    fn an_agent_under_systemd_may_report_to_the_extender_where_there_is_one() {
        let service = "service.enabled=true";
        for (values, reports) in [(&[service][..], false), (&[service, "extender.enabled=true"], true)] {
            let text = render(&["guard/tokens", "agent/rbac"], values);
            let audiences = if reports { ", 'gpu-steward'" } else { "" };
            let audiences = format!("['https://kubernetes.default.svc.cluster.local'{audiences}])) : []");
            assert!(text.contains(&audiences), "{text}");
            let role = text.split("\n---").find(|object| object.contains("kind: Role\n")).expect("a Role");
            assert_eq!(role.contains(&format!("resourceNames: [{EXTENDER}-ca]")), reports, "{role}");
            assert_eq!(role.contains("resources: [configmaps]"), reports, "{role}");
        }
        let values = ["extender.enabled=true", "networkPolicy.enabled=true"];
        let text = render(&["extender/network"], &values);
        assert!(!text.contains("ipBlock"), "{text}");
        let nodes = ["networkPolicy.nodes[0]=10.1.0.0/16", "networkPolicy.nodes[1]=fd00::/48"];
        let text = render(&["extender/network"], &[&values[..], &nodes].concat());
        for part in ["- ipBlock: {cidr: \"10.1.0.0/16\"}", "- ipBlock: {cidr: \"fd00::/48\"}"] {
            assert_eq!(text.matches(part).count(), 1, "{part}: {text}");
        }
        assert!(text.find("ipBlock") < text.find("port: streams"), "the rule opens the TLS port: {text}");
    }

    /// Only named peers may reach the agents' port.
    #[test]
    #[ignore = "needs cluster: tests/run"]
    fn only_named_peers_may_reach_the_agents_port() {
        let cluster = Cluster::shared();
        install(&cluster, &[]);
        assert!(!render(&[], &[]).contains("kind: NetworkPolicy"));
        let policy = |values: &[&str]| {
            let all = [&["networkPolicy.enabled=true"], values].concat();
            let output = cluster
                .admin()
                .run_with(&["create", "--dry-run=server", "-o", "json", "-f", "-"], &render(&["agent/network"], &all));
            serde_json::from_str::<Value>(&output.ok()).expect("JSON")["spec"].clone()
        };
        let no_peer = policy(&[]);
        assert!(no_peer["ingress"].as_array().is_none_or(Vec::is_empty), "{no_peer}");
        assert_eq!(no_peer["policyTypes"], json!(["Ingress"]));
        let selected = "networkPolicy.from[0].podSelector.matchLabels.app=prometheus";
        let ingress = policy(&[selected])["ingress"].clone();
        let expected = json!([{
            "from": [{ "podSelector": { "matchLabels": { "app": "prometheus" } } }],
            "ports": [{ "protocol": "TCP", "port": "metrics" }],
        }]);
        assert_eq!(ingress, expected);
        // The policy selects the pods of the DaemonSet, whose port has this name.
        let daemonset = render(&["agent/daemonset"], &[]);
        for (label, value) in no_peer["podSelector"]["matchLabels"].as_object().expect("labels") {
            assert!(daemonset.contains(&format!("{label}: {}", value.as_str().expect("text"))), "{label}: {daemonset}");
        }
        assert!(daemonset.contains("{name: metrics, containerPort: 9410}"), "{daemonset}");
    }

    /// The API server's type check of the policies has no warning for any kind of object that they match.
    #[test]
    #[ignore = "needs cluster: tests/run"]
    fn the_type_check_of_the_policies_has_no_warnings() {
        let cluster = Cluster::shared();
        install(&cluster, &EXTRAS);
        eventually("the types of all policies to be checked", Duration::from_secs(30), || {
            let policies = cluster.admin().get(&["validatingadmissionpolicies"]);
            let ours = |policy: &&Value| {
                policy["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("gpu-steward-"))
            };
            let policies: Vec<&Value> = policies["items"].as_array().expect("a list").iter().filter(ours).collect();
            assert_eq!(policies.len(), 7);
            policies.iter().all(|policy| policy["status"]["typeChecking"].is_object()).then(|| {
                for policy in &policies {
                    assert!(policy["status"]["typeChecking"]["expressionWarnings"].is_null(), "{policy:#}");
                }
            })
        });
    }

    /// helm accepts the whole chart, and the API server accepts everything that helm renders.
    #[test]
    #[ignore = "needs cluster: tests/run"]
    fn helm_and_the_api_server_accept_the_whole_chart() {
        let cluster = Cluster::shared();
        install(&cluster, &[]);
        let lint = Command::new(lab::cluster::helm()).args(["lint", "--strict", CHART]).output().expect("helm");
        assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
        let unusual = [
            "agent.runtimeClassName=nvidia",
            "agent.settings.gpus=simulated=H100:8",
            "agent.podLabels.a=b",
            "agent.podAnnotations.a=b",
            "agent.nodeSelector.gpu=on",
            "agent.env[0].name=A",
            "agent.env[0].value=b",
            "agent.limiterLibrary=/opt/hami/libvgpu.so",
            "agent.kernelLog=true",
            "agent.deviceConfig.configMap=hami-scheduler-device",
            "agent.nodeConfig.configMap=hami-device-plugin",
            EXTRAS[0],
            "service.enabled=true",
            "extender.enabled=true",
            "image.pullSecrets[0].name=secret",
            "guard.reserved.action=deny",
            "networkPolicy.enabled=true",
            "networkPolicy.from[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=monitoring",
            "networkPolicy.nodes[0]=10.1.0.0/16",
            "guard.users[0]=ann",
            "guard.groups[0]=ops",
            "guard.hami[0].namespace=kube-system",
            "guard.hami[0].name=hami-scheduler",
        ];
        for values in [&[][..], &unusual, &["guard.enabled=false", "guard.acceptUnguarded=true"]] {
            let output = cluster
                .admin()
                .run_with(&["apply", "--dry-run=server", "--validate=strict", "-f", "-"], &render(&[], values));
            let output = output.ok();
            assert!(output.contains("daemonset.apps/gpu-steward-agent"), "{output}");
        }
    }
}
