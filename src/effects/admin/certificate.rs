//! Certificates for HTTPS, read again when their files change, and at once when somebody asks.

use axum_server::tls_rustls::RustlsConfig;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use std::convert::Infallible;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;

/// Between two looks at the files. Tools that renew certificates do so days before the old ones end.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Reads chain and key.
///
/// # Errors
/// When a file cannot be read, or they do not belong together; the message names the file.
pub fn load(chain: &Path, key: &Path) -> io::Result<RustlsConfig> {
    Ok(RustlsConfig::from_config(read(chain, key)?))
}

/// Looks at the files for ever, and takes them in when they change or when `asked` is notified. Files that cannot be used
/// leave the old ones in use.
pub async fn keep_fresh(config: &RustlsConfig, (chain, key): (&Path, &Path), asked: &Notify) -> Infallible {
    let mut known = (stamp(chain), stamp(key));
    loop {
        let wanted = tokio::time::timeout(LOOK_EVERY, asked.notified()).await.is_ok();
        let seen = (stamp(chain), stamp(key));
        if seen == known && !wanted {
            continue;
        }
        known = seen;
        match read(chain, key) {
            Ok(fresh) => {
                config.reload_from_config(fresh);
                tracing::info!(chain = %chain.display(), "admin certificates read again");
            }
            Err(error) => tracing::warn!(%error, "admin certificates changed but cannot be used; the old ones stay"),
        }
    }
}

/// What changes when a file is replaced or rewritten.
fn stamp(path: &Path) -> Option<(u64, u64, i64, i64)> {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.size(), metadata.mtime(), metadata.mtime_nsec()))
}

fn read(chain: &Path, key: &Path) -> io::Result<Arc<ServerConfig>> {
    let failed = |what: &str, path: &Path, error: &dyn std::fmt::Display| {
        io::Error::new(io::ErrorKind::InvalidData, format!("{what} {}: {error}", path.display()))
    };
    let certificates = CertificateDer::pem_file_iter(chain)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| failed("reading the certificate chain", chain, &error))?;
    let private = PrivateKeyDer::from_pem_file(key).map_err(|error| failed("reading the key", key, &error))?;
    let mut config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(io::Error::other)?
        .with_no_client_auth()
        .with_single_cert(certificates, private)
        .map_err(|error| failed("using the certificate chain", chain, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_there_is_named() {
        let error = load(Path::new("/nowhere/chain.pem"), Path::new("/nowhere/key.pem")).unwrap_err();
        assert!(error.to_string().contains("/nowhere/chain.pem"), "{error}");
    }

    #[test]
    fn a_key_that_does_not_belong_to_the_chain_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let make = || rcgen::generate_simple_self_signed(vec!["localhost".to_owned()]).unwrap();
        let (one, other) = (make(), make());
        let (chain, key) = (folder.path().join("chain.pem"), folder.path().join("key.pem"));
        fs::write(&chain, one.cert.pem()).unwrap();
        fs::write(&key, other.signing_key.serialize_pem()).unwrap();
        assert!(load(&chain, &key).is_err());
        fs::write(&key, one.signing_key.serialize_pem()).unwrap();
        load(&chain, &key).unwrap();
    }
}
