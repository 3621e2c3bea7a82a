//! The admin port that serves the profiles.

use super::program::Program;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

#[test]
fn without_profiling_the_profiles_are_forbidden_and_the_level_is_still_there() {
    let program = Program::start(&["--off"]);
    for path in ["/debug/pprof", "/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1"] {
        let answer = program.get(path);
        assert_eq!(answer.status, 403, "{path}");
        assert!(answer.text().contains("--profiling"), "{}", answer.text());
    }
    assert_eq!(program.get("/loglevel").text(), "2\n");
}

#[test]
fn the_level_is_shown_and_set_and_a_wrong_one_is_explained() {
    let program = Program::start(&[]);
    assert_eq!(program.get("/loglevel").text(), "2\n");
    assert_eq!(program.ask("PUT /loglevel", "4\n").text(), "4\n");
    assert_eq!(program.get("/loglevel").text(), "4\n");
    for wrong in ["9", "", "loud", &"5".repeat(1000)] {
        let answer = program.ask("PUT /loglevel", wrong);
        assert_eq!(answer.status, 400, "{wrong}");
    }
    assert_eq!(program.get("/loglevel").text(), "4\n");
    assert_eq!(program.ask("DELETE /loglevel", "").status, 405);
}

#[test]
fn every_page_of_the_index_is_there() {
    let program = Program::start(&["hold"]);
    assert!(program.get("/").text().contains("/debug/pprof/"));
    let index = program.get("/debug/pprof/").text();
    for name in ["allocs", "block", "cmdline", "goroutine", "heap", "mutex", "profile", "symbol", "threadcreate"] {
        assert!(index.contains(&format!(">{name}</a>")), "{name} in {index}");
    }
    assert_eq!(program.get("/debug/pprof/cmdline").body.split(|byte| *byte == 0).nth(1).unwrap(), b"hold");
    assert_eq!(program.get("/debug/pprof/symbol").text(), "num_symbols: 1\n");
    assert_eq!(program.get("/debug/pprof/trace").status, 501);
    for empty in ["block", "mutex"] {
        assert!(program.profile(&format!("/debug/pprof/{empty}")).profile.sample.is_empty());
    }
    assert_eq!(program.get("/debug/pprof/nothing").status, 404);
    assert!(program.get("/debug/pprof/heap?debug=1").text().starts_with("heap profile: total "));
    assert_eq!(program.get("/debug/pprof/heap?gc=1").status, 200);
}

#[test]
fn the_index_without_its_slash_is_redirected_as_go_does() {
    let program = Program::start(&["hold"]);
    for (asked, place) in [("/debug/pprof", "/debug/pprof/"), ("/debug/pprof?debug=1", "/debug/pprof/?debug=1")] {
        let answer = program.get(asked);
        assert_eq!((answer.status, answer.header("location")), (301, Some(place)), "{asked}");
    }
}

#[test]
fn an_address_of_a_heap_profile_has_a_name_in_symbol() {
    let program = Program::start(&["hold"]);
    let opened = program.profile("/debug/pprof/heap");
    let location = opened.profile.location.iter().find(|location| {
        location.line.last().is_some_and(|line| {
            let function = &opened.profile.function[usize::try_from(line.function_id - 1).unwrap()];
            opened.string(function.name).ends_with("work::keep_blocks")
        })
    });
    let address = location.unwrap().address;
    let text = program.ask("POST /debug/pprof/symbol", &format!("{address:#x}+0x10")).text();
    assert!(text.contains(&format!("{address:#x} ")) && text.contains("work::keep_blocks\n"), "{text}");
}

#[test]
fn one_connection_too_many_is_closed_and_the_others_go_on() {
    let program = Program::start(&[]);
    let mut open: Vec<TcpStream> =
        (0..=effects::admin::MAX_CONNECTIONS).map(|_| TcpStream::connect(program.address).unwrap()).collect();
    // The server may refuse any of them, because connections that come at the same time are accepted in any order.
    let closed = |stream: &mut TcpStream| {
        stream.set_nonblocking(true).unwrap();
        match stream.read(&mut [0]) {
            Ok(bytes) => {
                assert_eq!(bytes, 0, "closed without an answer");
                true
            }
            Err(error) => error.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    // Less than the 10 s for which a connection may stay silent.
    let deadline = Instant::now() + Duration::from_secs(8);
    while open.len() > effects::admin::MAX_CONNECTIONS {
        assert!(Instant::now() < deadline, "none of {} connections was closed", open.len());
        std::thread::sleep(Duration::from_millis(5));
        open.retain_mut(|stream| !closed(stream));
    }
    assert_eq!(open.len(), effects::admin::MAX_CONNECTIONS);
    for mut stream in open {
        stream.set_nonblocking(false).unwrap();
        write!(stream, "GET /loglevel HTTP/1.0\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        assert!(text.ends_with("2\n"), "{text}");
    }
}

#[test]
fn a_body_or_a_header_without_end_is_refused() {
    let program = Program::start(&[]);
    assert_eq!(program.ask("POST /debug/pprof/symbol", &"0x1+".repeat(100_000)).status, 413);
    let mut stream = TcpStream::connect(program.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    let _ = write!(stream, "GET / HTTP/1.1\r\nA: {}\r\n\r\n", "a".repeat(100_000));
    let mut text = String::new();
    let _ = stream.read_to_string(&mut text);
    assert!(text.is_empty() || text.starts_with("HTTP/1.1 431"), "{text}");
}
