//! `pluginregistration.Registration`: the kubelet's plugin watcher finds the agent's socket, calls `GetInfo`, and
//! reports with `NotifyRegistrationStatus` whether it accepted the plugin.

use proto::plugin_registration::registration_server::Registration;
use proto::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use std::sync::Arc;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// The state of one registration by the plugin watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum WatcherProgress {
    /// The kubelet has not called `GetInfo`.
    NotRequested,
    /// The kubelet has called `GetInfo`.
    InfoRequested,
    /// The kubelet accepted the plugin.
    Accepted,
    /// The kubelet refused the plugin, with this error text.
    Refused(Arc<str>),
}

/// Answers the kubelet's plugin watcher.
#[derive(Clone, Debug)]
pub(super) struct WatcherRegistration {
    /// `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// Publishes the progress to the task that registers.
    pub progress: watch::Sender<WatcherProgress>,
}

#[tonic::async_trait]
impl Registration for WatcherRegistration {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.progress.send_if_modified(|now| {
            let first = *now == WatcherProgress::NotRequested;
            if first {
                *now = WatcherProgress::InfoRequested;
            }
            first
        });
        Ok(Response::new(PluginInfo {
            r#type: "DevicePlugin".into(),
            name: self.resource.to_string(),
            // Empty: the same socket serves the plugin.
            endpoint: String::new(),
            supported_versions: vec!["v1beta1".into()],
        }))
    }

    async fn notify_registration_status(
        &self,
        request: Request<RegistrationStatus>,
    ) -> Result<Response<RegistrationStatusResponse>, Status> {
        let status = request.into_inner();
        let progress = if status.plugin_registered {
            WatcherProgress::Accepted
        } else {
            // The kubelet's error text, cut: it goes into a log line.
            WatcherProgress::Refused(status.error.chars().take(1000).collect::<String>().into())
        };
        self.progress.send_replace(progress);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
