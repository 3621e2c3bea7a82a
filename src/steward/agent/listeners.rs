//! The doors: every address is bound before anything is announced, so that a port in use is told at once.

use crate::exit::Exit;
use crate::settings::Settings;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

/// What is listened on.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// `:9410`.
    pub http: TcpListener,
    /// The loopback port, if it is wanted.
    pub admin: Option<TcpListener>,
}

/// A door that does not open.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {purpose}: {source}; {advice}, or choose another address with --{key}", advice = self.advice())]
pub(crate) struct ListenError {
    address: SocketAddr,
    purpose: &'static str,
    key: &'static str,
    source: std::io::Error,
}

impl ListenError {
    /// The exit code it leads to.
    pub(crate) fn exit(&self) -> Exit {
        Exit::from_io(&self.source)
    }

    fn advice(&self) -> &'static str {
        match self.source.kind() {
            ErrorKind::AddrInUse => "another program listens there, perhaps a second gpu-steward: stop it",
            ErrorKind::AddrNotAvailable => "no interface of this machine has that address: check it",
            ErrorKind::PermissionDenied => "ports below 1024 need CAP_NET_BIND_SERVICE: grant it",
            _ => "check the address",
        }
    }
}

impl Listeners {
    /// Binds all of them.
    ///
    /// # Errors
    /// The first that cannot be bound.
    pub(crate) fn open(settings: &Settings) -> Result<Listeners, ListenError> {
        let bind = |address, purpose, key| {
            effects::http::bind(address).map_err(|source| ListenError { address, purpose, key, source })
        };
        let http = bind(settings.listen, "metrics and API", "listen")?;
        let admin = settings.admin_listen.map(|address| bind(address, "profiles and log level", "admin-listen"));
        Ok(Listeners { http, admin: admin.transpose()? })
    }

    /// Where metrics are to be had; differs from the setting where that says port 0.
    pub(crate) fn metrics(&self) -> String {
        shown(&self.http)
    }

    /// Where profiles are to be had.
    pub(crate) fn admin(&self) -> String {
        self.admin.as_ref().map_or_else(|| "none".into(), shown)
    }
}

fn shown(listener: &TcpListener) -> String {
    listener.local_addr().map_or_else(|_| "unknown".into(), |address| address.to_string())
}
