//! Which node a pod with GPUs gets, which the extender and kube-scheduler decide together.

use crate::placed::{Placed, SETTLED, container, spec, workload};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

/// The chart value that makes the extender name two of the nodes that fit.
pub(crate) const ANSWERED: &str = "extender.settings.answered-nodes=2";

/// If the GPUs of the nodes differ, the GPUs decide, although kube-scheduler itself prefers the node with the most free CPU,
/// or with the pod's image. If the GPUs are equal, the pod's own preferences and the image decide. The extender names two of
/// the three nodes ([`ANSWERED`]), or all if the pod has preferences.
pub(crate) fn check_choices(placed: &Placed) {
    let nodes: Vec<&str> = placed.cluster.status().nodes.iter().map(|node| node.name.as_str()).collect();
    let choices = Choices { placed, nodes: &nodes };
    // kube-scheduler gives this node the lowest score, because the extender and kube-scheduler itself run there.
    let busy = placed.extender_node();
    let idle: Vec<usize> = (0..nodes.len()).filter(|place| nodes[*place] != busy).collect();
    let busy = choices.place(&busy);
    let image = choices.large_image(&[busy, idle[0]]);
    for (place, node) in nodes.iter().enumerate().rev() {
        let counts = choices.run("wish", 1, "binpack", |pod| prefers(pod, node));
        assert_eq!(counts[place], 1, "all nodes are empty, and the pod prefers {node}: {counts:?}");
        choices.check_named("wish", ALL);
        choices.gone();
    }
    choices.check_other_pods(busy);
    let mut packed = choices.run("packed", 8, "binpack", |_| ());
    packed.sort_unstable();
    assert_eq!(packed, [0, 0, 8], "binpack, although other nodes have more free CPU");
    choices.check_named("packed", TWO);
    choices.gone();
    let spread = choices.run("spread", 6, "spread", |pod| prefers(pod, nodes[0]));
    assert_eq!(spread, [2, 2, 2], "spread, although the pods prefer one node");
    choices.gone();
    choices.check_image(&image, (busy, &idle));
}

/// The start of the filter's event if all nodes are named.
const ALL: &str = "3 of 3 nodes fit, ";
/// The start of the filter's event if two nodes are named.
const TWO: &str = "2 of 3 nodes are named, ";

/// Which nodes are chosen for pods with one GPU.
struct Choices<'a> {
    placed: &'a Placed,
    nodes: &'a [&'a str],
}

/// Makes the pod prefer this node.
fn prefers(pod: &mut Value, node: &str) {
    pod["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = json!([{
        "weight": 100,
        "preference": { "matchExpressions": [{ "key": "kubernetes.io/hostname", "operator": "In", "values": [node] }] },
    }]);
}

impl Choices<'_> {
    fn place(&self, node: &str) -> usize {
        self.nodes.iter().position(|one| *one == node).expect("a node of the cluster")
    }

    /// Makes a Deployment without pods.
    fn create(&self, name: &str, policy: &str, change: impl FnOnce(&mut Value)) {
        let share = json!({ "nvidia.com/gpu": 1, "nvidia.com/gpumem": 2000, "cpu": "150m" });
        let mut pod = spec(&[container("main", &share)]);
        change(&mut pod);
        let mut deployment = workload("Deployment", name, &pod, &json!({ "replicas": 0 }));
        deployment["spec"]["template"]["metadata"]["annotations"] = json!({ "hami.io/node-scheduler-policy": policy });
        let space = &self.placed.space.name;
        let _ = self.placed.admin.run_with(&["create", "-n", space, "-f", "-"], &deployment.to_string()).ok();
    }

    /// Runs this many pods, and returns how many are on each node. The pods are created one after the other, because between a
    /// filter call and its bind the extender can only guess which of several equal nodes kube-scheduler chooses.
    fn run(&self, name: &str, replicas: usize, policy: &str, change: impl FnOnce(&mut Value)) -> Vec<usize> {
        self.create(name, policy, change);
        for replicas in 1..=replicas {
            self.placed.scale(name, replicas);
            self.placed.run(&format!("app={name}"), replicas);
        }
        self.counts(name)
    }

    /// How many pods of this Deployment are bound to each node.
    fn counts(&self, name: &str) -> Vec<usize> {
        let pods = self.placed.pods();
        let count = |node: &&str| {
            let here = |pod: &&Value| pod["spec"]["nodeName"] == **node && pod["metadata"]["labels"]["app"] == *name;
            pods.iter().filter(here).count()
        };
        self.nodes.iter().map(count).collect()
    }

    /// Removes all pods.
    fn gone(&self) {
        let space = &self.placed.space.name;
        let _ = self.placed.admin.run(&["delete", "deployments", "--all", "-n", space]).ok();
        let _ = self.placed.admin.run(&["delete", "pods", "-l", "app=other", "-n", space, "--now"]).ok();
        self.placed.empty();
    }

    /// Other pods are on all nodes but one, and the pod prefers to be away from them. No node has a pod with GPUs.
    fn check_other_pods(&self, free: usize) {
        let (space, others) = (&self.placed.space.name, json!({ "matchLabels": { "app": "other" } }));
        let (topology, selector) = ("kubernetes.io/hostname", &others);
        for (_, node) in self.nodes.iter().enumerate().filter(|(place, _)| *place != free) {
            let mut pod = spec(&[container("main", &json!({}))]);
            pod["nodeName"] = (*node).into();
            let metadata = json!({ "name": format!("other-{node}"), "labels": { "app": "other" } });
            let pod = json!({ "apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": pod });
            let _ = self.placed.admin.run_with(&["create", "-n", space, "-f", "-"], &pod.to_string()).ok();
        }
        self.placed.run("app=other", self.nodes.len() - 1);
        let apart = self.run("apart", 1, "binpack", |pod| {
            pod["topologySpreadConstraints"] = json!([{
                "maxSkew": 1, "topologyKey": topology, "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": selector,
            }]);
        });
        assert_eq!(apart[free], 1, "the pod spreads over the nodes: {apart:?}");
        self.check_named("apart", ALL);
        let _ = self.placed.admin.run(&["delete", "deployment", "apart", "-n", space]).ok();
        eventually("the end of the pod", SETTLED, || (self.counts("apart").iter().sum::<usize>() == 0).then_some(()));
        let away = self.run("away", 1, "binpack", |pod| {
            pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = json!([{
                "weight": 100, "podAffinityTerm": { "topologyKey": topology, "labelSelector": selector },
            }]);
        });
        assert_eq!(away[free], 1, "the pod avoids the other pods: {away:?}");
        self.check_named("away", ALL);
        self.gone();
    }

    /// Checks that the filter's event of a pod of this Deployment begins with this text.
    fn check_named(&self, name: &str, expected: &str) {
        let (space, prefix) = (&self.placed.space.name, format!("{name}-"));
        let note = eventually("the event of the filter", SETTLED, || {
            let events = self.placed.admin.get(&["events", "-n", space]);
            let mut all = events["items"].as_array()?.iter().filter(|event| event["reason"] == "FilteringSucceed");
            let of_it = |event: &&Value| {
                let pod = event["involvedObject"]["name"].as_str();
                pod.and_then(|pod| pod.strip_prefix(&prefix)).is_some_and(|rest| rest.matches('-').count() == 1)
            };
            all.find(of_it)?["message"].as_str().map(str::to_owned)
        });
        assert!(note.starts_with(expected), "{name}: {note}");
    }

    /// Makes a large image, which only these nodes have. It contains no program.
    fn large_image(&self, places: &[usize]) -> String {
        /// kube-scheduler counts two thirds of the size, because two of three nodes have the image, and ignores less than 23 MB.
        const BYTES: u64 = 240 << 20;
        let (name, dir) = ("registry.local/large:test", tempfile::tempdir().expect("a directory"));
        let path = dir.path().join("large");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(BYTES).expect("a large file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
        for place in places {
            self.placed.cluster.image_on(self.nodes[*place], name, path.to_str().expect("a path in UTF-8"));
        }
        name.to_owned()
    }

    /// If the GPUs of the nodes are equal, a pod gets a node with its image: of any two named nodes at least one has it. If a
    /// node without the image already has a pod with a GPU and the policy is binpack, the pod gets that node.
    fn check_image(&self, image: &str, (busy, idle): (usize, &[usize])) {
        let (with_image, without) = ([busy, idle[0]], idle[1]);
        eventually("the image in the status of its nodes", SETTLED, || {
            let has_it = |place: &usize| {
                let node = self.placed.admin.get(&["node", self.nodes[*place]]);
                let images = node["status"]["images"].as_array().cloned().unwrap_or_default();
                images.iter().flat_map(|one| one["names"].as_array()).flatten().any(|name| name == image)
            };
            with_image.iter().all(has_it).then_some(())
        });
        // On other nodes the image cannot be pulled, so the pod need not run.
        let bound = |name: &str| {
            self.create(name, "binpack", |pod| pod["containers"][0]["image"] = image.into());
            self.placed.scale(name, 1);
            let place =
                eventually("a node for the pod", SETTLED, || self.counts(name).iter().position(|count| *count == 1));
            self.check_named(name, TWO);
            place
        };
        for number in 0..3 {
            assert!(
                with_image.contains(&bound(&format!("image{number}"))),
                "all nodes are empty, and two have the image"
            );
            self.gone();
        }
        let first = self.run("first", 1, "binpack", |pod| prefers(pod, self.nodes[without]));
        assert_eq!(first[without], 1, "{first:?}");
        assert_eq!(bound("packed-image"), without, "binpack, although other nodes have the image");
        self.gone();
        for place in with_image {
            self.placed.cluster.remove_image_on(self.nodes[place], image);
        }
    }
}
