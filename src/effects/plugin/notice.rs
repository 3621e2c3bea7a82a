//! `pluginregistration.Registration`: kubelet finds our socket, asks who we are, and says whether it took us.

use proto::plugin_registration::registration_server::Registration;
use proto::plugin_registration::{InfoRequest, PluginInfo, RegistrationStatus, RegistrationStatusResponse};
use std::sync::Arc;
use tokio::sync::watch;
use tonic::{Request, Response, Status};

/// How far kubelet has come with us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It has not asked yet.
    Unasked,
    /// It has asked who we are.
    Asked,
    /// It took us.
    Taken,
    /// It refused us, with its words.
    Refused(Arc<str>),
}

/// Answers kubelet's plugin watcher.
#[derive(Clone, Debug)]
pub(super) struct Notice {
    /// `nvidia.com/gpu`.
    pub resource: Arc<str>,
    /// What is told to the one who waits.
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
            // kubelet's words, bounded: they go into a log line.
            Progress::Refused(status.error.chars().take(1000).collect::<String>().into())
        };
        self.progress.send_replace(progress);
        Ok(Response::new(RegistrationStatusResponse {}))
    }
}
