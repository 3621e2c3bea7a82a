//! A list of objects as the API server answers it, or one page of it.

use crate::pod::OrNull;
use serde::Deserialize;

/// The list. Missing and `null` parts are empty.
#[derive(Deserialize)]
#[serde(bound(deserialize = "T: Deserialize<'de>"))]
pub(crate) struct ObjectList<T> {
    #[serde(default)]
    metadata: OrNull<Metadata>,
    #[serde(default)]
    items: OrNull<Vec<T>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Metadata {
    #[serde(rename = "continue")]
    more: OrNull<String>,
}

impl<T> ObjectList<T> {
    /// The objects, and the `continue` token for the next page, which is empty on the last page.
    pub(crate) fn into_parts(self) -> (Vec<T>, String) {
        (self.items.0, self.metadata.0.more.0)
    }
}
