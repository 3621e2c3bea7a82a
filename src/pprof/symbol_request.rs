//! Parses the body of a `symbol` request: hexadecimal addresses joined by `+`, as Go's client sends them.

/// Maximum number of addresses in one request; the client sends a few thousand at most.
pub(crate) const MAX_SYMBOLS: usize = 10_000;

/// The addresses, at most [`MAX_SYMBOLS`]. A word that is not a number is skipped, as in Go.
#[must_use]
pub(crate) fn addresses(body: &[u8]) -> Vec<u64> {
    let number = |word: &[u8]| {
        let word = std::str::from_utf8(word).ok()?.trim();
        let digits = word.strip_prefix("0x").unwrap_or(word);
        // `from_str_radix` alone would accept a sign.
        let hexadecimal = digits.bytes().all(|digit| digit.is_ascii_hexdigit());
        u64::from_str_radix(digits, 16).ok().filter(|_| hexadecimal)
    };
    body.split(|byte| *byte == b'+').filter_map(number).take(MAX_SYMBOLS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn addresses_are_hexadecimal_and_other_words_are_skipped() {
        for (body, found) in [
            (&b"0x10+0x2A"[..], vec![16, 42]),
            (b"10+ff\n", vec![16, 255]),
            (b"", vec![]),
            (b"+++", vec![]),
            (b"0x+0x0x1+main.go+-1+0x-1+\xff+0x1_0+7", vec![7]),
            (b"ffffffffffffffff+10000000000000000", vec![u64::MAX]),
        ] {
            assert_eq!(addresses(body), found, "{}", String::from_utf8_lossy(body));
        }
    }

    #[test]
    fn the_number_of_addresses_is_bounded() {
        assert_eq!(addresses("0x1+".repeat(MAX_SYMBOLS + 5).as_bytes()).len(), MAX_SYMBOLS);
    }

    proptest! {
        /// Promise 18 in docs/specification.md.
        #[test]
        fn no_body_causes_a_panic(body: Vec<u8>) {
            prop_assert!(addresses(&body).len() <= body.len());
        }

        #[test]
        fn addresses_in_the_form_of_the_client_are_read(expected in prop::collection::vec(any::<u64>(), 0..20)) {
            let body: Vec<String> = expected.iter().map(|address| format!("{address:#x}")).collect();
            prop_assert_eq!(addresses(body.join("+").as_bytes()), expected);
        }
    }
}
