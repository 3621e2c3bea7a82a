//! What the kubelet does when an agent registers while the previous agent is still registered.

use crate::cdi::numbers;
use model::plugin::SecondConnection;

/// The first kubelet that keeps one connection for each socket of a resource. There, the resource stays registered when
/// one of several connections ends.
const KEEPS_CONNECTIONS: (u32, u32) = (1, 37);
/// What the kubelet does when an agent registers while the previous agent is still registered, by the version in the
/// Node object. `None` if the version cannot be read. Earlier kubelets drop the newer connection when the older
/// connection ends (`runClient` in `pkg/kubelet/cm/devicemanager/plugin/v1beta1/handler.go`, read in 1.34 and 1.36).
#[must_use]
pub fn second_connection(kubelet: &str) -> Option<SecondConnection> {
    match numbers(kubelet)? {
        kubelet if kubelet >= KEEPS_CONNECTIONS => Some(SecondConnection::Kept),
        _ => Some(SecondConnection::DroppedWithTheFirst),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kubelets_before_1_37_drop_the_newer_connection_with_the_older() {
        use SecondConnection::{DroppedWithTheFirst, Kept};
        for (kubelet, expect) in [
            ("v1.30.1", Some(DroppedWithTheFirst)),
            ("v1.34.9", Some(DroppedWithTheFirst)),
            ("v1.36.2", Some(DroppedWithTheFirst)),
            ("v1.37.0", Some(Kept)),
            ("v2.0", Some(Kept)),
            ("", None),
        ] {
            assert_eq!(second_connection(kubelet), expect, "{kubelet}");
        }
    }
}
