//! Makes the limits file of a container from its device shares.

use decide::allocator::{BoundContainer, NodeAllocator};
use model::limits::{ContainerLimits, DeviceLimits};
use model::unit::Bytes;

/// The limits of a container: the numbers of its claim, and the node's data about each device.
pub(super) fn of(bound: &BoundContainer, allocator: &NodeAllocator) -> ContainerLimits {
    let device = |device_share: &model::claim::DeviceShare| {
        let gpu = allocator.device(&device_share.device);
        DeviceLimits {
            uuid: device_share.device.clone(),
            index: gpu.map_or(0, |gpu| gpu.index),
            model: gpu.map_or_else(|| "".into(), |gpu| gpu.model.clone()),
            // Without a limit: the memory of the whole device.
            memory: device_share.memory.or(gpu.map(|gpu| gpu.memory)).unwrap_or(Bytes(0)),
            unlimited: device_share.memory.is_none(),
            cores: device_share.cores,
        }
    };
    let gpu_pod = allocator.gpu_pod(&bound.holder.pod);
    let request =
        gpu_pod.and_then(|gpu_pod| gpu_pod.requests.iter().find(|request| request.container == bound.holder.container));
    ContainerLimits {
        uid: bound.holder.pod.clone(),
        pod: bound.pod.clone(),
        container: bound.holder.container.clone(),
        devices: bound.device_shares.iter().map(device).collect(),
        priority: request.and_then(|request| request.priority),
    }
}
