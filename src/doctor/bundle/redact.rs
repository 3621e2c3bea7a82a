//! Removes what must not leave the cluster from text that other programs wrote. No file of a bundle is made from a Secret or from the
//! environment of a container; this is for a log line that has a token all the same.

/// What stands in its place.
const REMOVED: &str = "[removed]";
/// Keys before a value that is removed.
const KEYS: [&str; 6] = ["token", "password", "passwd", "secret", "authorization", "apikey"];
/// The begin of a token of a service account: `{"` in base64.
const JWT: &str = "eyJ";

/// The text without tokens, passwords and private keys.
pub(crate) fn redacted(text: &str) -> String {
    let mut clean = String::with_capacity(text.len());
    let mut in_key = false;
    for line in text.split_inclusive('\n') {
        if line.contains("-----BEGIN") && line.contains("KEY-----") {
            in_key = true;
            clean.push_str(REMOVED);
            clean.push('\n');
        }
        if in_key {
            in_key = !line.contains("-----END");
            continue;
        }
        add(&mut clean, line);
    }
    clean
}

/// Adds a line word by word. White space and quotes end a word.
fn add(clean: &mut String, line: &str) {
    let is_end = |c: char| c.is_whitespace() || matches!(c, '"' | '\'' | ',' | ';' | '\\');
    let mut rest = line;
    let mut before = String::new();
    while !rest.is_empty() {
        let end = rest.find(is_end).unwrap_or(rest.len());
        let (word, after) = rest.split_at(end);
        if !word.is_empty() {
            add_word(clean, word, &before);
            // In JSON a quote stands between a key and its colon.
            if word != ":" {
                before.clear();
            }
            before.push_str(word);
        }
        let gap = after.chars().next().map_or(0, char::len_utf8);
        let (gap, next) = after.split_at(gap);
        clean.push_str(gap);
        rest = next;
    }
}

fn add_word(clean: &mut String, word: &str, before: &str) {
    if let Some((key, value)) = word.split_once(['=', ':'])
        && !value.is_empty()
        && is_key(key)
    {
        clean.push_str(&word[..=key.len()]);
        clean.push_str(REMOVED);
        return;
    }
    let follows_key = before.eq_ignore_ascii_case("bearer") || before.strip_suffix([':', '=']).is_some_and(is_key);
    if word.contains(JWT) && word.len() > 40 || follows_key && !word.eq_ignore_ascii_case("bearer") {
        clean.push_str(REMOVED);
        return;
    }
    clean.push_str(word);
}

/// Whether the value of this key is removed. A path or a number of tokens has longer keys, such as `token-file` and `tokens`.
fn is_key(key: &str) -> bool {
    let key = key.trim_start_matches('-').to_ascii_lowercase();
    KEYS.iter()
        .any(|secret| key == *secret || key.ends_with(&format!("_{secret}")) || key.ends_with(&format!("-{secret}")))
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
            ("token=abc password: hunter2 x", "token=[removed] password: [removed] x"),
            ("{\"api_token\":\"abc\"} OPERATOR_TOKEN=9", "{\"api_token\":\"[removed]\"} OPERATOR_TOKEN=[removed]"),
            ("a\n-----BEGIN EC PRIVATE KEY-----\nMIG\n-----END EC PRIVATE KEY-----\nb\n", "a\n[removed]\nb\n"),
        ] {
            assert_eq!(redacted(text), expected);
        }
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
