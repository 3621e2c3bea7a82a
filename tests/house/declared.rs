//! The types that one file declares, read from its tokens: `struct Name`, and `name!(Type, …)` where the macro `name`
//! of the same file declares a type.

use super::lexer::Token;

/// A type that the file declares: `struct`, `enum`, `trait`, `union`, or a `type` with a visibility.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Declared {
    pub(crate) name: String,
    pub(crate) line: usize,
    /// Whether it is `pub` without a restriction.
    pub(crate) public: bool,
    /// Whether it is compiled for tests only.
    pub(crate) test: bool,
}

/// A macro of this file that declares the type whose name is its first argument.
struct TypeMacro {
    name: String,
    public: bool,
}

/// Collects the declared types. It gets each word outside `use` once, in order.
pub(crate) struct TypeReader<'a> {
    tokens: &'a [Token],
    /// The name of the `macro_rules!` that was read last.
    last_macro: Option<&'a str>,
    type_macros: Vec<TypeMacro>,
    pub(crate) found: Vec<Declared>,
}

// === impl TypeReader ===

impl<'a> TypeReader<'a> {
    pub(crate) fn new(tokens: &'a [Token]) -> Self {
        TypeReader { tokens, last_macro: None, type_macros: Vec::new(), found: Vec::new() }
    }

    /// Takes the word at `at`; `test` says whether only tests compile it.
    pub(crate) fn word(&mut self, word: &str, at: usize, test: bool) {
        match word {
            "struct" | "enum" | "trait" | "union" | "type" => self.declaration(word, at, test),
            "macro_rules" => self.last_macro = self.word_at(at + 2),
            _ => self.made_by_macro(word, at, test),
        }
    }

    /// Handles `struct Name`. In the body of a macro it handles `struct $name`, which means that the macro declares
    /// types.
    fn declaration(&mut self, keyword: &str, at: usize, test: bool) {
        let visibility = self.visibility(at);
        let public = visibility == Some(true);
        // A `type` without a visibility is an associated type or private to one file.
        if keyword == "type" && visibility.is_none() {
            return;
        }
        if let Some(name) = self.word_at(at + 1) {
            self.found.push(Declared { name: name.to_owned(), line: self.tokens[at].line, public, test });
        } else if self.tokens.get(at + 1).is_some_and(|next| next.is_sign('$'))
            && let Some(name) = self.last_macro
        {
            self.type_macros.push(TypeMacro { name: name.to_owned(), public });
        }
    }

    /// Handles `name!(Type, …)` where `name` is a macro of this file that declares types.
    fn made_by_macro(&mut self, word: &str, at: usize, test: bool) {
        let Some(made) = self.type_macros.iter().find(|made| made.name == word) else { return };
        if self.tokens.get(at + 1).is_some_and(|next| next.is_sign('!'))
            && let Some(name) = self.word_at(at + 3)
        {
            let (name, line) = (name.to_owned(), self.tokens[at].line);
            self.found.push(Declared { name, line, public: made.public, test });
        }
    }

    /// The visibility before the word at `at`: `Some(true)` for `pub`, `Some(false)` for `pub(…)`, `None` for neither.
    fn visibility(&self, at: usize) -> Option<bool> {
        let mut before = &self.tokens[..at];
        if let [rest @ .., last] = before
            && last.is_word("unsafe")
        {
            before = rest;
        }
        let last = before.last()?;
        if last.is_sign(')') {
            let opening = before.iter().rposition(|token| token.is_sign('('))?;
            return before[..opening].last().filter(|token| token.is_word("pub")).map(|_| false);
        }
        last.is_word("pub").then_some(true)
    }

    fn word_at(&self, at: usize) -> Option<&'a str> {
        self.tokens.get(at).and_then(Token::word)
    }
}
