//! The outline of one file: its modules, types, paths and `unsafe`. It is read from the tokens only.

use super::declared::{Declared, TypeReader};
use super::lexer::{Kind, Token, tokens};

/// Deepest nesting of groups in one `use` that is read. The recursion needs a limit.
const MAX_GROUPS: usize = 32;

/// `mod name;` or `mod name { … }`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Module {
    pub(crate) name: String,
    /// Modules of this file around it, outermost first.
    pub(crate) scope: Vec<String>,
    pub(crate) line: usize,
    pub(crate) inline: bool,
    /// Compiled for tests only.
    pub(crate) test: bool,
}

/// A path as written: `crate::a::B`, `super::c`, `tokio::spawn`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Named {
    pub(crate) segments: Vec<String>,
    /// Modules of this file around it, outermost first.
    pub(crate) scope: Vec<String>,
    pub(crate) line: usize,
    pub(crate) test: bool,
    /// The name that a `use` gives it in this file; `None` outside `use`.
    pub(crate) import: Option<String>,
    /// Whether it is a macro call `path!`, for which Rust has other rules.
    pub(crate) bang: bool,
}

/// The outline of one file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outline {
    pub(crate) modules: Vec<Module>,
    pub(crate) types: Vec<Declared>,
    pub(crate) paths: Vec<Named>,
    /// Lines with the word `unsafe`.
    pub(crate) unsafe_lines: Vec<usize>,
}

/// Reads the outline of `text`.
pub(crate) fn outline(text: &str) -> Outline {
    let tokens = tokens(text);
    let mut reader = Reader {
        tokens: &tokens,
        at: 0,
        scopes: Vec::new(),
        test_next: false,
        depth: 0,
        types: TypeReader::new(&tokens),
        out: Outline::default(),
    };
    while reader.at < tokens.len() {
        reader.step();
    }
    reader.out.types = reader.types.found;
    reader.out
}

struct Scope {
    module: Option<String>,
    test: bool,
}

struct Reader<'a> {
    tokens: &'a [Token],
    at: usize,
    scopes: Vec<Scope>,
    /// Whether the next item is compiled for tests only.
    test_next: bool,
    /// The number of open parentheses and brackets.
    depth: usize,
    types: TypeReader<'a>,
    out: Outline,
}

// === impl Reader ===

impl Reader<'_> {
    fn step(&mut self) {
        let Some(token) = self.tokens.get(self.at) else { return };
        match &token.kind {
            Kind::Word(word) => match word.as_str() {
                "mod" => self.module(),
                "use" => self.import(),
                "unsafe" => {
                    self.out.unsafe_lines.push(token.line);
                    self.at += 1;
                }
                word => {
                    self.types.word(word, self.at, self.in_test());
                    self.path();
                }
            },
            Kind::Sign('#') if self.sign(1, '[') => self.attribute(2),
            Kind::Sign('#') if self.sign(1, '!') && self.sign(2, '[') => self.attribute(3),
            Kind::Sign(sign) => {
                self.bracket(*sign);
                self.at += 1;
            }
            Kind::PathSeparator | Kind::Opaque => self.at += 1,
        }
    }

    fn bracket(&mut self, sign: char) {
        match sign {
            '{' => {
                let test = self.in_test();
                self.scopes.push(Scope { module: None, test });
                self.test_next = false;
            }
            '}' => drop(self.scopes.pop()),
            '(' | '[' => self.depth += 1,
            ')' | ']' => self.depth = self.depth.saturating_sub(1),
            ';' if self.depth == 0 => self.test_next = false,
            _ => {}
        }
    }

    /// Reads `#[…]`, and remembers whether it makes the next item a test; `unsafe(…)` inside counts as `unsafe`.
    fn attribute(&mut self, opening: usize) {
        self.at += opening;
        let mut depth = 1_usize;
        let mut words = Vec::new();
        while let Some(token) = self.tokens.get(self.at).filter(|_| depth > 0) {
            match &token.kind {
                Kind::Sign('[') => depth += 1,
                Kind::Sign(']') => depth -= 1,
                Kind::Word(word) => {
                    if word == "unsafe" {
                        self.out.unsafe_lines.push(token.line);
                    }
                    words.push(word.as_str());
                }
                _ => {}
            }
            self.at += 1;
        }
        let about_tests = words.contains(&"test") && !words.contains(&"not");
        if about_tests && (words.len() == 1 || words.first() == Some(&"cfg")) && opening == 2 {
            self.test_next = true;
        }
    }

    fn module(&mut self) {
        let (line, test, scope) = (self.line(), self.in_test(), self.scope());
        let name = self.tokens.get(self.at + 1).and_then(Token::word).map(str::to_owned);
        let Some(name) = name else {
            self.at += 1;
            return;
        };
        let inline = self.sign(2, '{');
        if inline {
            self.scopes.push(Scope { module: Some(name.clone()), test });
            self.at += 3;
        } else {
            self.at += 2;
        }
        self.test_next = false;
        self.out.modules.push(Module { name, scope, line, inline, test });
    }

    fn import(&mut self) {
        // `use<'a>` in a type is not an import.
        if self.sign(1, '<') {
            self.at += 1;
            return;
        }
        self.at += 1;
        if self.tokens.get(self.at).is_some_and(|token| token.kind == Kind::PathSeparator) {
            self.at += 1;
        }
        self.tree(Vec::new(), 0);
    }

    /// Reads one branch of a `use`, which ends before `,`, `}` or `;`.
    fn tree(&mut self, mut segments: Vec<String>, groups: usize) {
        let line = self.line();
        let mut name = None;
        while let Some(token) = self.tokens.get(self.at) {
            match &token.kind {
                Kind::Word(word) if word == "as" => {
                    name = self.tokens.get(self.at + 1).and_then(Token::word).map(str::to_owned);
                    self.at += 1;
                }
                Kind::Word(word) if name.is_none() => segments.push(word.clone()),
                Kind::Sign('*') => segments.push("*".to_owned()),
                Kind::Sign('{') if groups < MAX_GROUPS => return self.group(&segments, groups + 1),
                Kind::Sign(',' | '}' | ';' | '{') => break,
                _ => {}
            }
            self.at += 1;
        }
        // `a::{self}` is `a`.
        if segments.len() > 1 && segments.last().is_some_and(|last| last == "self") {
            segments.pop();
        }
        if let Some(last) = segments.last().cloned() {
            self.named(segments, line, Some(name.unwrap_or(last)));
        }
    }

    fn group(&mut self, prefix: &[String], groups: usize) {
        self.at += 1;
        while let Some(token) = self.tokens.get(self.at) {
            match token.kind {
                Kind::Sign('}') => {
                    self.at += 1;
                    return;
                }
                Kind::Sign(';') => return,
                Kind::Sign(',') => self.at += 1,
                _ => {
                    let before = self.at;
                    self.tree(prefix.to_vec(), groups);
                    self.at = self.at.max(before + usize::from(self.at == before));
                }
            }
        }
    }

    /// Reads a path outside `use`: two words or more with `::` between them.
    fn path(&mut self) {
        let line = self.line();
        let inside = self.at > 0 && self.tokens[self.at - 1].kind == Kind::PathSeparator;
        let visibility = self.at > 0 && self.tokens[self.at - 1].is_word("in");
        let mut segments = Vec::new();
        while let Some(word) = self.tokens.get(self.at).and_then(Token::word) {
            segments.push(word.to_owned());
            self.at += 1;
            let more = self.tokens.get(self.at).is_some_and(|token| token.kind == Kind::PathSeparator);
            if !more || self.tokens.get(self.at + 1).and_then(Token::word).is_none() {
                break;
            }
            self.at += 1;
        }
        // `pub(in crate::a)` names an ancestor and imports nothing; `<T as X>::Y` does not begin with a path.
        let restricted = visibility && self.sign(0, ')');
        if segments.len() > 1 && !inside && !restricted {
            self.named(segments, line, None);
        }
    }

    fn named(&mut self, segments: Vec<String>, line: usize, import: Option<String>) {
        let bang = self.sign(0, '!');
        let (scope, test) = (self.scope(), self.in_test());
        self.out.paths.push(Named { segments, scope, line, test, import, bang });
    }

    fn in_test(&self) -> bool {
        self.test_next || self.scopes.last().is_some_and(|scope| scope.test)
    }

    fn scope(&self) -> Vec<String> {
        self.scopes.iter().filter_map(|scope| scope.module.clone()).collect()
    }

    fn sign(&self, ahead: usize, sign: char) -> bool {
        self.tokens.get(self.at + ahead).is_some_and(|token| token.is_sign(sign))
    }

    fn line(&self) -> usize {
        self.tokens.get(self.at).map_or(0, |token| token.line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn paths(text: &str) -> Vec<String> {
        outline(text).paths.iter().filter(|path| !path.test).map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn nested_groups_of_a_use_are_split() {
        for (text, expect) in [
            ("use crate::a;", vec!["crate::a"]),
            ("use crate::{a, b::{self, C as D, e::*}};", vec!["crate::a", "crate::b", "crate::b::C", "crate::b::e::*"]),
            ("use ::std::{io, fs};", vec!["std::io", "std::fs"]),
            ("pub(crate) use super::x; fn f() { crate::y::z(); }", vec!["super::x", "crate::y::z"]),
            ("pub(in crate::a) fn f() {}", vec![]),
            ("/* use crate::a; */ // use crate::b;\n\"use crate::c;\"", vec![]),
            ("#[cfg(test)] mod tests { use crate::z; } use crate::a;", vec!["crate::a"]),
            ("#[cfg(test)] use crate::z; use crate::a;", vec!["crate::a"]),
            ("#[test] fn f() { crate::z::g() } use crate::a;", vec!["crate::a"]),
            ("#[cfg(not(test))] use crate::a;", vec!["crate::a"]),
            ("fn f() -> impl Sized + use<'static> { 1 }", vec![]),
            ("use crate::{a, b", vec!["crate::a", "crate::b"]),
        ] {
            assert_eq!(paths(text), expect, "{text}");
        }
    }

    #[test]
    fn an_import_keeps_its_new_name() {
        let outline = outline("pub use reading::{Absence as Why, Reading};");
        let names: Vec<_> = outline.paths.iter().filter_map(|path| path.import.as_deref()).collect();
        assert_eq!(names, ["Why", "Reading"]);
    }

    #[test]
    fn modules_know_the_modules_around_them() {
        let outline = outline("mod a; mod b { mod c { } } #[cfg(test)] mod d;");
        let seen: Vec<_> = outline.modules.iter().map(|m| (m.name.as_str(), m.scope.len(), m.inline, m.test)).collect();
        assert_eq!(seen, [("a", 0, false, false), ("b", 0, true, false), ("c", 1, true, false), ("d", 0, false, true)]);
    }

    #[test]
    fn types_know_their_visibility_and_whether_they_are_for_tests_only() {
        for (text, expect) in [
            ("pub struct A; pub(crate) enum B {} trait C {} pub unsafe trait D {}", "+A -B -C +D"),
            ("pub type A = u8; pub(super) type B = u8; impl I for X { type C = u8; }", "+A -B"),
            ("#[derive(Debug)] pub struct A(u8);\n/// pub struct B;\npub union C { a: u8 }", "+A +C"),
            ("let s = a.union(&b); // pub struct A", ""),
            ("#[cfg(test)] pub struct A; pub struct B;", "+A (test) +B"),
            ("#[cfg(test)] mod tests { pub enum A {} } pub enum B {}", "+A (test) +B"),
            ("macro_rules! name { ($n:ident) => { pub struct $n; } } name!(\n/// Doc.\nA); other!(B);", "+A"),
            ("macro_rules! name { ($n:ident) => { struct $n; fn f() {} } } name! { A }", "-A"),
        ] {
            let outline = outline(text);
            let seen = outline.types.iter().map(|seen| {
                format!(
                    "{}{}{}",
                    if seen.public { "+" } else { "-" },
                    seen.name,
                    if seen.test { " (test)" } else { "" }
                )
            });
            assert_eq!(seen.collect::<Vec<_>>().join(" "), expect, "{text}");
        }
    }

    #[test]
    fn unsafe_is_found_only_as_a_keyword() {
        let text =
            "#![deny(unsafe_code)]\n// unsafe\nlet x = \"unsafe\";\nunsafe { f() }\n#[unsafe(no_mangle)]\nfn f() {}";
        assert_eq!(outline(text).unsafe_lines, [4, 5]);
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_has_an_outline(text in any::<String>()) {
            let _ = outline(&text);
        }

        #[test]
        fn any_sequence_of_pieces_has_an_outline(
            pieces in prop::collection::vec(
                prop::sample::select(vec![
                    "use ", "mod ", "crate", "super", "self", "::", "{", "}", ",", ";", "a", " as ", "*", "#[", "]",
                    "cfg(test)", "(", ")", "unsafe ", "!", "<", "in ", "pub ", "struct ", "macro_rules", "$",
                ]),
                0..60,
            )
        ) {
            let _ = outline(&pieces.concat());
        }

        #[test]
        fn unclosed_groups_do_not_overflow_the_stack(depth in 0_usize..2_000) {
            let _ = outline(&format!("use {}", "{".repeat(depth)));
            let _ = outline(&format!("use {}", "a::{".repeat(depth)));
        }
    }
}
