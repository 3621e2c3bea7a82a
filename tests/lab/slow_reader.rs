//! Clients that ask for an answer and read nothing of it, from any address of this machine.

use rustix::net::{AddressFamily, SocketType, bind, connect, socket, sockopt};
use std::io::{self, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};

/// Bytes that the kernel receives for a client that reads nothing: the smallest number that it allows is not much less.
const RECEIVED: usize = 4096;

/// Sends a GET request from this address, which must be one of this machine (127.0.0.0/8), and reads no answer. The
/// connection ends when the stream is dropped.
///
/// # Errors
/// If there is no connection.
pub fn ask(from: Ipv4Addr, server: SocketAddr, path: &str) -> io::Result<TcpStream> {
    let socket = socket(AddressFamily::INET, SocketType::STREAM, None)?;
    sockopt::set_socket_recv_buffer_size(&socket, RECEIVED)?;
    bind(&socket, &SocketAddr::from((from, 0)))?;
    connect(&socket, &server)?;
    let mut stream = TcpStream::from(socket);
    write!(stream, "GET {path} HTTP/1.1\r\nHost: {server}\r\n\r\n")?;
    Ok(stream)
}
