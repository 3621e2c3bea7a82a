//! The query of a request: `?namespace=`, `?pod=`, `?gpu=`.

use serve::query::{BadQuery, values};

/// The filter of a query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ApiFilter {
    /// Only this namespace.
    pub namespace: Option<String>,
    /// Only pods of this name.
    pub pod: Option<String>,
    /// Only this GPU: UUID or index.
    pub gpu: Option<String>,
}

impl ApiFilter {
    /// Parses the text after `?`.
    ///
    /// # Errors
    /// [`BadQuery`], with a text for the caller.
    pub fn parse(query: &str) -> Result<ApiFilter, BadQuery> {
        let [namespace, pod, gpu] = values(query, ["namespace", "pod", "gpu"])?;
        Ok(ApiFilter { namespace, pod, gpu })
    }
}
