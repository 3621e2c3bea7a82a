//! Splits Rust text into tokens. Comments are dropped, and a string is one opaque token. It distinguishes only what the
//! rules need. It accepts any text and never fails.

/// A token, as far as the rules need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A word; a raw one (`r#type`) without its prefix.
    Word(String),
    /// `::`.
    PathSeparator,
    /// Any other visible character.
    Sign(char),
    /// A string, character, number or lifetime.
    Opaque,
}

/// A token and its line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    /// Line, from 1.
    pub(crate) line: usize,
}

impl Token {
    pub(crate) fn word(&self) -> Option<&str> {
        match &self.kind {
            Kind::Word(word) => Some(word),
            _ => None,
        }
    }

    pub(crate) fn is_word(&self, word: &str) -> bool {
        self.word() == Some(word)
    }

    pub(crate) fn is_sign(&self, sign: char) -> bool {
        self.kind == Kind::Sign(sign)
    }
}

/// The tokens of `text`.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut lexer = Lexer { rest: text, line: 1, tokens: Vec::new() };
    while let Some(first) = lexer.rest.chars().next() {
        lexer.step(first);
    }
    lexer.tokens
}

struct Lexer<'a> {
    rest: &'a str,
    line: usize,
    tokens: Vec<Token>,
}

// === impl Lexer ===

impl Lexer<'_> {
    fn step(&mut self, first: char) {
        if self.rest.starts_with("//") {
            let length = self.rest.find('\n').unwrap_or(self.rest.len());
            self.skip(length);
        } else if self.rest.starts_with("/*") {
            self.skip(block_comment(self.rest));
        } else if self.rest.starts_with("::") {
            self.push(Kind::PathSeparator, 2);
        } else if first == '"' {
            self.push(Kind::Opaque, quoted(self.rest, '"'));
        } else if first == '\'' {
            self.push(Kind::Opaque, character_or_lifetime(self.rest));
        } else if first.is_ascii_digit() {
            self.push(Kind::Opaque, word_length(self.rest));
        } else if first == '_' || first.is_alphabetic() {
            self.word();
        } else if first.is_whitespace() {
            self.skip(first.len_utf8());
        } else {
            self.push(Kind::Sign(first), first.len_utf8());
        }
    }

    fn word(&mut self) {
        let length = word_length(self.rest);
        let (word, after) = self.rest.split_at(length);
        match (word, after.chars().next()) {
            ("b" | "c", Some('"')) => self.push(Kind::Opaque, length + quoted(after, '"')),
            ("b", Some('\'')) => self.push(Kind::Opaque, length + character_or_lifetime(after)),
            ("r" | "br" | "cr", Some('"' | '#')) => match raw_string(after) {
                Some(string) => self.push(Kind::Opaque, length + string),
                None if word == "r" && word_length(&after[1..]) > 0 => {
                    let raw = word_length(&after[1..]);
                    self.push(Kind::Word(after[1..=raw].to_owned()), length + 1 + raw);
                }
                None => self.push(Kind::Word(word.to_owned()), length),
            },
            _ => self.push(Kind::Word(word.to_owned()), length),
        }
    }

    fn push(&mut self, kind: Kind, length: usize) {
        self.tokens.push(Token { kind, line: self.line });
        self.skip(length);
    }

    fn skip(&mut self, length: usize) {
        let (gone, rest) = self.rest.split_at(length);
        self.line += gone.matches('\n').count();
        self.rest = rest;
    }
}

/// The length in bytes of the word at the start of `text`.
fn word_length(text: &str) -> usize {
    text.find(|c: char| c != '_' && !c.is_alphanumeric()).unwrap_or(text.len())
}

/// The length of the nested comment at the start of `text`; the whole text if the comment never ends.
fn block_comment(text: &str) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while let Some(next) = text[at..].find(['/', '*']).map(|found| at + found) {
        if text[next..].starts_with("/*") {
            depth += 1;
            at = next + 2;
        } else if text[next..].starts_with("*/") {
            depth = depth.saturating_sub(1);
            at = next + 2;
            if depth == 0 {
                return at;
            }
        } else {
            at = next + 1;
        }
    }
    text.len()
}

/// The length of the quoted text at the start of `text` with both quotes; the whole text if it never ends.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if c == quote => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// The length of a raw string whose `#` or quote begins `text`; `None` if it is not a raw string.
fn raw_string(text: &str) -> Option<usize> {
    let hashes = text.len() - text.trim_start_matches('#').len();
    let body = text[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    Some(body.find(&end).map_or(text.len(), |found| hashes + 1 + found + end.len()))
}

/// The length of `'x'`, `'\n'` or `'lifetime` at the start of `text`.
fn character_or_lifetime(text: &str) -> usize {
    let mut after = text.chars().skip(1);
    match (after.next(), after.next()) {
        (Some('\\'), _) => quoted(text, '\''),
        (Some(c), Some('\'')) => 2 + c.len_utf8(),
        _ => 1 + word_length(&text[1..]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn words(text: &str) -> Vec<String> {
        tokens(text).iter().filter_map(|token| token.word().map(str::to_owned)).collect()
    }

    #[test]
    fn comments_and_strings_contain_no_words() {
        for (text, expect) in [
            ("a // b\nc", vec!["a", "c"]),
            ("a /* b /* c */ d */ e", vec!["a", "e"]),
            (r#"a "b \" c" d"#, vec!["a", "d"]),
            (r##"a r#"b " c"# d"##, vec!["a", "d"]),
            ("a br\"b\" b\"c\" c\"d\" e", vec!["a", "e"]),
            ("'a' 'b b'c' x 'd' e", vec!["x", "e"]),
            (r"'\'' a b'\\' d", vec!["a", "d"]),
            ("r#type 1_000u64 x", vec!["type", "x"]),
            ("/// crate::x\n//! y\nz", vec!["z"]),
            ("\"never ends", vec![]),
            ("/* never ends", vec![]),
            ("r###\"never ends\"##", vec![]),
        ] {
            assert_eq!(words(text), expect, "{text}");
        }
    }

    #[test]
    fn lines_are_counted_through_strings_and_comments() {
        let tokens = tokens("\"a\nb\" /* \n */ x");
        assert_eq!(tokens.last().map(|token| token.line), Some(3));
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn any_text_can_be_lexed(text in any::<String>()) {
            let _ = tokens(&text);
        }

        #[test]
        fn any_sequence_of_difficult_pieces_can_be_lexed(
            parts in prop::collection::vec(
                prop::sample::select(vec!["r", "b", "#", "\"", "'", "\\", "/*", "*/", "//", "\n", "é", "::", "{", "x", "1"]),
                0..40,
            )
        ) {
            let _ = tokens(&parts.concat());
        }
    }
}
