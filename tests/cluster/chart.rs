//! The chart's accounts, rights and policies on the real cluster, as helm renders them: what runs under test gets its
//! rights from nowhere else.

use lab::bearer::Bearer;
use lab::cluster::Cluster;
use lab::eventually::eventually;
use lab::kubectl::Kubectl;
use serde_json::{Value, json};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::process::Command;
use std::time::Duration;

/// Where the chart is installed.
pub(crate) const NAMESPACE: &str = "gpu-steward";
pub(crate) const AGENT: &str = "gpu-steward-agent";
/// The account of agents under systemd.
pub(crate) const SERVICE: &str = "gpu-steward-service";
/// Everything of the chart that needs no image.
const RIGHTS: [&str; 6] = ["accounts", "agent/rbac", "guard/access", "guard/keys", "guard/agent", "guard/reserved"];
/// What is there only where it is asked for: agents evict pods that use more than they were promised, and renew their tokens.
pub(crate) const EXTRAS: [&str; 3] = [
    "agent.settings.evict-over-use=true",
    "service.enabled=true",
    "service.audiences[0]=https://kubernetes.default.svc",
];
pub(crate) const CHART: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../charts/gpu-steward");

/// Renders the chart with these values (`guard.hami[0].name=…`).
pub(crate) fn render(cluster: &Cluster, templates: &[&str], values: &[&str]) -> String {
    rendered(cluster, templates, values).unwrap_or_else(|why| panic!("helm: {why}"))
}

/// The same, or what helm says against it.
pub(crate) fn rendered(cluster: &Cluster, templates: &[&str], values: &[&str]) -> Result<String, String> {
    let mut helm = Command::new(cluster.program("helm"));
    helm.args(["template", "gpu-steward", CHART, "--namespace", NAMESPACE]);
    helm.args(templates.iter().flat_map(|name| ["-s".to_owned(), format!("templates/{name}.yaml")]));
    helm.args(values.iter().flat_map(|value| ["--set", value]));
    let output = helm.output().expect("helm can be run");
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned());
    }
    Ok(String::from_utf8(output.stdout).expect("UTF-8"))
}

/// Accounts, rights and policies with these values, in text.
fn rights(cluster: &Cluster, values: &[&str]) -> String {
    let mut templates = RIGHTS.to_vec();
    // helm takes a template that makes nothing for one that is not there.
    if EXTRAS.iter().all(|extra| values.contains(extra)) {
        templates.extend(["guard/eviction", "guard/tokens"]);
    }
    render(cluster, &templates, values)
}

/// Applies accounts, rights and policies, and waits until the policies hold. What is there already is left as it is; for who
/// asks for nothing special, so is a chart with [`EXTRAS`]: tests go side by side.
pub(crate) fn install(cluster: &Cluster, values: &[&str]) {
    const INSTALLED: &str = "gpu-steward.test/installed";
    // Two at once would make the same objects.
    let _turn = lab::cluster::alone("/run/lock/gpu-steward-cluster-chart");
    let admin = cluster.admin();
    let mark = |manifests: &str| {
        let mut hasher = DefaultHasher::new();
        manifests.hash(&mut hasher);
        format!("{:x}", hasher.finish())
    };
    let manifests = rights(cluster, values);
    let there = admin.run(&["get", "namespace", NAMESPACE, "-o", "jsonpath={.metadata.annotations}/{.status.phase}"]);
    let installed = |manifests: &str| there.out.contains(&mark(manifests)) && there.out.ends_with("/Active");
    if installed(&manifests) || (values.is_empty() && installed(&rights(cluster, &EXTRAS))) {
        return;
    }
    let _ = admin.apply(&format!("{{apiVersion: v1, kind: Namespace, metadata: {{name: {NAMESPACE}}}}}")).ok();
    let _ = admin.apply(&manifests).ok();
    // A new policy holds some seconds after it was taken. A write that every one of them must refuse tells.
    let node = cluster.status().nodes.first().map_or(lab::vm::NODE, |node| &node.name);
    let kubelet = admin.posing_as(&format!("system:node:{node}"), &["system:nodes", "system:authenticated"]);
    eventually("the guard of keys", Duration::from_secs(30), || {
        let probe = ["annotate", "node", node, "hami.io/node-nvidia-register=probe", "--dry-run=server", "--overwrite"];
        let said = kubelet.run(&probe);
        said.err.contains("gpu-steward-system-keys").then_some(())
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

/// A token of an account, as `kubectl create token` gets it.
pub(crate) fn token(by: &Kubectl, account: &str, more: &[&str]) -> String {
    let mut words = vec!["create", "token", account, "-n", NAMESPACE];
    words.extend(more);
    by.run(&words).ok().trim().to_owned()
}

/// A token of an account that is bound to this Node.
pub(crate) fn bound(cluster: &Cluster, account: &str, node: &str) -> String {
    token(&cluster.admin(), account, &["--bound-object-kind", "Node", "--bound-object-name", node])
}

/// The agent of a node: a token bound to that Node, and nothing else.
pub(crate) fn agent_of(cluster: &Cluster, node: &str) -> Bearer {
    cluster.caller(&bound(cluster, AGENT, node))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every key of the program is either guarded by the chart or free on purpose.
    #[test]
    fn each_key_is_guarded_or_free() {
        // An operator's, another program's, and one that is never written.
        const FREE: [&str; 3] = ["hami.io/device-cordon", "nvidia.com/gfd.timestamp", "gpu-steward.io/guard-check"];
        let root = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let text = |path: &str| std::fs::read_to_string(format!("{root}/{path}")).expect("a file of the tree");
        let guarded = text("charts/gpu-steward/templates/guard/_keys.tpl");
        let keys = text("src/wire/annotation_keys.rs");
        let keys: Vec<&str> = keys
            .split('"')
            .skip(1)
            .step_by(2)
            // Its own test names a file.
            .filter(|word| word.contains('/') && !word.starts_with(".."))
            .collect();
        assert!(keys.len() >= 13, "{keys:?}");
        for key in keys {
            let holds = guarded.contains(&format!("'{key}'"));
            assert!(holds != FREE.contains(&key), "{key}: guard it in _keys.tpl, or list it as free here");
        }
    }

    /// The chart's agents use the API server; the folders of a device plugin are there for those only.
    #[test]
    #[ignore = "needs cluster: tests/run"]
    fn agents_follow_the_api_server_unless_they_stand_alone() {
        let cluster = Cluster::shared();
        let folders = ["/var/lib/kubelet/device-plugins", "/var/lib/kubelet/plugins_registry", "/var/run/cdi"];
        // Looked at, never written to.
        let seen = [("/host/dev", "/dev", "Directory"), ("/etc/cdi", "/etc/cdi", "DirectoryOrCreate")];
        for (values, alone) in
            [(&[][..], false), (&["agent.settings.v=4"], false), (&["agent.settings.standalone=true"], true)]
        {
            let text = render(&cluster, &["agent/daemonset"], values);
            assert!(text.contains(&format!("- --standalone={alone}\n")), "{text}");
            assert!(text.contains("{name: state, mountPath: /var/lib/gpu-steward}"), "{text}");
            for folder in folders {
                let mounted = text.contains(&format!("mountPath: {folder}}}"));
                let of_the_host = text.contains(&format!("hostPath: {{path: {folder}, type: DirectoryOrCreate}}"));
                assert_eq!((mounted, of_the_host), (!alone, !alone), "{folder}: {text}");
            }
            for (here, folder, kind) in seen {
                let mounted = text.contains(&format!("mountPath: {here}, readOnly: true}}"));
                let of_the_host = text.contains(&format!("hostPath: {{path: {folder}, type: {kind}}}"));
                assert_eq!((mounted, of_the_host), (!alone, !alone), "{folder}: {text}");
            }
        }
    }

    /// Nothing may act as a program that is not there, and no right is there that nothing needs.
    #[test]
    #[ignore = "needs cluster: tests/run"]
    fn accounts_and_rights_come_with_the_workload_that_needs_them() {
        let cluster = Cluster::shared();
        let whole = |values: &[&str]| render(&cluster, &[], values);
        let bare = whole(&[]);
        for word in ["gpu-steward-extender", SERVICE, "serviceaccounts/token", "resources: [pods/eviction]", "leases"] {
            assert!(!bare.contains(word), "{word}: {bare}");
        }
        assert!(!bare.contains("resources: [pods/binding]"), "{bare}");
        let service = whole(&["service.enabled=true"]);
        // Only the account of agents under systemd may ask for tokens, and only for its own.
        let asks = service.split("\n---").find(|object| object.contains("kind: Role\n")).expect("a Role");
        assert!(asks.contains("resources: [serviceaccounts/token]"), "{asks}");
        assert!(asks.contains(&format!("resourceNames: [{SERVICE}]")), "{asks}");
        assert!(whole(&["extender.enabled=true"]).contains("name: gpu-steward-extender"));
        let said =
            rendered(&cluster, &[], &["guard.enabled=false"]).expect_err("an unguarded cluster that nobody asked for");
        assert!(said.contains("guard.acceptUnguarded=true") && said.contains("any GPU"), "{said}");
        let said =
            rendered(&cluster, &[], &["service.enabled=true", "service.audiences=null"]).expect_err("no audience");
        assert!(said.contains("service.audiences is empty"), "{said}");
    }

    /// The runtime's socket makes an agent root on its node: who does not want that leaves it out, and the volume with it.
    #[test]
    #[ignore = "needs cluster: tests/run"]
    fn the_runtimes_socket_is_mounted_only_where_it_is_named() {
        let cluster = Cluster::shared();
        let text = |values: &[&str]| render(&cluster, &["agent/daemonset"], values);
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

    /// The kernel log needs one capability, and neither a device nor a privileged container; by default it is not read.
    #[test]
    #[ignore = "needs cluster: tests/run"]
    fn the_kernel_log_is_read_only_where_it_is_switched_on() {
        const LIMITER: &str = "agent.limiterLibrary=/opt/hami/libvgpu.so";
        let cluster = Cluster::shared();
        for (values, source, capabilities) in [
            (&[][..], "none", "{drop: [ALL]}"),
            (&["agent.kernelLog=false"], "none", "{drop: [ALL]}"),
            (&[LIMITER], "none", "{drop: [ALL], add: [DAC_OVERRIDE, FOWNER]}"),
            (&["agent.kernelLog=true"], "syslog", "{drop: [ALL], add: [SYSLOG]}"),
            (&["agent.kernelLog=true", "agent.settings.standalone=true"], "syslog", "{drop: [ALL], add: [SYSLOG]}"),
            (&["agent.kernelLog=true", LIMITER], "syslog", "{drop: [ALL], add: [DAC_OVERRIDE, FOWNER, SYSLOG]}"),
        ] {
            let text = render(&cluster, &["agent/daemonset"], values);
            assert!(
                text.contains(&format!("{{name: GPU_STEWARD_KERNEL_LOG, value: {source}}}\n")),
                "{values:?}: {text}"
            );
            assert!(text.contains(&format!("capabilities: {capabilities}\n")), "{values:?}: {text}");
            assert!(text.contains("privileged: false\n") && !text.contains("path: /dev/kmsg"), "{values:?}: {text}");
        }
    }

    /// What reaches the agents' port is what is named.
    #[test]
    #[ignore = "needs cluster: tests/run"]
    fn only_named_peers_reach_an_agents_port() {
        let cluster = Cluster::shared();
        install(&cluster, &[]);
        assert!(!render(&cluster, &[], &[]).contains("kind: NetworkPolicy"));
        let policy = |values: &[&str]| {
            let all = [&["networkPolicy.enabled=true"], values].concat();
            let said = cluster.admin().run_with(
                &["create", "--dry-run=server", "-o", "json", "-f", "-"],
                &render(&cluster, &["agent/network"], &all),
            );
            serde_json::from_str::<Value>(&said.ok()).expect("JSON")["spec"].clone()
        };
        let nobody = policy(&[]);
        assert!(nobody["ingress"].as_array().is_none_or(Vec::is_empty), "{nobody}");
        assert_eq!(nobody["policyTypes"], json!(["Ingress"]));
        let selected = "networkPolicy.from[0].podSelector.matchLabels.app=prometheus";
        let ingress = policy(&[selected])["ingress"].clone();
        let expected = json!([{
            "from": [{ "podSelector": { "matchLabels": { "app": "prometheus" } } }],
            "ports": [{ "protocol": "TCP", "port": "metrics" }],
        }]);
        assert_eq!(ingress, expected);
        // It is about the pods of the DaemonSet, whose port has that name.
        let daemonset = render(&cluster, &["agent/daemonset"], &[]);
        for (label, value) in nobody["podSelector"]["matchLabels"].as_object().expect("labels") {
            assert!(daemonset.contains(&format!("{label}: {}", value.as_str().expect("text"))), "{label}: {daemonset}");
        }
        assert!(daemonset.contains("{name: metrics, containerPort: 9410}"), "{daemonset}");
    }

    /// The API server understands every expression of the policies for every object it can meet.
    #[test]
    #[ignore = "needs cluster: tests/run"]
    fn the_policies_have_no_warnings() {
        let cluster = Cluster::shared();
        install(&cluster, &EXTRAS);
        eventually("the types of all policies to be checked", Duration::from_secs(30), || {
            let policies = cluster.admin().get(&["validatingadmissionpolicies"]);
            let ours = |policy: &&Value| {
                policy["metadata"]["name"].as_str().is_some_and(|name| name.starts_with("gpu-steward-"))
            };
            let policies: Vec<&Value> = policies["items"].as_array().expect("a list").iter().filter(ours).collect();
            assert_eq!(policies.len(), 6);
            policies.iter().all(|policy| policy["status"]["typeChecking"].is_object()).then(|| {
                for policy in &policies {
                    assert!(policy["status"]["typeChecking"]["expressionWarnings"].is_null(), "{policy:#}");
                }
            })
        });
    }

    /// helm takes the whole chart, and the API server takes all that helm makes of it.
    #[test]
    #[ignore = "needs cluster: tests/run"]
    fn all_of_the_chart_is_taken() {
        let cluster = Cluster::shared();
        install(&cluster, &[]);
        let lint = Command::new(cluster.program("helm")).args(["lint", "--strict", CHART]).output().expect("helm");
        assert!(lint.status.success(), "{}", String::from_utf8_lossy(&lint.stdout));
        let odd = [
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
            EXTRAS[0],
            "service.enabled=true",
            "extender.enabled=true",
            "extender.gpuPreemption=true",
            "image.pullSecrets[0].name=secret",
            "guard.reserved.action=deny",
            "networkPolicy.enabled=true",
            "networkPolicy.from[0].namespaceSelector.matchLabels.kubernetes\\.io/metadata\\.name=monitoring",
            "guard.users[0]=ann",
            "guard.groups[0]=ops",
            "guard.hami[0].namespace=kube-system",
            "guard.hami[0].name=hami-scheduler",
        ];
        for values in [&[][..], &odd, &["guard.enabled=false", "guard.acceptUnguarded=true"]] {
            let said = cluster.admin().run_with(
                &["apply", "--dry-run=server", "--validate=strict", "-f", "-"],
                &render(&cluster, &[], values),
            );
            let said = said.ok();
            assert!(said.contains("daemonset.apps/gpu-steward-agent"), "{said}");
        }
    }
}
