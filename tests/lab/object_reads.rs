//! Reads pods, Nodes and events with curl. Several tests at a time read these again and again while they wait, and a call
//! of kubectl takes 65 ms of processor time, a call of curl only 14 ms.

use serde_json::Value;
use std::path::Path;
use std::process::{Command, Stdio};

/// A caller with a client certificate.
#[derive(Clone, Debug)]
pub struct ObjectReads {
    server: String,
    ca: String,
    certificate: String,
    key: String,
}

/// What to read: a path, and parameters that are not encoded yet.
#[derive(Debug, PartialEq, Eq)]
struct Question {
    path: String,
    parameters: Vec<String>,
}

impl ObjectReads {
    /// With the key pair of this name beside the certificate of the authority.
    #[must_use]
    pub fn beside(server: &str, ca: &str, name: &str) -> ObjectReads {
        let file = |ending: &str| Path::new(ca).with_file_name(format!("{name}.{ending}")).display().to_string();
        ObjectReads { server: server.to_owned(), ca: ca.to_owned(), certificate: file("crt"), key: file("key") }
    }

    /// The output of `kubectl get -o json` with these arguments. `None` if they name anything but pods, Nodes and events, or
    /// if the request fails; the caller then runs kubectl, which reports the reason.
    #[must_use]
    pub fn get(&self, args: &[&str]) -> Option<Value> {
        let Question { path, parameters } = question(args)?;
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--fail", "--max-time", "60", "--get", "--cacert", &self.ca]);
        curl.args(["--cert", &self.certificate, "--key", &self.key]);
        for parameter in &parameters {
            curl.args(["--data-urlencode", parameter]);
        }
        let output = curl.arg(format!("{}{path}", self.server)).stdin(Stdio::null()).output().ok()?;
        output.status.success().then(|| serde_json::from_slice(&output.stdout).ok())?
    }
}

fn question(args: &[&str]) -> Option<Question> {
    let (mut words, mut parameters) = (Vec::new(), Vec::new());
    let (mut namespace, mut everywhere) = (None, false);
    let mut rest = args.iter();
    while let Some(word) = rest.next() {
        match (*word, word.split_once('=')) {
            ("-n", _) => namespace = Some(*rest.next()?),
            ("-A", _) => everywhere = true,
            ("-l", _) => parameters.push(format!("labelSelector={}", rest.next()?)),
            ("--field-selector", _) => parameters.push(format!("fieldSelector={}", rest.next()?)),
            (_, Some(("--field-selector", selector))) => parameters.push(format!("fieldSelector={selector}")),
            (flag, _) if flag.starts_with('-') => return None,
            (word, _) => words.push(word),
        }
    }
    let (kind, name) = match *words {
        [kind] => (kind, String::new()),
        [kind, name] => (kind, format!("/{name}")),
        _ => return None,
    };
    let place = match (kind, namespace) {
        ("node" | "nodes", _) => "nodes".to_owned(),
        ("pod" | "pods", None) if everywhere => "pods".to_owned(),
        ("pod" | "pods", Some(namespace)) => format!("namespaces/{namespace}/pods"),
        ("events", Some(namespace)) => format!("namespaces/{namespace}/events"),
        _ => return None,
    };
    Some(Question { path: format!("/api/v1/{place}{name}"), parameters })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_kubectl_become_a_path() {
        let selected = "labelSelector=app in (a,b)";
        for (args, path, parameters) in [
            (&["nodes"][..], "nodes", &[][..]),
            (&["node", "n1"], "nodes/n1", &[]),
            (&["pod", "p", "-n", "ml"], "namespaces/ml/pods/p", &[]),
            (&["pods", "-n", "ml", "-l", "app in (a,b)"], "namespaces/ml/pods", &[selected]),
            (&["pods", "-A", "--field-selector", "spec.nodeName=n1"], "pods", &["fieldSelector=spec.nodeName=n1"]),
            (&["events", "-n", "ml", "--field-selector=reason=X"], "namespaces/ml/events", &["fieldSelector=reason=X"]),
        ] {
            let expected = Question {
                path: format!("/api/v1/{path}"),
                parameters: parameters.iter().map(|text| (*text).to_owned()).collect(),
            };
            assert_eq!(question(args), Some(expected), "{args:?}");
        }
        for other in
            [&["pods"][..], &["leases", "-n", "ml"], &["pod", "a", "b", "-n", "ml"], &["nodes", "--watch"], &[]]
        {
            assert_eq!(question(other), None, "{other:?}");
        }
    }
}
