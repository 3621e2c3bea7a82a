//! Another plugin of the same resource (`program/stub`), which answers at once and does nothing.

use crate::bed::{Bed, SOON};
use lab::eventually::eventually;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// The kubelet updates its Node's status every 2 s here.
const OFFERED: Duration = Duration::from_secs(15);

/// The stub serves until it is dropped.
pub(crate) struct Stub(Child);

impl Stub {
    /// Starts the stub with this many devices, and waits until the node offers them. The kubelet may still be removing the
    /// previous plugin, and with it the newly registered stub, without a message to the stub. In this case the stub is
    /// started again.
    pub(crate) fn start(bed: &Bed, devices: u32) -> Stub {
        let devices = devices.to_string();
        let spawn = || {
            let mut command = bed.paths().command(bed.cluster.program("stub"));
            command.args(["nvidia.com/gpu", &devices, "/var/lib/kubelet/device-plugins"]);
            Stub(command.stdin(Stdio::null()).spawn().expect("the stub can be run"))
        };
        let (mut stub, mut began) = (spawn(), Instant::now());
        eventually("the stub's devices", SOON, || {
            if began.elapsed() > OFFERED {
                let _ = (stub.0.kill(), stub.0.wait());
                stub = spawn();
                began = Instant::now();
            }
            (bed.node_object()["status"]["allocatable"]["nvidia.com/gpu"] == *devices).then_some(())
        });
        stub
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}
