//! `/api/v1`: the node view as JSON, filtered by the query.
//!
//! ```text
//!   ?namespace=  ?pod=  ?gpu=   each narrows the lists; a GPU is named by UUID or index
//!
//!   profile history             the profiles of loads, and the history of one series
//!   subject                     which GPU or pod a name of a series stands for
//! ```
//!
//! What must never happen here: a list longer than the bounds of the view allow.

pub mod query;
mod subject;
pub mod profile;
pub mod history;

use model::gpu::UnidentifiedGpu;
use model::id::PodUid;
use model::time::Now;
use model::view::{ContainerView, GpuUse, GpuView, NodeView, PodView};
use wire::api::head::ViewHeadJson;
use wire::api::process_owner::{OwnerNames, ProcessOwnerJson};
use wire::api::reading::ReadingAges;
use wire::api::{gpus, node, pods, processes};

pub use query::ApiFilter;

/// One of the JSON documents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ApiDocument {
    /// `/api/v1/node`.
    Node,
    /// `/api/v1/gpus`.
    Gpus,
    /// `/api/v1/pods`.
    Pods,
    /// `/api/v1/processes`.
    Processes,
}

impl ApiFilter {
    fn named(&self) -> bool {
        self.namespace.is_some() || self.pod.is_some()
    }

    fn matches_name(&self, namespace: Option<&str>, pod: Option<&str>) -> bool {
        let fits =
            |expected: &Option<String>, actual: Option<&str>| expected.is_none() || expected.as_deref() == actual;
        fits(&self.namespace, namespace) && fits(&self.pod, pod)
    }

    fn matches_pod(&self, pod: &PodView) -> bool {
        let name = pod.name.as_ref();
        self.matches_name(name.map(|name| &*name.namespace), name.map(|name| &*name.name))
    }

    fn matches_owner(&self, owner: &ProcessOwnerJson) -> bool {
        self.matches_name(owner.namespace.as_deref(), owner.pod.as_deref())
    }

    /// The GPU that the filter names and the node does not have; else `None`.
    #[must_use]
    pub fn missing_gpu(&self, view: &NodeView) -> Option<&str> {
        let gpu = self.gpu.as_deref()?;
        let known = view.gpus.iter().any(|gpu| self.matches_gpu(gpu));
        let unidentified = view.gpus_unidentified.iter().any(|one| gpu.parse() == Ok(one.index));
        (!known && !unidentified).then_some(gpu)
    }

    fn matches_gpu(&self, gpu: &GpuView) -> bool {
        let Some(expected) = &self.gpu else { return true };
        expected == gpu.gpu.uuid.as_str() || expected.parse() == Ok(gpu.gpu.index)
    }

    /// A GPU without a UUID has no known pods, so a filter by namespace or pod excludes it.
    fn matches_unidentified(&self, gpu: &UnidentifiedGpu) -> bool {
        !self.named() && self.gpu.as_ref().is_none_or(|expected| expected.parse() == Ok(gpu.index))
    }
}

/// Writes `document` to the end of `out`.
///
/// # Errors
/// An error of serde_json. No error is expected, because the documents contain only plain values.
pub fn render(
    document: ApiDocument,
    filter: &ApiFilter,
    view: &NodeView,
    now: Now,
    out: &mut Vec<u8>,
) -> Result<(), serde_json::Error> {
    let query = ApiQuery { filter, view, now };
    match document {
        ApiDocument::Node => serde_json::to_writer(&mut *out, &node::NodeJson::of(view, now))?,
        ApiDocument::Gpus => serde_json::to_writer(&mut *out, &query.gpus())?,
        ApiDocument::Pods => serde_json::to_writer(&mut *out, &query.pods())?,
        ApiDocument::Processes => query.processes(out)?,
    }
    out.push(b'\n');
    Ok(())
}

/// One query of a view.
struct ApiQuery<'a> {
    filter: &'a ApiFilter,
    view: &'a NodeView,
    now: Now,
}

impl ApiQuery<'_> {
    fn gpus(&self) -> gpus::GpusJson<gpus::WrittenReadings<'_>> {
        let names = OwnerNames::of(self.view);
        let ages = ReadingAges(self.now.monotonic);
        let fits = |uid: &PodUid| names.pod(uid).is_some_and(|pod| self.filter.matches_pod(pod));
        let chosen = self
            .view
            .gpus
            .iter()
            .filter(|gpu| self.filter.matches_gpu(gpu) && (!self.filter.named() || gpu.holders.iter().any(fits)));
        // They have neither a name nor an index.
        let missing = self.view.gpus_missing.iter().filter(|_| !self.filter.named() && self.filter.gpu.is_none());
        let unidentified = self.view.gpus_unidentified.iter().filter(|gpu| self.filter.matches_unidentified(gpu));
        gpus::GpusJson {
            view: ViewHeadJson::of(self.view, self.now),
            gpus: chosen.map(|gpu| gpus::GpuJson::of(gpu, &names, ages)).collect(),
            gpus_unidentified: unidentified.map(|gpu| gpus::UnidentifiedGpuJson::of(gpu, ages)).collect(),
            gpus_missing: missing.map(gpus::MissingGpuJson::of).collect(),
        }
    }

    fn pods(&self) -> pods::PodsListing<'_> {
        let uuids: Vec<_> =
            self.view.gpus.iter().filter(|gpu| self.filter.matches_gpu(gpu)).map(|gpu| &gpu.gpu.uuid).collect();
        let on =
            |shares: &[GpuUse]| self.filter.gpu.is_none() || shares.iter().any(|share| uuids.contains(&&share.gpu));
        let pod = |pod: &&PodView| self.filter.matches_pod(pod) && on(&pod.gpus);
        let container = |container: &&ContainerView| !self.filter.named() && on(&container.gpus);
        pods::PodsListing {
            view: ViewHeadJson::of(self.view, self.now),
            left_out: self.view.cgroups_left_out,
            pods: self.view.pods.iter().filter(pod).collect(),
            containers: self.view.containers.iter().filter(container).collect(),
            memory_claims: &self.view.memory_claims,
            ages: ReadingAges(self.now.monotonic),
        }
    }

    fn processes(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let names = OwnerNames::of(self.view);
        let rows = processes::rows(self.view);
        let uuids: Vec<_> =
            self.view.gpus.iter().filter(|gpu| self.filter.matches_gpu(gpu)).map(|gpu| &gpu.gpu.uuid).collect();
        let fits = |row: &&processes::ProcessRow<'_>| {
            (self.filter.gpu.is_none() || row.gpus.iter().any(|(gpu, _)| uuids.contains(gpu)))
                && (!self.filter.named() || self.filter.matches_owner(&row.owner(&names)))
        };
        let listing = processes::ProcessesListing {
            view: ViewHeadJson::of(self.view, self.now),
            left_out: self.view.processes_left_out,
            rows: rows.iter().filter(fits).collect(),
            names: &names,
            ages: ReadingAges(self.now.monotonic),
        };
        serde_json::to_writer(out, &listing)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_view;
    use std::path::PathBuf;

    #[test]
    fn a_gpu_that_the_node_does_not_have_is_missing() {
        let view = sample_view::small();
        let missing = |query: &str| ApiFilter::parse(query).unwrap().missing_gpu(&view).map(str::to_owned);
        assert_eq!(missing("pod=nothing"), None);
        for gpu in &view.gpus {
            assert_eq!(missing(&format!("gpu={}", gpu.gpu.index)), None);
            assert_eq!(missing(&format!("gpu={}", gpu.gpu.uuid)), None);
        }
        for gpu in &view.gpus_unidentified {
            assert_eq!(missing(&format!("gpu={}", gpu.index)), None);
        }
        assert_eq!(missing("gpu=99").as_deref(), Some("99"));
        assert_eq!(missing("gpu=GPU-other").as_deref(), Some("GPU-other"));
    }

    /// The order of the fields is checked too, so that no field moves by accident.
    #[test]
    fn the_document_of_the_gpus_of_the_small_view_is_kept() {
        let mut out = Vec::new();
        render(ApiDocument::Gpus, &ApiFilter::default(), &sample_view::small(), sample_view::NOW, &mut out).unwrap();
        let text = String::from_utf8(out).unwrap().replace(",\"", ",\n\"");
        let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/api/gpus.json");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(&path, &text).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(kept == text, "{} is out of date; UPDATE_GOLDEN=1 writes it", path.display());
    }
}
