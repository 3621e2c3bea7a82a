//! Base64 as Go's JSON writes bytes: the standard alphabet, padded. A pure crate has no dependency for it.

/// The bytes of a Base64 text; `None` where a character is not in the alphabet, or the unused bits are not 0.
pub(crate) fn decode(text: &str) -> Option<Vec<u8>> {
    let digits = text.strip_suffix("==").or_else(|| text.strip_suffix('=')).unwrap_or(text).as_bytes();
    let padded = text.len() != digits.len();
    if padded && !text.len().is_multiple_of(4) || digits.len() % 4 == 1 {
        return None;
    }
    let mut bytes = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    for group in digits.chunks(4) {
        let mut bits: u32 = 0;
        for digit in group {
            bits = bits << 6 | value(*digit)?;
        }
        let spare = match group.len() {
            2 => 4,
            3 => 2,
            _ => 0,
        };
        if bits & ((1 << spare) - 1) != 0 {
            return None;
        }
        bits >>= spare;
        let whole = group.len() * 6 / 8;
        bytes.extend_from_slice(bits.to_be_bytes().get(4 - whole..)?);
    }
    Some(bytes)
}

fn value(digit: u8) -> Option<u32> {
    Some(u32::from(match digit {
        b'A'..=b'Z' => digit - b'A',
        b'a'..=b'z' => digit - b'a' + 26,
        b'0'..=b'9' => digit - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => return None,
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The other direction, written for these tests alone.
    fn encode(bytes: &[u8]) -> String {
        const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let mut text = String::new();
        for group in bytes.chunks(3) {
            let mut bits = 0_usize;
            for place in 0..3 {
                bits = bits << 8 | usize::from(group.get(place).copied().unwrap_or(0));
            }
            for place in 0..4 {
                let digit = DIGITS[bits >> (18 - 6 * place) & 63];
                text.push(if place <= group.len() { char::from(digit) } else { '=' });
            }
        }
        text
    }

    #[test]
    fn the_vectors_of_rfc_4648_are_read() {
        for (text, bytes) in [
            ("", ""),
            ("Zg==", "f"),
            ("Zm8=", "fo"),
            ("Zm9v", "foo"),
            ("Zm9vYg==", "foob"),
            ("Zm9vYmE=", "fooba"),
            ("Zm9vYmFy", "foobar"),
            ("Zg", "f"),
            ("Zm8", "fo"),
        ] {
            assert_eq!(decode(text).as_deref(), Some(bytes.as_bytes()), "{text}");
            assert!(encode(bytes.as_bytes()).starts_with(text));
        }
    }

    #[test]
    fn other_texts_are_refused() {
        for text in ["=", "==", "A", "A===", "Zg=", "Zm9v=", "Zm9v====", "Zm 9", "Zm-_", "Zh==", "Zm9=", "ä"] {
            assert_eq!(decode(text), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "\\PC{0,40}") {
            let _ = decode(&text);
        }

        #[test]
        fn what_is_written_is_read_back(bytes: Vec<u8>) {
            prop_assert_eq!(decode(&encode(&bytes)), Some(bytes));
        }
    }
}
