//! Finds the function, source file and line of an address. They come from the symbol table and the debug information of
//! the loaded ELF file, or of the separate debug file that the ELF file names. Used only in the child process that finds
//! symbols.

use crate::order::Module;
use crate::profile::SourceLine;
use addr2line::Loader;
use std::collections::HashMap;

/// The debug information of the loaded files, and the addresses found so far.
pub(crate) struct LineTable {
    modules: Vec<Module>,
    files: Vec<Option<Loader>>,
    known: HashMap<u64, Vec<SourceLine>>,
}

impl std::fmt::Debug for LineTable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lines").field("modules", &self.modules).finish_non_exhaustive()
    }
}

impl LineTable {
    /// Opens the files. The addresses of a file that cannot be opened get no names.
    #[must_use]
    pub(crate) fn new(modules: &[Module]) -> Self {
        let files = modules.iter().map(|module| Loader::new(&module.open).ok()).collect();
        LineTable { modules: modules.to_vec(), files, known: HashMap::new() }
    }

    /// The lines of an address, the innermost inlined call first; never empty.
    pub(crate) fn of(&mut self, address: u64) -> Vec<SourceLine> {
        if let Some(spots) = self.known.get(&address) {
            return spots.clone();
        }
        let spots = self.look_up(address);
        self.known.insert(address, spots.clone());
        spots
    }

    fn look_up(&self, address: u64) -> Vec<SourceLine> {
        let at = self.modules.iter().position(|module| module.start <= address && address < module.end);
        let Some(at) = at else { return vec![unknown("no file")] };
        let module = &self.modules[at];
        let Some(file) = &self.files[at] else { return vec![unknown(base_name(&module.path))] };
        let probe = address.wrapping_sub(module.bias);
        let mut spots = inlined(file, probe);
        // The symbol table has the full path of a function, the line tables often only its last part.
        if let Some(symbol) = file.find_symbol(probe) {
            match spots.last_mut() {
                Some(outermost) => {
                    outermost.name = demangled(symbol);
                    outermost.system_name = symbol.to_owned();
                }
                None => spots.push(SourceLine {
                    name: demangled(symbol),
                    system_name: symbol.to_owned(),
                    ..SourceLine::default()
                }),
            }
        }
        for spot in &mut spots {
            if spot.name.is_empty() {
                *spot = SourceLine {
                    file: std::mem::take(&mut spot.file),
                    line: spot.line,
                    ..unknown(base_name(&module.path))
                };
            }
        }
        if spots.is_empty() { vec![unknown(base_name(&module.path))] } else { spots }
    }
}

fn inlined(file: &Loader, probe: u64) -> Vec<SourceLine> {
    let mut spots = Vec::new();
    let Ok(mut frames) = file.find_frames(probe) else { return spots };
    while let Ok(Some(frame)) = frames.next() {
        let raw = frame.function.as_ref().and_then(|function| function.raw_name().ok().map(|name| name.into_owned()));
        let raw = raw.unwrap_or_default();
        let location = frame.location.as_ref();
        spots.push(SourceLine {
            name: demangled(&raw),
            system_name: raw,
            file: location.and_then(|location| location.file).unwrap_or_default().to_owned(),
            line: location.and_then(|location| location.line).unwrap_or_default(),
        });
    }
    spots
}

/// `{:#}` omits the hash.
fn demangled(name: &str) -> String {
    format!("{:#}", rustc_demangle::demangle(name))
}

fn unknown(place: &str) -> SourceLine {
    SourceLine { name: format!("[{place}]"), ..SourceLine::default() }
}

fn base_name(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::module;

    #[test]
    fn an_address_of_this_test_has_its_name_file_and_line() {
        let address = an_address_of_this_test_has_its_name_file_and_line as *const () as u64;
        let spots = LineTable::new(&module::loaded()).of(address);
        let outermost = spots.last().unwrap();
        assert!(outermost.name.ends_with("an_address_of_this_test_has_its_name_file_and_line"), "{spots:?}");
        assert!(outermost.file.ends_with("src/pprof/lines.rs") && outermost.line > 0, "{spots:?}");
        assert_ne!(outermost.name, outermost.system_name);
    }

    #[test]
    fn an_address_outside_every_file_is_named_no_file() {
        let mut lines = LineTable::new(&module::loaded());
        assert_eq!(lines.of(16)[0].name, "[no file]");
    }
}
