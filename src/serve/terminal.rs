//! Text from outside the program, for a terminal.

/// The text on one line, as it can be printed: control characters could send commands to the terminal, and characters that change
/// the direction of writing could make a text look like another text. Each becomes a replacement character.
#[must_use]
pub fn plain(text: &str) -> String {
    text.chars().map(|c| if is_unsafe(c) { char::REPLACEMENT_CHARACTER } else { c }).collect()
}

/// JSON in which such characters are escaped. JSON itself escapes only characters below U+0020.
#[must_use]
pub fn plain_json(json: &str) -> String {
    let mut plain = String::with_capacity(json.len());
    for c in json.chars() {
        // All these characters have at most four hexadecimal digits. Line feeds stand between the lines of the document.
        if c != '\n' && is_unsafe(c) {
            plain.push_str(&format!("\\u{:04x}", u32::from(c)));
        } else {
            plain.push(c);
        }
    }
    plain
}

/// Whether a terminal may obey the character, or show the characters after it in another order or not at all.
fn is_unsafe(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{61c}' | '\u{feff}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_cannot_command_the_terminal_or_turn_its_own_direction() {
        for (text, shown) in [
            ("train-0", "train-0"),
            ("größer 大", "größer 大"),
            ("\u{1b}[2J\u{7}", "\u{fffd}[2J\u{fffd}"),
            ("a\nb\tc\r", "a\u{fffd}b\u{fffd}c\u{fffd}"),
            ("\u{9b}31m", "\u{fffd}31m"),
            ("gpu\u{202e}txt", "gpu\u{fffd}txt"),
            ("a\u{200b}b\u{2066}c", "a\u{fffd}b\u{fffd}c"),
        ] {
            assert_eq!(plain(text), shown, "{text:?}");
        }
        let json = serde_like("\u{9b}\u{202e}ä");
        assert_eq!(plain_json(&json), "{\n\"a\": \"\\u009b\\u202eä\"\n}");
    }

    fn serde_like(text: &str) -> String {
        format!("{{\n\"a\": \"{text}\"\n}}")
    }
}
