//! The listeners. The agent binds every address before it announces anything, so that a port that is in use is
//! reported at once.

use super::settings::AgentSettings;
use serve::exit::Exit;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};

/// The bound ports.
#[derive(Debug)]
pub(crate) struct Listeners {
    /// The port for metrics and API, `:9410`.
    pub http: TcpListener,
    /// The admin port; `None` if the setting is `none`.
    pub admin: Option<TcpListener>,
}

/// An address that cannot be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} for {purpose}: {source}; {advice}, or choose another address with --{key}", advice = self.advice())]
pub(crate) struct ListenError {
    address: SocketAddr,
    purpose: &'static str,
    key: &'static str,
    source: std::io::Error,
}

impl ListenError {
    /// The exit code of the program.
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
    /// Binds all addresses.
    ///
    /// # Errors
    /// The first address that cannot be bound.
    pub(crate) fn open(settings: &AgentSettings) -> Result<Listeners, ListenError> {
        let bind = |address, purpose, key| {
            serve::server::bind(address).map_err(|source| ListenError { address, purpose, key, source })
        };
        let http = bind(settings.listen, "metrics and API", "listen")?;
        let admin = settings.admin.listen.map(|address| bind(address, "profiles and log level", "admin-listen"));
        Ok(Listeners { http, admin: admin.transpose()? })
    }

    /// The address of the metrics. If the setting has port 0, it contains the port that the kernel chose.
    pub(crate) fn metrics(&self) -> String {
        shown(&self.http)
    }

    /// The address of the admin port, or `none`.
    pub(crate) fn admin(&self) -> String {
        self.admin.as_ref().map_or_else(|| "none".into(), shown)
    }
}

fn shown(listener: &TcpListener) -> String {
    listener.local_addr().map_or_else(|_| "unknown".into(), |address| address.to_string())
}
