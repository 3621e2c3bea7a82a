//! What an extender is told at its start. This file knows no flag, no variable and no file: whoever starts the extender fills
//! it.

use decide::cluster::ClusterRules;
use decide::election::ElectionTimes;
use serve::admin_access::AdminSettings;
use serve::log::LogFormat;
use serve::log::level::Verbosity;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of an extender, parsed. It has one field for each setting or group of settings.
#[derive(Clone, Debug)]
pub struct ExtenderSettings {
    /// `None`: search the usual places.
    pub kubeconfig: Option<PathBuf>,
    pub drain_timeout: Duration,
    pub listen: SocketAddr,
    pub admin: AdminSettings,
    pub allowed_hosts: Vec<String>,
    /// How it serves agents and the other extenders; `None` where it does not.
    pub streams: Option<StreamSettings>,
    pub lease: LeaseSettings,
    pub rules: ClusterRules,
    pub log_format: LogFormat,
    pub verbosity: Verbosity,
}

/// The Lease of the leader election.
#[derive(Clone, Debug)]
pub struct LeaseSettings {
    pub name: String,
    /// `None`: that of the pod.
    pub namespace: Option<String>,
    pub times: ElectionTimes,
}

/// How an extender serves agents and the other extenders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    pub listen: SocketAddr,
    /// Where others reach this extender; `None`: the pod's address, else that of `listen`.
    pub address: Option<String>,
    /// The accounts of agents, each as the subject of a token.
    pub accounts: Vec<String>,
    pub audience: String,
    /// The own token; `None`: this extender passes no questions on to the leader.
    pub token_file: Option<PathBuf>,
}
