//! Clears incidents of a GPU in the running agent, through its admin port.

use super::addresses;
use super::settings::AgentSettings;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Bytes;
use hyper::client::conn::http1;
use hyper::{Method, Request, header};
use hyper_util::rt::TokioIo;
use serve::exit::Exit;
use serve::lifecycle::{self, StartError};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::time::timeout;

/// Time limit of the whole request. The agent itself waits at most 5 s.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum size of the response, enough for a line for each of 64 GPUs.
const MAX_RESPONSE: usize = 64 << 10;

/// The reason why nothing was cleared, as a sentence.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
struct NotCleared(String);

impl NotCleared {
    /// An error of the operating system.
    fn io(doing: &str, error: &std::io::Error) -> NotCleared {
        NotCleared(format!("cannot {doing}: {error}"))
    }
}

/// Clears the incidents of a GPU, or of all GPUs, in the agent that runs here.
pub fn run(settings: &AgentSettings, which: &str) -> Exit {
    let cleared = lifecycle::run_once(clear(settings, which)).map_err(|error| NotCleared::io("start", &error));
    let cleared = cleared.flatten().map_err(|error| StartError::unavailable(error.to_string()));
    lifecycle::outcome(cleared.map(|text| {
        tracing::info!("{}", text.trim_end());
        Exit::Ok
    }))
}

/// Sends the request, and returns the agent's response.
///
/// # Errors
/// A sentence that says what failed, and what to do.
async fn clear(settings: &AgentSettings, which: &str) -> Result<String, NotCleared> {
    let (admin, operator) = addresses::admin(&settings.state_dir).map_err(NotCleared)?;
    // If the port listens on every address, it is reached on loopback.
    let admin = if admin.ip().is_unspecified() { SocketAddr::from(([127, 0, 0, 1], admin.port())) } else { admin };
    if settings.admin.tls.is_some() {
        return Err(NotCleared(format!(
            "the admin port uses HTTPS: send the request with your certificates: curl -X DELETE https://{admin}/incidents/{which}"
        )));
    }
    let token = settings.admin.token_file.as_deref().map(std::fs::read_to_string).transpose();
    let token = token.map_err(|error| NotCleared::io("read --admin-token-file", &error))?;
    let token = token.as_deref().map_or(&*operator, str::trim);
    match timeout(TIMEOUT, send(admin, which, token)).await {
        Ok(response) => response,
        Err(_) => Err(NotCleared(format!("no answer from {admin} within {} s", TIMEOUT.as_secs()))),
    }
}

async fn send(admin: SocketAddr, which: &str, token: &str) -> Result<String, NotCleared> {
    let failed = |error: &dyn std::error::Error| NotCleared(format!("cannot reach the agent at {admin}: {error}"));
    // An agent that was killed leaves its address file behind.
    let gone = |error| {
        NotCleared(format!("no agent answers at {admin}, the address of the last agent with this --state-dir: {error}"))
    };
    let stream = TcpStream::connect(admin).await.map_err(gone)?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(|error| failed(&error))?;
    let request = Request::builder()
        .method(Method::DELETE)
        .uri(format!("/incidents/{which}"))
        .header(header::HOST, admin.to_string())
        .header(header::AUTHORIZATION, format!("Bearer {token}"));
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| failed(&error))?;
    let exchange = async {
        let response = sender.send_request(request).await.map_err(|error| failed(&error))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), MAX_RESPONSE).collect().await;
        let body = body.map_err(|error| NotCleared(format!("the answer of {admin} cannot be read: {error}")))?;
        let text = String::from_utf8_lossy(&body.to_bytes()).trim_end().to_owned();
        if status.is_success() { Ok(text) } else { Err(NotCleared(format!("{admin} answered {status}: {text}"))) }
    };
    tokio::pin!(exchange);
    // The connection runs alongside the request and is dropped with it.
    tokio::select! {
        response = &mut exchange => response,
        ended = connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(failed(&error)),
        },
    }
}
