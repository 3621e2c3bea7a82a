//! `/api/v1/profile`: the newest profiles, filtered by their subject.

use super::subject::{is_known, subject_of};
use model::time::Now;
use model::view::NodeView;
use model::workload_profile::{ProfiledSubject, WorkloadProfiles};
use wire::api::head::ViewHeadJson;
use wire::api::profile::{GpuJobJson, ProfilesListing, RecorderJson};
use wire::api::reading::ReadingAges;
use wire::history_query::SubjectFilter;

/// The requested profiles; `None` if the filter names a GPU or pod that this node does not have.
#[must_use]
pub fn listing<'a>(
    filter: &SubjectFilter,
    view: &NodeView,
    profiles: &'a WorkloadProfiles,
    now: Now,
) -> Option<ProfilesListing<'a>> {
    let one = match filter {
        SubjectFilter::One(name) => {
            let subject = subject_of(name, view, profiles);
            Some(subject.filter(|subject| is_known(subject, view, profiles))?)
        }
        SubjectFilter::All | SubjectFilter::Gpus | SubjectFilter::Pods => None,
    };
    let wanted = |subject: &ProfiledSubject| match filter {
        SubjectFilter::All => true,
        SubjectFilter::Gpus => matches!(subject, ProfiledSubject::Gpu(_)),
        SubjectFilter::Pods => matches!(subject, ProfiledSubject::Pod(_)),
        SubjectFilter::One(_) => one.as_ref() == Some(subject),
    };
    let jobs = profiles.jobs.iter().filter(|job| wanted(&ProfiledSubject::Gpu(job.gpu.clone())));
    Some(ProfilesListing {
        view: ViewHeadJson::of(view, now),
        recorder: RecorderJson::of(&profiles.recorder),
        jobs: jobs.map(GpuJobJson::of).collect(),
        profiles: profiles.profiles.iter().filter(|profile| wanted(&profile.subject)).collect(),
        ages: ReadingAges(now.monotonic),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_view;
    use wire::api::profile::ProfilesJson;

    fn shown(filter: Option<&str>) -> Option<Vec<String>> {
        let (view, profiles) = (sample_view::small(), sample_view::profiles::small());
        let listing = listing(&SubjectFilter::parse(filter).unwrap(), &view, &profiles, sample_view::NOW)?;
        let document: ProfilesJson = serde_json::from_slice(&serde_json::to_vec(&listing).unwrap()).unwrap();
        Some(document.profiles.into_iter().map(|profile| profile.series).collect())
    }

    #[test]
    fn a_filter_names_a_kind_or_one_subject() {
        let all = shown(None).unwrap();
        let (gpus, pods) = (shown(Some("gpu")).unwrap(), shown(Some("pod")).unwrap());
        assert!(!gpus.is_empty() && !pods.is_empty());
        assert_eq!(gpus.iter().chain(&pods).collect::<Vec<_>>(), all.iter().collect::<Vec<_>>());
        assert_eq!(shown(Some("gpu/1")).unwrap(), ["gpu/GPU-00000001-1111-2222-3333-444444444444/utilization"]);
        assert_eq!(shown(Some("pod/web/serve-b")), Some(Vec::new()), "a pod that is not analysed yet");
        assert_eq!(shown(Some("gpu/9")), None);
        assert_eq!(shown(Some("gpu/GPU-other")), None);
    }
}
