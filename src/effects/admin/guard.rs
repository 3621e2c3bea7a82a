//! Access to the admin port. A request needs a `Host` that belongs to this node and, if a token is set, that token.
//! Client certificates are checked earlier, in the TLS handshake.

use super::connections::LocalAddress;
use crate::caller::{self, AllowedHosts};
use axum::extract::{Request, State};
use axum::http::StatusCode;
use axum::http::header::WWW_AUTHENTICATE;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

/// The conditions that a request must meet.
#[derive(Clone, Debug)]
pub(super) struct Guard {
    hosts: AllowedHosts,
    token: Option<Arc<str>>,
}

impl Guard {
    pub(super) fn new(hosts: AllowedHosts, token: Option<Arc<str>>) -> Guard {
        Guard { hosts, token }
    }
}

/// Checks the operator token. It protects the operator paths where the port has no other token and no client
/// certificates.
///
/// The token is in the state directory. So only callers that can read that directory may change which GPUs are offered
/// or read; other users of the host, and pods in the host network, may not.
pub(super) async fn operator(State(token): State<Option<Arc<str>>>, request: Request, next: Next) -> Response {
    match (&token, caller::bearer(request.headers())) {
        (None, _) => next.run(request).await,
        (Some(token), Some(given)) if !token.is_empty() && caller::same(given, token.as_bytes()) => {
            next.run(request).await
        }
        _ => {
            let why =
                "this path needs the header Authorization: Bearer <operator_token of addresses.json in --state-dir>\n";
            (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], why).into_response()
        }
    }
}

/// Hands the request on, or refuses it.
pub(super) async fn check(State(guard): State<Guard>, request: Request, next: Next) -> Response {
    let local = request.extensions().get::<LocalAddress>().map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |local| local.0);
    if let Err(why) = guard.hosts.check(request.uri(), request.headers(), local) {
        return (StatusCode::FORBIDDEN, format!("{why}\n")).into_response();
    }
    match (&guard.token, caller::bearer(request.headers())) {
        (None, _) => next.run(request).await,
        (Some(token), Some(given)) if caller::same(given, token.as_bytes()) => next.run(request).await,
        (Some(_), Some(_)) => (StatusCode::FORBIDDEN, "this token is not valid for the admin port\n").into_response(),
        (Some(_), None) => {
            let why = "the admin port needs the header Authorization: Bearer <token>\n";
            (StatusCode::UNAUTHORIZED, [(WWW_AUTHENTICATE, "Bearer")], why).into_response()
        }
    }
}
