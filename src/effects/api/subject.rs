//! Finds the GPU or pod that a name of a series stands for.

use model::view::NodeView;
use model::workload_profile::{ProfiledSubject, WorkloadProfiles};
use wire::history_query::SubjectName;

/// The subject with this name. An index or the name of a pod must be known; a UUID and a UID stand for themselves, because
/// there may be a history of a GPU or a pod that is gone.
pub(super) fn subject_of(name: &SubjectName, view: &NodeView, profiles: &WorkloadProfiles) -> Option<ProfiledSubject> {
    match name {
        SubjectName::GpuIndex(index) => {
            let gpu = view.gpus.iter().find(|gpu| gpu.gpu.index == *index)?;
            Some(ProfiledSubject::Gpu(gpu.gpu.uuid.clone()))
        }
        SubjectName::Gpu(uuid) => Some(ProfiledSubject::Gpu(uuid.clone())),
        SubjectName::Pod(pod) => {
            let running = view.pods.iter().find(|seen| seen.name.as_ref() == Some(pod));
            if let Some(running) = running {
                return Some(ProfiledSubject::Pod(running.uid.clone()));
            }
            // Of several pods that had the name one after the other, the last one counts.
            let named = profiles.profiles.iter().filter(|profile| profile.pod.as_ref() == Some(pod));
            named.max_by_key(|profile| profile.analyzed_at).map(|profile| profile.subject.clone())
        }
        SubjectName::PodUid(uid) => Some(ProfiledSubject::Pod(uid.clone())),
    }
}

/// Whether the node has the subject, or a profile of it.
pub(super) fn is_known(subject: &ProfiledSubject, view: &NodeView, profiles: &WorkloadProfiles) -> bool {
    let shown = match subject {
        ProfiledSubject::Gpu(uuid) => view
            .gpus
            .iter()
            .any(|gpu| gpu.gpu.uuid == *uuid || gpu.gpu.instances().iter().any(|instance| instance.uuid == *uuid)),
        ProfiledSubject::Pod(uid) => view.pods.iter().any(|pod| pod.uid == *uid),
    };
    shown || profiles.profiles.iter().any(|profile| profile.subject == *subject)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sample_view;

    fn found(name: &str) -> Option<String> {
        let (view, profiles) = (sample_view::small(), sample_view::profiles::small());
        let subject = subject_of(&SubjectName::parse(name).unwrap(), &view, &profiles)?;
        Some(match subject {
            ProfiledSubject::Gpu(uuid) => uuid.to_string(),
            ProfiledSubject::Pod(uid) => uid.to_string(),
        })
    }

    #[test]
    fn an_index_and_a_pods_name_become_identities() {
        assert_eq!(found("gpu/1").as_deref(), Some("GPU-00000001-1111-2222-3333-444444444444"));
        assert_eq!(found("pod/ml/train-0").as_deref(), Some("00000001-0d2c-4b7f-9a51-2f1f6a1f8d11"));
        assert_eq!(found("gpu/9"), None);
        assert_eq!(found("pod/ml/other"), None);
        assert_eq!(found("gpu/GPU-gone").as_deref(), Some("GPU-gone"));
    }

    #[test]
    fn the_history_of_a_pod_that_has_ended_is_found_by_its_name() {
        let (mut view, profiles) = (sample_view::small(), sample_view::profiles::small());
        view.pods.clear();
        let name = SubjectName::parse("pod/ml/train-0").unwrap();
        let subject = subject_of(&name, &view, &profiles).unwrap();
        assert!(is_known(&subject, &view, &profiles));
        assert_eq!(subject_of(&name, &view, &WorkloadProfiles::default()), None);
    }
}
