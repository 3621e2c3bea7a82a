//! `doctor bundle`: what a report of a problem needs, as a tar archive.
//!
//! ```text
//!   nodes.json              what `doctor nodes` says        leader/nodes.json      what the leader believes
//!   pods.json               pods of gpu-steward             leader/metrics.txt     its metrics
//!   events/NAMESPACE.json   events of the same namespaces   pod.json, leader/decisions.json   of one pod, with --pod
//!   logs/NAMESPACE/…        the ends of their logs          CONTENTS.txt           this list, and what is missing
//! ```
//!
//! No Secret, no token, no environment and no argument of a container is read. Tokens in log lines and in the texts of documents are
//! removed.

mod redact;
mod tar;

use crate::cluster::{ClusterReader, MAX_LISTED};
use crate::finding::{Finding, Report, Seen, Unread};
use crate::leader::{Leader, LeaderPlace};
use crate::namespace;
use crate::nodes::NodesSeen;
use crate::pod;
use crate::print::Row;
use crate::texts;
use model::id::PodRef;
use redact::{redact_field, redacted};
use serde::Serialize;
use serve::terminal::plain_json;
use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tar::Archive;
use tokio::time::timeout;
use wire::described_pod::DescribedPod;

/// Maximum size of the archive in bytes: what issue trackers accept.
const MAX_BYTES: usize = 20 << 20;
/// Bytes that are kept free for the list of the contents.
const CONTENTS: usize = 256 << 10;
/// Maximum number of pods whose logs are read. Extenders and pods that are not ready come first.
const MAX_LOGS: usize = 24;
/// Maximum lines of one log that are requested, and maximum bytes that are kept: enough for lines of 500 bytes.
const LOG: (u32, usize) = (2000, 1 << 20);
/// Time limits for one log and for all logs: pods that are not ready come first, and a dead node does not answer.
const LOG_TIMES: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(60));
/// Maximum number of namespaces whose events are read.
const MAX_NAMESPACES: usize = 8;
/// Maximum number of events of one namespace that are kept, the newest first: a few hundred KiB.
const MAX_EVENTS: usize = 500;

/// What goes into the bundle, besides the cluster.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BundleOptions {
    /// The file to write; it must not exist.
    pub(crate) file: PathBuf,
    /// A pod that the report is about.
    pub(crate) pod: Option<PodRef>,
    /// The name of the scheduler that is to place the pod.
    pub(crate) scheduler: String,
    /// The namespace of gpu-steward; if `None`, its pods and its Lease show it.
    pub(crate) namespace: Option<String>,
}

/// A file of the bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Entry {
    name: String,
    bytes: usize,
}

impl Row for Entry {
    const HEADINGS: &'static [&'static str] = &["FILE", "BYTES"];

    fn cells(&self) -> Vec<String> {
        vec![self.name.clone(), self.bytes.to_string()]
    }
}

/// The bundle so far.
struct Bundle {
    archive: Archive,
    entries: Vec<Entry>,
    /// What could not be read.
    missing: Vec<String>,
    /// What was left out because there is too much of it.
    left_out: Vec<String>,
}

impl Bundle {
    /// Adds a text without secrets. If it is too long, its end is kept, because a log has its newest lines there.
    fn add(&mut self, name: &str, text: &str) {
        let room = self.archive.room().saturating_sub(CONTENTS);
        let start = text.ceil_char_boundary(text.len().saturating_sub(room));
        let kept = text.get(start..).unwrap_or_default();
        if start > 0 {
            self.left_out.push(format!("{name}: its first {start} bytes, because the bundle is full"));
        }
        if self.archive.add(name, kept.as_bytes()) {
            self.entries.push(Entry { name: name.to_owned(), bytes: kept.len() });
        } else {
            self.left_out.push(format!("{name}: it does not fit"));
        }
    }

    /// Adds a text that another program wrote, without its secrets, or notes why the text is missing.
    fn take_text(&mut self, name: &str, text: Seen<Vec<u8>>) {
        match text {
            Ok(text) => self.add(name, &redacted(&String::from_utf8_lossy(&text))),
            Err(unread) => self.missing.push(format!("{name}: {unread}")),
        }
    }

    /// Adds a document without secrets, or notes why it is missing.
    fn take_document(&mut self, name: &str, content: Seen<impl Serialize>) {
        match content.and_then(|content| document(&content)) {
            Ok(text) => self.add(name, &text),
            Err(unread) => self.missing.push(format!("{name}: {unread}")),
        }
    }
}

/// Makes the bundle and writes it.
pub(crate) async fn make(options: &BundleOptions, cluster: &Seen<ClusterReader>, place: &LeaderPlace) -> Report<Entry> {
    let archive = Archive::new(MAX_BYTES, Duration::from_micros(clock::now().wall.0));
    let mut bundle = Bundle { archive, entries: Vec::new(), missing: Vec::new(), left_out: Vec::new() };
    let about = format!("bundle {}", options.file.display());
    let reader = match cluster {
        Ok(reader) => reader,
        Err(unread) => {
            return Report::new(
                "doctor bundle",
                about,
                vec![Finding::unknown("NotSeen", unread.to_string())],
                Vec::new(),
            );
        }
    };
    let named = options.namespace.as_deref();
    // Two lists: in a large cluster the agents alone fill a list, so a common list could lack the extenders.
    let extenders = namespace::extenders(reader, named).await;
    let nodes = NodesSeen::look(cluster, place, &extenders).await;
    bundle.take_document("nodes.json", Ok(nodes.report(true)));
    let agents = namespace::agents(reader, named, &extenders).await;
    let pods = pods(&mut bundle, [("extender", &extenders), ("agents", &agents)]);
    bundle.take_document("pods.json", Ok(&pods));
    if let Some(pod) = &options.pod {
        let report = pod::look((pod, &options.scheduler), cluster, place, extenders.clone()).await;
        bundle.take_document("pod.json", Ok(report));
    }
    take_leader(&mut bundle, options, Leader::find(place, Ok(reader), &extenders).await).await;
    take_events(&mut bundle, reader, &pods).await;
    take_logs(&mut bundle, reader, &pods, LOG_TIMES).await;
    finish(bundle, options, about)
}

/// The pods of these lists; in each list, pods that are not ready come first.
fn pods<'a>(bundle: &mut Bundle, lists: [(&str, &'a Seen<Vec<DescribedPod>>); 2]) -> Vec<&'a DescribedPod> {
    let mut all = Vec::new();
    for (whose, list) in lists {
        let mut pods: Vec<&DescribedPod> = match list {
            Ok(pods) => pods.iter().collect(),
            Err(unread) => {
                bundle.missing.push(format!("pods.json: {unread}"));
                continue;
            }
        };
        if u32::try_from(pods.len()).is_ok_and(|pods| pods >= MAX_LISTED) {
            bundle.left_out.push(format!("pods.json: pods of the {whose} beyond the first {MAX_LISTED}"));
        }
        pods.sort_by_key(|pod| pod.ready);
        all.append(&mut pods);
    }
    all
}

/// The JSON of a document, without the secrets in its texts. Each text is redacted alone, so the document stays valid JSON.
fn document(content: &impl Serialize) -> Seen<String> {
    let failed = |why: serde_json::Error| Unread::new("the document", why);
    let mut document = serde_json::to_value(content).map_err(failed)?;
    texts::change(&mut document, "", &redact_field);
    serde_json::to_string_pretty(&document).map(|json| plain_json(&json) + "\n").map_err(failed)
}

async fn take_leader(bundle: &mut Bundle, options: &BundleOptions, leader: Seen<Leader>) {
    let mut leader = match leader {
        Ok(leader) => leader,
        Err(unread) => return bundle.missing.push(format!("leader/: {unread}")),
    };
    bundle.take_document("leader/nodes.json", leader.nodes(None).await);
    if let Some(pod) = &options.pod {
        bundle.take_document("leader/decisions.json", leader.decisions(&pod.to_string()).await);
    }
    bundle.take_text("leader/metrics.txt", leader.text("/metrics").await);
}

/// The events of the namespaces of gpu-steward, and events about Nodes, which are in `default`.
async fn take_events(bundle: &mut Bundle, cluster: &ClusterReader, pods: &[&DescribedPod]) {
    let namespaces: BTreeSet<&str> = pods.iter().map(|pod| pod.namespace.as_str()).chain(["default"]).collect();
    for namespace in namespaces.into_iter().take(MAX_NAMESPACES) {
        let name = format!("events/{}.json", file_name(namespace, 63));
        let events = cluster.events(namespace, None).await.map(|mut found| {
            let read = found.events.len();
            found.events.truncate(MAX_EVENTS);
            if read > MAX_EVENTS {
                bundle.left_out.push(format!("{name}: {} older events", read - MAX_EVENTS));
            }
            if !found.more.is_empty() {
                let what = format!("{name}: events after the first {read} by name, of which some may be newer");
                bundle.left_out.push(what);
            }
            found.events
        });
        bundle.take_document(&name, events);
    }
}

async fn take_logs(
    bundle: &mut Bundle,
    cluster: &ClusterReader,
    pods: &[&DescribedPod],
    (one, all): (Duration, Duration),
) {
    let begin = clock::now().monotonic;
    if pods.len() > MAX_LOGS {
        bundle.left_out.push(format!("logs/: those of {} pods more than {MAX_LOGS}", pods.len() - MAX_LOGS));
    }
    for pod in pods.iter().take(MAX_LOGS) {
        let place = pod.reference();
        for container in &pod.containers {
            let (folder, name) = (file_name(&pod.namespace, 24), file_name(&pod.name, 40));
            let name = format!("logs/{folder}/{name}-{}.log", file_name(&container.name, 20));
            let time = one.min(all.saturating_sub(clock::now().monotonic.since(begin)));
            if time.is_zero() {
                bundle.missing.push(format!("{name}: not read, because the logs before it took {all:?}"));
                continue;
            }
            let what = format!("the log of {place}");
            let log = match timeout(time, cluster.client.pod_log(&place, &container.name, LOG)).await {
                Ok(log) => log.map_err(|why| Unread::new(&*what, why)),
                Err(_) => Err(Unread::new(&*what, format!("no answer within {time:.1?}"))),
            };
            if let Ok((_, before @ 1..)) = &log {
                bundle.left_out.push(format!("{name}: {before} bytes before its last {} bytes", LOG.1));
            }
            bundle.take_text(&name, log.map(|(log, _)| log));
        }
    }
}

/// A name as part of a file name: its last `most` characters, because the end of a pod's name tells pods apart.
fn file_name(name: &str, most: usize) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    let plain: String = name.chars().map(plain).collect();
    plain.get(plain.len().saturating_sub(most)..).unwrap_or_default().trim_start_matches('.').to_owned()
}

/// Adds the list of the contents, and writes the file.
fn finish(mut bundle: Bundle, options: &BundleOptions, about: String) -> Report<Entry> {
    let mut contents = String::new();
    for Entry { name, bytes } in &bundle.entries {
        contents.push_str(&format!("{bytes:>10}  {name}\n"));
    }
    for (word, lines) in [("missing", &bundle.missing), ("left out", &bundle.left_out)] {
        for line in lines {
            contents.push_str(&format!("{word:>10}  {}\n", serve::terminal::plain(line)));
        }
    }
    contents.truncate(contents.floor_char_boundary(CONTENTS));
    bundle.archive.add("CONTENTS.txt", contents.as_bytes());
    bundle.entries.push(Entry { name: "CONTENTS.txt".to_owned(), bytes: contents.len() });
    let archive = bundle.archive.finish();
    let mut findings = vec![match write(&options.file, &archive) {
        Ok(()) => {
            let what = format!(
                "{} bytes in {}; no Secret, token or environment is in it",
                archive.len(),
                options.file.display()
            );
            Finding::well("Written", what).advise(["read what is in it before you give it away: tar -xf FILE"])
        }
        Err(why) => Finding::wrong("NotWritten", format!("cannot write {}: {why}", options.file.display()))
            .advise(["name a file that does not exist yet with --file"]),
    }];
    if !bundle.missing.is_empty() {
        findings.push(Finding::unknown("Missing", "parts of the bundle could not be read").because(bundle.missing));
    }
    if !bundle.left_out.is_empty() {
        findings.push(Finding::note("LeftOut", "there is more than the bundle has").because(bundle.left_out));
    }
    Report::new("doctor bundle", about, findings, bundle.entries)
}

/// Writes a new file that only its owner may read.
fn write(path: &Path, content: &[u8]) -> std::io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(content)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use wire::described_pod::DescribedContainer;

    fn bundle(most: usize) -> Bundle {
        let archive = Archive::new(most, Duration::ZERO);
        Bundle { archive, entries: Vec::new(), missing: Vec::new(), left_out: Vec::new() }
    }

    #[test]
    fn the_newest_lines_of_a_log_that_is_too_long_are_kept_and_the_bundle_stays_in_its_bound() {
        let mut full = bundle(CONTENTS + 8192);
        let log: String = (0..2000).map(|n| format!("line {n}\n")).collect();
        full.add("logs/a.log", &log);
        full.add("logs/b.log", "more\n");
        let kept = full.entries[0].bytes;
        assert!(kept < log.len() && kept > 4096, "{kept}");
        assert!(full.left_out[0].starts_with("logs/a.log: its first"), "{:?}", full.left_out);
        assert!(full.archive.finish().len() <= CONTENTS + 8192);
    }

    #[test]
    fn a_document_stays_json_and_a_secret_in_one_text_hides_no_other() {
        let events = json!([
            { "note": "-----BEGIN A KEY-----" },
            { "note": "token=abc", "token": "abc" },
            { "note": "old\u{9b}" },
        ]);
        let mut full = bundle(1 << 20);
        full.take_document("events/a.json", Ok(&events));
        let text = document(&events).unwrap();
        let read: serde_json::Value = serde_json::from_str(&text).unwrap();
        let expected = json!([
            { "note": "[removed]" },
            { "note": "token=[removed]", "token": "[removed]" },
            { "note": "old\u{9b}" },
        ]);
        assert_eq!(read, expected);
        assert!(!text.contains('\u{9b}') && full.entries[0].bytes == text.len(), "{text}");
    }

    /// A port that accepts connections and answers nothing.
    #[test]
    fn logs_that_do_not_come_are_named_and_take_no_more_than_their_time() {
        let silent = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let server = format!("http://{}", silent.local_addr().unwrap());
        let kubeconfig = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "a",
            "clusters": [{ "name": "a", "cluster": { "server": server } }],
            "users": [{ "name": "a", "user": { "token": "a" } }],
            "contexts": [{ "name": "a", "context": { "cluster": "a", "user": "a" } }],
        });
        let file = std::env::temp_dir().join(format!("doctor-logs-{}", std::process::id()));
        std::fs::write(&file, kubeconfig.to_string()).unwrap();
        let containers = vec![DescribedContainer { name: "agent".into(), ..DescribedContainer::default() }];
        let pod = DescribedPod { namespace: "gpu".into(), name: "a".into(), containers, ..DescribedPod::default() };
        let mut bundle = bundle(1 << 20);
        let read = async {
            let cluster = ClusterReader::open(Some(&file)).await.unwrap();
            let times = (Duration::from_millis(50), Duration::from_secs(1));
            take_logs(&mut bundle, &cluster, &[&pod; MAX_LOGS], times).await;
        };
        serve::lifecycle::run_once(read).unwrap();
        let [first, .., last] = &bundle.missing[..] else { panic!("{:?}", bundle.missing) };
        assert!(bundle.missing.len() == MAX_LOGS && first.contains("no answer within"), "{:?}", bundle.missing);
        assert!(last.contains("not read, because the logs before it took 1s"), "{last}");
        std::fs::remove_file(&file).unwrap();
    }

    #[test]
    fn names_of_the_cluster_are_safe_names_of_files() {
        for (name, file) in [("gpu-agent-x2x9p", "gpu-agent-x2x9p"), ("../../etc", "_.._etc"), ("a/b\u{1b}", "a_b_")] {
            assert_eq!(file_name(name, 40), file);
        }
        assert_eq!(file_name(&"a".repeat(100), 40).len(), 40);
    }
}
