//! Tests the log: formats, levels, and changes while the program runs.

use crate::program::BINARY;
use lab::agent::Agent;

fn quiet() -> lab::agent::Recipe {
    Agent::standalone(BINARY).with("--gpus", "none")
}

#[test]
fn each_format_has_one_line_with_version_and_every_address() {
    let text = quiet().with("--log-format", "text").launch().terminate().log;
    let line = text.lines().find(|line| line.contains("gpu-steward agent started")).unwrap();
    assert!(line.starts_with('I') && line.contains("] gpu-steward agent started version="), "{line}");
    for field in [" node=", " pid=", " metrics=127.0.0.1:", " admin=127.0.0.1:", " usage=/"] {
        assert!(line.contains(field), "{field} in {line}");
    }
    assert!(!text.contains('\x1b'), "no colours in a file");

    let json = quiet().with("--log-format", "json").launch().terminate().log;
    let lines: Vec<serde_json::Value> = json.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let line = lines.iter().find(|line| line["message"] == "gpu-steward agent started").unwrap();
    assert_eq!(line["level"], "INFO");
    assert!(line["timestamp"].is_string() && line["metrics"].is_string() && line["version"].is_string(), "{line}");
}

#[test]
fn the_format_auto_is_text_if_stderr_is_not_the_journal() {
    let log = quiet().env("JOURNAL_STREAM", "1:2").launch().terminate().log;
    assert!(log.contains("] gpu-steward agent started"), "{log}");
}

#[test]
fn signals_make_the_log_more_and_less_detailed() {
    let agent = quiet().launch();
    for (signal, by, from, to) in [
        (libc::SIGUSR1, "SIGUSR1", 0, 2),
        (libc::SIGUSR1, "SIGUSR1", 2, 4),
        (libc::SIGUSR1, "SIGUSR1", 4, 5),
        (libc::SIGUSR2, "SIGUSR2", 5, 4),
    ] {
        agent.signal(signal);
        agent.logs(&format!("log level changed old={from} new={to} by={by}"));
    }
    assert_eq!(agent.terminate().status.code(), Some(0));
}

#[test]
fn a_reload_changes_settings_and_names_those_that_need_a_restart() {
    let agent = quiet().config("v: 0\nperiod: 1s\n").launch();
    agent.write_config("v: 2\nperiod: 2s\nmetrics-hami: true\n");
    agent.signal(libc::SIGHUP);
    agent.logs("configuration reloaded changed=2");
    let log = agent.log();
    let path = agent.dir().join("config.yaml");
    let path = path.display();
    for line in [
        format!("setting changed key=v old=0 new=2 origin={path}:1"),
        format!("setting needs a restart to change key=period old=1s new=2s origin={path}:2"),
        format!("setting changed key=metrics-hami old=false new=true origin={path}:3"),
        "log level changed old=0 new=2 by=SIGHUP".to_owned(),
    ] {
        assert!(log.contains(&line), "{line:?} in {log}");
    }
    assert_eq!(agent.terminate().status.code(), Some(0));
}

#[test]
fn a_bad_file_on_reload_keeps_the_old_settings() {
    let agent = quiet().config("v: 0\n").launch();
    for (text, complaint) in [
        ("v: 2\ncolour: red\n", "config.yaml:2: unknown key"),
        ("v: high\n", "invalid value"),
        ("api-token-file: /nowhere/token\n", "cannot read the API token from /nowhere/token"),
    ] {
        agent.write_config(text);
        agent.signal(libc::SIGHUP);
        agent.logs(complaint);
    }
    agent.write_config("v: 4\n");
    agent.signal(libc::SIGHUP);
    agent.logs("log level changed old=0 new=4 by=SIGHUP");
    let log = agent.terminate().log;
    assert!(log.contains("the configuration was not reloaded: the settings stay as they are"), "{log}");
}

#[test]
fn a_misspelt_environment_variable_is_reported() {
    let log = quiet().env("GPU_STEWARD_PERIODS", "1s").env("GPU_STEWARD_PORT", "tcp://1").launch().terminate().log;
    assert!(log.contains("variable=GPU_STEWARD_PERIODS meant=GPU_STEWARD_PERIOD"), "{log}");
    assert!(!log.contains("variable=GPU_STEWARD_PORT"), "{log}");
}

#[test]
fn the_level_is_shown_and_set_at_the_admin_port() {
    let agent = quiet().launch();
    assert_eq!(agent.admin("GET", "/loglevel", "").text().trim(), "0");
    assert_eq!(agent.admin("PUT", "/loglevel", "4").status, 200);
    assert_eq!(agent.admin("GET", "/loglevel", "").text().trim(), "4");
    agent.logs("log level changed old=0 new=4");
    let refused = agent.admin("PUT", "/loglevel", "loud");
    assert_eq!(refused.status, 400);
    assert!(refused.text().contains("expected 0, 2, 4 or 5"), "{}", refused.text());
}

#[test]
fn a_reload_changes_the_metric_sets_without_a_refused_connection() {
    let agent = quiet().config("metrics-dcgm: true\n").launch();
    agent.write_config("metrics-dcgm: false\n");
    agent.signal(libc::SIGHUP);
    while !agent.log().contains("configuration reloaded changed=1") {
        assert_eq!(agent.get("/metrics").status, 200);
    }
    assert_eq!(agent.get("/metrics").status, 200);
}

/// At this level the libraries for the API server's watch, the runtime's socket and the scrapes log a line for each frame.
#[test]
fn the_most_detailed_level_leaves_out_libraries_unless_they_are_named() {
    let server = lab::api_server::FakeApiServer::start_tls();
    let agent = Agent::in_cluster(BINARY, &server, "n1").with("--gpus", "none").with("-v", "5").start();
    let lines = |of: &str| {
        let log = agent.log();
        log.lines().filter(|line| line.split(' ').nth(2).is_some_and(|target| target.starts_with(of))).count()
    };
    agent.logs("] ready");
    let of_libraries: usize = ["h2::", "hyper", "rustls::", "tower::"].into_iter().map(lines).sum();
    assert_eq!(of_libraries, 0, "{}", agent.log());
    assert!(lines("agent::") > 0 && lines("sources") > 0, "{}", agent.log());
    let answer = agent.admin("PUT", "/loglevel", "5,hyper_util=trace,rustls=debug");
    assert_eq!((answer.status, &*answer.text()), (200, "5,hyper_util=trace,rustls=debug\n"));
    server.cut();
    lab::eventually::eventually("lines of a library that is named", std::time::Duration::from_secs(30), || {
        (lines("hyper_util") + lines("rustls") > 0).then_some(())
    });
    assert_eq!(agent.admin("PUT", "/loglevel", "5,h2=loud").status, 400);
}
