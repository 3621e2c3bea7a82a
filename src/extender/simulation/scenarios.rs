//! Scenes that the simulation found once, played again step by step.

use super::etcd::Kind;
use super::object::ContainerShape;
use super::world::World;
use decide::cluster::ClusterState;
use model::request::ContainerRole;

fn container(mib: u64) -> ContainerShape {
    ContainerShape { name: "main".to_owned(), role: ContainerRole::App, gpus: 1, mib, cores: 0 }
}

/// A cluster in which an extender leads.
fn led() -> World {
    let mut world = World::quiet(7);
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
    // From now on the extenders see nothing but what they read and are asked.
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
