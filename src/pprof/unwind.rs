//! Finds the return addresses in a copy of a stack, from the registers and the frame tables of the files. Used only in
//! the child.

use crate::order::{Module, ThreadSnapshot};
use framehop::{
    CacheNative, ExplicitModuleSectionInfo, MayAllocateDuringUnwind, Module as Tables, UnwindRegsNative, Unwinder,
    UnwinderNative,
};
use object::{Object, ObjectSection, ReadCache};
use std::fs::File;
use std::ops::Range;

/// Maximum depth of a stack; a deeper stack loses its roots.
const MAX_DEPTH: usize = 512;

type Native = UnwinderNative<Vec<u8>, MayAllocateDuringUnwind>;

/// The frame tables of the loaded files.
pub(crate) struct FrameTables {
    unwinder: Native,
    cache: CacheNative<MayAllocateDuringUnwind>,
}

impl std::fmt::Debug for FrameTables {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Frames").finish_non_exhaustive()
    }
}

impl FrameTables {
    /// Reads the tables. An unreadable file has no table: stacks through it follow the frame pointers or end there.
    #[must_use]
    pub(crate) fn new(modules: &[Module]) -> Self {
        let mut unwinder = Native::new();
        for module in modules {
            if let Some(sections) = sections(&module.open) {
                // An address in memory is the file's own address plus `bias`, and the file's own addresses start at 0,
                // so the base is the bias.
                let range = module.start..module.end;
                unwinder.add_module(Tables::new(module.path.clone(), range, module.bias, sections));
            }
        }
        FrameTables { unwinder, cache: CacheNative::default() }
    }

    /// The addresses, the leaf first; an address of a caller is inside the call (the return address minus one).
    #[must_use]
    pub(crate) fn addresses(&mut self, snapshot: &ThreadSnapshot) -> Vec<u64> {
        let mut read = |address: u64| word(snapshot, address).ok_or(());
        let mut frames = self.unwinder.iter_frames(snapshot.pc, registers(snapshot), &mut self.cache, &mut read);
        let mut addresses = Vec::new();
        while let Ok(Some(frame)) = frames.next() {
            addresses.push(frame.address_for_lookup());
            if addresses.len() == MAX_DEPTH {
                break;
            }
        }
        addresses
    }
}

#[cfg(target_arch = "x86_64")]
fn registers(snapshot: &ThreadSnapshot) -> UnwindRegsNative {
    UnwindRegsNative::new(snapshot.pc, snapshot.sp, snapshot.fp)
}

#[cfg(target_arch = "aarch64")]
fn registers(snapshot: &ThreadSnapshot) -> UnwindRegsNative {
    UnwindRegsNative::new(snapshot.lr, snapshot.sp, snapshot.fp)
}

fn word(snapshot: &ThreadSnapshot, address: u64) -> Option<u64> {
    let at = usize::try_from(address.checked_sub(snapshot.sp)?).ok()?;
    let bytes = snapshot.stack.get(at..at.checked_add(8)?)?;
    Some(u64::from_le_bytes(bytes.try_into().ok()?))
}

fn sections(path: &str) -> Option<ExplicitModuleSectionInfo<Vec<u8>>> {
    let cache = ReadCache::new(File::open(path).ok()?);
    let file = object::File::parse(&cache).ok()?;
    let range = |name: &str| -> Option<Range<u64>> {
        let section = file.section_by_name(name)?;
        Some(section.address()..section.address().checked_add(section.size())?)
    };
    let data = |name: &str| Some(file.section_by_name(name)?.data().ok()?.to_vec());
    Some(ExplicitModuleSectionInfo {
        base_svma: 0,
        text_svma: range(".text"),
        text: data(".text"),
        got_svma: range(".got"),
        eh_frame_svma: range(".eh_frame"),
        eh_frame: data(".eh_frame"),
        eh_frame_hdr_svma: range(".eh_frame_hdr"),
        eh_frame_hdr: data(".eh_frame_hdr"),
        debug_frame: data(".debug_frame"),
        ..ExplicitModuleSectionInfo::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unwinding_ends_for_any_stack(pc: u64, sp: u64, fp: u64, stack: Vec<u8>) {
            let mut frames = FrameTables::new(&[]);
            let snapshot = ThreadSnapshot { pc, sp, fp, stack, ..ThreadSnapshot::default() };
            prop_assert!(frames.addresses(&snapshot).len() <= MAX_DEPTH);
        }
    }

    #[test]
    fn a_word_outside_the_copy_is_not_read() {
        let snapshot = ThreadSnapshot { sp: 100, stack: vec![1; 16], ..ThreadSnapshot::default() };
        for (address, known) in [(99, false), (100, true), (108, true), (109, false), (u64::MAX, false)] {
            assert_eq!(word(&snapshot, address).is_some(), known, "{address}");
        }
    }
}
