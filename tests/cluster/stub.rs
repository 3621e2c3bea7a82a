//! Another plugin of the same resource (`program/stub`), which answers at once and knows nothing.

use crate::bed::{Bed, SOON};
use lab::eventually::eventually;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

/// kubelet tells the Node what it has every 2 s here.
const OFFERED: Duration = Duration::from_secs(15);

/// It serves while it lives.
pub(crate) struct Stub(Child);

impl Stub {
    /// With so many devices, once the node offers them. kubelet may still be about to drop the plugin before, and with it whoever
    /// has registered meanwhile, who does not hear of it: then it is started again.
    pub(crate) fn start(bed: &Bed, devices: u32) -> Stub {
        let devices = devices.to_string();
        let spawn = || {
            let mut command = bed.place().command(bed.cluster.program("stub"));
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
            (bed.told()["status"]["allocatable"]["nvidia.com/gpu"] == *devices).then_some(())
        });
        stub
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}
