//! Reads a whole request body within a limit of bytes and time.

use http_body_util::{BodyExt, LengthLimitError, Limited};
use hyper::StatusCode;
use hyper::body::{Body, Bytes};
use std::error::Error;
use std::time::Duration;
use tokio::time::{Instant, timeout_at};

/// The limits of a request body.
#[derive(Clone, Copy, Debug)]
pub struct BodyLimits {
    /// Maximum number of bytes.
    pub bytes: usize,
    /// Longest time from the first byte to the last.
    pub time: Duration,
}

/// The reason why a body was not read.
#[derive(Debug, thiserror::Error)]
pub enum BodyError {
    /// The body is longer than the limit.
    #[error("the request body is longer than {0} bytes, the most that is read here")]
    TooLarge(usize),
    /// The client did not send the whole body in time.
    #[error("the request body did not arrive within {} s", .0.as_secs_f32())]
    TooSlow(Duration),
    /// The connection broke, or the body's framing is invalid.
    #[error("the request body cannot be read: {0}")]
    Broken(Box<dyn Error + Send + Sync>),
}

impl BodyError {
    /// The status of the answer.
    #[must_use]
    pub fn status(&self) -> StatusCode {
        match self {
            BodyError::TooLarge(_) => StatusCode::PAYLOAD_TOO_LARGE,
            BodyError::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            BodyError::Broken(_) => StatusCode::BAD_REQUEST,
        }
    }
}

/// Reads the body to its end. Memory grows with the bytes that arrive, not with the announced length.
///
/// # Errors
/// When the body is too large, too slow or broken.
pub async fn read<B>(mut body: B, limits: BodyLimits) -> Result<Bytes, BodyError>
where
    B: Body<Data = Bytes, Error: Into<Box<dyn Error + Send + Sync>>> + Unpin,
{
    let deadline = Instant::now() + limits.time;
    // hyper knows the announced length, so a body that is too long is never kept in memory.
    let announced = body.size_hint().lower();
    let whole = async {
        if announced > limits.bytes as u64 {
            return Err(BodyError::TooLarge(limits.bytes));
        }
        match Limited::new(&mut body, limits.bytes).collect().await {
            Ok(whole) => Ok(whole.to_bytes()),
            Err(error) if error.is::<LengthLimitError>() => Err(BodyError::TooLarge(limits.bytes)),
            Err(error) => Err(BodyError::Broken(error)),
        }
    };
    let read = timeout_at(deadline, whole).await.unwrap_or(Err(BodyError::TooSlow(limits.time)));
    if matches!(read, Err(BodyError::TooLarge(_))) {
        let _ = timeout_at(deadline, discard(&mut body, limits.bytes)).await;
    }
    read
}

/// Reads and discards the rest of a body that is too large, up to this number of bytes. Otherwise a client that sends
/// its whole body before it reads the answer would see a closed connection and no reason.
async fn discard<B: Body<Data = Bytes> + Unpin>(body: &mut B, mut bytes: usize) {
    while let Some(Ok(frame)) = body.frame().await {
        bytes = match bytes.checked_sub(frame.data_ref().map_or(0, Bytes::len)) {
            Some(left) => left,
            None => return,
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use http_body_util::{Full, StreamBody};
    use hyper::body::Frame;
    use std::convert::Infallible;
    use tokio_stream::StreamExt;

    const LIMITS: BodyLimits = BodyLimits { bytes: 10, time: Duration::from_secs(3) };

    /// A body of unknown length: the frames, then silence or the end.
    fn frames(texts: &'static [&'static str], ends: bool) -> impl Body<Data = Bytes, Error = Infallible> {
        let frames = tokio_stream::iter(texts).map(|text| Ok(Frame::data(Bytes::from_static(text.as_bytes()))));
        let silence = tokio_stream::iter((!ends).then_some(())).then(|()| std::future::pending());
        StreamBody::new(frames.chain(silence))
    }

    #[tokio::test]
    async fn a_body_up_to_the_limit_is_read_and_a_longer_one_is_refused() {
        assert_eq!(read(Full::new(Bytes::from_static(b"0123456789")), LIMITS).await.unwrap(), "0123456789");
        assert_eq!(read(frames(&["01234", "56789"], true), LIMITS).await.unwrap(), "0123456789");
        for body in [&["0123456789a"][..], &["0123456789", "a"]] {
            let error = read(frames(body, true), LIMITS).await.unwrap_err();
            assert_eq!(error.status(), StatusCode::PAYLOAD_TOO_LARGE);
            assert!(error.to_string().contains("longer than 10 bytes"), "{error}");
        }
        let announced = read(Full::new(Bytes::from_static(b"0123456789a")), LIMITS).await.unwrap_err();
        assert_eq!(announced.status(), StatusCode::PAYLOAD_TOO_LARGE);
    }

    #[tokio::test]
    async fn a_body_that_is_not_sent_in_time_is_refused() {
        let limits = BodyLimits { time: Duration::from_millis(50), ..LIMITS };
        let error = read(frames(&["0123"], false), limits).await.unwrap_err();
        assert_eq!(error.status(), StatusCode::REQUEST_TIMEOUT);
        assert!(error.to_string().contains("within 0.05 s"), "{error}");
    }
}
