//! NVML's error numbers and their names.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// A number that an NVML call returns; 0 is success.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Code(pub u32);

/// Names of nvml.h without `NVML_ERROR_`.
pub const NAMES: [(&str, u32); 32] = [
    ("SUCCESS", 0),
    ("UNINITIALIZED", 1),
    ("INVALID_ARGUMENT", 2),
    ("NOT_SUPPORTED", 3),
    ("NO_PERMISSION", 4),
    ("ALREADY_INITIALIZED", 5),
    ("NOT_FOUND", 6),
    ("INSUFFICIENT_SIZE", 7),
    ("INSUFFICIENT_POWER", 8),
    ("DRIVER_NOT_LOADED", 9),
    ("TIMEOUT", 10),
    ("IRQ_ISSUE", 11),
    ("LIBRARY_NOT_FOUND", 12),
    ("FUNCTION_NOT_FOUND", 13),
    ("CORRUPTED_INFOROM", 14),
    ("GPU_IS_LOST", 15),
    ("RESET_REQUIRED", 16),
    ("OPERATING_SYSTEM", 17),
    ("LIB_RM_VERSION_MISMATCH", 18),
    ("IN_USE", 19),
    ("MEMORY", 20),
    ("NO_DATA", 21),
    ("VGPU_ECC_NOT_SUPPORTED", 22),
    ("INSUFFICIENT_RESOURCES", 23),
    ("FREQ_NOT_SUPPORTED", 24),
    ("ARGUMENT_VERSION_MISMATCH", 25),
    ("DEPRECATED", 26),
    ("NOT_READY", 27),
    ("GPU_NOT_FOUND", 28),
    ("INVALID_STATE", 29),
    ("RESET_TYPE_NOT_SUPPORTED", 30),
    ("UNKNOWN", 999),
];

impl Code {
    /// `NVML_ERROR_UNINITIALIZED`.
    pub const UNINITIALIZED: Code = Code(1);
    /// `NVML_ERROR_INVALID_ARGUMENT`.
    pub const INVALID_ARGUMENT: Code = Code(2);
    /// `NVML_ERROR_NOT_SUPPORTED`.
    pub const NOT_SUPPORTED: Code = Code(3);
    /// `NVML_ERROR_NOT_FOUND`.
    pub const NOT_FOUND: Code = Code(6);
    /// `NVML_ERROR_DRIVER_NOT_LOADED`.
    pub const DRIVER_NOT_LOADED: Code = Code(9);
    /// `NVML_ERROR_INSUFFICIENT_SIZE`.
    pub const INSUFFICIENT_SIZE: Code = Code(7);
    /// `NVML_ERROR_TIMEOUT`.
    pub const TIMEOUT: Code = Code(10);
    /// `NVML_ERROR_FUNCTION_NOT_FOUND`.
    pub const FUNCTION_NOT_FOUND: Code = Code(13);
    /// `NVML_ERROR_GPU_IS_LOST`.
    pub const GPU_IS_LOST: Code = Code(15);
    /// `NVML_ERROR_ARGUMENT_VERSION_MISMATCH`.
    pub const VERSION_MISMATCH: Code = Code(25);
    /// `NVML_ERROR_UNKNOWN`.
    pub const UNKNOWN: Code = Code(999);

    /// The code of a name in nvml.h, with or without `NVML_ERROR_`.
    #[must_use]
    pub fn named(name: &str) -> Option<Code> {
        let short = name.strip_prefix("NVML_ERROR_").or(name.strip_prefix("NVML_")).unwrap_or(name);
        NAMES.iter().find(|(known, _)| *known == short).map(|(_, number)| Code(*number))
    }
}

impl<'de> Deserialize<'de> for Code {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Deserialize)]
        #[serde(untagged)]
        enum Either {
            Number(u32),
            Name(String),
        }
        match Either::deserialize(deserializer)? {
            Either::Number(number) => Ok(Code(number)),
            Either::Name(name) => Code::named(&name).ok_or_else(|| {
                serde::de::Error::custom(format!("{name:?} is not an NVML error; see nvmlReturn_t in nvml.h"))
            }),
        }
    }
}

impl Serialize for Code {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u32(self.0)
    }
}
