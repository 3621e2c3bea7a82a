//! An extender that cannot answer agents and other extenders is not ready, and says why and what to do.

use super::stream_extender::{SOON, StreamExtender, extender_token};
use crate::program::BINARY;
use lab::api_server::{ApiServerFault, FakeApiServer};
use lab::eventually::eventually;
use serde_json::json;
use std::fs::Permissions;
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;

/// Waits until `/readyz` answers 503 with these words.
fn is_not_ready(extender: &StreamExtender, words: &[&str]) {
    eventually(&format!("not ready: {words:?}"), SOON, || {
        let answer = extender.get("/readyz");
        (answer.status == 503 && words.iter().all(|word| answer.text().contains(word))).then_some(())
    });
}

fn is_ready(extender: &StreamExtender) {
    eventually("an extender that is ready", SOON, || (extender.get("/readyz").status == 200).then_some(()));
}

#[test]
fn an_extender_without_certificate_or_keys_is_not_ready_until_it_has_them() {
    const OBJECTS: &str = "get and update the Secret and the ConfigMap gpu/gpu-steward-extender-ca";
    for (part, words) in [
        ("/secrets/", ["has no certificate yet", OBJECTS]),
        ("/configmaps", ["has no certificate yet", OBJECTS]),
        ("/openid/v1/jwks", ["the keys that sign the tokens", "get /openid/v1/jwks"]),
        ("/openid-configuration", ["the keys that sign the tokens", "/.well-known/openid-configuration"]),
    ] {
        let server = FakeApiServer::start();
        server.fault(ApiServerFault::RefusePath(403, part));
        let extender = StreamExtender::start(&server);
        is_not_ready(&extender, &words);
        is_not_ready(&extender, &["the lab refuses"]);
        // The extender still leads: whether it decides does not depend on this port.
        extender.wait_until_leads();
        assert_eq!(extender.get("/readyz").status, 503, "{part}");
        server.fault(ApiServerFault::None);
        is_ready(&extender);
    }
}

#[test]
fn an_extender_with_a_damaged_authority_or_own_token_is_not_ready() {
    let server = FakeApiServer::start();
    let metadata = json!({ "name": "gpu-steward-extender-ca", "namespace": "gpu", "uid": "u1" });
    let secret = |certificate: &str| {
        let data = json!({ "ca.crt": certificate, "ca.key": "YQ==", "made": "MTAwMA==" });
        json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata, "data": data })
    };
    for certificate in ["no base64", "YQ=="] {
        server.put("secrets", secret(certificate));
        let extender = StreamExtender::start(&server);
        is_not_ready(&extender, &["has no certificate yet", "remove the data of the Secret if it is damaged"]);
        // The advice in the message works.
        server.put("secrets", json!({ "apiVersion": "v1", "kind": "Secret", "metadata": metadata }));
        is_ready(&extender);
    }
    for token in ["", "damaged"] {
        let extender = StreamExtender::start_with(&server, token);
        is_not_ready(&extender, &["the own token ", "cannot be read", "a token of the audience gpu-steward"]);
    }
}

/// A container runtime or systemd may allow a program only few open files, but 5,000 agents keep a connection each.
#[test]
fn an_extender_raises_its_limit_of_open_files_and_says_where_that_is_too_low() {
    const SOFT: usize = 256;
    let (server, folder) = (FakeApiServer::start(), tempfile::tempdir().unwrap());
    let program = folder.path().join("extender");
    let script = format!("#!/bin/sh\nulimit -Sn {SOFT} && ulimit -Hn 2048 && exec {BINARY} \"$@\"\n");
    std::fs::write(&program, script).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    let extender = StreamExtender::start_program(program.to_str().unwrap(), &server, &extender_token(&server, None));
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", extender.pid())).unwrap();
    let files = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
    assert_eq!(files.split_whitespace().collect::<Vec<_>>()[3..5], ["2048", "2048"]);
    assert!(extender.log().contains("few files may be open"), "{}", extender.log());
    let held: Vec<TcpStream> = (0..2 * SOFT).map(|_| TcpStream::connect(extender.streams).unwrap()).collect();
    assert_eq!(extender.get("/healthz").status, 200);
    drop(held);
}
