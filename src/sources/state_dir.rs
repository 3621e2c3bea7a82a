//! What an earlier agent process left in the state directory for this one.
//!
//! What must never happen here: a file is written or removed; one damaged record costs another one.

use crate::bounded_file;
use model::cdi_support::CdiSupport;
use std::path::Path;
use wire::binding_file;

/// What was found last about CDI, and on which container runtime; `None` if it is not known. Blocks for as long as the
/// file system takes.
#[must_use]
pub fn cdi_support(state: &Path) -> Option<(CdiSupport, String)> {
    let bytes = bounded_file::read(&state.join(binding_file::FILE), binding_file::MAX_BYTES).ok()?;
    binding_file::decode(&bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_was_found_about_cdi_is_known_where_its_file_is_whole() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(binding_file::FILE);
        assert_eq!(cdi_support(folder.path()), None);
        let whole = binding_file::encode(CdiSupport::Disproved, "containerd://2.1.4");
        fs::write(&path, &whole).unwrap();
        assert_eq!(cdi_support(folder.path()), Some((CdiSupport::Disproved, "containerd://2.1.4".into())));
        for left in [Vec::new(), vec![0; 4096], whole.as_bytes()[..5].to_vec(), whole.repeat(100).into_bytes()] {
            fs::write(&path, &left).unwrap();
            assert_eq!(cdi_support(folder.path()), None, "{left:?}");
        }
    }
}
