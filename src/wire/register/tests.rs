//! Both forms of the register: read, written, and broken.

use super::*;
use proptest::prelude::*;

fn gpu(uuid: &str, index: u32) -> RegisteredGpu {
    RegisteredGpu {
        uuid: GpuUuid::parse(uuid).unwrap(),
        index,
        slots: 10,
        memory: Mib(81_559),
        cores: CorePercent(100),
        product: "NVIDIA H100 80GB HBM3".into(),
        numa: index / 4,
        mode: "hami-core".into(),
        healthy: true,
        mig_profiles: Vec::new(),
    }
}

const TWO: &str = concat!(
    r#"[{"id":"GPU-00000000-aaaa-bbbb-cccc-000000000000","count":10,"devmem":81559,"devcore":100,"#,
    r#""type":"NVIDIA H100 80GB HBM3","mode":"hami-core","health":true},"#,
    r#"{"id":"GPU-00000004-aaaa-bbbb-cccc-000000000004","index":4,"count":10,"devmem":81559,"devcore":100,"#,
    r#""type":"NVIDIA H100 80GB HBM3","numa":1,"mode":"hami-core","health":true}]"#
);

fn two() -> [RegisteredGpu; 2] {
    [gpu("GPU-00000000-aaaa-bbbb-cccc-000000000000", 0), gpu("GPU-00000004-aaaa-bbbb-cccc-000000000004", 4)]
}

#[test]
fn json_has_the_form_of_hami_and_is_ordered_by_uuid() {
    assert_eq!(decode(TWO).unwrap(), two());
    assert_eq!(encode(&two()).unwrap(), TWO);
    let [first, second] = two();
    assert_eq!(encode(&[second, first]).unwrap(), TWO);
    assert_eq!((encode(&[]).unwrap(), decode("[]").unwrap()), ("[]".into(), vec![]));
}

#[test]
fn absent_fields_are_zero_or_unhealthy_and_unknown_fields_are_skipped() {
    let read =
        decode(r#" [{"id":"GPU-1","numa":-1,"devicevendor":"NVIDIA","custominfo":{"a":[1]},"migProfiles":null}]"#);
    let bare = RegisteredGpu {
        slots: 0,
        memory: Mib(0),
        cores: CorePercent(0),
        product: "".into(),
        mode: "".into(),
        healthy: false,
        ..gpu("GPU-1", 0)
    };
    assert_eq!(read.unwrap(), [bare]);
}

#[test]
fn mig_profiles_are_kept() {
    let text = concat!(
        r#"[{"id":"GPU-1","count":7,"devmem":40960,"devcore":100,"type":"NVIDIA A100","mode":"mig","migProfiles":"#,
        r#"[{"name":"1g.5gb","memoryMB":4864,"core":15,"sliceCount":1,"placements":[{"start":0,"size":1},{"start":1,"size":1}]}],"#,
        r#""health":true}]"#
    );
    let read = decode(text).unwrap();
    assert_eq!(read[0].mig_profiles[0].placements[1], MigPlacement { start: 1, size: 1 });
    assert_eq!(encode(&read).unwrap(), text);
}

#[test]
fn colons_with_seven_and_with_nine_fields_are_read() {
    let text = "GPU-1,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,0,true:GPU-2,10,32768,100,NVIDIA-Tesla V100-PCIE-32GB,1,false,3,mig:";
    let read = decode(text).unwrap();
    let seen: Vec<_> = read.iter().map(|gpu| (gpu.index, gpu.numa, gpu.healthy, &*gpu.mode)).collect();
    assert_eq!(seen, [(0, 0, true, "hami-core"), (3, 1, false, "mig")]);
    assert_eq!(&*read[0].product, "NVIDIA-Tesla V100-PCIE-32GB");
    assert_eq!(decode(&encode_colons(&read).unwrap()).unwrap(), read);
}

#[test]
fn a_fault_is_reported_with_its_position() {
    for (text, at, what) in [
        ("", 0, "neither JSON nor entries"),
        ("GPU-1,10", 0, "neither JSON nor entries"),
        ("GPU-1,10,1,100,T,0:", 0, "has 6 fields where 7 or 9 are expected"),
        ("GPU-1,10,1,100,T,0,true,1:", 0, "has 8 fields"),
        ("GPU-1,10,1,100,T,0,true,1,mig,x:", 0, "has 10 fields"),
        ("GPU-1,10,1,100,T,0,true:GPU-2,x,1,100,T,0,true:", 24, "count is not a number: \"x\""),
        ("GPU-1,10,1,100,T,0,true,-1,mig:", 0, "index is not between 0 and 2147483647: -1"),
        ("GPU-1,10,1,100,T,0,yes:", 0, "health is neither true nor false"),
        ("GPU-1,10,1,100,T,0,true:GPU-1,10,1,100,T,0,true:", 0, "entry 1: GPU-1 appears twice"),
        ("[{\"id\":\"GPU-1\",\"devmem\":2147483648}]", 0, "entry 0: devmem is not between"),
        ("[{\"id\":\"\"}]", 0, "entry 0: not a GPU UUID"),
        ("[{\"count\":1}]", 12, "missing field `id`"),
        ("[{\"id\":\"GPU-1\",\"count\":1.5}]", 26, "invalid type"),
    ] {
        let fault = decode(text).unwrap_err();
        assert!(fault.at == at && fault.what.contains(what) && fault.key == REGISTER, "{text}: {fault}");
    }
}

#[test]
fn a_text_that_is_too_large_is_not_read() {
    assert!(decode(&" ".repeat(MAX_ANNOTATION + 1)).unwrap_err().what.contains("bytes long"));
    let many: Vec<RegisteredGpu> = (0..=MAX_GPUS).map(|n| gpu(&format!("GPU-{n:04}"), 0)).collect();
    for text in [encode(&many).unwrap(), encode_colons(&many).unwrap()] {
        assert!(decode(&text).unwrap_err().what.contains("more than 64 GPUs"));
        assert!(decode(&text.replace("\"id\"", "\"di\"")).is_err());
    }
    let profile =
        MigProfile { name: "".into(), memory: Mib(0), cores: CorePercent(0), slices: 0, placements: Vec::new() };
    let wide = RegisteredGpu { mig_profiles: vec![profile; MAX_PROFILES + 1], ..gpu("GPU-1", 0) };
    assert!(decode(&encode(&[wide]).unwrap()).unwrap_err().what.contains("MIG profiles"));
}

#[test]
fn values_that_no_reader_accepts_are_not_written() {
    let large = RegisteredGpu { memory: Mib(MAX_NUMBER + 1), ..gpu("GPU-1", 0) };
    assert!(encode(&[large]).unwrap_err().what.contains("is more than"));
    assert!(encode(&[gpu("GPU-1", 0), gpu("GPU-1", 1)]).unwrap_err().what.contains("twice"));
    let colon = RegisteredGpu { product: "A:B".into(), ..gpu("GPU-1", 0) };
    assert!(encode(std::slice::from_ref(&colon)).is_ok() && encode_colons(&[colon]).is_err());
}

#[test]
fn a_product_begins_with_the_vendor_once() {
    assert_eq!(product("Tesla T4"), "NVIDIA-Tesla T4");
    assert_eq!(product("NVIDIA A100-SXM4-40GB"), "NVIDIA A100-SXM4-40GB");
}

prop_compose! {
    fn any_gpu()(
        id in "G[!-+.-9;-~]{0,20}", numbers in prop::array::uniform5(0..=0x7fff_ffff_u32), product in "[ -+.-9;-~ä]{0,12}",
        mode in "[a-z-]{0,9}", healthy: bool, profiles in prop::collection::vec(("\\PC{0,6}", 0..9_u32, 0..9_u32), 0..3),
    ) -> RegisteredGpu {
        let [index, slots, memory, cores, numa] = numbers;
        let profile = |(name, number, size): (String, u32, u32)| MigProfile {
            name: name.into(),
            memory: Mib(u64::from(number)),
            cores: CorePercent(number),
            slices: size,
            placements: (0..size).map(|start| MigPlacement { start, size }).collect(),
        };
        RegisteredGpu {
            uuid: GpuUuid::parse(&id).unwrap(),
            index, slots, memory: Mib(u64::from(memory)), cores: CorePercent(cores), product: product.into(), numa,
            mode: mode.into(), healthy, mig_profiles: profiles.into_iter().map(profile).collect(),
        }
    }
}

proptest! {
    #[test]
    fn no_input_causes_a_panic(text in "\\PC{0,200}") {
        let _ = decode(&text);
    }

    #[test]
    fn no_similar_input_causes_a_panic(text in "(\\[?\\{?\"?(GPU-1|id|count)?[\":,\\[{}\\]0-9a-z-]{0,12}){0,12}") {
        let _ = decode(&text);
    }

    #[test]
    fn encoded_values_are_decoded_unchanged(gpus in prop::collection::vec(any_gpu(), 0..6)) {
        let mut ordered = gpus.clone();
        ordered.sort_by(|one, other| one.uuid.cmp(&other.uuid));
        ordered.dedup_by(|one, other| one.uuid == other.uuid);
        let text = encode(&ordered).unwrap();
        prop_assert_eq!(&decode(&text).unwrap(), &ordered);
        prop_assert_eq!(encode(&decode(&text).unwrap()).unwrap(), text);

        let without: Vec<_> = ordered.into_iter().map(|gpu| RegisteredGpu { mig_profiles: Vec::new(), ..gpu }).collect();
        if !without.is_empty() {
            let plain: Vec<_> = without.iter().map(|gpu| RegisteredGpu { product: gpu.product.trim().into(), ..gpu.clone() }).collect();
            prop_assert_eq!(decode(&encode_colons(&plain).unwrap()).unwrap(), plain);
        }
    }
}
