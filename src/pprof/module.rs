//! Lists the files that this process has loaded, and their addresses, as the dynamic loader reports them.

use crate::order::Module;
use findshlibs::{Segment, SharedLibrary, TargetSharedLibrary};
use std::fmt::Write;

/// Maximum number of files; a usual program has about ten (libc, libgcc and the libraries that it loads).
const MAX_MODULES: usize = 1_000;

/// The program itself first, then each shared library. A part without a file (the kernel's own page) has its name only.
#[must_use]
pub(crate) fn loaded() -> Vec<Module> {
    let mut modules = Vec::new();
    TargetSharedLibrary::each(|library| {
        if modules.len() < MAX_MODULES {
            let first = modules.is_empty();
            modules.extend(module(library, first));
        }
    });
    modules
}

fn module(library: &TargetSharedLibrary<'_>, first: bool) -> Option<Module> {
    let loads = || library.segments().filter(Segment::is_load);
    let start = loads().map(|segment| segment.actual_virtual_memory_address(library).0).min()?;
    let end = loads()
        .map(|segment| segment.actual_virtual_memory_address(library).0.saturating_add(Segment::len(&segment)))
        .max()?;
    let path = library.name().to_string_lossy().into_owned();
    Some(Module {
        start: start as u64,
        end: end as u64,
        bias: library.virtual_memory_bias().0 as u64,
        open: if first { "/proc/self/exe".to_owned() } else { path.clone() },
        path,
        build_id: library.id().map(|id| hex(id.as_bytes())).unwrap_or_default(),
    })
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_program_comes_first_and_holds_this_function() {
        let modules = loaded();
        let address = the_program_comes_first_and_holds_this_function as *const () as u64;
        assert!(modules[0].start <= address && address < modules[0].end, "{address:x} in {:?}", modules[0]);
        assert_eq!(modules[0].open, "/proc/self/exe");
        assert!(modules.iter().any(|module| module.path.contains("libc.so")), "{modules:?}");
    }
}
