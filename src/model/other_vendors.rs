//! Devices of other vendors in the real-time check of memory. HAMi's design names nine families; no family is implemented here.
//!
//! NVIDIA's GPUs do not go through this trait: their agents report memory and processes with each change
//! ([`crate::agent_stream::ReportedGpu`]). A vendor whose devices are to be checked answers the same question.

use crate::reading::Reading;
use crate::unit::{Bytes, Percent};

/// How much of one device is in use at one moment.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DeviceUsage {
    /// Memory in use, without what the driver reserves.
    pub memory_used: Reading<Bytes>,
    /// The device's utilisation.
    pub utilization: Reading<Percent>,
    /// Number of processes.
    pub processes: Reading<u32>,
}

/// The devices of this family are not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("real-time usage of {0} is not implemented")]
pub struct NotImplemented(pub &'static str);

/// A family of devices whose use can be read.
pub trait RealtimeDevices {
    /// The family's name.
    fn family(&self) -> &'static str;

    /// Whether requests for the family's devices are checked against their use.
    fn is_realtime_check_enabled(&self) -> bool {
        false
    }

    /// What is in use of the device with this name.
    ///
    /// # Errors
    /// [`NotImplemented`].
    fn realtime_usage(&self, device: &str) -> Result<DeviceUsage, NotImplemented>;
}

/// The families of HAMi's design besides NVIDIA's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtherVendor {
    /// Hygon DCU.
    Hygon,
    /// Cambricon MLU.
    Cambricon,
    /// Iluvatar GPU.
    Iluvatar,
    /// Mthreads GPU.
    Mthreads,
    /// Enflame GCU.
    Enflame,
    /// Ascend NPU.
    Ascend,
    /// Kunlun XPU.
    Kunlun,
    /// AWS Neuron.
    AwsNeuron,
    /// Metax GPU and SGPU.
    Metax,
}

impl OtherVendor {
    /// All families, in the order of HAMi's design.
    pub const ALL: [OtherVendor; 9] = [
        OtherVendor::Hygon,
        OtherVendor::Cambricon,
        OtherVendor::Iluvatar,
        OtherVendor::Mthreads,
        OtherVendor::Enflame,
        OtherVendor::Ascend,
        OtherVendor::Kunlun,
        OtherVendor::AwsNeuron,
        OtherVendor::Metax,
    ];

    /// The family whose register a Node has under this annotation key. The other families have no register of HAMi's, and Iluvatar's
    /// register has another name for each chip.
    #[must_use]
    pub fn of_register(key: &str) -> Option<OtherVendor> {
        match key.strip_prefix("hami.io/node-")? {
            "dcu-register" => Some(OtherVendor::Hygon),
            "register-xpu" => Some(OtherVendor::Kunlun),
            word if word.starts_with("register-Ascend") => Some(OtherVendor::Ascend),
            _ => None,
        }
    }
}

impl RealtimeDevices for OtherVendor {
    fn family(&self) -> &'static str {
        match self {
            OtherVendor::Hygon => "Hygon DCU devices",
            OtherVendor::Cambricon => "Cambricon MLU devices",
            OtherVendor::Iluvatar => "Iluvatar GPU devices",
            OtherVendor::Mthreads => "Mthreads GPU devices",
            OtherVendor::Enflame => "Enflame GCU devices",
            OtherVendor::Ascend => "Ascend NPU devices",
            OtherVendor::Kunlun => "Kunlun XPU devices",
            OtherVendor::AwsNeuron => "AWS Neuron devices",
            OtherVendor::Metax => "Metax GPU/SGPU devices",
        }
    }

    fn realtime_usage(&self, _: &str) -> Result<DeviceUsage, NotImplemented> {
        Err(NotImplemented(self.family()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_other_vendor_is_read_and_each_says_so_with_its_name() {
        for vendor in OtherVendor::ALL {
            let why = vendor.realtime_usage("device-0").unwrap_err().to_string();
            assert_eq!(why, format!("real-time usage of {} is not implemented", vendor.family()));
            assert!(!vendor.is_realtime_check_enabled());
        }
    }

    #[test]
    fn a_register_names_its_family() {
        for (key, expected) in [
            ("hami.io/node-dcu-register", Some(OtherVendor::Hygon)),
            ("hami.io/node-register-xpu", Some(OtherVendor::Kunlun)),
            ("hami.io/node-register-Ascend910B", Some(OtherVendor::Ascend)),
            ("hami.io/node-nvidia-register", None),
            ("hami.io/node-amd-register", None),
            ("example.com/node-dcu-register", None),
        ] {
            assert_eq!(OtherVendor::of_register(key), expected, "{key}");
        }
    }
}
