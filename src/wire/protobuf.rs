//! Protocol buffer messages, field by field. The generated types are in `proto`, on which a pure crate does not depend;
//! this crate needs a few fields of one message.

/// The value of one field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field<'a> {
    /// A whole number.
    Number(u64),
    /// A text, bytes, or a message.
    Bytes(&'a [u8]),
    /// Eight or four bytes; no caller reads them.
    Fixed,
}

/// The fields of `message` with their numbers; `None` where it is cut off or not a message.
pub(crate) fn fields(message: &[u8]) -> Option<Vec<(u64, Field<'_>)>> {
    let mut found = Vec::new();
    let mut rest = message;
    while !rest.is_empty() {
        let tag = number(&mut rest)?;
        let field = match tag & 7 {
            0 => Field::Number(number(&mut rest)?),
            1 => take(&mut rest, 8).map(|_| Field::Fixed)?,
            2 => {
                let length = usize::try_from(number(&mut rest)?).ok()?;
                Field::Bytes(take(&mut rest, length)?)
            }
            5 => take(&mut rest, 4).map(|_| Field::Fixed)?,
            _ => return None,
        };
        if tag >> 3 == 0 {
            return None;
        }
        found.push((tag >> 3, field));
    }
    Some(found)
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, behind) = rest.split_at_checked(length)?;
    *rest = behind;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let (byte, behind) = rest.split_first()?;
        *rest = behind;
        let bits = u64::from(byte & 0x7f);
        if shift == 63 && bits > 1 {
            return None;
        }
        value |= bits << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn each_kind_of_field_is_read() {
        let message = b"\x08\x96\x01\x12\x02hi\x19\0\0\0\0\0\0\0\0\x25\0\0\0\0";
        let expected = [(1, Field::Number(150)), (2, Field::Bytes(b"hi")), (3, Field::Fixed), (4, Field::Fixed)];
        assert_eq!(fields(message).as_deref(), Some(&expected[..]));
        assert_eq!(fields(b""), Some(vec![]));
    }

    #[test]
    fn what_is_cut_off_or_no_message_is_refused() {
        for message in [
            &b"\x08"[..],
            b"\x08\x80",
            b"\x12\x03hi",
            b"\x19\0",
            b"\x25\0",
            b"\x0b",
            b"\x0c",
            b"\x00\x01",
            b"\x0f",
            b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
            b"\x12\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        ] {
            assert_eq!(fields(message), None, "{message:?}");
        }
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(bytes: Vec<u8>) {
            let _ = fields(&bytes);
        }
    }
}
