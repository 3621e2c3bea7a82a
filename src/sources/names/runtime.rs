//! The configuration of the container runtime, as the runtime reports it.

use super::cri::KUBELET_API;
use super::socket::{MAX_RESPONSE, RequestError, connect, response};
use proto::cri::runtime_service_client::RuntimeServiceClient;
use proto::cri::{StatusRequest, VersionRequest};
use std::path::{Path, PathBuf};
use wire::runtime_config::{self, RuntimeConfig};

/// The runtime (`containerd://2.1.4`, as a Node names it) and its configuration, from the first of these sockets at
/// which a runtime answers.
pub(super) async fn read(paths: &[PathBuf]) -> Result<(String, RuntimeConfig), String> {
    if paths.is_empty() {
        return Err("the container runtime is not used (--cri-socket=none)".into());
    }
    let mut broken = None;
    for path in paths {
        match config(path).await {
            Ok((runtime, text)) => {
                let config = text.map_or(Ok(RuntimeConfig::default()), |text| runtime_config::decode(&text));
                return config.map(|config| (runtime, config)).map_err(|fault| fault.to_string());
            }
            Err(RequestError::Absent { .. }) => {}
            Err(error) => broken = broken.or(Some(error.to_string())),
        }
    }
    let paths = || paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    Err(broken.unwrap_or_else(|| format!("no socket at {}", paths())))
}

async fn config(path: &Path) -> Result<(String, Option<String>), RequestError> {
    let mut client = RuntimeServiceClient::new(connect(path).await?).max_decoding_message_size(MAX_RESPONSE);
    let version = response("Version", path, client.version(VersionRequest { version: KUBELET_API.to_owned() })).await?;
    let mut status = response("Status", path, client.status(StatusRequest { verbose: true })).await?;
    let runtime = format!("{}://{}", version.runtime_name, version.runtime_version.trim_start_matches('v'));
    Ok((runtime, status.info.remove("config")))
}
