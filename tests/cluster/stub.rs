//! Another plugin of the same resource (`program/stub`), which answers at once and knows nothing.

use crate::bed::{Bed, SOON};
use lab::eventually::eventually;
use std::process::{Child, Stdio};

/// It serves while it lives.
pub(crate) struct Stub(Child);

impl Stub {
    /// With so many devices, once the node offers them.
    pub(crate) fn start(bed: &Bed, devices: u32) -> Stub {
        let mut command = bed.place().command(bed.cluster.program("stub"));
        let devices = devices.to_string();
        command.args(["nvidia.com/gpu", &devices, "/var/lib/kubelet/device-plugins"]);
        let stub = Stub(command.stdin(Stdio::null()).spawn().expect("the stub can be run"));
        eventually("the stub's devices", SOON, || {
            let node = bed.told();
            (node["status"]["allocatable"]["nvidia.com/gpu"] == *devices).then_some(())
        });
        stub
    }
}

impl Drop for Stub {
    fn drop(&mut self) {
        let _ = (self.0.kill(), self.0.wait());
    }
}
