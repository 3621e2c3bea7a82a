//! The configuration of a kube-scheduler that calls the extender: `KubeSchedulerConfiguration` of
//! `kubescheduler.config.k8s.io/v1`, which `print-config kube-scheduler` prints.

use crate::resource::ResourceNames;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};

/// A configuration with which kube-scheduler places the pods with this `schedulerName`, and calls the extender at this address for
/// pods that request these resources.
///
/// kube-scheduler also counts the number of GPUs itself, so that it binds no pod to a node whose device plugin is not
/// running. The other resources exist only in pods: no node offers them.
#[must_use]
pub fn encode(scheduler: &str, listen: SocketAddr, names: &ResourceNames) -> String {
    let mut address = listen;
    if address.ip().is_unspecified() {
        address.set_ip(if address.is_ipv4() { Ipv4Addr::LOCALHOST.into() } else { Ipv6Addr::LOCALHOST.into() });
    }
    let ResourceNames { count, memory, memory_percentage, cores, priority } = names;
    format!(
        "apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: gpu-steward-scheduler
# Pods with schedulerName: {scheduler} are placed by this kube-scheduler.
profiles:
  - schedulerName: {scheduler}
# The extender must see every node that could fit, not a sample.
percentageOfNodesToScore: 100
# An extender's answer may change with any event, so any event brings back every pod that was refused. With the default of 10 s,
# hundreds of them slow the others down. A kube-scheduler from 1.33 on that has nothing else to do does not wait for this; pods whose
# calls failed wait in any case.
podMaxBackoffSeconds: 60
extenders:
  - urlPrefix: http://{address}
    filterVerb: filter
    prioritizeVerb: prioritize
    bindVerb: bind
    preemptVerb: preempt
    weight: 1
    httpTimeout: 5s
    nodeCacheCapable: true
    ignorable: false
    managedResources:
      - {{name: {count}, ignoredByScheduler: false}}
      - {{name: {memory}, ignoredByScheduler: true}}
      - {{name: {memory_percentage}, ignoredByScheduler: true}}
      - {{name: {cores}, ignoredByScheduler: true}}
      - {{name: {priority}, ignoredByScheduler: true}}
"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scheduler_counts_gpus_itself_and_asks_the_extender_at_its_address() {
        let names = ResourceNames { memory: "example.com/mib".into(), ..ResourceNames::default() };
        let printed = encode("gpus", "0.0.0.0:9444".parse().unwrap(), &names);
        let config: serde_json::Value = serde_saphyr::from_str(&printed).unwrap();
        let extender = &config["extenders"][0];
        assert_eq!(
            (&extender["urlPrefix"], &extender["nodeCacheCapable"]),
            (&"http://127.0.0.1:9444".into(), &true.into())
        );
        let resources = extender["managedResources"].as_array().unwrap();
        let ignored =
            |name: &str| resources.iter().find(|one| one["name"] == name).unwrap()["ignoredByScheduler"].clone();
        assert_eq!([ignored("nvidia.com/gpu"), ignored("example.com/mib")], [false, true].map(serde_json::Value::from));
        assert_eq!((config["percentageOfNodesToScore"].as_u64(), resources.len()), (Some(100), 5));
        assert_eq!(
            (&config["podMaxBackoffSeconds"], &config["profiles"][0]["schedulerName"]),
            (&60.into(), &"gpus".into())
        );
    }
}
