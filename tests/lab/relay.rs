//! A port that forwards everything to a server, can delay the server's answers, and can drop its connections silently.
//! Content and order of the bytes stay the same. Each connection may go to a different server, as behind a Service of Kubernetes.

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
    passing: Arc<Passing>,
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
        let passing = Arc::new(Passing { delay: AtomicU64::new(millis(delay)), ..Passing::default() });
        let shared = Arc::clone(&passing);
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                if shared.end.load(Ordering::Relaxed) {
                    return;
                }
                // If the server is down, the client's connection breaks.
                let Some(Ok(server)) = find().map(TcpStream::connect) else { continue };
                let shared = Arc::clone(&shared);
                thread::spawn(move || pass(&client, &server, &shared));
            }
        });
        Relay { address, passing }
    }

    /// Sets a new delay for the answers from now on.
    pub fn delay(&self, delay: Duration) {
        self.passing.delay.store(millis(delay), Ordering::Relaxed);
    }

    /// Drops all open connections silently, as a load balancer does that forgets them: they stay open for both sides, and
    /// nothing passes. New connections work.
    pub fn drop_silently(&self) {
        self.passing.drops.fetch_add(1, Ordering::Relaxed);
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.passing.end.store(true, Ordering::Relaxed);
        // Wakes the thread that waits for a connection.
        let _ = TcpStream::connect(self.address);
    }
}

fn millis(delay: Duration) -> u64 {
    u64::try_from(delay.as_millis()).expect("a delay of a lifetime at most")
}

/// What the connections of a relay share.
#[derive(Debug, Default)]
struct Passing {
    /// Milliseconds.
    delay: AtomicU64,
    /// Connections that were opened before this number of droppings pass nothing any more.
    drops: AtomicU64,
    end: AtomicBool,
}

/// Forwards both directions of one connection, until either side ends it. Once it is dropped, it passes nothing, not even
/// the end of a side, until the relay ends.
fn pass(client: &TcpStream, server: &TcpStream, passing: &Passing) {
    let number = passing.drops.load(Ordering::Relaxed);
    let dropped = || passing.drops.load(Ordering::Relaxed) > number;
    let (sender, receiver) = mpsc::sync_channel::<(Instant, Vec<u8>)>(MAX_WAITING);
    thread::scope(|scope| {
        scope.spawn(|| {
            let (mut from, mut to, mut piece) = (client, server, vec![0; 16 * 1024]);
            while let Ok(read @ 1..) = from.read(&mut piece) {
                if !dropped() && to.write_all(&piece[..read]).is_err() {
                    break;
                }
            }
            if !dropped() {
                let _ = server.shutdown(Shutdown::Write);
            }
        });
        scope.spawn(move || {
            let (mut from, mut piece) = (server, vec![0; 16 * 1024]);
            while let Ok(read @ 1..) = from.read(&mut piece) {
                let due = Instant::now() + Duration::from_millis(passing.delay.load(Ordering::Relaxed));
                if sender.send((due, piece[..read].to_vec())).is_err() {
                    return;
                }
            }
        });
        let mut to = client;
        for (due, piece) in receiver {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            if !dropped() && to.write_all(&piece).is_err() {
                break;
            }
        }
        while dropped() && !passing.end.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(100));
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

    #[test]
    fn a_connection_that_is_dropped_silently_stays_open_and_passes_nothing() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let server = listener.local_addr().unwrap();
        thread::spawn(move || {
            for peer in listener.incoming() {
                let mut peer = peer.unwrap();
                thread::spawn(move || std::io::copy(&mut peer.try_clone().unwrap(), &mut peer));
            }
        });
        let relay = Relay::to(server, Duration::ZERO);
        let echoes = |client: &mut TcpStream| {
            client.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
            client.write_all(b"word").unwrap();
            let mut received = [0; 4];
            client.read_exact(&mut received).map_err(|error| error.kind())
        };
        let mut first = TcpStream::connect(relay.address).unwrap();
        assert_eq!(echoes(&mut first), Ok(()));
        relay.drop_silently();
        assert_eq!(echoes(&mut first), Err(std::io::ErrorKind::WouldBlock), "neither an answer nor an end");
        let mut second = TcpStream::connect(relay.address).unwrap();
        assert_eq!(echoes(&mut second), Ok(()));
    }
}
