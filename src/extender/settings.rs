//! The settings of an extender at its start. The program that starts the extender fills them from its flags, variables
//! and files, which this file does not know.

use decide::cluster::ClusterRules;
use decide::election::ElectionTimes;
use serve::admin_access::AdminSettings;
use serve::log::LogFormat;
use serve::log::level::Verbosity;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The parsed settings of an extender.
#[derive(Clone, Debug)]
pub struct ExtenderSettings {
    /// `None`: search the usual places.
    pub kubeconfig: Option<PathBuf>,
    /// How long open requests may take when the extender stops.
    pub drain_timeout: Duration,
    /// The address of the port.
    pub listen: SocketAddr,
    /// The admin port.
    pub admin: AdminSettings,
    /// Accepted `Host` names in addition to this machine's names.
    pub allowed_hosts: Vec<String>,
    /// How the extender serves agents and the other extenders; `None` if it does not serve them.
    pub streams: Option<StreamSettings>,
    /// The Lease of the leader election.
    pub lease: LeaseSettings,
    /// Whether the leader writes on Nodes how much of their GPUs it assumes to be taken.
    pub assume_annotation: bool,
    /// How nodes and GPUs are chosen.
    pub rules: ClusterRules,
    /// `spec.schedulerName` of the pods that the kube-scheduler with this extender places.
    pub scheduler_name: Arc<str>,
    /// Where the log goes, and in which form.
    pub log_format: LogFormat,
    /// The level of the log.
    pub verbosity: Verbosity,
}

/// The Lease of the leader election.
#[derive(Clone, Debug)]
pub struct LeaseSettings {
    /// The Lease's name.
    pub name: String,
    /// `None`: the namespace of the pod.
    pub namespace: Option<String>,
    /// The Lease's times.
    pub times: ElectionTimes,
}

/// How an extender serves agents and the other extenders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamSettings {
    /// The address of the port.
    pub listen: SocketAddr,
    /// The address at which others reach this extender; `None`: the pod's address, otherwise the address of `listen`.
    pub address: Option<String>,
    /// The accounts of agents, each as the subject of a token.
    pub accounts: Vec<String>,
    /// The audience that the tokens of callers name.
    pub audience: String,
    /// The file with this extender's token; `None`: the extender forwards no calls to the leader.
    pub token_file: Option<PathBuf>,
}
