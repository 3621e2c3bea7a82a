//! The container runtime's own account of how it is set up.

use super::socket::{MAX_ANSWER, Unanswered, answer, dial};
use proto::cri::StatusRequest;
use proto::cri::runtime_service_client::RuntimeServiceClient;
use std::path::{Path, PathBuf};
use wire::runtime_config::{self, RuntimeConfig};

/// Asks at the first of these places where something answers.
pub(super) async fn ask(places: &[PathBuf]) -> Result<RuntimeConfig, String> {
    let mut broken = None;
    for place in places {
        match config(place).await {
            Ok(Some(text)) => return runtime_config::decode(&text).map_err(|fault| fault.to_string()),
            Ok(None) => return Ok(RuntimeConfig::default()),
            Err(Unanswered::Absent { .. }) => {}
            Err(error) => broken = broken.or(Some(error.to_string())),
        }
    }
    let places = || places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(", ");
    Err(broken.unwrap_or_else(|| format!("no socket at {}", places())))
}

async fn config(path: &Path) -> Result<Option<String>, Unanswered> {
    let mut client = RuntimeServiceClient::new(dial(path).await?).max_decoding_message_size(MAX_ANSWER);
    let mut told = answer("Status", path, client.status(StatusRequest { verbose: true })).await?;
    Ok(told.info.remove("config"))
}
