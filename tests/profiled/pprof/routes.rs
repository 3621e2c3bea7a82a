//! The routes below `/debug/pprof/`: paths, redirects, symbols and the limit of a body.

use super::program::Program;

#[test]
fn every_page_of_the_index_is_there() {
    let program = Program::start(&["hold"]);
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
    for (path, location) in [("/debug/pprof", "/debug/pprof/"), ("/debug/pprof?debug=1", "/debug/pprof/?debug=1")] {
        let answer = program.get(path);
        assert_eq!((answer.status, answer.header("location")), (301, Some(location)), "{path}");
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
    let text = program.send("POST /debug/pprof/symbol", &format!("{address:#x}+0x10")).text();
    assert!(text.contains(&format!("{address:#x} ")) && text.contains("work::keep_blocks\n"), "{text}");
}

#[test]
fn a_body_with_too_many_addresses_is_refused() {
    let program = Program::start(&[]);
    assert_eq!(program.send("POST /debug/pprof/symbol", &"0x1+".repeat(100_000)).status, 413);
}
