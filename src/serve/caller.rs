//! Checks which callers may make a request: by `Host`, the caller's address and the bearer token. An
//! application defines which [`Access`] a path has, and [`crate::server`] checks it before the application gets the
//! request.
//!
//! A browser on this machine reaches the loopback ports. With DNS rebinding, an attacker's page whose name points to
//! 127.0.0.1 could read and change everything there. Its requests carry the attacker's name as `Host`, so a `Host` that
//! does not belong to this node is refused. Other programs can send any `Host`; the header proves nothing about them.

use hyper::header::{self, HeaderMap};
use hyper::http::uri::Authority;
use hyper::{StatusCode, Uri};
use std::net::IpAddr;
use std::sync::Arc;

/// Both ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Ends {
    /// The client's address.
    pub peer: IpAddr,
    /// The local address that the client connected to.
    pub local: IpAddr,
}

/// Who may make a request.
#[derive(Clone, Debug)]
pub enum Access {
    /// Every caller, with any `Host`: for metrics and health, and for calls whose caller the application itself checks.
    Everyone,
    /// Callers that name this node as `Host` and meet the condition.
    Callers(AllowedHosts, Condition),
}

/// What a caller must show or be. Client certificates are not a condition here: the TLS handshake checks them.
#[derive(Clone, Debug)]
pub enum Condition {
    /// Nothing more.
    None,
    /// The caller is on this machine. The text is the answer to other callers.
    OnThisMachine(&'static str),
    /// The caller has this token.
    Token(BearerToken),
}

/// A token that callers send as `Authorization: Bearer`.
#[derive(Clone)]
pub struct BearerToken {
    /// The token. An empty token admits no caller.
    pub secret: Arc<str>,
    /// What the token gives access to, as the subject of a sentence.
    pub opens: &'static str,
    /// The name of the token, for the answer to a caller without a token.
    pub name: &'static str,
}

/// The answer to a caller that may not make this request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denial {
    /// 401 for a caller without a token, otherwise 403.
    pub status: StatusCode,
    /// A sentence for the caller.
    pub text: String,
}

/// The accepted `Host` names, besides `localhost`, loopback addresses and the address that the client connected to.
#[derive(Clone, Debug, Default)]
pub struct AllowedHosts(Arc<[Box<str>]>);

impl std::fmt::Debug for BearerToken {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BearerToken").field("opens", &self.opens).finish_non_exhaustive()
    }
}

impl Access {
    /// Checks one request.
    ///
    /// # Errors
    /// The answer for a caller that may not make it.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap, ends: Ends) -> Result<(), Denial> {
        let Access::Callers(hosts, condition) = self else { return Ok(()) };
        hosts.check(uri, headers, ends.local).map_err(|text| Denial { status: StatusCode::FORBIDDEN, text })?;
        match condition {
            Condition::None => Ok(()),
            Condition::OnThisMachine(_) if ends.peer.to_canonical().is_loopback() => Ok(()),
            Condition::OnThisMachine(text) => Err(Denial { status: StatusCode::FORBIDDEN, text: (*text).to_owned() }),
            Condition::Token(token) => token.check(bearer(headers)),
        }
    }
}

impl BearerToken {
    fn check(&self, given: Option<&[u8]>) -> Result<(), Denial> {
        let BearerToken { secret, opens, name } = self;
        match given {
            Some(given) if !secret.is_empty() && same(given, secret.as_bytes()) => Ok(()),
            Some(_) => {
                Err(Denial { status: StatusCode::FORBIDDEN, text: format!("this token is not valid for {opens}.") })
            }
            None => {
                let text = format!("{opens} needs the header Authorization: Bearer <{name}>.");
                Err(Denial { status: StatusCode::UNAUTHORIZED, text })
            }
        }
    }
}

impl AllowedHosts {
    /// Accepts these names; case does not matter.
    #[must_use]
    pub fn new<'a>(names: impl IntoIterator<Item = &'a str>) -> AllowedHosts {
        AllowedHosts(names.into_iter().map(|name| plain(name).to_ascii_lowercase().into()).collect())
    }

    /// Checks that the request is meant for this node. `local` is the address that the client connected to.
    ///
    /// # Errors
    /// A text for the caller.
    fn check(&self, uri: &Uri, headers: &HeaderMap, local: IpAddr) -> Result<(), String> {
        let mut given = headers.get_all(header::HOST).iter();
        let host = match (given.next(), given.next()) {
            (Some(host), None) => host.to_str().ok(),
            // A browser always sends `Host`; HTTP/1.0 and scripts may leave it out.
            (None, _) => return uri.authority().map_or(Ok(()), |requested| self.known(requested.as_str(), local)),
            (Some(_), Some(_)) => None,
        };
        self.known(host.unwrap_or_default(), local)?;
        uri.authority().map_or(Ok(()), |requested| self.known(requested.as_str(), local))
    }

    fn known(&self, text: &str, local: IpAddr) -> Result<(), String> {
        let host = text.parse::<Authority>().ok().filter(|_| !text.contains('@'));
        let host = host.map(|authority| plain(authority.host()).to_ascii_lowercase()).unwrap_or_default();
        let accepted = match host.parse::<IpAddr>() {
            Ok(address) => {
                let address = address.to_canonical();
                address.is_loopback() || address == local.to_canonical() || self.named(&host)
            }
            Err(_) => host == "localhost" || self.named(&host),
        };
        if accepted {
            return Ok(());
        }
        let shown: String = host.chars().take(100).collect();
        Err(format!(
            "requests for host {shown:?} are not answered here: use this node's address or name, or add the name to --allowed-hosts."
        ))
    }

    fn named(&self, host: &str) -> bool {
        self.0.iter().any(|name| **name == *host)
    }
}

/// Removes the brackets of an IPv6 address and the trailing dot of a fully qualified name.
fn plain(host: &str) -> &str {
    let bare = host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    bare.unwrap_or_else(|| host.strip_suffix('.').unwrap_or(host))
}

/// The token in `Authorization: Bearer`.
fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let (scheme, token) = headers.get(header::AUTHORIZATION)?.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token.trim_ascii())
}

/// Compares in a time that depends only on the lengths.
fn same(given: &[u8], expected: &[u8]) -> bool {
    let differences = given.iter().zip(expected).fold(0, |sum, (a, b)| sum | (a ^ b));
    given.len() == expected.len() && std::hint::black_box(differences) == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use hyper::header::HeaderValue;

    fn headers(name: header::HeaderName, values: &[&str]) -> HeaderMap {
        values.iter().map(|value| (name.clone(), HeaderValue::from_str(value).unwrap())).collect()
    }

    #[test]
    fn a_host_is_accepted_by_name_by_loopback_and_by_the_local_address() {
        let hosts = AllowedHosts::new(["Node-A", "gpu.example.", "10.9.9.9"]);
        for (host, accepted) in [
            ("localhost", true),
            ("LOCALHOST.:9411", true),
            ("127.0.0.1:9411", true),
            ("127.8.9.1", true),
            ("[::1]:9411", true),
            ("10.0.0.5:9410", true),
            ("[::ffff:10.0.0.5]:9410", true),
            ("node-a:9410", true),
            ("NODE-A.", true),
            ("gpu.example", true),
            ("10.9.9.9:80", true),
            ("10.0.0.6", false),
            ("0.0.0.0", false),
            ("rebound.example:9411", false),
            ("localhost.example", false),
            ("node-a.example", false),
            ("localhost@rebound.example", false),
            ("rebound.example@localhost", false),
            ("localhost:9411/", false),
            ("127.0.0.1.example", false),
            ("2130706433", false),
            ("", false),
        ] {
            let headers = headers(header::HOST, &[host]);
            let result = hosts.check(&Uri::from_static("/loglevel"), &headers, "10.0.0.5".parse().unwrap());
            assert_eq!(result.is_ok(), accepted, "{host}: {result:?}");
        }
    }

    #[test]
    fn two_host_headers_are_refused_and_the_request_line_is_checked_too() {
        let (hosts, local) = (AllowedHosts::default(), "127.0.0.1".parse().unwrap());
        let twice = headers(header::HOST, &["localhost", "localhost"]);
        assert!(hosts.check(&Uri::from_static("/"), &twice, local).is_err());
        let once = headers(header::HOST, &["localhost"]);
        assert!(hosts.check(&Uri::from_static("http://rebound.example/"), &once, local).is_err());
        assert!(hosts.check(&Uri::from_static("http://localhost:9411/"), &once, local).is_ok());
        assert!(hosts.check(&Uri::from_static("/"), &HeaderMap::new(), local).is_ok(), "HTTP/1.0 has none");
        assert!(hosts.check(&Uri::from_static("http://rebound.example/"), &HeaderMap::new(), local).is_err());
    }

    #[test]
    fn a_path_answers_the_callers_that_meet_its_condition() {
        let token =
            |secret: &str| Condition::Token(BearerToken { secret: secret.into(), opens: "the API", name: "token" });
        let here = Condition::OnThisMachine("callers on this machine only.");
        for (condition, peer, given, expected) in [
            (Condition::None, "10.0.0.1", None, Ok(())),
            (here.clone(), "127.0.0.1", None, Ok(())),
            (here.clone(), "::ffff:127.0.0.1", None, Ok(())),
            (here.clone(), "::1", None, Ok(())),
            (here.clone(), "10.0.0.1", None, Err((403, "callers on this machine only."))),
            (here, "10.0.0.1", Some("Bearer t"), Err((403, "callers on this machine only."))),
            (token("t"), "127.0.0.9", None, Err((401, "the API needs the header Authorization: Bearer <token>."))),
            (
                token("t"),
                "10.0.0.1",
                Some("Basic t"),
                Err((401, "the API needs the header Authorization: Bearer <token>.")),
            ),
            (token("t"), "10.0.0.1", Some("Bearer x"), Err((403, "this token is not valid for the API."))),
            (token("t"), "::1", Some("Bearer t"), Ok(())),
            (token("t"), "fd00::1", Some("bearer t"), Ok(())),
            (token(""), "::1", Some("Bearer "), Err((403, "this token is not valid for the API."))),
        ] {
            let access = Access::Callers(AllowedHosts::new(["n"]), condition);
            let ends = Ends { peer: peer.parse().unwrap(), local: IpAddr::from([10, 0, 0, 2]) };
            let check = |host: &str| {
                let mut headers = headers(header::HOST, &[host]);
                headers.extend(given.map(|given| (header::AUTHORIZATION, HeaderValue::from_static(given))));
                access.check(&Uri::from_static("/api/v1/node"), &headers, ends)
            };
            let answer = check("n").map_err(|denial| (denial.status.as_u16(), denial.text));
            assert_eq!(
                answer,
                expected.map_err(|(status, text)| (status, text.to_owned())),
                "{access:?} {peer} {given:?}"
            );
            let foreign = check("rebound.example").unwrap_err();
            assert_eq!(foreign.status, StatusCode::FORBIDDEN);
            assert!(foreign.text.contains("--allowed-hosts"), "{}", foreign.text);
        }
    }

    #[test]
    fn a_token_is_not_in_debug_output() {
        let token = BearerToken { secret: "hidden".into(), opens: "the API", name: "token" };
        assert!(!format!("{:?}", Access::Callers(AllowedHosts::default(), Condition::Token(token))).contains("hidden"));
    }

    #[test]
    fn tokens_are_compared_completely() {
        for (given, fits) in [("abc", true), ("abd", false), ("ab", false), ("abcd", false), ("", false)] {
            assert_eq!(same(given.as_bytes(), b"abc"), fits, "{given}");
        }
        for (value, token) in [("bEaReR  abc ", Some(&b"abc"[..])), ("Basic abc", None), ("Be", None)] {
            assert_eq!(bearer(&headers(header::AUTHORIZATION, &[value])), token, "{value}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_host_header_panics(host in "\\PC{0,60}", known in ".{0,20}") {
            let hosts = AllowedHosts::new([&*known]);
            let mut headers = HeaderMap::new();
            if let Ok(value) = HeaderValue::from_str(&host) {
                headers.insert(header::HOST, value);
            }
            let _ = hosts.check(&Uri::from_static("/"), &headers, "::1".parse().unwrap());
        }
    }
}
