//! What was decided, as the container may read it.

use decide::share::{Bound, Share};
use model::promise::{ContainerPromise, DevicePromise};
use model::unit::{Bytes, CorePercent};

/// The promise of a container: the claim's numbers, and of each device what the node knows.
pub(super) fn of(bound: &Bound, share: &Share) -> ContainerPromise {
    let device = |portion: &model::share::Portion| {
        let card = share.card(&portion.device);
        DevicePromise {
            uuid: portion.device.clone(),
            index: card.map_or(0, |card| card.index),
            model: card.map_or_else(|| "".into(), |card| card.model.clone()),
            // Where nothing is limited, what there is.
            memory: portion.memory.or(card.map(|card| card.memory)).unwrap_or(Bytes(0)),
            unlimited: portion.memory.is_none(),
            cores: portion.cores.map(CorePercent),
        }
    };
    let tenant = share.tenant(&bound.holder.pod);
    let ask = tenant.and_then(|tenant| tenant.asks.iter().find(|ask| ask.container == bound.holder.container));
    ContainerPromise {
        uid: bound.holder.pod.clone(),
        pod: bound.pod.clone(),
        container: bound.holder.container.clone(),
        devices: bound.portions.iter().map(device).collect(),
        priority: ask.and_then(|ask| ask.priority),
    }
}
