//! Scenes that the simulation found once, played again step by step.

use super::etcd::Kind;
use super::object::ContainerShape;
use super::process::Process;
use super::weather::SECOND;
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
    world.api.etcd.pods().find(|pod| pod.node.is_some()).map(|pod| pod.name.clone())
}

fn started(world: &World) -> bool {
    world.api.etcd.pods().any(|pod| pod.started())
}

#[test]
fn a_pod_that_is_gone_before_a_watch_could_show_it_leaves_no_reservation() {
    let mut world = led();
    // From now on the extenders see nothing but what they read and are asked.
    world.held = true;
    world.create_pod(vec![container(4000)], None);
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
    world.create_pod(vec![container(4000)], None);
    let snapshot = world.api.etcd.snapshot();
    world.api.etcd_snapshots.push(snapshot);
    world.until("the pod has started", |world| started(world));
    world.restore();
    assert_eq!(bound(&world), None);
    assert_eq!(world.settle(), Ok(()));
    assert!(started(&world));
}

#[test]
fn a_binding_without_an_answer_is_not_written_again_while_the_agent_is_away() {
    let mut world = led();
    world.until("all agents report", |world| {
        let now = world.now;
        let leader = world.places.iter_mut().flat_map(|place| &mut place.process).find_map(|process| {
            let number = process.number;
            process.decides().then_some(number)
        });
        leader.is_some_and(|leader| world.reporters.iter().all(|reporter| reporter.reports_to(leader, now)))
    });
    world.weather.late_binding = 1000;
    world.create_pod(vec![container(4000)], None);
    let reserved = |process: &Process| {
        let node = |cluster: &ClusterState| {
            let mut nodes = cluster.nodes();
            nodes.find(|node| node.ledger().claims().next().is_some()).map(|node| node.name().to_string())
        };
        process.believes(node)
    };
    let node = |world: &World| world.places.iter().flat_map(|place| &place.process).find_map(reserved);
    world.until("a reservation", |world| node(world).is_some());
    let (node, back) = (node(&world).unwrap(), world.now + 60 * SECOND);
    world.machines.iter_mut().filter(|machine| machine.name == node).for_each(|machine| machine.agent_ends(back));
    // Each binding that is sent is checked.
    world.run_until(world.now + 40 * SECOND);
    assert_eq!(world.failed, None);
}
