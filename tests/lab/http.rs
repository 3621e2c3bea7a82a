//! A small blocking HTTP/1.1 client, with one connection for each request.

use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

/// Longest wait for a byte.
const PATIENCE: Duration = Duration::from_secs(20);

/// The answer to a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HttpResponse {
    /// Status code.
    pub status: u16,
    /// The headers in their order, with names in lower case.
    pub headers: Vec<(String, String)>,
    /// The body, with chunks joined.
    pub body: Vec<u8>,
}

impl HttpResponse {
    /// The body as text, with invalid UTF-8 replaced.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }

    /// The first header of this (lower-case) name.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// The body as JSON.
    ///
    /// # Panics
    /// If it is not JSON; the text contains the body.
    #[must_use]
    pub fn json(&self) -> serde_json::Value {
        match serde_json::from_slice(&self.body) {
            Ok(value) => value,
            Err(error) => panic!("not JSON ({error}): {}", self.text()),
        }
    }
}

/// Sends a GET request.
///
/// # Errors
/// If the connection or the answer fails.
pub fn get(address: SocketAddr, path: &str) -> io::Result<HttpResponse> {
    request(address, "GET", path, &[], b"")
}

/// Sends any request.
///
/// # Errors
/// If the connection or the answer fails.
pub fn request(
    address: SocketAddr,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    body: &[u8],
) -> io::Result<HttpResponse> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut head = format!("{method} {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n");
    for (name, value) in headers {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes())?;
    stream.write_all(body)?;
    read_answer(&mut BufReader::new(stream))
}

/// Reads one answer.
///
/// # Errors
/// If the stream ends early or is not HTTP.
pub fn read_answer(stream: &mut impl BufRead) -> io::Result<HttpResponse> {
    let status = line(stream)?;
    let status = status.split(' ').nth(1).and_then(|code| code.parse().ok()).ok_or_else(|| not_http(&status))?;
    let mut answer = HttpResponse { status, ..HttpResponse::default() };
    loop {
        let header = line(stream)?;
        if header.is_empty() {
            break;
        }
        let (name, value) = header.split_once(':').ok_or_else(|| not_http(&header))?;
        answer.headers.push((name.to_ascii_lowercase(), value.trim().to_owned()));
    }
    if answer.header("transfer-encoding") == Some("chunked") {
        read_chunks(stream, &mut answer.body)?;
    } else if let Some(length) = answer.header("content-length").and_then(|length| length.parse().ok()) {
        answer.body = vec![0; length];
        stream.read_exact(&mut answer.body)?;
    } else {
        stream.read_to_end(&mut answer.body)?;
    }
    Ok(answer)
}

fn read_chunks(stream: &mut impl BufRead, body: &mut Vec<u8>) -> io::Result<()> {
    loop {
        let size = line(stream)?;
        let size = usize::from_str_radix(size.trim(), 16).map_err(|_| not_http(&size))?;
        let start = body.len();
        body.resize(start + size, 0);
        stream.read_exact(&mut body[start..])?;
        line(stream)?;
        if size == 0 {
            return Ok(());
        }
    }
}

fn line(stream: &mut impl BufRead) -> io::Result<String> {
    let mut line = String::new();
    if stream.read_line(&mut line)? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(line.trim_end().to_owned())
}

fn not_http(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("not HTTP: {text:?}"))
}
