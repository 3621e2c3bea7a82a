//! What a pod was given, as its annotations carry it (`hami.io/vgpu-devices-to-allocate`, `…-allocated`).
//!
//! ```text
//!   ;GPU-x,NVIDIA,3000,30:GPU-y,NVIDIA,3000,30:;;       three containers: none, two GPUs, none
//!   pod = { container ";" }    container = { uuid "," vendor "," MiB "," percent of cores ":" }
//! ```
//!
//! Init containers stand before app containers. Readers of every age must take what writers of every age wrote: pieces without
//! a comma are skipped, fields beyond the fourth too, and a string may have more empty slots at its end than the pod has
//! containers (HAMi adds one each time a container starts). Such slots at the end are dropped here, so that a string does not
//! grow by being read and written.

use crate::fault::{Fault, shown};
use crate::key::MAX_ANNOTATION;
use model::claim::{Grant, Slots};
use model::id::GpuUuid;
use model::unit::{CorePercent, Mib};

/// Containers of one pod. Kubernetes has no limit of its own; a pod of this many does not fit into an object's 1.5 MiB with
/// anything in it. Empty slots at the end are not counted.
const MAX_CONTAINERS: usize = 1024;
/// GPUs of one container: as many MIG instances as the largest node has.
const MAX_GRANTS: usize = 512;
/// HAMi's programs hold MiB and percents in 32 bits with a sign.
const MAX_NUMBER: u64 = i32::MAX as u64;

/// Reads the value of the annotation `key`.
///
/// # Errors
/// [`Fault`] with the byte at which the grant begins that cannot be understood.
pub fn decode(key: &'static str, text: &str) -> Result<Slots, Fault> {
    if text.len() > MAX_ANNOTATION {
        return Err(Fault::too_long(key, text.len(), MAX_ANNOTATION));
    }
    let mut slots = Vec::new();
    let mut at = 0;
    let filled = text.trim_end_matches([';', ':', ' ', '\n']);
    for (container, part) in filled.split(';').enumerate() {
        if container == MAX_CONTAINERS {
            return Err(Fault::too_many(key, at, "containers", MAX_CONTAINERS));
        }
        slots.push(slot(key, container, part, at)?);
        at += part.len() + 1;
    }
    while slots.last().is_some_and(Vec::is_empty) {
        slots.pop();
    }
    Ok(Slots(slots))
}

fn slot(key: &'static str, container: usize, text: &str, mut at: usize) -> Result<Vec<Grant>, Fault> {
    let mut grants = Vec::new();
    for (number, piece) in text.split(':').enumerate() {
        if piece.contains(',') {
            if grants.len() == MAX_GRANTS {
                return Err(Fault::too_many(key, at, &format!("GPUs for container {container}"), MAX_GRANTS));
            }
            let fault = |what: String| Fault::new(key, at, format!("container {container}, GPU {number}: {what}"));
            grants.push(grant(piece).map_err(fault)?);
        }
        at += piece.len() + 1;
    }
    Ok(grants)
}

fn grant(text: &str) -> Result<Grant, String> {
    let mut fields = text.split(',');
    let (Some(uuid), Some(vendor), Some(memory), Some(cores)) =
        (fields.next(), fields.next(), fields.next(), fields.next())
    else {
        return Err(format!("has fewer than 4 fields: {}", shown(text)));
    };
    Ok(Grant {
        uuid: GpuUuid::parse(uuid).map_err(|error| error.to_string())?,
        vendor: vendor.into(),
        memory: Mib(number("memory", memory)?),
        cores: CorePercent(u32::try_from(number("cores", cores)?).unwrap_or(u32::MAX)),
    })
}

fn number(name: &str, text: &str) -> Result<u64, String> {
    text.parse::<i32>()
        .ok()
        .and_then(|number| u64::try_from(number).ok())
        .ok_or_else(|| format!("{name} is not between 0 and {MAX_NUMBER}: {}", shown(text)))
}

/// Writes the value of the annotation `key`: one `;` for each slot, so the slots of containers at the end that have no GPU are
/// only there if the caller put them there.
///
/// # Errors
/// [`Fault`] for a name with one of the separators in it, or a number beyond 31 bits: no reader could take it.
pub fn encode(key: &'static str, slots: &Slots) -> Result<String, Fault> {
    let mut text = String::new();
    for (container, slot) in slots.0.iter().enumerate() {
        for (number, grant) in slot.iter().enumerate() {
            let Grant { uuid, vendor, memory, cores } = grant;
            let separated = [uuid.as_str(), &**vendor].iter().any(|name| name.contains([',', ':', ';', ' ', '\n']));
            if separated || memory.0 > MAX_NUMBER || u64::from(cores.0) > MAX_NUMBER {
                let what = format!("container {container}, GPU {number}: {uuid} cannot be written");
                return Err(Fault::new(key, text.len(), what));
            }
            text.push_str(&format!("{uuid},{vendor},{},{}:", memory.0, cores.0));
        }
        text.push(';');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::ALLOCATED;
    use proptest::prelude::*;

    fn shape(text: &str) -> Vec<Vec<(String, u64, u32)>> {
        let slots = decode(ALLOCATED, text).unwrap_or_else(|fault| panic!("{text}: {fault}"));
        let seen = |grant: &Grant| (grant.uuid.to_string(), grant.memory.0, grant.cores.0);
        slots.0.iter().map(|slot| slot.iter().map(seen).collect()).collect()
    }

    fn gpu(uuid: &str, memory: u64, cores: u32) -> (String, u64, u32) {
        (uuid.into(), memory, cores)
    }

    #[test]
    fn each_container_has_its_slot() {
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
            assert_eq!(decode(ALLOCATED, text), Ok(Slots::default()), "{text:?}");
        }
        let mut slots = decode(ALLOCATED, "GPU-a,NVIDIA,1,0:;GPU-b,NVIDIA,2,0:;").unwrap();
        slots.blank(0);
        let text = encode(ALLOCATED, &slots).unwrap();
        assert_eq!(text, ";GPU-b,NVIDIA,2,0:;");
        assert_eq!(encode(ALLOCATED, &decode(ALLOCATED, &text).unwrap()).unwrap(), text);
        slots.blank(1);
        assert_eq!(encode(ALLOCATED, &slots).unwrap(), ";;");
    }

    #[test]
    fn pieces_that_are_no_grants_are_skipped_and_more_fields_too() {
        assert_eq!(shape("x:GPU-a,NVIDIA,1,2,3,4::;"), [vec![gpu("GPU-a", 1, 2)]]);
    }

    #[test]
    fn a_broken_grant_is_told_by_its_place() {
        for (text, at, what) in [
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
        assert_eq!(decode(ALLOCATED, &";".repeat(MAX_ANNOTATION)), Ok(Slots::default()));
        let slots = format!("{}GPU-a,NVIDIA,1,1", ";".repeat(MAX_CONTAINERS));
        assert!(decode(ALLOCATED, &slots).unwrap_err().what.contains("more than 1024 containers"));
        let grants = "GPU-a,NVIDIA,1,1:".repeat(MAX_GRANTS + 1);
        assert!(decode(ALLOCATED, &grants).unwrap_err().what.contains("more than 512 GPUs for container 0"));
    }

    #[test]
    fn what_no_reader_could_take_is_not_written() {
        let whole = Grant {
            uuid: GpuUuid::parse("GPU-a").unwrap(),
            vendor: "NVIDIA".into(),
            memory: Mib(1),
            cores: CorePercent(1),
        };
        for broken in [
            Grant { uuid: GpuUuid::parse("GPU;a").unwrap(), ..whole.clone() },
            Grant { vendor: "a:b".into(), ..whole.clone() },
            Grant { memory: Mib(MAX_NUMBER + 1), ..whole.clone() },
            Grant { cores: CorePercent(u32::MAX), ..whole.clone() },
        ] {
            assert!(encode(ALLOCATED, &Slots(vec![vec![broken]])).is_err());
        }
        assert_eq!(encode(ALLOCATED, &Slots(vec![vec![whole], vec![]])).unwrap(), "GPU-a,NVIDIA,1,1:;;");
    }

    proptest! {
        #[test]
        fn nothing_makes_it_panic(text in "\\PC{0,200}") {
            let _ = decode(ALLOCATED, &text);
        }

        #[test]
        fn nothing_like_it_makes_it_panic(text in "(GPU-a|NVIDIA|[0-9-]{0,11}|[,:; \n]){0,60}") {
            if let Ok(slots) = decode(ALLOCATED, &text) {
                let again = encode(ALLOCATED, &slots).map(|text| decode(ALLOCATED, &text));
                prop_assert!(again.is_err() || again == Ok(Ok(slots)));
            }
        }

        #[test]
        fn what_is_written_is_read_back(
            pod in prop::collection::vec(
                prop::collection::vec(("[!-+.-9<-~]{1,12}", "[A-Za-z-]{0,8}", 0..=0x7fff_ffff_u32, 0..=0x7fff_ffff_u32), 0..4), 0..6),
        ) {
            let grant = |(uuid, vendor, memory, cores): (String, String, u32, u32)| Grant {
                uuid: GpuUuid::parse(&uuid).unwrap(),
                vendor: vendor.into(),
                memory: Mib(u64::from(memory)),
                cores: CorePercent(cores),
            };
            let mut slots: Vec<Vec<Grant>> =
                pod.into_iter().map(|slot| slot.into_iter().map(grant).collect()).collect();
            let text = encode(ALLOCATED, &Slots(slots.clone())).unwrap();
            while slots.last().is_some_and(Vec::is_empty) {
                slots.pop();
            }
            prop_assert_eq!(decode(ALLOCATED, &text), Ok(Slots(slots)));
        }
    }
}
