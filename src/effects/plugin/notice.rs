//! `pluginregistration.Registration`: the kubelet's plugin watcher finds the agent's socket, calls `GetInfo`, and
//! reports with `NotifyRegistrationStatus` whether it accepted the plugin.

use proto::plugin_registration::registration_server::Registration;
use proto::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use std::sync::Arc;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// The state of one registration by the plugin watcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// The kubelet has not called `GetInfo`.
    Unasked,
    /// The kubelet has called `GetInfo`.
    Asked,
    /// The kubelet accepted the plugin.
    Taken,
    /// The kubelet refused the plugin, with this error text.
    Refused(Arc<str>),
}

/// Answers the kubelet's plugin watcher.
#[derive(Clone, Debug)]
pub(super) struct Notice {
    /// `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// Publishes the progress to the task that registers.
    pub progress: watch::Sender<Progress>,
}

#[tonic::async_trait]
impl Registration for Notice {
    async fn get_info(&self, _: Request<InfoRequest>) -> Result<Response<PluginInfo>, Status> {
        self.progress.send_if_modified(|now| {
            let first = *now == Progress::Unasked;
            if first {
                *now = Progress::Asked;
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
            Progress::Taken
        } else {
            // The kubelet's error text, cut: it goes into a log line.
            Progress::Refused(status.error.chars().take(1000).collect::<String>().into())
        };
        self.progress.send_replace(progress);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
