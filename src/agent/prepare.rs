//! Prepares the inputs of the agent's tasks: the name of the node, the connection to the API server and the usage
//! socket. Logs the line that announces the start.

use super::addresses::Addresses;
use super::listeners::Listeners;
use super::settings::AgentSettings;
use apiserver::{ApiConnection, NotConnected};
use model::id::NodeName;
use serve::lifecycle::StartError;
use serve::version::version;
use std::io::ErrorKind;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;

/// Prepares the connection to the API server; with `--standalone` only if `--kubeconfig` names a file. Sends nothing
/// yet: the agent starts even if the API server is down.
pub(super) async fn connect(settings: &AgentSettings) -> Result<Option<ApiConnection>, StartError> {
    if settings.standalone && settings.kubeconfig.is_none() {
        return Ok(None);
    }
    let connection = apiserver::connect(settings.kubeconfig.as_deref()).await;
    connection.map(Some).map_err(|error| {
        let advice = match error {
            NotConnected::Nowhere { .. } => ", or run with --standalone",
            _ => "",
        };
        StartError::usage(format!("{error}{advice}"))
    })
}

/// Opens the usage socket. If another program serves it, the start fails, unless that program is the agent that this
/// agent replaces: an upgrade starts the new agent first.
pub(super) async fn open_usage(
    settings: &AgentSettings,
    name: &NodeName,
) -> Result<Option<(PathBuf, std::io::Result<UnixListener>)>, StartError> {
    let Some(path) = settings.usage_socket.clone() else { return Ok(None) };
    let opened = effects::usage::bind(&path);
    if let Err(error) = &opened
        && error.kind() == ErrorKind::AddrInUse
        && (settings.standalone || !effects::usage::answers(&path, name).await)
    {
        let what =
            format!("cannot serve usage: {error}; stop that program, or choose another socket with --usage-socket");
        return Err(StartError::unavailable(what));
    }
    Ok(Some((path, opened)))
}

/// Writes the agent's addresses to a file for scripts, and only then logs them, so that the file exists when a reader
/// sees the line.
pub(super) fn announce(settings: &AgentSettings, name: &NodeName, listeners: &Listeners, operator: &str) -> Addresses {
    let usage = settings.usage_socket.as_ref().map_or_else(|| "none".into(), |path| path.display().to_string());
    let (version, pid, metrics, admin) = (version(), std::process::id(), listeners.metrics(), listeners.admin());
    let content = serde_json::json!({
        "version": version, "node": name.as_str(), "pid": pid, "metrics": metrics, "admin": admin, "usage": usage,
        "operator_token": operator,
    });
    let addresses = Addresses::write(&settings.state_dir, &content);
    tracing::info!(version, node = %name, pid, metrics, admin, usage, "gpu-steward agent started");
    addresses
}

pub(super) fn node_name(settings: &AgentSettings) -> Result<NodeName, StartError> {
    if let Some(name) = &settings.node_name {
        return Ok(name.clone());
    }
    let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
    derived_name(std::env::var("NODE_NAME").ok(), host)
}

/// The name that the manifest of the pod passes on in `NODE_NAME`, otherwise the host's name.
fn derived_name(from_kubernetes: Option<String>, host: impl FnOnce() -> String) -> Result<NodeName, StartError> {
    let name = from_kubernetes.filter(|name| !name.trim().is_empty()).unwrap_or_else(host);
    NodeName::of_host(&name).map_err(|error| {
        StartError::usage(format!("cannot name this node after NODE_NAME or the host: {error}; give --node-name"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_a_given_name_has_that_of_kubernetes_or_else_that_of_the_host() {
        let derived = |given: Option<&str>, host: &str| derived_name(given.map(str::to_owned), || host.to_owned());
        for (given, host, name) in [
            (Some("node-7"), "other", "node-7"),
            (Some(" Node-7\n"), "other", "node-7"),
            (Some(" "), "MG357.Corp.Example", "mg357.corp.example"),
            (Some(""), "host-1", "host-1"),
            (None, " host-1\n", "host-1"),
        ] {
            assert_eq!(derived(given, host).unwrap().as_str(), name, "{given:?} {host:?}");
        }
        for (given, host) in [(Some("node 7"), "host-1"), (None, "host 1"), (None, "")] {
            let why = derived(given, host).unwrap_err().what;
            assert!(why.starts_with("cannot name this node after NODE_NAME or the host: "), "{why}");
            assert!(why.ends_with("; give --node-name"), "{why}");
        }
    }
}
