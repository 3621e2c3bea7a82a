//! The error of a call to the API server. It names the verb, the object, the address, the status and what to do.

use super::resource::ApiResource;
use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use wire::watch::ApiRefusal;

/// Longest wait that is accepted from the server's `Retry-After`.
const MAX_WAIT: Duration = Duration::from_secs(60);

/// The verb of a call, as RBAC names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiVerb {
    /// Reads one object.
    Get,
    /// Reads all objects of a kind.
    List,
    /// Follows the changes after a list.
    Watch,
    /// Makes an object.
    Create,
    /// Replaces an object.
    Update,
    /// Changes parts of an object.
    Patch,
    /// Removes an object.
    Delete,
}

/// One call: its verb, its kind of object, and the object or the part of it that the call is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiCall {
    /// The verb.
    pub verb: ApiVerb,
    /// The kind of object.
    pub resource: ApiResource,
    /// The object, for log lines: `annotations of pod ml/train-0`.
    pub object: Cow<'static, str>,
}

/// Why a call has no result.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{call} at {server}: {failure}{}", advice(.call, .failure))]
pub struct ApiError {
    /// The call.
    pub call: ApiCall,
    /// The server's address.
    pub server: Arc<str>,
    /// What went wrong.
    pub failure: ApiFailure,
}

/// What went wrong with a call.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ApiFailure {
    /// The connection could not be made, or it broke.
    #[error("{0}")]
    Broken(String),
    /// The server did not answer within this time.
    #[error("no answer within {} s", .0.as_secs())]
    Slow(Duration),
    /// The server refused the call.
    #[error("{} {}", refusal.code, refusal.message)]
    Refused {
        /// The refusal's status code and message.
        refusal: ApiRefusal,
        /// How long the caller should wait, by the server's `Retry-After`.
        wait: Option<Duration>,
    },
    /// The answer cannot be read.
    #[error("{0}")]
    Unreadable(String),
    /// The answer is larger than this many bytes.
    #[error("the answer is larger than {} MiB", .0 >> 20)]
    TooLarge(usize),
    /// The server ended a watch immediately after its start.
    #[error("the server ended it immediately")]
    EndedAtOnce,
}

// === impl ApiVerb ===

impl ApiVerb {
    /// The verb's name in RBAC.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            ApiVerb::Get => "get",
            ApiVerb::List => "list",
            ApiVerb::Watch => "watch",
            ApiVerb::Create => "create",
            ApiVerb::Update => "update",
            ApiVerb::Patch => "patch",
            ApiVerb::Delete => "delete",
        }
    }
}

// === impl ApiCall ===

impl ApiCall {
    /// A call.
    #[must_use]
    pub fn new(verb: ApiVerb, resource: ApiResource, object: impl Into<Cow<'static, str>>) -> ApiCall {
        ApiCall { verb, resource, object: object.into() }
    }
}

impl fmt::Display for ApiCall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb.word(), self.object)
    }
}

// === impl ApiError ===

impl ApiError {
    /// The server's refusal, if it refused the call.
    #[must_use]
    pub fn refusal(&self) -> Option<&ApiRefusal> {
        match &self.failure {
            ApiFailure::Refused { refusal, .. } => Some(refusal),
            _ => None,
        }
    }

    /// The status code with which the server refused the call.
    #[must_use]
    pub fn code(&self) -> Option<u16> {
        self.refusal().map(|refusal| refusal.code)
    }

    /// Whether the resource version of the call can no longer be used.
    pub(crate) fn outdated(&self) -> bool {
        match &self.failure {
            ApiFailure::Refused { refusal, .. } => matches!(refusal.code, 400 | 404 | 410 | 422 | 504),
            ApiFailure::Unreadable(_) | ApiFailure::TooLarge(_) => true,
            ApiFailure::Broken(_) | ApiFailure::Slow(_) | ApiFailure::EndedAtOnce => false,
        }
    }

    /// Whether the answer was larger than is read.
    pub(crate) fn too_large(&self) -> bool {
        matches!(self.failure, ApiFailure::TooLarge(_))
    }

    /// Whether the server did not answer in time.
    pub(crate) fn slow(&self) -> bool {
        matches!(self.failure, ApiFailure::Slow(_))
    }

    /// Whether the call may have asked the server for too much at once: it did not answer, broke off, or failed.
    pub(crate) fn may_be_too_much(&self) -> bool {
        self.slow() || matches!(self.failure, ApiFailure::Broken(_)) || self.code().is_some_and(|code| code >= 500)
    }

    /// Whether the server's cache has not reached the resource version of the call.
    pub(crate) fn behind(&self) -> bool {
        self.code() == Some(504)
    }

    /// Whether the server no longer has the history after this resource version, which is not a failure.
    pub(crate) fn expired(&self) -> bool {
        self.code() == Some(410)
    }

    /// How long the caller should wait, by the server's `Retry-After`.
    pub(crate) fn wait(&self) -> Duration {
        match &self.failure {
            ApiFailure::Refused { wait: Some(wait), .. } => MAX_WAIT.min(*wait),
            _ => Duration::ZERO,
        }
    }
}

/// What to do about a failure; empty if the failure already names it.
fn advice(call: &ApiCall, failure: &ApiFailure) -> String {
    let ApiFailure::Refused { refusal, .. } = failure else { return String::new() };
    match refusal.code {
        401 => "; the credentials are not accepted: renew the token or certificate".to_owned(),
        // Admission refuses with 403 too, and its text names the policy or the webhook.
        403 if !refusal.message.to_ascii_lowercase().contains("admission") => {
            let verb = match call.verb {
                ApiVerb::List | ApiVerb::Watch => "list and watch",
                other => other.word(),
            };
            format!("; allow this identity to {verb} {} (ClusterRole)", call.resource.plural())
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_names_the_verb_the_object_the_address_the_status_and_the_remedy() {
        let text = |verb, code, message: &str| {
            let call = ApiCall::new(verb, ApiResource::Pods, "annotations of pod ml/train-0");
            let refusal = ApiRefusal { code, message: message.into(), is_status: true };
            let failure = ApiFailure::Refused { refusal, wait: None };
            ApiError { call, server: "https://10.0.0.1/".into(), failure }.to_string()
        };
        assert_eq!(
            text(ApiVerb::Patch, 403, "pods is forbidden"),
            "patch annotations of pod ml/train-0 at https://10.0.0.1/: 403 pods is forbidden; allow this identity to patch pods \
             (ClusterRole)"
        );
        assert!(text(ApiVerb::Watch, 403, "no").ends_with("allow this identity to list and watch pods (ClusterRole)"));
        assert!(text(ApiVerb::Get, 401, "Unauthorized").ends_with("renew the token or certificate"));
        let policy = "pods \"a\" is forbidden: ValidatingAdmissionPolicy 'x' with binding 'x' denied request: no";
        assert!(
            text(ApiVerb::Patch, 403, policy).ends_with("denied request: no"),
            "the text of a policy has the advice"
        );
    }
}
