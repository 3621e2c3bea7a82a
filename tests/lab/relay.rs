//! A port that forwards everything to a server, and can delay the server's answers. Content and order of the bytes stay
//! the same. Each connection may go to a different server, as behind a Service of Kubernetes.

use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// The most pieces of an answer that wait on one connection. While that many wait, the relay stops reading from the server.
const MAX_WAITING: usize = 4096;

/// The relay. After it is dropped it accepts no new connections.
#[derive(Debug)]
pub struct Relay {
    /// The address on which it listens.
    pub address: SocketAddr,
    delay: Arc<AtomicU64>,
    end: Arc<AtomicBool>,
}

impl Relay {
    /// Starts a relay to `server`, whose answers it delays by `delay`.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn to(server: SocketAddr, delay: Duration) -> Relay {
        Relay::to_any(Ipv4Addr::LOCALHOST.into(), delay, move || Some(server))
    }

    /// Starts a relay at a port of this address. Each connection goes to the server that `find` returns; without a server,
    /// the connection breaks.
    ///
    /// # Panics
    /// If no port is free.
    #[must_use]
    pub fn to_any(at: IpAddr, delay: Duration, find: impl Fn() -> Option<SocketAddr> + Send + 'static) -> Relay {
        let listener = TcpListener::bind((at, 0)).expect("a port");
        let address = listener.local_addr().expect("an address");
        let (shared_delay, end) = (Arc::new(AtomicU64::new(millis(delay))), Arc::new(AtomicBool::new(false)));
        let (delay, ended) = (Arc::clone(&shared_delay), Arc::clone(&end));
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if ended.load(Ordering::Relaxed) {
                    return;
                }
                // If the server is down, the client's connection breaks.
                let Some(Ok(server)) = find().map(TcpStream::connect) else { continue };
                let shared_delay = Arc::clone(&shared_delay);
                thread::spawn(move || pass(&client, &server, &shared_delay));
            }
        });
        Relay { address, delay, end }
    }

    /// Sets a new delay for the answers from now on.
    pub fn delay(&self, delay: Duration) {
        self.delay.store(millis(delay), Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.end.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for a connection.
        let _ = TcpStream::connect(self.address);
    }
}

fn millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_millis()).expect("a delay of a lifetime at most")
}

/// Forwards both directions of one connection, until either side ends it.
fn pass(client: &TcpStream, server: &TcpStream, shared_delay: &AtomicU64) {
    let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(MAX_WAITING);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut from, mut to) = (client, server);
            let _ = std::io::copy(&mut from, &mut to);
            let _ = server.shutdown(Shutdown::Write);
        });
        scope.spawn(move || {
            let (mut from, mut piece) = (server, vec![0; 16 * 1024]);
            while let Ok(read @ 1..) = from.read(&mut piece) {
                let due = Instant::now() + Duration::from_millis(shared_delay.load(Ordering::Relaxed));
                if sender.send((due, piece[..read].to_vec())).is_err() {
                    return;
                }
            }
        });
        let mut to = client;
        for (due, piece) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if to.write_all(&piece).is_err() {
                break;
            }
        }
        let _ = (client.shutdown(Shutdown::Both), server.shutdown(Shutdown::Both));
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_delayed_and_complete() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        thread::spawn(move || {
            let (mut peer, _) = listener.accept().unwrap();
            let mut bytes = [0; 4];
            peer.read_exact(&mut bytes).unwrap();
            peer.write_all(&bytes).unwrap();
            peer.write_all(b" and more").unwrap();
        });
        let relay = Relay::to(server, Duration::from_millis(200));
        let mut client = TcpStream::connect(relay.address).unwrap();
        let began = Instant::now();
        client.write_all(b"word").unwrap();
        let mut received = String::new();
        client.read_to_string(&mut received).unwrap();
        assert_eq!(received, "word and more");
        assert!(began.elapsed() >= Duration::from_millis(200));
    }
}
