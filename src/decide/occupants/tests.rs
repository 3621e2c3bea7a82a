//! Which pod is the sole holder of a GPU, and what does not change that.

use super::*;
use crate::fixtures;
use model::cgroup::{CgroupKind, CgroupSample, Qos, RuntimeKind};
use model::gpu::MigInstance;
use model::reading::Reading;
use model::time::Monotonic;
use model::view::{ContainerRates, ContainerView};

const AT: Monotonic = Monotonic(1);

fn uid(number: u8) -> PodUid {
    PodUid::parse(&format!("{number:032x}")).unwrap()
}

fn id(number: u8) -> ContainerId {
    ContainerId::parse(&format!("{number:064x}")).unwrap()
}

fn device(text: &str) -> GpuUuid {
    GpuUuid::parse(text).unwrap()
}

/// Container `number` of pod `number`.
fn identity(number: u8) -> Arc<CgroupIdentity> {
    let kind = CgroupKind::Container {
        pod: Some((uid(number), Qos::Burstable)),
        id: id(number),
        runtime: RuntimeKind::Containerd,
    };
    Arc::new(CgroupIdentity { path: format!("/kubepods/pod{number}/{number}").into(), kind })
}

/// A pod whose container `main` holds these devices.
fn pod(number: u8, holds: &[&str]) -> PodView {
    let main = ContainerView {
        id: id(number),
        cgroup: identity(number),
        name: Some("main".into()),
        sandbox: false,
        image: None,
        sample: CgroupSample::default(),
        rates: ContainerRates::default(),
        network: Reading::NOT_YET,
        gpus: Vec::new(),
        devices: Vec::new(),
        holds: holds.iter().map(|text| device(text)).collect(),
    };
    PodView {
        uid: uid(number),
        name: None,
        qos: None,
        cgroup: None,
        sample: CgroupSample::default(),
        rates: ContainerRates::default(),
        network: Reading::NOT_YET,
        containers: vec![main],
        gpus: Vec::new(),
    }
}

/// A GPU. With `instances`, pairs of GPU instance and compute instance, it is divided by MIG.
fn gpu(instances: &[(u32, u32)]) -> Gpu {
    let instance = |&(gpu_instance, compute_instance): &(u32, u32)| MigInstance {
        uuid: device(&format!("MIG-{gpu_instance}-{compute_instance}")),
        index: 0,
        gpu_instance,
        compute_instance,
        profile: "1c.2g.20gb".into(),
        memory_total: Reading::NOT_YET,
    };
    Gpu {
        mig_mode: Reading::Measured(!instances.is_empty(), AT),
        mig: Reading::Measured(instances.iter().map(instance).collect(), AT),
        ..fixtures::gpu(1)
    }
}

fn process(pid: u32, command: &str, kind: GpuProcessKind, owner: ProcessOwner) -> GpuProcess {
    GpuProcess {
        pid,
        key: None,
        command: command.into(),
        owner,
        kind,
        mig: None,
        memory_used: Reading::NOT_YET,
        sm: Reading::NOT_YET,
        encoder: Reading::NOT_YET,
        decoder: Reading::NOT_YET,
    }
}

fn of_pod(pid: u32, number: u8) -> GpuProcess {
    process(pid, "python3", GpuProcessKind::Compute, ProcessOwner::Cgroup(identity(number)))
}

fn unknown(pid: u32) -> GpuProcess {
    process(pid, "", GpuProcessKind::Compute, ProcessOwner::Unknown)
}

/// The sole holder of an undivided GPU after each of these lists.
fn after_each(lists: &[&[GpuProcess]], pods: &[PodView]) -> Vec<Option<PodUid>> {
    let mut occupants = Occupants::default();
    let mut named = Vec::new();
    for list in lists {
        occupants.replace(list, 0);
        named.push(occupants.sole_holders(&gpu(&[]), pods, |_| true).gpu.map(|holder| holder.pod));
    }
    named
}

#[test]
fn servers_do_not_end_sole_holding_and_other_host_programs_do() {
    use GpuProcessKind::{Compute, Graphics, Mps};
    let pods = [pod(1, &[]), pod(2, &[])];
    for (other, named) in [
        (process(9, "Xorg", Graphics, ProcessOwner::Host), true),
        (process(9, "gnome-shell", Graphics, ProcessOwner::Host), true),
        (process(9, "nvidia-cuda-mps", Compute, ProcessOwner::Host), true),
        (process(9, "blender", Graphics, ProcessOwner::Host), false),
        (process(9, "Xorg", Compute, ProcessOwner::Host), false),
        (process(9, "train", Compute, ProcessOwner::Host), false),
        (process(9, "Xorg", Graphics, ProcessOwner::Cgroup(identity(2))), false),
        // In a pod, an MPS server counts as a server only if MPS serves other processes.
        (process(9, "nvidia-cuda-mps", Compute, ProcessOwner::Cgroup(identity(2))), false),
        (process(9, "nvidia-cuda-mps", Mps, ProcessOwner::Cgroup(identity(2))), false),
    ] {
        let list = [of_pod(1, 1), other];
        assert_eq!(after_each(&[&list], &pods), [named.then(|| uid(1))], "{list:?}");
    }
    let served = [
        process(1, "python3", Mps, ProcessOwner::Cgroup(identity(1))),
        process(9, "nvidia-cuda-mps", Compute, ProcessOwner::Cgroup(identity(2))),
    ];
    assert_eq!(after_each(&[&served], &pods), [Some(uid(1))], "the server's pod is not a second one");
}

#[test]
fn a_process_that_is_unidentified_in_one_list_does_not_change_the_sole_holder() {
    let pods = [pod(1, &[]), pod(2, &[])];
    let known = [of_pod(1, 1)];
    let news = [of_pod(1, 1), unknown(7)];
    let (one, none) = (Some(uid(1)), None);
    assert_eq!(
        after_each(&[&known, &news, &known, &news, &news, &known], &pods),
        [one.clone(), one.clone(), one.clone(), one.clone(), none.clone(), one.clone()],
        "in a second list it counts"
    );
    assert_eq!(
        after_each(&[&news, &news], &pods),
        [none.clone(), none.clone()],
        "before the first list no owner is known"
    );
    // An unidentified process keeps its pod for one list, so a shared GPU does not get a sole holder.
    let shared = [of_pod(1, 1), of_pod(2, 2)];
    let blurred = [of_pod(1, 1), unknown(2)];
    assert_eq!(after_each(&[&shared, &blurred, &blurred], &pods), [none.clone(), none.clone(), none.clone()]);
    let own = [unknown(1)];
    assert_eq!(after_each(&[&known, &own, &own], &pods), [one.clone(), one, none], "and its own process stays its own");
}

#[test]
fn an_idle_instance_has_the_pod_that_the_kubelet_gave_it_to_and_the_divided_gpu_has_no_holder() {
    let pods = [pod(1, &["MIG-1-0"]), pod(2, &["MIG-3-0"]), pod(3, &["MIG-3-1"]), pod(4, &["MIG-5-1"])];
    let divided = gpu(&[(1, 0), (3, 0), (3, 1), (5, 0), (5, 1), (7, 0)]);
    let mut occupants = Occupants::default();
    occupants.replace(&[], 0);
    let sole_holders = occupants.sole_holders(&divided, &pods, |_| true);
    let instances: Vec<_> = sole_holders.instances.iter().map(|(id, holder)| (*id, holder.pod.clone())).collect();
    // Two pods have one compute instance each of GPU instance 3, and no pod has GPU instance 7.
    assert_eq!((sole_holders.gpu, instances), (None, vec![(1, uid(1)), (5, uid(4))]));
    let alone = occupants.sole_holders(&gpu(&[(1, 0)]), &pods[..1], |_| true);
    assert_eq!(alone.gpu, None, "a pod on the only instance does not have the power of the whole GPU");
    assert_eq!(alone.instances, [(1, SoleHolder { pod: uid(1), container: Some("main".into()) })]);
    // Another process in the same GPU instance removes the name; one in another instance does not.
    let stranger = |mig: &str| GpuProcess {
        mig: Some(device(mig)),
        ..process(9, "train", GpuProcessKind::Compute, ProcessOwner::Host)
    };
    occupants.replace(&[stranger("MIG-5-0")], 0);
    let sole_holders = occupants.sole_holders(&divided, &pods, |_| true);
    assert_eq!(sole_holders.instances.iter().map(|(id, _)| *id).collect::<Vec<_>>(), [1]);
}

#[test]
fn cgroups_that_are_gone_do_not_count_and_processes_beyond_the_bound_may() {
    let pods = [pod(1, &[])];
    let mut occupants = Occupants::default();
    occupants.replace(&[of_pod(1, 1), of_pod(2, 2)], 0);
    let living = |identity: &CgroupIdentity| identity.pod() == Some(&uid(1));
    assert_eq!(occupants.sole_holders(&gpu(&[]), &pods, living).gpu.unwrap().container.as_deref(), Some("main"));
    assert_eq!(occupants.sole_holders(&gpu(&[]), &pods, |_| false), SoleHolders::default());
    occupants.replace(&[of_pod(1, 1)], 3);
    assert_eq!(occupants.sole_holders(&gpu(&[]), &pods, living), SoleHolders::default());
}
