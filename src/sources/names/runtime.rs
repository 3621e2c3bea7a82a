//! The configuration of the container runtime, as the runtime reports it.

use super::cri::KUBELET_API;
use super::socket::{MAX_ANSWER, Unanswered, answer, dial};
use proto::cri::runtime_service_client::RuntimeServiceClient;
use proto::cri::{StatusRequest, VersionRequest};
use std::path::{Path, PathBuf};
use wire::runtime_config::{self, RuntimeConfig};

/// The runtime (`containerd://2.1.4`, as a Node names it), and its configuration.
pub(super) type Told = (String, RuntimeConfig);

/// Asks at the first of these sockets where a runtime answers.
pub(super) async fn ask(places: &[PathBuf]) -> Result<Told, String> {
    if places.is_empty() {
        return Err("the container runtime is not asked (--cri-socket=none)".into());
    }
    let mut broken = None;
    for place in places {
        match config(place).await {
            Ok((runtime, text)) => {
                let config = text.map_or(Ok(RuntimeConfig::default()), |text| runtime_config::decode(&text));
                return config.map(|config| (runtime, config)).map_err(|fault| fault.to_string());
            }
            Err(Unanswered::Absent { .. }) => {}
            Err(error) => broken = broken.or(Some(error.to_string())),
        }
    }
    let places = || places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
    Err(broken.unwrap_or_else(|| format!("no socket at {}", places())))
}

async fn config(path: &Path) -> Result<(String, Option<String>), Unanswered> {
    let mut client = RuntimeServiceClient::new(dial(path).await?).max_decoding_message_size(MAX_ANSWER);
    let who = answer("Version", path, client.version(VersionRequest { version: KUBELET_API.to_owned() })).await?;
    let mut told = answer("Status", path, client.status(StatusRequest { verbose: true })).await?;
    let runtime = format!("{}://{}", who.runtime_name, who.runtime_version.trim_start_matches('v'));
    Ok((runtime, told.info.remove("config")))
}
