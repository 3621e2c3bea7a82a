//! The claim of a pod in its annotations (`hami.io/vgpu-devices-allocated`, and `…-to-allocate` for containers that
//! have not received their GPUs yet).
//!
//! ```text
//!   ;GPU-x,NVIDIA,3000,30:GPU-y,NVIDIA,3000,30:;;       three containers: none, two GPUs, none
//!   pod = { container ";" }    container = { uuid "," vendor "," MiB "," percent of cores ":" }
//! ```
//!
//! Init containers come before app containers. Every version must read the text of every other version, so pieces
//! without a comma are skipped, and so are fields after the fourth. A text may end with more empty containers than the
//! pod has, because HAMi adds one each time a container starts. [`decode`] drops empty containers at the end, so that
//! the text does not grow when it is read and written again.
//!
//! HAMi up to 2.5 writes `,,0,0:` for a container without a GPU. HAMi 2.5 to 2.9 write `GPU-x[3-1]` for an instance of a
//! GPU in MIG mode, with the number of a template and a position in it. Which instance that is depends on HAMi's
//! configuration on the node, so the share is one of the whole GPU, with the memory and cores that it names.

use crate::annotation_keys::MAX_ANNOTATION;
use crate::decode_error::{DecodeError, shown};
use model::claim::{Claim, DeviceShare};
use model::id::GpuUuid;
use model::nvidia::VENDOR;
use model::pod::MAX_ANNOTATIONS;
use model::unit::{Bytes, CorePercent, Mib};

/// Maximum bytes of a claim that this program writes. Readers keep [`MAX_ANNOTATIONS`] bytes of system-owned annotations. The
/// others take less than 2 KiB: mostly the names of a node and a Lease, and `ANNOTATION_BYTES` for each of a dozen.
pub const MAX_CLAIM: usize = MAX_ANNOTATIONS - 2 * 1024;
/// Maximum bytes of a claim in a Binding, which contains the claim twice: under both keys.
pub const MAX_CLAIM_IN_BINDING: usize = MAX_CLAIM / 2;
/// Maximum bytes of a device share on a real node: 50 bytes of the UUID, which drivers before 470 wrote as `MIG-GPU-…/13/10`
/// for a MIG instance, the vendor, 31 bits of MiB, three digits of cores, and the separators.
const LONGEST_SHARE: usize = 50 + ",".len() + VENDOR.len() + ",".len() + 10 + ",100:".len();

/// Maximum number of containers of one pod. Kubernetes has no limit, but an object of 1.5 MiB has no room for this many
/// useful containers. Empty containers at the end are not counted.
const MAX_CONTAINERS: usize = 1024;
/// Maximum number of device shares of one container: the number of MIG instances of the largest node.
const MAX_SHARES: usize = 512;
/// Maximum of MiB and percent: HAMi's programs hold them in signed 32-bit integers.
const MAX_NUMBER: u64 = i32::MAX as u64;

/// Reads the value of the annotation `key`.
///
/// # Errors
/// [`DecodeError`] with the byte at which the faulty device share begins.
pub fn decode(key: &'static str, text: &str) -> Result<Claim, DecodeError> {
    if text.len() > MAX_ANNOTATION {
        return Err(DecodeError::too_long(key, text.len(), MAX_ANNOTATION));
    }
    let mut containers = Vec::new();
    let mut at = 0;
    let filled = text.trim_end_matches([';', ':', ' ', '\n']);
    for (container, part) in filled.split(';').enumerate() {
        if container == MAX_CONTAINERS {
            return Err(DecodeError::too_many(key, at, "containers", MAX_CONTAINERS));
        }
        containers.push(container_shares(key, container, part, at)?);
        at += part.len() + 1;
    }
    while containers.last().is_some_and(Vec::is_empty) {
        containers.pop();
    }
    Ok(Claim(containers))
}

fn container_shares(
    key: &'static str,
    container: usize,
    text: &str,
    mut at: usize,
) -> Result<Vec<DeviceShare>, DecodeError> {
    let mut shares = Vec::new();
    for (number, piece) in text.split(':').enumerate() {
        if piece.contains(',') {
            if shares.len() == MAX_SHARES {
                return Err(DecodeError::too_many(key, at, &format!("GPUs for container {container}"), MAX_SHARES));
            }
            let error =
                |what: String| DecodeError::new(key, at, format!("container {container}, GPU {number}: {what}"));
            shares.extend(share(piece).map_err(error)?);
        }
        at += piece.len() + 1;
    }
    Ok(shares)
}

/// Reads one device share; `None` for the entry of a container without a GPU.
fn share(text: &str) -> Result<Option<DeviceShare>, String> {
    let mut fields = text.split(',');
    let (Some(uuid), Some(vendor), Some(memory), Some(cores)) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(format!("has fewer than 4 fields: {}", shown(text)));
    };
    let cores = u32::try_from(number("cores", cores)?).unwrap_or(u32::MAX);
    let memory = number("memory", memory)?;
    if (uuid, vendor, memory, cores) == ("", "", 0, 0) {
        return Ok(None);
    }
    Ok(Some(DeviceShare {
        device: GpuUuid::parse(whole_gpu(uuid)).map_err(|error| error.to_string())?,
        // 0 means no limit, for memory and for cores.
        memory: Some(Mib(memory).bytes()).filter(|memory| *memory > Bytes(0)),
        cores: Some(CorePercent(cores)).filter(|cores| cores.0 > 0),
    }))
}

/// The GPU in `GPU-x[3-1]`. Any other text is returned as it is.
fn whole_gpu(uuid: &str) -> &str {
    let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let is_place = |place: &str| {
        let numbers = place.strip_suffix(']').and_then(|place| place.split_once('-'));
        numbers.is_some_and(|(template, position)| digits(template) && digits(position))
    };
    uuid.split_once('[').filter(|(_, place)| is_place(place)).map_or(uuid, |(gpu, _)| gpu)
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    text.parse::<i32>()
        .ok()
        .and_then(|number| u64::try_from(number).ok())
        .ok_or_else(|| format!("{name} is not between 0 and {MAX_NUMBER}: {}", shown(text)))
}

/// Writes the value of the annotation `key`: one `;` for each container of `claim`, including containers without a GPU
/// at the end. A missing limit is written as 0.
///
/// # Errors
/// [`DecodeError`] for a UUID that contains a separator, a number beyond 31 bits, or a text beyond [`MAX_CLAIM`]: no reader
/// accepts these.
pub fn encode(key: &'static str, claim: &Claim) -> Result<String, DecodeError> {
    let mut text = String::new();
    for (container, shares) in claim.iter().enumerate() {
        for (number, DeviceShare { device, memory, cores }) in shares.iter().enumerate() {
            let memory = memory.map_or(0, |memory| Mib::within(memory).0);
            let cores = cores.map_or(0, |cores| cores.0);
            let separated = device.as_str().contains([',', ':', ';', ' ', '\n']);
            if separated || memory > MAX_NUMBER || u64::from(cores) > MAX_NUMBER {
                let what = format!("container {container}, GPU {number}: {device} cannot be written");
                return Err(DecodeError::new(key, text.len(), what));
            }
            text.push_str(&format!("{device},{VENDOR},{memory},{cores}:"));
        }
        text.push(';');
    }
    if text.len() > MAX_CLAIM {
        return Err(DecodeError::too_long(key, text.len(), MAX_CLAIM));
    }
    Ok(text)
}

/// The largest number of GPUs that a pod with this many containers may request in total, so that its claim fits into a
/// Binding, whichever GPUs it gets.
#[must_use]
pub fn most_gpus(containers: usize) -> u64 {
    let shares = MAX_CLAIM_IN_BINDING.saturating_sub(containers) / LONGEST_SHARE;
    u64::try_from(shares).unwrap_or(u64::MAX)
}

/// The value `text` with every container emptied: HAMi's scheduler takes this as the sign that all containers have
/// their GPUs. A value that cannot be read becomes an empty text.
#[must_use]
pub fn all_served(key: &'static str, text: &str) -> String {
    decode(key, text).map(|claim| ";".repeat(claim.len())).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::annotation_keys::ALLOCATED;
    use proptest::prelude::*;

    fn shape(text: &str) -> Vec<Vec<(String, u64, u32)>> {
        let claim = decode(ALLOCATED, text).unwrap_or_else(|error| panic!("{text}: {error}"));
        let seen = |share: &DeviceShare| {
            let memory = share.memory.map_or(0, |memory| Mib::within(memory).0);
            (share.device.to_string(), memory, share.cores.map_or(0, |cores| cores.0))
        };
        claim.iter().map(|shares| shares.iter().map(seen).collect()).collect()
    }

    fn gpu(uuid: &str, memory: u64, cores: u32) -> (String, u64, u32) {
        (uuid.into(), memory, cores)
    }

    #[test]
    fn each_container_has_its_own_device_shares() {
        assert_eq!(shape("GPU-a,NVIDIA,3000,30:;"), [vec![gpu("GPU-a", 3000, 30)]]);
        assert_eq!(
            shape(";GPU-a,NVIDIA,3000,30:GPU-b,NVIDIA,3000,30:;;"),
            [vec![], vec![gpu("GPU-a", 3000, 30), gpu("GPU-b", 3000, 30)]]
        );
        assert_eq!(
            shape("GPU-a,NVIDIA,1,0:;;GPU-b,NVIDIA,2,100"),
            [vec![gpu("GPU-a", 1, 0)], vec![], vec![gpu("GPU-b", 2, 100)]]
        );
    }

    #[test]
    fn a_string_does_not_grow_by_being_read_and_written() {
        for text in ["", ";", ";;;;", ":", " ;\n"] {
            assert_eq!(decode(ALLOCATED, text), Ok(Claim::default()), "{text:?}");
        }
        for text in [";GPU-b,NVIDIA,2,0:;", "GPU-a,NVIDIA,1,0:;GPU-b,NVIDIA,2,0:;"] {
            assert_eq!(encode(ALLOCATED, &decode(ALLOCATED, text).unwrap()).unwrap(), text);
            assert_eq!(all_served(ALLOCATED, text), ";;");
        }
        assert_eq!(all_served(ALLOCATED, "x,"), "", "an unreadable value becomes empty");
    }

    #[test]
    fn pieces_without_a_comma_and_fields_after_the_fourth_are_skipped() {
        assert_eq!(shape("x:GPU-a,NVIDIA,1,2,3,4::;"), [vec![gpu("GPU-a", 1, 2)]]);
    }

    #[test]
    fn an_entry_without_a_gpu_is_no_share_and_a_template_position_is_a_share_of_its_gpu() {
        let a = || gpu("GPU-a", 1000, 0);
        assert_eq!(shape("GPU-a,NVIDIA,1000,0:;;,,0,0:;"), [vec![a()]]);
        assert_eq!(shape(",,0,0:;GPU-a,NVIDIA,1000,0:,,0,0:;,,0,0"), [vec![], vec![a()]]);
        assert_eq!(shape(",,0,0:;"), Vec::<Vec<_>>::new());
        let instances = shape("GPU-a[3-1],NVIDIA,9984,25:GPU-a[3-10],NVIDIA,9984,25:;");
        assert_eq!(instances, [vec![gpu("GPU-a", 9984, 25), gpu("GPU-a", 9984, 25)]]);
        // No node has such a GPU. The claim must not count as one on GPU-a.
        for other in ["GPU-a[3]", "GPU-a[-1]", "GPU-a[x-1]", "GPU-a[3-1", "GPU-a[3-1]x", "GPU-a[0-1][2-3]"] {
            assert_eq!(shape(&format!("{other},NVIDIA,1,1:;")), [vec![gpu(other, 1, 1)]]);
        }
    }

    #[test]
    fn a_broken_device_share_is_reported_with_its_position() {
        for (text, at, what) in [
            (",,1,0:;", 0, "not a GPU UUID"),
            ("[3-1],NVIDIA,1,0:;", 0, "not a GPU UUID"),
            (",,0,x:;", 0, "cores is not between"),
            ("GPU-a,NVIDIA,3000:;", 0, "container 0, GPU 0: has fewer than 4 fields: \"GPU-a,NVIDIA,3000\""),
            (
                ";GPU-a,NVIDIA,1,1:GPU-b,NVIDIA,x,1:;",
                18,
                "container 1, GPU 1: memory is not between 0 and 2147483647: \"x\"",
            ),
            ("GPU-a,NVIDIA,2147483648,1:;", 0, "memory is not between"),
            ("GPU-a,NVIDIA,1,-1:;", 0, "cores is not between"),
            (",NVIDIA,1,1:;", 0, "not a GPU UUID"),
        ] {
            let fault = decode(ALLOCATED, text).unwrap_err();
            assert!(fault.at == at && fault.what.contains(what) && fault.key == ALLOCATED, "{text}: {fault}");
        }
    }

    #[test]
    fn a_string_that_is_too_large_is_not_read() {
        assert!(decode(ALLOCATED, &";".repeat(MAX_ANNOTATION + 1)).unwrap_err().what.contains("bytes long"));
        assert_eq!(decode(ALLOCATED, &";".repeat(MAX_ANNOTATION)), Ok(Claim::default()));
        let slots = format!("{}GPU-a,NVIDIA,1,1", ";".repeat(MAX_CONTAINERS));
        assert!(decode(ALLOCATED, &slots).unwrap_err().what.contains("more than 1024 containers"));
        let shares = "GPU-a,NVIDIA,1,1:".repeat(MAX_SHARES + 1);
        assert!(decode(ALLOCATED, &shares).unwrap_err().what.contains("more than 512 GPUs for container 0"));
    }

    #[test]
    fn values_that_no_reader_accepts_are_not_written() {
        let whole = DeviceShare {
            device: GpuUuid::parse("GPU-a").unwrap(),
            memory: Some(Mib(1).bytes()),
            cores: Some(CorePercent(1)),
        };
        for broken in [
            DeviceShare { device: GpuUuid::parse("GPU;a").unwrap(), ..whole.clone() },
            DeviceShare { memory: Some(Mib(MAX_NUMBER + 1).bytes()), ..whole.clone() },
            DeviceShare { cores: Some(CorePercent(u32::MAX)), ..whole.clone() },
        ] {
            assert!(encode(ALLOCATED, &Claim(vec![vec![broken]])).is_err());
        }
        assert_eq!(encode(ALLOCATED, &Claim(vec![vec![whole], vec![]])).unwrap(), "GPU-a,NVIDIA,1,1:;;");
    }

    #[test]
    fn a_claim_that_readers_would_not_keep_is_not_written() {
        // A share has 12 bytes besides its UUID, and the container adds one byte.
        let claim = |bytes: usize| {
            let share = |name: usize| DeviceShare {
                device: GpuUuid::parse(&"x".repeat(name)).unwrap(),
                memory: None,
                cores: None,
            };
            let mut shares = vec![share(96); (bytes - 1) / 108];
            shares.push(share((bytes - 1) % 108 - 12));
            Claim(vec![shares])
        };
        assert_eq!(encode(ALLOCATED, &claim(MAX_CLAIM)).unwrap().len(), MAX_CLAIM);
        let why = encode(ALLOCATED, &claim(MAX_CLAIM + 1)).unwrap_err();
        assert!(why.what.starts_with("is 14337 bytes long, more than the 14336"), "{why}");
    }

    #[test]
    fn the_claim_of_a_pod_with_the_most_gpus_fits_into_a_binding_with_the_longest_names() {
        let longest = DeviceShare {
            device: GpuUuid::parse(&format!("MIG-GPU-{}/13/10", "0".repeat(36))).unwrap(),
            memory: Some(Mib(MAX_NUMBER).bytes()),
            cores: Some(CorePercent(100)),
        };
        for containers in [1, 40, 128] {
            let most = usize::try_from(most_gpus(containers)).unwrap();
            let length = |gpus: usize| {
                let mut claim = vec![Vec::new(); containers];
                claim[0] = vec![longest.clone(); gpus];
                encode(ALLOCATED, &Claim(claim)).unwrap().len()
            };
            assert!(length(most) <= MAX_CLAIM_IN_BINDING, "{containers} containers, {most} GPUs: {}", length(most));
            assert!(length(most + 1) > MAX_CLAIM_IN_BINDING, "{containers} containers and {most} GPUs leave room");
        }
        assert_eq!((most_gpus(1), most_gpus(1 << 20)), (98, 0));
    }

    proptest! {
        #[test]
        fn no_input_causes_a_panic(text in "\\PC{0,200}") {
            let _ = decode(ALLOCATED, &text);
        }

        #[test]
        fn no_similar_input_causes_a_panic(text in "(GPU-a|NVIDIA|[0-9-]{0,11}|[,:; \n]){0,60}") {
            if let Ok(claim) = decode(ALLOCATED, &text) {
                let again = encode(ALLOCATED, &claim).map(|text| decode(ALLOCATED, &text));
                prop_assert!(again.is_err() || again == Ok(Ok(claim)));
            }
        }

        #[test]
        fn encoded_values_are_decoded_unchanged(
            pod in prop::collection::vec(
                prop::collection::vec(("[!-+.-9<-~]{1,12}", 0..=0x7fff_ffff_u32, 0..=0x7fff_ffff_u32), 0..4), 0..6),
        ) {
            let share = |(uuid, memory, cores): (String, u32, u32)| DeviceShare {
                device: GpuUuid::parse(&uuid).unwrap(),
                memory: Some(Mib(u64::from(memory)).bytes()).filter(|memory| memory.0 > 0),
                cores: Some(CorePercent(cores)).filter(|cores| cores.0 > 0),
            };
            let mut containers: Vec<Vec<DeviceShare>> =
                pod.into_iter().map(|shares| shares.into_iter().map(share).collect()).collect();
            let text = encode(ALLOCATED, &Claim(containers.clone())).unwrap();
            while containers.last().is_some_and(Vec::is_empty) {
                containers.pop();
            }
            prop_assert_eq!(decode(ALLOCATED, &text), Ok(Claim(containers)));
        }
    }
}
