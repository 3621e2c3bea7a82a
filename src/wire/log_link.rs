//! kubelet's links to container logs: `<pod>_<namespace>_<container>-<container id>.log` in `/var/log/containers`.
//!
//! kubelet cuts the end of a name that is longer than 255 bytes, and with it a part of the id. Such a link names no
//! container and is refused. Pod, namespace and container names contain no `_` (Kubernetes allows only letters, digits,
//! `-` and `.`), so the parts are unambiguous.

use model::cgroup::ContainerName;
use model::id::{ContainerId, PodRef};
use std::sync::Arc;

/// Number of digits of a container id in every runtime that the kubelet supports.
const ID_DIGITS: usize = 64;
/// Maximum bytes of a pod's name.
const MAX_POD: usize = 253;
/// Maximum bytes of the name of a namespace or container.
const MAX_LABEL: usize = 63;

/// Why a file name is not a link to a container log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotALogLink {
    /// The name does not end in `.log`.
    #[error("does not end in .log")]
    Suffix,
    /// The name has no complete container id.
    #[error("does not end in a container id of 64 digits")]
    Id,
    /// The part before the id is not `<pod>_<namespace>_<container>`.
    #[error("is not <pod>_<namespace>_<container> before the id")]
    Parts,
}

/// Reads the name of a link (not its path).
///
/// # Errors
/// [`NotALogLink`] for every other name.
pub fn parse(name: &[u8]) -> Result<ContainerName, NotALogLink> {
    let stem = name.strip_suffix(b".log").ok_or(NotALogLink::Suffix)?;
    let split = stem.len().checked_sub(ID_DIGITS + 1).ok_or(NotALogLink::Id)?;
    let (names, id) = stem.split_at(split);
    let id = id.strip_prefix(b"-").and_then(text).and_then(|id| ContainerId::parse(id).ok()).ok_or(NotALogLink::Id)?;

    let mut parts = names.split(|byte| *byte == b'_');
    let (Some(pod), Some(namespace), Some(container), None) = (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(NotALogLink::Parts);
    };
    let part = |bytes: &[u8], longest: usize| name_part(bytes, longest).ok_or(NotALogLink::Parts);
    Ok(ContainerName {
        id,
        uid: None,
        pod: PodRef { namespace: part(namespace, MAX_LABEL)?, name: part(pod, MAX_POD)? },
        container: Some(part(container, MAX_LABEL)?),
        image: None,
    })
}

fn text(bytes: &[u8]) -> Option<&str> {
    std::str::from_utf8(bytes).ok()
}

fn name_part(bytes: &[u8], longest: usize) -> Option<Arc<str>> {
    let allowed = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'.');
    let good = !bytes.is_empty() && bytes.len() <= longest && bytes.iter().all(allowed);
    if good { text(bytes).map(Arc::from) } else { None }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn check(name: &str, expect: Result<(&str, &str, &str), NotALogLink>) {
        let read = parse(name.as_bytes());
        let read = read.as_ref().map(|found| {
            assert_eq!((found.id.as_str(), &found.uid, &found.image), (ID, &None, &None));
            (&*found.pod.name, &*found.pod.namespace, found.container.as_deref().unwrap())
        });
        assert_eq!(read, expect.as_ref().copied(), "{name}");
    }

    #[test]
    fn links_of_the_kubelet_are_read() {
        check(&format!("train-0_ml_main-{ID}.log"), Ok(("train-0", "ml", "main")));
        check(
            &format!("etcd-node-a.example.com_kube-system_etcd-server-{ID}.log"),
            Ok(("etcd-node-a.example.com", "kube-system", "etcd-server")),
        );
    }

    #[test]
    fn other_names_are_refused() {
        use NotALogLink::{Id, Parts, Suffix};
        for (name, why) in [
            (String::new(), Suffix),
            (".log".into(), Id),
            (format!("train-0_ml_main-{ID}"), Suffix),
            (format!("train-0_ml_main-{}.log", &ID[1..]), Id),
            (format!("train-0_ml_main_{ID}.log"), Id),
            (format!("train-0_ml_main-{}g.log", &ID[1..]), Id),
            (format!("train-0_main-{ID}.log"), Parts),
            (format!("train-0_ml_main_x-{ID}.log"), Parts),
            (format!("_ml_main-{ID}.log"), Parts),
            (format!("train-0__main-{ID}.log"), Parts),
            (format!("train-0_ml_-{ID}.log"), Parts),
            (format!("Train_ml_main-{ID}.log"), Parts),
            (format!("train-0_{}_main-{ID}.log", "n".repeat(64)), Parts),
        ] {
            check(&name, Err(why));
        }
    }

    #[test]
    fn a_link_that_the_kubelet_cut_names_no_container() {
        let whole = format!("{}_ml_main-{ID}", "p".repeat(200));
        check(&format!("{}.log", &whole[..251]), Err(NotALogLink::Id));
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
            let _ = parse(&bytes);
        }

        #[test]
        fn links_in_the_form_of_the_kubelet_are_read_unchanged(
            pod in "[a-z0-9]([-a-z0-9.]{0,80}[a-z0-9])?",
            namespace in "[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?",
            container in "[a-z0-9]([-a-z0-9]{0,40}[a-z0-9])?",
            id in "[0-9a-f]{64}",
        ) {
            let read = parse(format!("{pod}_{namespace}_{container}-{id}.log").as_bytes()).unwrap();
            prop_assert_eq!((&*read.pod.name, &*read.pod.namespace), (pod.as_str(), namespace.as_str()));
            prop_assert_eq!((read.container.as_deref(), read.id.as_str()), (Some(container.as_str()), id.as_str()));
        }
    }
}
