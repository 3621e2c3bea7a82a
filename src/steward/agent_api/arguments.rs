//! The flags that say where the agent listens, and how it is reached.

use super::{Agent, FetchError};
use clap::{Arg, ArgMatches, value_parser};
use std::path::PathBuf;

/// Default address of an agent.
pub(crate) const URL: &str = "http://127.0.0.1:9410";

/// The address of the agent, and the files for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AgentAddress {
    /// The address of the agent.
    pub(crate) url: String,
    /// File with a bearer token, for an agent that requires a token.
    pub(crate) token_file: Option<PathBuf>,
    /// File with the certificates that are trusted, for an agent that serves HTTPS.
    pub(crate) ca_file: Option<PathBuf>,
}

/// The flags.
pub(crate) fn arguments() -> [Arg; 3] {
    [
        Arg::new("url").long("url").value_name("URL").default_value(URL).help("Where the agent listens"),
        Arg::new("token-file")
            .long("token-file")
            .value_name("PATH")
            .value_parser(value_parser!(PathBuf))
            .help("File with a bearer token, for an agent that needs one (--api-token-file)"),
        Arg::new("ca-file").long("ca-file").value_name("PATH").value_parser(value_parser!(PathBuf)).help(
            "File (PEM) with the authority of the agent's certificate, for an agent that serves HTTPS (--tls-cert)",
        ),
    ]
}

// === impl AgentAddress ===

impl AgentAddress {
    /// Reads the values of [`arguments`].
    pub(crate) fn read(matches: &ArgMatches) -> AgentAddress {
        AgentAddress {
            url: matches.get_one::<String>("url").cloned().unwrap_or_else(|| URL.to_owned()),
            token_file: matches.get_one::<PathBuf>("token-file").cloned(),
            ca_file: matches.get_one::<PathBuf>("ca-file").cloned(),
        }
    }

    /// The client for this address.
    ///
    /// # Errors
    /// The user's arguments are wrong.
    pub(crate) fn agent(&self) -> Result<Agent, FetchError> {
        Agent::new(&self.url, self.token_file.as_ref(), self.ca_file.as_ref())
    }
}
