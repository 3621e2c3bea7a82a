//! Literals of Python and JSON: text, numbers, flags, lists and maps. Alnair's profiler writes Python's, its readers expect their
//! exact layout, and other readers want JSON. One writer and one reader serve both.
//!
//! ```text
//!   {'process_cnt': 1, 'pid-mem': [(18477, '11094MB')], 'cyclic_pattern': False}      Python
//!   {"process_cnt": 1, "pid-mem": [[18477, "11094MB"]], "cyclic_pattern": false}      JSON
//! ```
//!
//! What must never happen here: a text of a driver that ends a literal early.

use std::borrow::Cow;
use std::fmt::Write;

/// Maximum depth: the list of pairs in a map has 3.
const MAX_DEPTH: u32 = 8;
/// Maximum number of values of one literal: Alnair lists every process, and NVML a thousand at most, each with three values.
const MAX_VALUES: usize = 4096;

/// Whose literals these are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LiteralForm {
    /// Python's, as Alnair writes them.
    Python,
    /// JSON.
    Json,
}

impl LiteralForm {
    /// The form of a literal, by the quotation mark of its first text.
    pub(super) fn of(text: &str) -> LiteralForm {
        match text.find(['\'', '"']).and_then(|at| text.get(at..)) {
            Some(rest) if rest.starts_with('"') => LiteralForm::Json,
            _ => LiteralForm::Python,
        }
    }

    pub(super) fn flag(self, flag: bool) -> &'static str {
        match (self, flag) {
            (LiteralForm::Python, true) => "True",
            (LiteralForm::Python, false) => "False",
            (LiteralForm::Json, true) => "true",
            (LiteralForm::Json, false) => "false",
        }
    }

    /// A text. Python's escapes are those of its function `ascii`, always between single quotation marks.
    pub(super) fn text(self, text: &str) -> String {
        if self == LiteralForm::Json {
            return serde_json::Value::from(text).to_string();
        }
        let mut quoted = String::from("'");
        for c in text.chars() {
            // Writing into a String does not fail.
            let _ = match (c, u32::from(c)) {
                ('\'' | '\\', _) => write!(quoted, "\\{c}"),
                (' '..='~', _) => write!(quoted, "{c}"),
                (_, code @ ..=0xff) => write!(quoted, "\\x{code:02x}"),
                (_, code @ ..=0xffff) => write!(quoted, "\\u{code:04x}"),
                (_, code) => write!(quoted, "\\U{code:08x}"),
            };
        }
        quoted.push('\'');
        quoted
    }

    pub(super) fn pair(self, one: &str, other: &str) -> String {
        match self {
            LiteralForm::Python => format!("({one}, {other})"),
            LiteralForm::Json => format!("[{one}, {other}]"),
        }
    }

    /// A map of written values, in this order. The spaces are Python's in both forms: readers of Alnair count characters.
    pub(super) fn map(self, fields: &[(&str, String)]) -> String {
        let fields: Vec<String> = fields.iter().map(|(key, value)| format!("{}: {value}", self.text(key))).collect();
        format!("{{{}}}", fields.join(", "))
    }
}

/// A value that was read.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Literal<'t> {
    Text(Cow<'t, str>),
    /// A number, as it is written.
    Number(&'t str),
    Flag(bool),
    Nothing,
    List(Vec<Literal<'t>>),
    Map(Vec<(Literal<'t>, Literal<'t>)>),
}

impl<'t> Literal<'t> {
    /// Reads one value and nothing after it.
    ///
    /// # Errors
    /// The byte of the fault, and the fault.
    pub(super) fn read(text: &'t str) -> Result<Literal<'t>, (usize, String)> {
        let mut reader = Reader { text, at: 0, values: 0 };
        let value = reader.value(0).and_then(|value| {
            reader.skip_space();
            if reader.at == text.len() { Ok(value) } else { Err("text after the end".to_owned()) }
        });
        value.map_err(|what| (reader.at, what))
    }

    /// The value of a key; the last one if the key appears twice, as in Python and JSON.
    pub(super) fn field(&self, key: &str) -> Option<&Literal<'t>> {
        let Literal::Map(fields) = self else { return None };
        let named = fields.iter().rev().find(|(name, _)| matches!(name, Literal::Text(text) if text == key));
        named.map(|(_, value)| value)
    }

    pub(super) fn text(&self) -> Option<&str> {
        match self {
            Literal::Text(text) => Some(text),
            _ => None,
        }
    }

    /// The text or the number, as it is written: Alnair puts some numbers into quotation marks.
    pub(super) fn number<T: std::str::FromStr>(&self) -> Option<T> {
        match self {
            Literal::Text(text) => text.parse().ok(),
            Literal::Number(text) => text.parse().ok(),
            _ => None,
        }
    }
}

struct Reader<'t> {
    text: &'t str,
    at: usize,
    values: usize,
}

impl<'t> Reader<'t> {
    fn rest(&self) -> &'t str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn skip_space(&mut self) {
        self.at = self.text.len() - self.rest().trim_start().len();
    }

    /// Takes this character, if it is the next one after white space.
    fn takes(&mut self, c: char) -> bool {
        self.skip_space();
        let is_next = self.rest().starts_with(c);
        if is_next {
            self.at += c.len_utf8();
        }
        is_next
    }

    fn value(&mut self, depth: u32) -> Result<Literal<'t>, String> {
        self.values += 1;
        if depth > MAX_DEPTH || self.values > MAX_VALUES {
            return Err(format!("has more than {MAX_VALUES} values, or they are deeper than {MAX_DEPTH}"));
        }
        self.skip_space();
        match self.rest().chars().next() {
            Some('{') => self.map(depth),
            Some('[') => self.list(depth, ('[', ']')),
            Some('(') => self.list(depth, ('(', ')')),
            Some(quote @ ('\'' | '"')) => self.quoted(quote).map(Literal::Text),
            _ => self.word(),
        }
    }

    fn map(&mut self, depth: u32) -> Result<Literal<'t>, String> {
        self.takes('{');
        let mut fields = Vec::new();
        while !self.takes('}') {
            let key = self.value(depth + 1)?;
            if !self.takes(':') {
                return Err("a colon is missing".into());
            }
            fields.push((key, self.value(depth + 1)?));
            if !self.takes(',') && !self.rest().starts_with('}') {
                return Err("a comma is missing".into());
            }
        }
        Ok(Literal::Map(fields))
    }

    fn list(&mut self, depth: u32, (open, close): (char, char)) -> Result<Literal<'t>, String> {
        self.takes(open);
        let mut items = Vec::new();
        while !self.takes(close) {
            items.push(self.value(depth + 1)?);
            if !self.takes(',') && !self.rest().starts_with(close) {
                return Err("a comma is missing".into());
            }
        }
        Ok(Literal::List(items))
    }

    fn word(&mut self) -> Result<Literal<'t>, String> {
        let rest = self.rest();
        let end = rest.find(|c: char| !(c.is_ascii_alphanumeric() || "+-._".contains(c))).unwrap_or(rest.len());
        let word = rest.get(..end).unwrap_or_default();
        let value = match word {
            "True" | "true" => Literal::Flag(true),
            "False" | "false" => Literal::Flag(false),
            "None" | "null" => Literal::Nothing,
            number if number.starts_with(|c: char| c.is_ascii_digit() || c == '-') => Literal::Number(number),
            _ => return Err("neither a text, a number, True, False, a list nor a map".into()),
        };
        self.at += end;
        Ok(value)
    }

    fn quoted(&mut self, quote: char) -> Result<Cow<'t, str>, String> {
        self.at += quote.len_utf8();
        let rest = self.rest();
        let end = rest.find(['\\', '\n', '\r', quote]).unwrap_or(rest.len());
        if rest.get(end..).is_some_and(|rest| rest.starts_with(quote)) {
            self.at += end + quote.len_utf8();
            return Ok(Cow::Borrowed(rest.get(..end).unwrap_or_default()));
        }
        let mut text = String::new();
        loop {
            let c = self.take_char()?;
            match c {
                '\\' => text.push(self.escape()?),
                '\n' | '\r' => return Err("a text ends at the end of its line".into()),
                c if c == quote => return Ok(Cow::Owned(text)),
                c => text.push(c),
            }
        }
    }

    fn take_char(&mut self) -> Result<char, String> {
        let c = self.rest().chars().next().ok_or("a text has no end")?;
        self.at += c.len_utf8();
        Ok(c)
    }

    fn escape(&mut self) -> Result<char, String> {
        Ok(match self.take_char()? {
            c @ ('\\' | '\'' | '"' | '/') => c,
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'b' => '\u{8}',
            'f' => '\u{c}',
            'x' => return self.code(2).and_then(character),
            'U' => return self.code(8).and_then(character),
            'u' => {
                let first = self.code(4)?;
                if !(0xd800..0xdc00).contains(&first) {
                    return character(first);
                }
                // JSON writes a character beyond the first 65,536 as a pair of surrogates.
                let is_pair = self.take_char()? == '\\' && self.take_char()? == 'u';
                let second = self.code(4)?;
                if !is_pair || !(0xdc00..0xe000).contains(&second) {
                    return Err("half of a pair of surrogates".into());
                }
                return character(0x1_0000 + ((first - 0xd800) << 10) + (second - 0xdc00));
            }
            _ => return Err("an escape that is not known".into()),
        })
    }

    fn code(&mut self, digits: usize) -> Result<u32, String> {
        let text = self.rest().get(..digits).filter(|text| text.bytes().all(|byte| byte.is_ascii_hexdigit()));
        let code = text.and_then(|text| u32::from_str_radix(text, 16).ok()).ok_or("an escape without its digits")?;
        self.at += digits;
        Ok(code)
    }
}

fn character(code: u32) -> Result<char, String> {
    char::from_u32(code).ok_or_else(|| "an escape that is not a character".into())
}
