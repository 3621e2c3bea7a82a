//! Removes secrets from text that other programs wrote, because a bundle leaves the cluster. No file of a bundle is made from a
//! Secret or from the environment of a container, but a log line may contain a token.

/// The text that replaces a secret.
const REMOVED: &str = "[removed]";
/// Keys whose values are removed.
const KEYS: [&str; 6] = ["token", "password", "passwd", "secret", "authorization", "apikey"];
/// Words between a key and its value: `Authorization: Basic dXNlcjpwYXNz`.
const SCHEMES: [&str; 4] = ["bearer", "basic", "negotiate", "token"];
/// Characters between a key and its value.
const SEPARATORS: [char; 3] = [':', '=', '>'];
/// Characters before a key: `?token=`, `map[password:`.
const BEFORE_KEY: [char; 8] = ['?', '&', '(', '[', '{', '<', ':', '='];
/// The beginning of a service account's token: `{"` in base64.
const JWT: &str = "eyJ";

/// Maximum number of lines of a private key that are removed. An RSA key of 16,384 bits has 200 lines.
const MAX_KEY_LINES: usize = 256;
/// Minimum length in characters of a word in a log line that may be a line of a private key. A full line of a key has 64.
const KEY_WORD: usize = 40;
/// Fields at the beginning of an encrypted private key or of one of PGP.
const KEY_FIELDS: [&str; 5] = ["Proc-Type:", "DEK-Info:", "Version:", "Comment:", "Charset:"];
/// Characters around the lines of a key that is printed as source or as a list: `"MIIE\n" +`.
const AROUND_KEY: [char; 7] = ['"', '\'', ',', ';', '+', '[', ']'];

/// The text without tokens, passwords and private keys. Lines after the beginning of a key are removed only as long as they may
/// belong to the key: anyone can write such a beginning into an annotation that is logged.
pub(crate) fn redacted(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    // Number of lines of a private key that may follow.
    let mut key_lines = 0_usize;
    for line in text.split_inclusive('\n') {
        if let Some((before, key)) = split_at_key(line) {
            add(&mut clean, &without_users(before));
            clean.push_str(REMOVED);
            if line.ends_with('\n') {
                clean.push('\n');
            }
            key_lines = if key.contains("-----END") { 0 } else { MAX_KEY_LINES };
        } else if key_lines > 0 && line.contains("-----END") {
            key_lines = 0;
        } else if key_lines > 0 && may_be_of_key(line) {
            key_lines -= 1;
        } else {
            key_lines = 0;
            add(&mut clean, &without_users(line));
        }
    }
    clean
}

/// Removes the secrets from a text of a document, or the whole text if its field is a key.
pub(crate) fn redact_field(field: &str, text: &mut String) {
    *text = if is_key(field) { REMOVED.to_owned() } else { redacted(text) };
}

/// The text before a private key that begins in this line, and the rest of the line.
fn split_at_key(line: &str) -> Option<(&str, &str)> {
    let (before, key) = line.split_at(line.find("-----BEGIN")?);
    (key.contains("KEY-----") || key.contains("PRIVATE KEY BLOCK")).then_some((before, key))
}

/// Whether the line may belong to a private key: it is empty, a field, or base64, or one of its words is long and base64.
fn may_be_of_key(line: &str) -> bool {
    let is_base64 = |text: &str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+/=".contains(&byte));
    let is_long = |word: &str| word.len() >= KEY_WORD && is_base64(word);
    let whole = without_quotes(line);
    let is_field = KEY_FIELDS.iter().any(|field| whole.starts_with(field));
    is_field || is_base64(whole) || line.split_whitespace().any(|word| is_long(without_quotes(word)))
}

/// The text without what a list or the source of a program puts around a line of a key. A `\n` may be escaped twice.
fn without_quotes(text: &str) -> &str {
    let text = text.trim_matches(|c: char| c.is_whitespace() || AROUND_KEY.contains(&c));
    text.trim_end_matches("\\n").trim_end_matches('\\')
}

/// The line without the user names and passwords in its URLs: `https://user:password@host`.
fn without_users(line: &str) -> String {
    let mut clean = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("://") {
        clean.push_str(before);
        clean.push_str("://");
        let end = after.find(|c: char| c.is_whitespace() || matches!(c, '/' | '?' | '#' | '"')).unwrap_or(after.len());
        rest = match after[..end].rfind('@') {
            Some(at) => {
                clean.push_str(REMOVED);
                &after[at..]
            }
            None => after,
        };
    }
    clean.push_str(rest);
    clean
}

/// What is known of the text before a word. The text is not kept, so a word costs no more in a long line than in a short line.
#[derive(Clone, Copy, Debug, Default)]
struct Before {
    /// Whether the last word that is no separator is the key of a value that is removed.
    is_key: bool,
    /// Whether that word is `Bearer`.
    is_bearer: bool,
    /// Whether separators follow that word.
    is_separated: bool,
}

impl Before {
    fn of(word: &str) -> Before {
        let word = without_scheme(word);
        let key = word.trim_end_matches(SEPARATORS);
        Before {
            is_key: is_key(key),
            is_bearer: key.eq_ignore_ascii_case("bearer"),
            is_separated: key.len() < word.len(),
        }
    }

    /// Whether the next word is the value of a key.
    fn ends_with_key(self) -> bool {
        self.is_key && self.is_separated
    }
}

/// Adds a line word by word. White space and quotes end a word.
fn add(clean: &mut String, line: &str) {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | ';' | '\\');
    let mut rest = line;
    let mut before = Before::default();
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if !word.is_empty() {
            add_word(clean, word, before);
            // The value follows behind a separator or a scheme that stands alone. In JSON a quote stands between a key and its colon.
            if is_separator(word) {
                before.is_separated = true;
            } else if !(before.ends_with_key() && is_scheme(word)) {
                before = Before::of(word);
            }
        }
        let gap = after.chars().next().map_or(0, char::len_utf8);
        let (gap, next) = after.split_at(gap);
        clean.push_str(gap);
        rest = next;
    }
}

fn add_word(clean: &mut String, word: &str, before: Before) {
    let ends = word.match_indices([':', '=']).map(|(at, _)| at);
    let key =
        ends.map(|at| word.split_at(at + 1)).find(|(key, value)| !value.is_empty() && is_key(&key[..key.len() - 1]));
    if let Some((key, value)) = key
        && !is_scheme(value)
    {
        clean.push_str(key);
        clean.push_str(REMOVED);
        return;
    }
    let is_token = word.contains(JWT) && word.len() > 40;
    let follows = before.ends_with_key() || before.is_bearer;
    let is_value = follows && !is_scheme(word) && !is_separator(word);
    clean.push_str(if is_token || is_value { REMOVED } else { word });
}

fn is_separator(word: &str) -> bool {
    word.chars().all(|c| SEPARATORS.contains(&c))
}

fn is_scheme(word: &str) -> bool {
    SCHEMES.iter().any(|scheme| word.eq_ignore_ascii_case(scheme))
}

/// `authorization=` of `authorization=Basic`; every other word as it is.
fn without_scheme(word: &str) -> &str {
    match word.rfind([':', '=']) {
        Some(at) if is_scheme(&word[at + 1..]) => &word[..=at],
        _ => word,
    }
}

/// Whether the value of this key is removed. It stays for keys such as `token-file` (a path) and `tokens` (a number).
fn is_key(key: &str) -> bool {
    let key = key.rsplit(BEFORE_KEY).next().unwrap_or(key).trim_start_matches('-').to_ascii_lowercase();
    let begin = KEYS.iter().find_map(|secret| key.strip_suffix(*secret));
    begin.is_some_and(|begin| begin.is_empty() || begin.ends_with(['_', '-']))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn tokens_passwords_and_keys_are_removed_and_everything_else_stays() {
        let jwt = format!("eyJhbGciOiJSUzI1NiJ9.{}.sig", "x".repeat(40));
        for (text, expected) in [
            ("a log line of pod ml/train-0: 3 tokens\n", "a log line of pod ml/train-0: 3 tokens\n"),
            ("--stream-token-file=/var/run/token ok", "--stream-token-file=/var/run/token ok"),
            (&*format!("got {jwt}, refused"), "got [removed], refused"),
            ("Authorization: Bearer abc.def next", "Authorization: Bearer [removed] next"),
            ("Authorization: Basic dXNlcjpwYXNz next", "Authorization: Basic [removed] next"),
            ("authorization=Basic dXNlcjpwYXNz next", "authorization=Basic [removed] next"),
            ("{\"authorization\":\"Basic dXNlcjpwYXNz\"}", "{\"authorization\":\"Basic [removed]\"}"),
            ("password = hunter2 secret => abc x", "password = [removed] secret => [removed] x"),
            ("GET https://me:p,w@host/a?token=abc ok", "GET https://[removed]@host/a?token=[removed] ok"),
            ("map[password:hunter2 user:a] http://host/a@b", "map[password:[removed] user:a] http://host/a@b"),
            ("token=abc password: hunter2 x", "token=[removed] password: [removed] x"),
            ("{\"api_token\":\"abc\"} OPERATOR_TOKEN=9", "{\"api_token\":\"[removed]\"} OPERATOR_TOKEN=[removed]"),
            ("a\n-----BEGIN EC PRIVATE KEY-----\nMIG\n-----END EC PRIVATE KEY-----\nb\n", "a\n[removed]\nb\n"),
        ] {
            assert_eq!(redacted(text), expected);
        }
    }

    #[test]
    fn the_begin_of_a_private_key_hides_only_what_may_be_the_key() {
        let (line, begin) = ("Y".repeat(64), "I1127 numa-bind of ml/a is -----BEGIN A KEY-----");
        let (short, pgp) = ("Y".repeat(KEY_WORD - 1), "PGP PRIVATE KEY BLOCK-----");
        let removed = "I1127 numa-bind of ml/a is [removed]";
        for (text, expected) in [
            (format!("{begin}\nI1127 next\nlast one\n"), format!("{removed}\nI1127 next\nlast one\n")),
            (format!("{begin}\n{line}\nI1127 {line}\nQQ==\nlast one\n"), format!("{removed}\nlast one\n")),
            (format!("{begin}\n{line}\n-----END A KEY-----\nQQ==\n"), format!("{removed}\nQQ==\n")),
            (format!("{begin}\\n{line}\\n-----END A KEY-----\nQQ==\n"), format!("{removed}\nQQ==\n")),
            (format!("{begin}\nProc-Type: 4,ENCRYPTED\n\n{line}\nlast one"), format!("{removed}\nlast one")),
            (format!("{begin} {line}"), removed.to_owned()),
            (format!("{begin}\\n\" +\n \"{line}\\n\" +\n \"QQ==\\n\" +\nlast one\n"), format!("{removed}\nlast one\n")),
            (format!("{begin}',\n '{line}',\n 'QQ==',\n '-----END A KEY-----'\nQQ==\n"), format!("{removed}\nQQ==\n")),
            (
                format!("{begin}\nI1127 \"{line}\\\\n\" pod=ml/a\nI1127 {line} x\nlast one\n"),
                format!("{removed}\nlast one\n"),
            ),
            (format!("{begin}\nI1127 '{short}', x\n{line}\n"), format!("{removed}\nI1127 '{short}', x\n{line}\n")),
            (
                format!(
                    "I1127 numa-bind of ml/a is -----BEGIN {pgp}\nVersion: 2\n\n{line}\n=aB3d\n-----END {pgp}\nQQ==\n"
                ),
                format!("{removed}\nQQ==\n"),
            ),
        ] {
            assert_eq!(redacted(&text), expected);
        }
        let endless = redacted(&format!("{begin}\n{}", "QQ==\n".repeat(MAX_KEY_LINES + 3)));
        assert_eq!(endless.matches("QQ==").count(), 3);
    }

    #[test]
    fn a_field_of_a_document_that_is_a_key_is_removed_and_every_other_is_redacted() {
        for (field, text, expected) in
            [("api_token", "abc", "[removed]"), ("note", "token=abc ok", "token=[removed] ok"), ("tokens", "3", "3")]
        {
            let mut changed = text.to_owned();
            redact_field(field, &mut changed);
            assert_eq!(changed, expected, "{field}");
        }
    }

    /// If each word looked at all words before it again, these lines would take hours.
    #[test]
    fn a_word_costs_the_same_in_a_long_line() {
        assert!(size_of::<Before>() <= 3, "nothing of the line is kept from word to word");
        let long = "a".repeat(1 << 19);
        for (begin, word) in [
            ("", ": "),
            (&*format!("{long} "), ": "),
            ("token ", ":= "),
            ("token: ", "basic "),
            ("", "bearer "),
            ("", "a="),
            ("", "://"),
        ] {
            let line = format!("{begin}{}", word.repeat(1 << 19));
            assert!(redacted(&line) == line, "{begin:.10}{word}");
        }
        assert_eq!(redacted(&format!("token {}hunter2", ": ".repeat(9))), format!("token {}[removed]", ": ".repeat(9)));
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic_and_no_jwt_is_left(text in "\\PC{0,80}", middle in "[a-z]{40}") {
            let clean = redacted(&format!("{text} eyJ{middle} {text}"));
            prop_assert!(!clean.contains(&format!("eyJ{middle}")), "{}", clean);
        }

        #[test]
        fn text_without_secrets_stays(text in "[a-z0-9 .,/\\n]{0,200}") {
            prop_assert_eq!(redacted(&text), text);
        }
    }
}
