//! Chooses the text format and compression from `Accept` and `Accept-Encoding` with their weights (RFC 9110, section
//! 12.5).

use crate::exposition::ExpositionFormat;

/// The format with the larger weight; the classic format if the weights are equal or the header is absent. A client
/// gets OpenMetrics only if its header names OpenMetrics, because every browser sends `*/*`.
///
/// `classic_is_better`: some metrics have a type that only the classic format can express. Then only clients that do
/// not accept the classic format get OpenMetrics.
#[must_use]
pub fn format(accept: &str, classic_is_better: bool) -> ExpositionFormat {
    let mut classic: Option<u16> = None;
    let mut open: Option<u16> = None;
    for range in accept.split(',') {
        let mut parts = range.split(';').map(str::trim);
        let kind = parts.next().unwrap_or_default().to_ascii_lowercase();
        let mut version = None;
        let mut weight = 1000;
        for parameter in parts {
            match parameter.split_once('=') {
                Some((name, value)) if name.trim().eq_ignore_ascii_case("q") => weight = thousandths(value.trim()),
                Some((name, value)) if name.trim().eq_ignore_ascii_case("version") => version = Some(value.trim()),
                _ => {}
            }
        }
        match kind.as_str() {
            "application/openmetrics-text" if matches!(version, None | Some("1.0.0" | "0.0.1")) => {
                open = open.max(Some(weight));
            }
            "text/plain" if matches!(version, None | Some("0.0.4")) => classic = classic.max(Some(weight)),
            "*/*" | "text/*" => classic = classic.max(Some(weight)),
            _ => {}
        }
    }
    match (open.unwrap_or(0), classic.unwrap_or(0)) {
        (open, classic) if open > classic && !(classic_is_better && classic > 0) => ExpositionFormat::OpenMetrics,
        _ => ExpositionFormat::Classic,
    }
}

/// Whether the client wants CSV and not JSON: its header names `text/csv`, with a larger weight than `application/json`.
#[must_use]
pub fn csv(accept: &str) -> bool {
    let weight = |wanted: &str| accept.split(',').filter_map(|range| weight_of(range, wanted)).max().unwrap_or(0);
    weight("text/csv") > weight("application/json")
}

/// The weight of a range that names exactly this type.
fn weight_of(range: &str, wanted: &str) -> Option<u16> {
    let mut parts = range.split(';');
    parts.next().filter(|kind| kind.trim().eq_ignore_ascii_case(wanted))?;
    let mut weights = parts.filter_map(|parameter| parameter.split_once('='));
    let weight = weights.rfind(|(name, _)| name.trim().eq_ignore_ascii_case("q"));
    Some(weight.map_or(1000, |(_, value)| thousandths(value.trim())))
}

/// Whether the answer may be compressed with gzip.
#[must_use]
pub fn gzip(accept_encoding: &str) -> bool {
    accept_encoding.split(',').any(|range| {
        let (coding, parameters) = range.split_once(';').unwrap_or((range, ""));
        let refused = parameters
            .split(';')
            .filter_map(|parameter| parameter.split_once('='))
            .any(|(name, value)| name.trim().eq_ignore_ascii_case("q") && thousandths(value.trim()) == 0);
        coding.trim().eq_ignore_ascii_case("gzip") && !refused
    })
}

/// The weight in thousandths: `0.75` is 750. A weight that cannot be parsed is 0.
fn thousandths(weight: &str) -> u16 {
    let (whole, broken) = weight.split_once('.').unwrap_or((weight, ""));
    let mut digits = broken.bytes().chain([b'0'; 3]).take(3);
    let broken =
        digits.try_fold(0_u16, |sum, digit| digit.is_ascii_digit().then(|| sum * 10 + u16::from(digit - b'0')));
    match (whole, broken) {
        ("1", Some(_)) => 1000,
        ("0", Some(broken)) => broken,
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_with_the_larger_weight_is_chosen_and_a_browser_gets_plain_text() {
        let prometheus = "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,\
                          text/plain;version=0.0.4;q=0.5,*/*;q=0.1";
        for (accept, expected) in [
            ("", ExpositionFormat::Classic),
            ("*/*", ExpositionFormat::Classic),
            ("text/html,application/xhtml+xml,*/*;q=0.8", ExpositionFormat::Classic),
            (prometheus, ExpositionFormat::OpenMetrics),
            ("application/openmetrics-text", ExpositionFormat::OpenMetrics),
            ("Application/OpenMetrics-Text; Version=1.0.0; Q=0.9, text/plain;q=0.3", ExpositionFormat::OpenMetrics),
            ("application/openmetrics-text;q=0.2,text/plain;version=0.0.4;q=0.8", ExpositionFormat::Classic),
            ("application/openmetrics-text;q=0", ExpositionFormat::Classic),
            ("application/openmetrics-text;q=zero", ExpositionFormat::Classic),
            ("application/openmetrics-text;version=2.0.0", ExpositionFormat::Classic),
            ("application/vnd.google.protobuf;q=1,text/plain;q=0.5", ExpositionFormat::Classic),
        ] {
            assert_eq!(format(accept, false), expected, "{accept}");
        }
        for (accept, expected) in [
            (prometheus, ExpositionFormat::Classic),
            ("application/openmetrics-text;version=1.0.0,*/*;q=0.1", ExpositionFormat::Classic),
            ("application/openmetrics-text", ExpositionFormat::OpenMetrics),
            ("application/openmetrics-text,text/plain;q=0", ExpositionFormat::OpenMetrics),
            ("application/openmetrics-text,text/html;q=0.5", ExpositionFormat::OpenMetrics),
        ] {
            assert_eq!(format(accept, true), expected, "{accept}");
        }
    }

    #[test]
    fn gzip_is_used_unless_the_client_refuses_it() {
        for (accept, expected) in
            [("", false), ("gzip", true), ("deflate, GZIP;q=0.5", true), ("gzip;q=0", false), ("br", false)]
        {
            assert_eq!(gzip(accept), expected, "{accept}");
        }
    }

    #[test]
    fn csv_is_sent_only_to_a_client_that_names_it() {
        for (accept, expected) in [
            ("", false),
            ("*/*", false),
            ("text/*", false),
            ("text/csv", true),
            ("Text/CSV; charset=utf-8", true),
            ("application/json, text/csv;q=0.5", false),
            ("application/json;q=0.1, text/csv ; Q=0.5", true),
            ("text/csv;q=0", false),
        ] {
            assert_eq!(csv(accept), expected, "{accept}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_accept_header_panics(header in ".*") {
            let _ = (format(&header, false), format(&header, true), gzip(&header), csv(&header));
        }
    }
}
