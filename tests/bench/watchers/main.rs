//! Follows generated pods with the follower of `apiserver` and with the watcher of `kube`, each in its own process, and
//! prints the CPU time and the memory of each.
//!
//! ```text
//!   watchers [PODS]          serves this many pods (50,000), and starts itself once for each of the two
//!   watchers ours|kube PORT PODS
//! ```
//!
//! Both read the pods in pages of 500 and then one change of every pod by watch. Both keep the same fields.

mod kube_watcher;
mod fake_server;

use apiserver::follow::{FollowListener, Follower};
use apiserver::kind::AllPods;
use apiserver::store::{Delta, Store};
use apiserver::{ApiConnection, ApiError};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use model::id::PodUid;
use model::pod::Pod;
use std::process::{Command, ExitCode};
use std::time::Duration;
use wire::watch::UnreadableObject;

/// The pods of a cluster of 500 full nodes, or of 5,000 nodes with ten pods each.
const PODS: usize = 50_000;

/// Counts additions and changes, and ends the process after the last change.
struct Counter {
    pods: usize,
    added: usize,
    changed: usize,
}

impl FollowListener<AllPods> for Counter {
    fn received(&mut self) {}

    fn changed(&mut self, deltas: Vec<Delta<Pod>>, _: Option<&Store<AllPods>>) {
        for delta in deltas {
            match delta {
                Delta::Added(_) => self.added += 1,
                Delta::Changed { .. } => self.changed += 1,
                Delta::Gone { .. } | Delta::LeftOut(_) => {}
            }
            count("ours", (self.added, self.changed), self.pods);
        }
    }

    fn unreadable(&mut self, bad: &UnreadableObject<PodUid>) {
        panic!("{bad}");
    }

    fn failed(&mut self, why: &ApiError) -> Duration {
        eprintln!("{why}");
        Duration::from_secs(1)
    }

    fn works(&mut self) {}
}

/// Prints the use of this process after the list, and after all changes, and then ends it.
fn count(name: &str, (added, changed): (usize, usize), pods: usize) {
    if added == pods && changed == 0 {
        println!("{name}: {pods} pods listed: {}", used());
    }
    if changed == pods {
        println!("{name}: {pods} changes watched: {}", used());
        std::process::exit(0);
    }
}

/// CPU time of this process so far, and its memory now and at its peak.
fn used() -> String {
    let stat = std::fs::read_to_string("/proc/self/stat").expect("the process's times");
    // The name before the last bracket may have spaces. User and system time are the 12th and 13th word after it.
    let words: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    let ticks = |at: usize| words[at].parse::<f64>().expect("a number of ticks");
    let seconds = (ticks(11) + ticks(12)) / 100.0;
    let status = std::fs::read_to_string("/proc/self/status").expect("the process's status");
    let mib = |key: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(key)).expect("a line of the status");
        line.trim().trim_end_matches(" kB").parse::<f64>().expect("kB") / 1024.0
    };
    format!("{seconds:.2} s CPU, {:.0} MiB now, {:.0} MiB at its peak", mib("VmRSS:"), mib("VmHWM:"))
}

fn kubeconfig(port: u16) -> std::path::PathBuf {
    let text = format!(
        r#"{{"apiVersion":"v1","kind":"Config","current-context":"c","clusters":[{{"name":"c","cluster":{{"server":"http://127.0.0.1:{port}"}}}}],"users":[{{"name":"c","user":{{}}}}],"contexts":[{{"name":"c","context":{{"cluster":"c","user":"c"}}}}]}}"#
    );
    let path = std::env::temp_dir().join(format!("watchers-{port}.json"));
    std::fs::write(&path, text).expect("a kubeconfig");
    path
}

async fn connection(port: u16) -> ApiConnection {
    apiserver::connect(Some(&kubeconfig(port))).await.expect("a connection")
}

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize| words.get(at).and_then(|word| word.parse::<usize>().ok());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let port = || u16::try_from(number(1).expect("a port")).expect("a port");
    match words.first().map(String::as_str) {
        Some("ours") => runtime.block_on(async {
            let listener = Counter { pods: number(2).expect("a number of pods"), added: 0, changed: 0 };
            Follower::new(connection(port()).await, AllPods::default(), listener).run().await;
        }),
        Some("kube") => runtime.block_on(async {
            let kubeconfig = Kubeconfig::read_from(kubeconfig(port())).expect("a kubeconfig");
            let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
            let client = Client::try_from(config.expect("a configuration")).expect("a client");
            kube_watcher::follow(client, number(2).expect("a number of pods")).await;
        }),
        _ => {
            let pods = number(0).unwrap_or(PODS);
            println!("{pods} pods of {} bytes", fake_server::pod(7, 1).len());
            for name in ["ours", "kube", "ours", "kube"] {
                let port = fake_server::serve(pods).to_string();
                let program = std::env::current_exe().expect("this program");
                let status = Command::new(program).args([name, &port, &pods.to_string()]).status();
                if !status.expect("it starts").success() {
                    return ExitCode::FAILURE;
                }
            }
        }
    }
    ExitCode::SUCCESS
}
