//! Single requests to the API server with a bearer token. `kubectl` reads an object before it patches it, but an agent
//! may not read every object that it may patch.

use serde_json::Value;
use std::io::Write;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// A caller with a token.
#[derive(Clone, Debug)]
pub struct Bearer {
    server: String,
    ca: PathBuf,
    token: String,
}

/// The answer of the API server.
#[derive(Clone, Debug)]
pub struct ApiResponse {
    /// HTTP status.
    pub code: u16,
    /// The object, or the `Status` of a refusal.
    pub body: Value,
}

impl ApiResponse {
    /// The object, if the request must have succeeded.
    ///
    /// # Panics
    /// If it was refused.
    #[track_caller]
    #[must_use]
    pub fn ok(self) -> Value {
        assert!((200..300).contains(&self.code), "{}: {}", self.code, self.message());
        self.body
    }

    /// The reason of the refusal, if the request must have been refused with 403: by RBAC or a policy, and not because
    /// of a write conflict.
    ///
    /// # Panics
    /// If it succeeded or failed for another reason.
    #[track_caller]
    #[must_use]
    pub fn forbidden(self) -> String {
        assert!(self.code == 403, "{}: {:#}", self.code, self.body);
        self.message()
    }

    fn message(&self) -> String {
        self.body["message"].as_str().unwrap_or_default().to_owned()
    }
}

impl Bearer {
    /// A caller with this token at this server.
    #[must_use]
    pub fn of(server: &str, ca: impl Into<PathBuf>, token: &str) -> Bearer {
        Bearer { server: server.to_owned(), ca: ca.into(), token: token.to_owned() }
    }

    /// Sends a JSON merge patch.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn patch(&self, path: &str, patch: &Value) -> ApiResponse {
        self.send("PATCH", path, "application/merge-patch+json", patch)
    }

    /// Creates an object.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn post(&self, path: &str, object: &Value) -> ApiResponse {
        self.send("POST", path, "application/json", object)
    }

    /// Sends one request.
    ///
    /// # Panics
    /// If the server does not answer.
    #[must_use]
    pub fn send(&self, method: &str, path: &str, content: &str, body: &Value) -> ApiResponse {
        let mut curl = Command::new("curl");
        curl.args(["--config", "-", "--silent", "--show-error", "--max-time", "60", "--request", method, "--cacert"]);
        curl.arg(&self.ca).args(["--header", &format!("Content-Type: {content}"), "--data", &body.to_string()]);
        curl.args(["--write-out", "\n%{http_code}", &format!("{}{path}", self.server)]);
        curl.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = curl.spawn().expect("curl can be run");
        // The token goes to stdin, because every user of the machine can read a command line.
        let secret = format!("header = \"Authorization: Bearer {}\"\n", self.token);
        child.stdin.take().expect("a pipe").write_all(secret.as_bytes()).expect("curl reads");
        let output = child.wait_with_output().expect("curl can be waited for");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, code) = text.rsplit_once('\n').expect("a status");
        let code = code.parse().expect("a status");
        assert!(code > 0, "no answer: {}", String::from_utf8_lossy(&output.stderr));
        ApiResponse { code, body: serde_json::from_str(body).unwrap_or(Value::Null) }
    }
}
