//! Scenes that the simulation found once, played again step by step.

use super::etcd::Kind;
use super::machine::Lingering;
use super::object::ContainerShape;
use super::weather::{MS, SECOND};
use super::world::World;
use decide::cluster::ClusterState;
use model::request::ContainerRole;

fn container(mib: u64) -> ContainerShape {
    ContainerShape { name: "main".to_owned(), role: ContainerRole::App, gpus: 1, mib, cores: 0 }
}

/// A cluster in which an extender leads. With this seed it has three machines with a GPU each and no static pods.
fn led() -> World {
    let mut world = World::quiet(3);
    world.until("an extender leads", World::led);
    world.until("the extenders know all GPUs", |world| {
        let machines = world.machines.len();
        let known = |cluster: &ClusterState| cluster.nodes().filter(|node| !node.devices().devices.is_empty()).count();
        world.places.iter().flat_map(|place| &place.process).all(|process| process.believes(known) == machines)
    });
    world
}

fn bound(world: &World) -> Option<String> {
    world
        .api
        .etcd
        .pods()
        .find(|pod| pod.node.is_some() && !pod.is_extender() && pod.hash.is_none())
        .map(|pod| pod.name.clone())
}

fn started(world: &World) -> bool {
    world.api.etcd.pods().any(|pod| pod.started())
}

#[test]
fn a_pod_that_is_gone_before_a_watch_could_show_it_leaves_no_reservation() {
    let mut world = led();
    // From now on the extenders see only what they read and are asked.
    world.held = true;
    world.create_pod(vec![container(4000)], |pod| pod);
    world.until("the pod is bound", |world| bound(world).is_some());
    let name = bound(&world).unwrap();
    world.api.etcd.delete(Kind::Pods, &name);
    let version = world.api.etcd.version;
    world.api.etcd.compact(version);
    for watch in world.api.watches.keys().copied().collect::<Vec<_>>() {
        world.api.end_watch(watch, true);
    }
    world.held = false;
    assert_eq!(world.settle(), Ok(()));
}

#[test]
fn a_refused_pod_is_bound_when_processes_end_of_which_kube_scheduler_sees_nothing() {
    const WHOLE: u64 = super::machine::MIB;
    let mut world = led();
    let gpus: usize = world.machines.iter().map(|machine| machine.gpus.len()).sum();
    (0..gpus).for_each(|_| world.create_pod(vec![container(WHOLE)], |pod| pod));
    let all_run = |world: &mut World| world.api.etcd.pods().filter(|pod| pod.started()).count() == gpus;
    world.until("a pod runs on each GPU", all_run);
    world.create_pod(vec![container(WHOLE)], |pod| pod);
    let (last, refused) = (format!("pod-{}", world.made % 40), world.now + 5 * SECOND);
    world.run_until(refused);
    let is_bound = |world: &World| world.api.etcd.pod(&last).is_some_and(|pod| pod.node.is_some());
    assert!(!is_bound(&world));
    // A pod is gone, and its processes run on for a while; the machine may change for how long.
    let mut until = world.now + 4 * SECOND;
    let machine = world.machines.iter_mut().find(|machine| machine.admitted.values().any(|one| one.runs())).unwrap();
    let (uid, one) = machine.admitted.iter().find(|(_, one)| one.runs()).unwrap();
    let (uid, name) = (uid.clone(), one.pod.name.clone());
    let lingering = Lingering { gpus: one.gpus(), idle: one.is_idle(), until };
    machine.lingering.insert(uid.clone(), lingering);
    world.api.etcd.delete(Kind::Pods, &name);
    world.until("the pod is bound", |world| {
        let mut machines = world.machines.iter();
        until = machines.find_map(|machine| machine.lingering.get(&uid)).map_or(until, |one| one.until);
        is_bound(world)
    });
    assert!(world.now > until && world.now < until + 3 * SECOND, "{} ms", (world.now - until) / MS);
}

#[test]
fn a_refused_pod_is_bound_when_a_stranger_leaves_of_which_kube_scheduler_sees_nothing() {
    const WHOLE: u64 = super::machine::MIB;
    let mut world = led();
    for machine in &mut world.machines {
        machine.strangers = machine.gpus.iter().map(|gpu| (gpu.uuid.clone(), WHOLE / 2)).collect();
    }
    let all_taken = |cluster: &ClusterState| {
        let mut devices = cluster.nodes().flat_map(|node| &node.devices().devices);
        devices.all(|device| device.beyond.taken.0 > 0)
    };
    world.until("the leader knows the strangers", |world| {
        world.places.iter().flat_map(|place| &place.process).any(|process| process.believes(all_taken))
    });
    world.create_pod(vec![container(WHOLE)], |pod| pod);
    let (last, refused) = (format!("pod-{}", world.made % 40), world.now + 5 * SECOND);
    world.run_until(refused);
    let is_bound = |world: &World| world.api.etcd.pod(&last).is_some_and(|pod| pod.node.is_some());
    assert!(!is_bound(&world));
    world.machines.iter_mut().for_each(|machine| machine.strangers.clear());
    world.until("the pod is bound", |world| is_bound(world));
    assert!(world.now < refused + 5 * SECOND, "{} ms", (world.now - refused) / MS);
    assert_eq!(world.settle(), Ok(()));
}

#[test]
fn a_pod_that_a_restore_of_etcd_took_from_its_node_is_bound_again() {
    let mut world = led();
    world.create_pod(vec![container(4000)], |pod| pod);
    let snapshot = world.api.etcd.snapshot();
    world.api.etcd_snapshots.push(snapshot);
    world.until("the pod has started", |world| started(world));
    world.restore();
    assert_eq!(bound(&world), None);
    assert_eq!(world.settle(), Ok(()));
    assert!(started(&world));
}

/// The UIDs of a Node in which the extenders believe.
fn believed_uids(world: &World, name: &str) -> Vec<Option<String>> {
    let uid = |cluster: &ClusterState| {
        let node = cluster.node(&super::invariants::node_name(name));
        node.and_then(|node| node.uid()).map(|uid| uid.to_string())
    };
    world.places.iter().flat_map(|place| &place.process).map(|process| process.believes(uid)).collect()
}

#[test]
fn a_node_that_a_restore_of_etcd_brings_back_before_it_was_proven_gone_is_known() {
    let mut world = led();
    let (name, snapshot) = (world.machines[0].name.clone(), world.api.etcd.snapshot());
    world.api.etcd_snapshots.push(snapshot);
    let before = believed_uids(&world, &name);
    // The extenders see the new Node in a list, which proves nothing about the earlier one.
    world.held = true;
    world.api.etcd.delete(Kind::Nodes, &name);
    let World { machines, api, random, .. } = &mut world;
    machines[0].boots(api, random);
    let version = world.api.etcd.version;
    world.api.etcd.compact(version);
    for watch in world.api.watches.keys().copied().collect::<Vec<_>>() {
        world.api.end_watch(watch, true);
    }
    let mut listed = false;
    while !listed {
        let next = world.now + MS;
        world.run_until(next);
        listed = believed_uids(&world, &name).iter().zip(&before).any(|(now, before)| now != before);
    }
    world.restore();
    world.held = false;
    assert_eq!(world.settle(), Ok(()));
    assert_eq!(believed_uids(&world, &name)[..before.len()], before);
}
