//! A cell with a number, and perhaps a unit: `52 %`, `364.20 W`, `27512 MiB`, `"1,234.5"`, `0,5`.

/// A number with its unit as it is written; the unit is empty if there is none.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Number<'c> {
    /// The number, which may be infinite or not a number.
    pub(crate) value: f64,
    /// The unit.
    pub(crate) unit: &'c str,
}

/// Longest unit: `Mbit/sec` has 8 characters.
const MAX_UNIT: usize = 8;
/// Longest number: the longest exact decimal fraction of a double that programs print has about 25 digits.
const MAX_DIGITS: usize = 40;

/// What can be converted: the unit, what it measures, and its size.
const UNITS: [(&str, char, f64); 22] = [
    ("B", 'B', 1.0),
    ("kB", 'B', 1e3),
    ("KB", 'B', 1e3),
    ("MB", 'B', 1e6),
    ("GB", 'B', 1e9),
    ("TB", 'B', 1e12),
    ("KiB", 'B', 1024.0),
    ("MiB", 'B', 1_048_576.0),
    ("GiB", 'B', 1_073_741_824.0),
    ("TiB", 'B', 1_099_511_627_776.0),
    ("mW", 'W', 1e-3),
    ("W", 'W', 1.0),
    ("kW", 'W', 1e3),
    ("Hz", 'H', 1.0),
    ("kHz", 'H', 1e3),
    ("MHz", 'H', 1e6),
    ("GHz", 'H', 1e9),
    ("ns", 's', 1e-9),
    ("us", 's', 1e-6),
    ("µs", 's', 1e-6),
    ("ms", 's', 1e-3),
    ("s", 's', 1.0),
];

/// Reads a cell. With `decimal_comma`, `0,5` is one half; without it, `1,234` is more than a thousand.
pub(crate) fn read(cell: &str, decimal_comma: bool) -> Option<Number<'_>> {
    if let Ok(value) = cell.parse() {
        return Some(Number { value, unit: "" });
    }
    let end = cell.find(|c: char| !(c.is_ascii_digit() || "+-.,eE".contains(c))).unwrap_or(cell.len());
    let (digits, unit) = cell.split_at(end);
    let unit = unit.trim();
    let is_unit = unit.chars().count() <= MAX_UNIT && unit.chars().all(|c| c.is_alphabetic() || "%°/²³".contains(c));
    if !is_unit || digits.is_empty() || digits.len() > MAX_DIGITS {
        return None;
    }
    let value = digits.parse().ok().or_else(|| with_commas(digits, decimal_comma))?;
    Some(Number { value, unit })
}

/// A number with commas, which mark the fraction or the thousands.
fn with_commas(digits: &str, decimal_comma: bool) -> Option<f64> {
    if decimal_comma {
        let (whole, fraction) = digits.split_once(',')?;
        return format!("{}.{fraction}", whole.replace('.', "")).parse().ok();
    }
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    let mut groups = whole.trim_start_matches(['-', '+']).split(',');
    let first = groups.next().is_some_and(|group| (1..=3).contains(&group.len()));
    if !first || !groups.all(|group| group.len() == 3) {
        return None;
    }
    format!("{}.{fraction}", whole.replace(',', "")).parse().ok()
}

/// The factor that converts `unit` into the unit of the column; `None` if they measure different things.
pub(crate) fn factor(unit: &str, column: &str) -> Option<f64> {
    if unit == column || unit.is_empty() || column.is_empty() {
        return Some(1.0);
    }
    let known = |name: &str| UNITS.iter().find(|(unit, _, _)| *unit == name);
    let ((_, what, size), (_, wanted, of)) = (known(unit)?, known(column)?);
    (what == wanted).then_some(size / of)
}

/// The unit in a column's name, as `nvidia-smi` writes it: `power.draw [W]`.
pub(crate) fn unit_of_name(name: &str) -> &str {
    let inside = name.strip_suffix(']').and_then(|name| name.rsplit_once('['));
    let inside = inside.or_else(|| name.strip_suffix(')').and_then(|name| name.rsplit_once('(')));
    inside.map_or("", |(_, unit)| unit.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn numbers_are_read_with_their_units() {
        for (cell, value, unit) in [
            ("52 %", 52.0, "%"),
            ("52%", 52.0, "%"),
            ("364.20 W", 364.2, "W"),
            ("27512 MiB", 27512.0, "MiB"),
            ("-1.5e3", -1500.0, ""),
            (".5", 0.5, ""),
            ("1,234.5", 1234.5, ""),
            ("-12,345,678", -12_345_678.0, ""),
            ("21.5 °C", 21.5, "°C"),
        ] {
            assert_eq!(read(cell, false), Some(Number { value, unit }), "{cell}");
        }
        assert_eq!(read("0,5 kW", true), Some(Number { value: 0.5, unit: "kW" }));
        assert_eq!(read("1.234,5", true), Some(Number { value: 1234.5, unit: "" }));
        assert!(read("NaN", false).is_some_and(|number| number.value.is_nan()));
        assert!(read("-inf", false).is_some_and(|number| number.value.is_infinite()));
    }

    #[test]
    fn texts_are_no_numbers() {
        for cell in [
            "",
            "P0",
            "[N/A]",
            "[Unknown Error]",
            "1x16",
            "2023/07/14",
            "10:12:46",
            "0,5",
            "1,23,456",
            "1,2345",
            "e",
            "13 items left",
            "23b8eba99c14e73d454503a55ae96989",
            "%",
            "0x1f",
            "-",
            "1.2.3",
        ] {
            assert_eq!(read(cell, false), None, "{cell}");
        }
    }

    #[test]
    fn units_of_one_kind_are_converted_and_others_are_not() {
        assert_eq!(factor("GiB", "MiB"), Some(1024.0));
        assert_eq!(factor("W", "mW"), Some(1000.0));
        assert_eq!(factor("", "W"), Some(1.0));
        assert_eq!(factor("W", "MiB"), None);
        assert_eq!(factor("apples", "apples"), Some(1.0));
        for (name, unit) in [("power.draw [W]", "W"), ("memory (MiB)", "MiB"), ("value", ""), ("a [b] c", "")] {
            assert_eq!(unit_of_name(name), unit);
        }
    }

    proptest! {
        #[test]
        fn no_cell_causes_a_panic(cell in "\\PC{0,60}", comma in any::<bool>()) {
            let _ = read(&cell, comma);
        }

        #[test]
        fn a_printed_number_comes_back(value in any::<f64>().prop_filter("finite", |value| value.is_finite())) {
            let cell = value.to_string();
            prop_assert_eq!(read(&cell, false), Some(Number { value, unit: "" }));
        }
    }
}
