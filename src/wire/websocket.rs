//! Frames of the WebSocket protocol (RFC 6455), as far as a client needs them that forwards a port through the API server.
//!
//! ```text
//!   FIN, opcode | length (7 bits, or 16, or 64) | mask, only from the client | payload
//! ```

/// Maximum bytes of a frame's payload. The kubelet sends at most 32 KiB in a frame.
pub const MAX_PAYLOAD: usize = 1 << 20;
/// Maximum bytes of a control frame's payload.
const MAX_CONTROL: usize = 125;

/// The meaning of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WebSocketOpcode {
    /// The next part of the message that the last data frame has begun.
    Continuation,
    /// Data, as text or as bytes.
    Data,
    /// The end of the connection.
    Close,
    /// The other end asks for an answer.
    Ping,
    /// The answer.
    Pong,
}

/// A frame that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WebSocketFrame<'a> {
    /// The frame's meaning.
    pub opcode: WebSocketOpcode,
    /// Whether the message ends with the frame.
    pub ends: bool,
    /// The frame's payload.
    pub payload: &'a [u8],
}

/// Why bytes are not a frame that a server may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadFrame {
    /// A server must not mask its frames.
    #[error("a frame of the server is masked")]
    Masked,
    /// The opcode is not known, or reserved bits are set.
    #[error("the first byte of a frame, {0:#04x}, is not known")]
    Unknown(u8),
    /// The payload is too long.
    #[error("a frame has a payload of {0} bytes, more than is read")]
    TooLong(u64),
}

/// Reads the first frame of these bytes, and the number of its bytes; `None` while it is not complete.
///
/// # Errors
/// [`BadFrame`].
pub fn decode(bytes: &[u8]) -> Result<Option<(WebSocketFrame<'_>, usize)>, BadFrame> {
    let [first, second, rest @ ..] = bytes else { return Ok(None) };
    let opcode = match first & 0x7f {
        0x0 => WebSocketOpcode::Continuation,
        0x1 | 0x2 => WebSocketOpcode::Data,
        0x8 => WebSocketOpcode::Close,
        0x9 => WebSocketOpcode::Ping,
        0xa => WebSocketOpcode::Pong,
        _ => return Err(BadFrame::Unknown(*first)),
    };
    if second & 0x80 != 0 {
        return Err(BadFrame::Masked);
    }
    let (length, head) = match (second & 0x7f, rest) {
        (126, [a, b, ..]) => (u64::from(u16::from_be_bytes([*a, *b])), 4),
        (127, [a, b, c, d, e, f, g, h, ..]) => (u64::from_be_bytes([*a, *b, *c, *d, *e, *f, *g, *h]), 10),
        (126 | 127, _) => return Ok(None),
        (length, _) => (u64::from(length), 2),
    };
    let control = !matches!(opcode, WebSocketOpcode::Continuation | WebSocketOpcode::Data);
    let most = if control { MAX_CONTROL } else { MAX_PAYLOAD };
    let length = usize::try_from(length).ok().filter(|length| *length <= most).ok_or(BadFrame::TooLong(length))?;
    let frame = |payload| WebSocketFrame { opcode, ends: first & 0x80 != 0, payload };
    Ok(bytes.get(head..head + length).map(|payload| (frame(payload), head + length)))
}

/// Writes a whole message as the frame of a client, which must mask its payload.
#[must_use]
pub fn encode(opcode: WebSocketOpcode, payload: &[u8], mask: [u8; 4]) -> Vec<u8> {
    let code = match opcode {
        WebSocketOpcode::Continuation => 0x0,
        WebSocketOpcode::Data => 0x2,
        WebSocketOpcode::Close => 0x8,
        WebSocketOpcode::Ping => 0x9,
        WebSocketOpcode::Pong => 0xa,
    };
    let mut frame = vec![0x80 | code];
    match (u8::try_from(payload.len()), u16::try_from(payload.len())) {
        (Ok(length @ ..126), _) => frame.push(0x80 | length),
        (_, Ok(length)) => {
            frame.push(0x80 | 126);
            frame.extend(length.to_be_bytes());
        }
        _ => {
            frame.push(0x80 | 127);
            frame.extend(u64::try_from(payload.len()).unwrap_or(u64::MAX).to_be_bytes());
        }
    }
    frame.extend(mask);
    frame.extend(payload.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask));
    frame
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_examples_of_the_standard_are_read_and_written() {
        let data = |payload, ends| WebSocketFrame { opcode: WebSocketOpcode::Data, ends, payload };
        assert_eq!(decode(b"\x81\x05Hello"), Ok(Some((data(b"Hello", true), 7))));
        assert_eq!(decode(b"\x01\x03Hel\x80"), Ok(Some((data(b"Hel", false), 5))));
        let ping = WebSocketFrame { opcode: WebSocketOpcode::Ping, ends: true, payload: b"Hello" };
        assert_eq!(decode(b"\x89\x05Hello"), Ok(Some((ping, 7))));
        let pong = encode(WebSocketOpcode::Pong, b"Hello", [0x37, 0xfa, 0x21, 0x3d]);
        assert_eq!(pong, b"\x8a\x85\x37\xfa\x21\x3d\x7f\x9f\x4d\x51\x58");
        assert_eq!(encode(WebSocketOpcode::Data, &[7; 256], [0; 4])[..4], [0x82, 0xfe, 1, 0]);
        assert_eq!(
            encode(WebSocketOpcode::Data, &[7; 70_000], [0; 4])[..10],
            [0x82, 0xff, 0, 0, 0, 0, 0, 1, 0x11, 0x70]
        );
    }

    #[test]
    fn what_a_server_may_not_send_is_an_error() {
        assert_eq!(decode(b"\x81\x85\x00\x00\x00\x00Hello"), Err(BadFrame::Masked));
        assert_eq!(decode(b"\x83\x00"), Err(BadFrame::Unknown(0x83)));
        assert_eq!(decode(b"\xc1\x00"), Err(BadFrame::Unknown(0xc1)));
        assert_eq!(decode(b"\x82\x7f\x00\x00\x00\x00\x7f\xff\xff\xff"), Err(BadFrame::TooLong(0x7fff_ffff)));
        assert_eq!(decode(b"\x89\x7e\x00\x7e"), Err(BadFrame::TooLong(126)), "a control frame is short");
        for part in [&b""[..], b"\x81", b"\x81\x05Hell", b"\x82\x7e\x01", b"\x82\x7f\x00\x00"] {
            assert_eq!(decode(part), Ok(None));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_cause_a_panic_or_a_frame_beyond_their_end(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(Some((frame, length))) = decode(&bytes) {
                prop_assert!(length <= bytes.len() && frame.payload.len() < length);
            }
        }

        #[test]
        fn a_written_frame_has_its_payload_behind_the_mask(payload in prop::collection::vec(any::<u8>(), 0..300), mask: [u8; 4]) {
            let frame = encode(WebSocketOpcode::Data, &payload, mask);
            let masked = &frame[frame.len() - payload.len()..];
            let read: Vec<u8> = masked.iter().zip(mask.iter().cycle()).map(|(byte, mask)| byte ^ mask).collect();
            prop_assert_eq!(read, payload);
        }
    }
}
