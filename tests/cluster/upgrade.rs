//! An upgrade under load: pods come at about five a second while the agent is replaced twice, the new one started first.

use crate::bed::{Bed, SOON};
use crate::fleet::everybody_has_his_own;
use lab::eventually::eventually;
use serde_json::Value;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

/// Between two pods.
const APART: Duration = Duration::from_millis(200);
/// Until a hundred containers run on two cores.
const RUN_WITHIN: Duration = Duration::from_secs(300);

/// Promise 39 in docs/specification.md. Without `GPU_STEWARD_LONG` 40 pods.
#[test]
#[ignore = "needs cluster alone: tests/run"]
fn pods_that_come_while_the_agent_is_replaced_do_not_fail() {
    let bed = Bed::alone("upgrade");
    let pods = if std::env::var_os("GPU_STEWARD_LONG").is_some() { 100 } else { 40 };
    let gpus = "--gpus=simulated=H100:10";
    let first = bed.agent(&[gpus]);
    let uuids = Bed::gpus(&first);
    let made = AtomicUsize::new(0);
    let agent = std::thread::scope(|scope| {
        let mut agent = first;
        scope.spawn(|| {
            let began = Instant::now();
            for n in 0..pods {
                std::thread::sleep((APART * n).saturating_sub(began.elapsed()));
                let name = format!("pod-{n}");
                let claim = [(n as usize % uuids.len(), 1000 + u64::from(n), 1)];
                bed.create(&bed.pod(&name, &uuids, &[("main", "app", &claim)], &Value::Null));
                made.fetch_add(1, Ordering::Relaxed);
            }
        });
        for part in 1..=2 {
            let due = part * pods as usize / 3;
            eventually("the next replacement's turn", SOON, || (made.load(Ordering::Relaxed) >= due).then_some(()));
            let next = bed.launch(&[gpus]);
            // As the DaemonSet does: the old one is told to end when the new one is ready.
            eventually("the new agent to be ready", SOON, || (next.get("/readyz").status == 200).then_some(()));
            next.logs("another agent shares the GPUs of this node");
            let began = Instant::now();
            let ended = agent.terminate();
            assert!(ended.status.success(), "{}", ended.log);
            agent = next;
            agent.logs("] registered with kubelet");
            println!(
                "replaced {:.0} ms after SIGTERM: {}",
                began.elapsed().as_secs_f64() * 1000.0,
                made.load(Ordering::Relaxed)
            );
        }
        agent
    });
    let failed = eventually("every pod to run or fail", RUN_WITHIN, || {
        let list = bed.admin.get(&["pods", "-n", &bed.space.name]);
        let items = list["items"].as_array()?;
        let in_phase = |phase: &str| items.iter().filter(|pod| pod["status"]["phase"] == phase).collect::<Vec<_>>();
        let (failed, runs) = (in_phase("Failed"), in_phase("Running").len());
        (items.len() == pods as usize && runs + failed.len() == items.len())
            .then(|| failed.iter().map(|pod| pod["status"]["message"].to_string()).collect::<Vec<_>>())
    });
    let kubelet = &bed.told()["status"]["nodeInfo"]["kubeletVersion"];
    println!("{pods} pods, two replacements, kubelet {kubelet}: {} failed for good {failed:#?}", failed.len());
    assert!(failed.is_empty(), "{failed:#?}\n{}", agent.log());
    assert!(everybody_has_his_own(&bed) >= pods as usize);
    // kubelet knows the one that it serves: it sees its end.
    drop(agent);
    eventually("kubelet to see the end of the plugin", SOON, || {
        (bed.told()["status"]["allocatable"]["nvidia.com/gpu"] == "0").then_some(())
    });
}
