//! `gpu-steward doctor`: why a pod waits, and whether nodes are well. It reads with the rights of its caller, and changes nothing.
//!
//! ```text
//!   API server ──cluster──┐
//!   leader ──leader, http─┼──▶ facts ──nodes/judge, node/judge, pod/tree (pure)──▶ findings ──print──▶ text or JSON, exit code
//! ```
//!
//! ```text
//!   args      the command line
//!   texts     the texts of a JSON document
//!   cluster   what the API server shows
//!   namespace the pods of gpu-steward, without other pods that have its labels
//!   leader    the leading extender, through a forwarded port
//!   http      a request over a connection that is open
//!   nodes     the command `nodes`
//!   pod       the command `pod`
//!   node      the command `node`
//!   bundle    the command `bundle`
//!   vendors   registers of other vendors' devices
//!   finding   a finding with its evidence and what to do; the verdict over all
//!   print     a report as text or JSON
//! ```
//!
//! What must never happen here: a write to the cluster; a wait without a limit; an answer of unlimited length; text of the cluster
//! that reaches a terminal as it is; a pod that is trusted because of its labels; a verdict "nothing is wrong" about something that
//! could not be looked at.

mod finding;
mod print;
mod http;
mod texts;
mod cluster;
mod namespace;
mod leader;
mod vendors;
mod nodes;
mod pod;
mod node;
mod bundle;
mod args;

pub use args::{DoctorCommand, NAME, command, read};

use args::{ClusterAccess, Subject};
use cluster::ClusterReader;
use finding::{Report, Seen};
use nodes::NodesSeen;
use print::{Output, Row};
use serde::Serialize;
use serve::exit::Exit;
use serve::lifecycle::{self, StartError};
use std::io::{ErrorKind, Write};
use wire::described_pod::DescribedPod;

/// Looks, and prints what was found.
pub fn run(command: &DoctorCommand) -> Exit {
    let looked = lifecycle::run_once(look(command)).map_err(|error| StartError::io("start", &error));
    let printed = looked.and_then(|(text, exit)| match std::io::stdout().write_all(text.as_bytes()) {
        // A closed pipe, as with `| head`, is not a failure.
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(StartError::io("write", &error)),
        _ => Ok(exit),
    });
    printed.unwrap_or_else(|StartError { what, exit }| {
        let _ = writeln!(std::io::stderr(), "error: {what}");
        exit
    })
}

async fn look(command: &DoctorCommand) -> (String, Exit) {
    let DoctorCommand { subject, access, output } = command;
    match subject {
        Subject::Nodes(all) => {
            let Opened { cluster, extenders } = open(access).await;
            let seen = NodesSeen::look(&cluster, &access.leader, &extenders).await;
            shown(&seen.report(*all), *output)
        }
        Subject::Pod { pod, scheduler } => {
            let Opened { cluster, extenders } = open(access).await;
            shown(&pod::look((pod, scheduler), &cluster, &access.leader, extenders).await, *output)
        }
        Subject::Node(places) => {
            let found = ClusterReader::find(access.kubeconfig.as_deref()).await;
            let is_named = found.is_ok();
            let facts = node::look(places, (&found.unwrap_or_else(Err), is_named)).await;
            shown(&node::report(&facts), *output)
        }
        Subject::Bundle(options) => {
            let cluster = ClusterReader::open(access.kubeconfig.as_deref()).await;
            shown(&bundle::make(options, &cluster, &access.leader).await, *output)
        }
    }
}

/// The API server, and the pods of the extender.
struct Opened {
    cluster: Seen<ClusterReader>,
    extenders: Seen<Vec<DescribedPod>>,
}

async fn open(access: &ClusterAccess) -> Opened {
    let cluster = ClusterReader::open(access.kubeconfig.as_deref()).await;
    let extenders = match &cluster {
        Ok(cluster) => namespace::extenders(cluster, access.namespace.as_deref()).await,
        Err(unread) => Err(unread.clone()),
    };
    Opened { cluster, extenders }
}

fn shown<R: Row + Serialize>(report: &Report<R>, output: Output) -> (String, Exit) {
    (print::report(report, output), report.exit())
}
