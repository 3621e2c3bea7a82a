//! The configuration of a container runtime, from its answer to the CRI call `Status` with `verbose`.
//!
//! ```text
//!   info["config"] = {"enableCDI":true,"cdiSpecDirs":["/etc/cdi","/var/run/cdi"],
//!                     "containerd":{"defaultRuntimeName":"nvidia","runtimes":{
//!                        "nvidia":{"options":{"BinaryName":"/usr/bin/nvidia-container-runtime"}}}}}
//! ```
//!
//! Only containerd answers in this form. With other runtimes the fields of [`RuntimeConfig`] stay `None`.

use crate::decode_error::DecodeError;
use model::nvidia;
use serde::Deserialize;
use std::collections::BTreeMap;

/// Maximum size of a configuration in bytes: containerd's has about 4 KiB.
pub const MAX_BYTES: usize = 1 << 20;
/// Name of the text in errors.
const KEY: &str = "runtime configuration";

/// The settings that the agent uses.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeConfig {
    /// The handler of pods that name no runtime class.
    pub default_handler: Option<String>,
    /// The program of the default handler, if the configuration names it.
    pub default_program: Option<String>,
    /// Whether CDI is on.
    pub cdi: Option<bool>,
}

impl RuntimeConfig {
    /// Whether the default handler is NVIDIA's runtime, which gives every pod the devices that `NVIDIA_VISIBLE_DEVICES`
    /// names.
    #[must_use]
    pub fn nvidia_injects(&self) -> bool {
        let program = self.default_program.as_deref().and_then(|path| path.rsplit('/').next());
        program.is_some_and(|program| program.starts_with(nvidia::RUNTIME))
    }
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Document {
    containerd: Containerd,
    #[serde(rename = "enableCDI")]
    cdi: Option<bool>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Containerd {
    default_runtime_name: String,
    runtimes: BTreeMap<String, Handler>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Handler {
    options: Option<Options>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Options {
    #[serde(rename = "BinaryName")]
    program: Option<String>,
}

/// Reads the text of `info["config"]`.
///
/// # Errors
/// [`DecodeError`] for another format.
pub fn decode(text: &str) -> Result<RuntimeConfig, DecodeError> {
    if text.len() > MAX_BYTES {
        return Err(DecodeError::too_long(KEY, text.len(), MAX_BYTES));
    }
    let Document { containerd, cdi } =
        serde_json::from_str(text).map_err(|error| DecodeError::json(KEY, text.as_bytes(), &error))?;
    let name = containerd.default_runtime_name;
    let handler = containerd.runtimes.get(&name);
    let program = handler.and_then(|handler| handler.options.as_ref()?.program.clone()).filter(|path| !path.is_empty());
    Ok(RuntimeConfig { default_handler: Some(name).filter(|name| !name.is_empty()), default_program: program, cdi })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_handler_of_pods_without_a_class_is_found() {
        // As containerd 2.1 writes it, without fields that do not matter here.
        let text = |default: &str| {
            format!(
                r#"{{"containerd":{{"defaultRuntimeName":"{default}","runtimes":{{
                "nvidia":{{"runtimeType":"io.containerd.runc.v2","options":{{"BinaryName":"/usr/bin/nvidia-container-runtime","SystemdCgroup":true}}}},
                "runc":{{"runtimeType":"io.containerd.runc.v2","options":{{"BinaryName":"","Root":""}}}},
                "kata":{{"runtimeType":"io.containerd.kata.v2","options":null}}}}}},"enableCDI":true,"cdiSpecDirs":["/etc/cdi"]}}"#
            )
        };
        for (default, program, injects) in
            [("nvidia", Some("/usr/bin/nvidia-container-runtime"), true), ("runc", None, false), ("kata", None, false)]
        {
            let config = decode(&text(default)).unwrap();
            assert_eq!(
                (config.default_handler.as_deref(), config.default_program.as_deref()),
                (Some(default), program)
            );
            assert_eq!((config.cdi, config.nvidia_injects()), (Some(true), injects));
        }
        assert_eq!(decode(r#"{"sandboxImage":"pause"}"#), Ok(RuntimeConfig::default()), "CRI-O has another form");
    }

    #[test]
    fn another_format_is_an_error() {
        for text in ["", r#"{"containerd":3}"#, r#"{"containerd":{"defaultRuntimeName":null}}"#] {
            assert!(decode(text).is_err(), "{text}");
        }
        assert!(decode(&" ".repeat(MAX_BYTES + 1)).unwrap_err().what.contains("bytes long"));
    }

    proptest! {
        #[test]
        fn no_text_causes_a_panic(text in "\\PC{0,200}", name in "\\PC{0,20}", program in "\\PC{0,40}") {
            let _ = decode(&text);
            let whole = serde_json::json!({ "containerd": { "defaultRuntimeName": name, "runtimes": { name.clone(): { "options": { "BinaryName": program } } } } });
            let config = decode(&whole.to_string()).unwrap();
            prop_assert_eq!(config.default_handler.is_some(), !name.is_empty());
        }
    }
}
