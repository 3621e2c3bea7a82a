//! Forwards a port of a pod over a WebSocket, as the kubelet does: channel 0 has the data, channel 1 an error, and the first message of
//! each has the number of the port.

use super::{Shared, status};
use axum::body::Body;
use axum::extract::{Path as Place, Query, Request, State};
use axum::response::{IntoResponse, Response};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use hyper::upgrade::{OnUpgrade, Upgraded};
use hyper_util::rt::TokioIo;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use std::collections::HashMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::io::{AsyncReadExt, AsyncWriteExt, ReadHalf, WriteHalf};
use tokio::net::TcpStream;

/// The text that a server adds to the key of a handshake (RFC 6455).
const GUID: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const PROTOCOL: &str = "v4.channel.k8s.io";

/// Opens the WebSocket.
pub(super) async fn port(
    State(shared): State<Arc<Shared>>,
    Place((namespace, name)): Place<(String, String)>,
    Query(query): Query<HashMap<String, String>>,
    mut request: Request,
) -> Response {
    let number = query.get("ports").and_then(|port| port.parse::<u16>().ok()).unwrap_or_default();
    let to = shared.cluster.lock().ports.get(&(namespace, name, number)).copied();
    let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    let (key, protocol) = (header("sec-websocket-key"), header("sec-websocket-protocol"));
    let (Some(key), Some(PROTOCOL)) = (key.filter(|key| key.len() == 24), protocol.as_deref()) else {
        return status(400, "no WebSocket, or no protocol that is known");
    };
    let Some(upgrade) = request.extensions_mut().remove::<OnUpgrade>() else { return status(400, "no upgrade") };
    tokio::spawn(async move {
        if let Ok(upgraded) = upgrade.await {
            let _ = carry(upgraded, number, to).await;
        }
    });
    let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{GUID}").as_bytes()));
    let response = Response::builder()
        .status(101)
        .header("connection", "Upgrade")
        .header("upgrade", "websocket")
        .header("sec-websocket-accept", accept)
        .header("sec-websocket-protocol", PROTOCOL)
        .body(Body::empty());
    response.unwrap_or_else(|why| status(500, &why.to_string()).into_response())
}

async fn carry(upgraded: Upgraded, number: u16, to: Option<SocketAddr>) -> io::Result<()> {
    let (mut from, mut back) = tokio::io::split(TokioIo::new(upgraded));
    for channel in [0, 1] {
        let [low, high] = number.to_le_bytes();
        send(&mut back, &[channel, low, high]).await?;
    }
    let connected = match to {
        Some(to) => TcpStream::connect(to).await,
        None => Err(io::ErrorKind::ConnectionRefused.into()),
    };
    let program = match connected {
        Ok(program) => program,
        Err(why) => {
            let text = format!("\u{1}error forwarding port {number} to pod: {why}");
            return send(&mut back, text.as_bytes()).await;
        }
    };
    let (mut answers, mut requests) = program.into_split();
    let forth = async {
        while let Some((0, data)) = receive(&mut from).await?.split_first() {
            requests.write_all(data).await?;
        }
        Ok::<(), io::Error>(())
    };
    let back = async {
        let mut answer = vec![0; 16 << 10];
        loop {
            let read = answers.read(&mut answer).await?;
            if read == 0 {
                return back.write_all(&[0x88, 0]).await;
            }
            let mut message = vec![0];
            message.extend(&answer[..read]);
            send(&mut back, &message).await?;
        }
    };
    tokio::select! {
        ended = forth => ended,
        ended = back => ended,
    }
}

/// Sends a message of bytes, and every other message in two frames, as a server may.
async fn send(back: &mut WriteHalf<TokioIo<Upgraded>>, message: &[u8]) -> io::Result<()> {
    let (first, second) = message.split_at(message.len() / 2);
    for (code, part) in [(0x02, first), (0x80, second)] {
        let length = u16::try_from(part.len()).map_err(io::Error::other)?;
        let mut frame = vec![code, 126];
        frame.extend(length.to_be_bytes());
        frame.extend(part);
        back.write_all(&frame).await?;
    }
    back.flush().await
}

/// Receives a message, which a client masks; empty for the end.
async fn receive(from: &mut ReadHalf<TokioIo<Upgraded>>) -> io::Result<Vec<u8>> {
    let mut head = [0; 2];
    from.read_exact(&mut head).await?;
    let length = match head[1] & 0x7f {
        126 => usize::from(from.read_u16().await?),
        127 => usize::try_from(from.read_u64().await?).map_err(io::Error::other)?,
        length => usize::from(length),
    };
    assert!(head[1] & 0x80 != 0, "a client masks its frames");
    let mut mask = [0; 4];
    from.read_exact(&mut mask).await?;
    let mut message = vec![0; length];
    from.read_exact(&mut message).await?;
    message.iter_mut().zip(mask.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    Ok(if head[0] & 0x0f == 0x8 { Vec::new() } else { message })
}
