//! Which node a pod with GPUs gets: what the extender and kube-scheduler decide together.

use crate::placed::{Placed, SETTLED, container, spec, workload};
use lab::eventually::eventually;
use serde_json::{Value, json};
use std::os::unix::fs::PermissionsExt;

/// Where nodes differ for GPUs, these decide, although kube-scheduler itself prefers the node with the most free CPU, or with
/// the image of the pod; where nodes are equal for GPUs, the pod's own preferences decide, and the image.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn gpus_decide_among_nodes_and_equal_nodes_leave_the_choice_to_the_pod() {
    let placed = Placed::up("extender-order");
    let nodes: Vec<&str> = placed.cluster.status().nodes.iter().map(|node| node.name.as_str()).collect();
    let choices = Choices { placed: &placed, nodes: &nodes };
    // kube-scheduler likes this node least: the extender and kube-scheduler itself run there.
    let busy = placed.extender_node();
    let (busy, idle) = (choices.place(&busy), nodes.iter().position(|node| *node != busy).expect("another node"));
    let image = choices.large_image(idle);
    for (place, node) in nodes.iter().enumerate().rev() {
        let counts = choices.run("wish", 1, "binpack", |pod| prefers(pod, node));
        assert_eq!(counts[place], 1, "all nodes are empty, and the pod prefers {node}: {counts:?}");
        choices.gone();
    }
    choices.check_other_pods(busy);
    let mut packed = choices.run("packed", 8, "binpack", |_| ());
    packed.sort_unstable();
    assert_eq!(packed, [0, 0, 8], "binpack, although other nodes have more free CPU");
    choices.gone();
    let spread = choices.run("spread", 6, "spread", |pod| prefers(pod, nodes[0]));
    assert_eq!(spread, [2, 2, 2], "spread, although the pods prefer one node");
    choices.gone();
    choices.check_image(&image, (busy, idle));
}

/// Which nodes are chosen for pods with one GPU.
struct Choices<'a> {
    placed: &'a Placed,
    nodes: &'a [&'a str],
}

/// The pod prefers this node.
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

    /// Runs so many pods, and returns how many are on each node. One pod comes after the other: between a filter call and its
    /// bind the extender only guesses which one of equal nodes kube-scheduler chooses.
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

    /// Other pods are on all nodes but one, and the pod wants to be away from them. No node has a pod with GPUs.
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
        let _ = self.placed.admin.run(&["delete", "deployment", "apart", "-n", space]).ok();
        eventually("the end of the pod", SETTLED, || (self.counts("apart").iter().sum::<usize>() == 0).then_some(()));
        let away = self.run("away", 1, "binpack", |pod| {
            pod["affinity"]["podAntiAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"] = json!([{
                "weight": 100, "podAffinityTerm": { "topologyKey": topology, "labelSelector": selector },
            }]);
        });
        assert_eq!(away[free], 1, "the pod avoids the other pods: {away:?}");
        self.gone();
    }

    /// Makes a large image, which only this node has. It contains nothing that could run.
    fn large_image(&self, place: usize) -> String {
        /// kube-scheduler counts a third of it, because one of three nodes has it, and nothing below 23 MB.
        const BYTES: u64 = 240 << 20;
        let (name, dir) = ("registry.local/large:test", tempfile::tempdir().expect("a directory"));
        let path = dir.path().join("large");
        let file = std::fs::File::create(&path).expect("a file");
        file.set_len(BYTES).expect("a large file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("a program");
        self.placed.cluster.image_on(self.nodes[place], name, path.to_str().expect("a path in UTF-8"));
        name.to_owned()
    }

    /// A pod goes to the node with its image where nodes are equal for GPUs. It does not where another node has a pod with a
    /// GPU already and the pod wants to be packed.
    fn check_image(&self, image: &str, (busy, idle): (usize, usize)) {
        eventually("the image in the status of its node", SETTLED, || {
            let node = self.placed.admin.get(&["node", self.nodes[idle]]);
            let mut names =
                node["status"]["images"].as_array()?.iter().flat_map(|one| one["names"].as_array()).flatten();
            names.any(|name| name == image).then_some(())
        });
        // Elsewhere the image cannot be pulled, so the pod need not run.
        let bound = |name: &str| {
            self.create(name, "binpack", |pod| pod["containers"][0]["image"] = image.into());
            self.placed.scale(name, 1);
            eventually("a node for the pod", SETTLED, || self.counts(name).iter().position(|count| *count == 1))
        };
        assert_eq!(bound("image"), idle, "all nodes are empty, and one has the image");
        self.gone();
        let first = self.run("first", 1, "binpack", |pod| prefers(pod, self.nodes[busy]));
        assert_eq!(first[busy], 1, "{first:?}");
        assert_eq!(bound("packed-image"), busy, "binpack, although another node has the image");
        self.gone();
        self.placed.cluster.remove_image_on(self.nodes[idle], image);
    }
}
