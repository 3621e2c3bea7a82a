use super::*;
use proptest::prelude::*;

fn k80() -> GpuStatic {
    GpuStatic { count: 2, model: "Tesla K80".into(), memory_gib: 12, pcie: Some((1, 16)) }
}

fn snapshot() -> GpuSnapshot {
    GpuSnapshot {
        memory_used_gib: 11,
        memory_free_gib: 1,
        processes: Some(1),
        listed: vec![(18_477, Mib(11_094))],
        period: None,
        memory_copy_maximum: Some(66.0),
        utilization_maximum: Some(97.4),
        simulated: false,
    }
}

#[test]
fn the_facts_are_written_as_alnairs_readers_expect_them() {
    let text = encode_static(&k80(), LiteralForm::Python);
    assert_eq!(text, "{'count': '2', 'model': 'Tesla K80', 'mem_size': '12GB', 'pcie_gen_width': '1x16'}");
    // Alnair's scheduler takes the model between these places.
    assert_eq!(text.get(25..text.len() - 48), Some("Tesla K80"));
    let json = encode_static(&k80(), LiteralForm::Json);
    assert_eq!(json, r#"{"count": "2", "model": "Tesla K80", "mem_size": "12GB", "pcie_gen_width": "1x16"}"#);
    let unknown = GpuStatic { pcie: None, ..k80() };
    assert_eq!(
        encode_static(&unknown, LiteralForm::Python),
        "{'count': '2', 'model': 'Tesla K80', 'mem_size': '12GB'}"
    );
    for (facts, form) in [(k80(), LiteralForm::Python), (unknown, LiteralForm::Json)] {
        assert_eq!(decode_static(&encode_static(&facts, form)), Ok((facts, form)));
    }
}

#[test]
fn a_gpu_is_written_with_alnairs_fields_in_alnairs_order() {
    let text = "{'mem_used': '11GB', 'mem_free': '1GB', 'process_cnt': 1, 'pid-mem': [(18477, '11094MB')], \
                'cyclic_pattern': False, 'max_mem_util': 66, 'max_gpu_util': 97}";
    assert_eq!(encode_snapshot(&snapshot(), LiteralForm::Python), text);
    let cyclic = GpuSnapshot {
        processes: Some(0),
        listed: Vec::new(),
        period: Some(Duration::from_millis(6017)),
        simulated: true,
        ..snapshot()
    };
    assert_eq!(
        encode_snapshot(&cyclic, LiteralForm::Python),
        "{'mem_used': '11GB', 'mem_free': '1GB', 'process_cnt': 0, 'cyclic_pattern': True, 'period': '6.02', \
         'max_mem_util': 66, 'max_gpu_util': 97, 'simulated': True}"
    );
    let whole = GpuSnapshot {
        processes: None,
        listed: vec![(7, Mib(1)), (8, Mib(2))],
        period: Some(Duration::from_secs(6)),
        memory_copy_maximum: None,
        utilization_maximum: None,
        ..snapshot()
    };
    assert_eq!(
        encode_snapshot(&whole, LiteralForm::Json),
        r#"{"mem_used": "11GB", "mem_free": "1GB", "pid-mem": [[7, "1MB"], [8, "2MB"]], "cyclic_pattern": true, "period": "6.0"}"#
    );
    assert!(serde_json::from_str::<serde_json::Value>(&encode_snapshot(&whole, LiteralForm::Json)).is_ok());
}

#[test]
fn a_model_cannot_end_a_literal() {
    let model = "A'}, \\ \"B\"\n\u{e9}\u{20ac}\u{1f600}";
    let facts = GpuStatic { model: model.into(), ..k80() };
    let text = encode_static(&facts, LiteralForm::Python);
    assert_eq!(
        text,
        "{'count': '2', 'model': 'A\\'}, \\\\ \"B\"\\x0a\\xe9\\u20ac\\U0001f600', 'mem_size': '12GB', \
         'pcie_gen_width': '1x16'}"
    );
    for form in [LiteralForm::Python, LiteralForm::Json] {
        assert_eq!(decode_static(&encode_static(&facts, form)), Ok((facts.clone(), form)));
    }
    let long = GpuStatic { model: "x".repeat(1000).into(), ..k80() };
    assert_eq!(decode_static(&encode_static(&long, LiteralForm::Python)).unwrap().0.model.len(), MAX_MODEL);
}

#[test]
fn literals_of_alnair_and_of_json_writers_are_read() {
    for text in [
        "{'mem_used': '11GB', 'mem_free': '1GB', 'process_cnt': 1, 'pid-mem': [(18477, '11094MB')], 'cyclic_pattern': \
         False, 'max_mem_util': 66, 'max_gpu_util': 97}",
        r#"{"mem_used":"11GB","mem_free":"1GB","process_cnt":1,"pid-mem":[[18477,"11094MB"]],"cyclic_pattern":false,"max_mem_util":66,"max_gpu_util":97}"#,
        r#" { 'mem_used' : "11GB" , 'mem_free': '1GB', 'more': {'a': [None, -1.5e3,], }, 'process_cnt': '1', 'pid-mem': [['18477', '11094MB',],], 'cyclic_pattern': False, 'max_mem_util': 66.0, 'max_gpu_util': 97, } "#,
    ] {
        let (read, _) = decode_snapshot(text).unwrap_or_else(|fault| panic!("{text}: {fault}"));
        assert_eq!(read, GpuSnapshot { utilization_maximum: Some(97.0), ..snapshot() }, "{text}");
    }
    let pair = r#"{"count": 1, "model": "\ud83d\ude00\u0041\x41", "mem_size": "1GB"}"#;
    assert_eq!(&*decode_static(pair).unwrap().0.model, "\u{1f600}AA");
    let many: Vec<String> = (0..1000).map(|pid| format!("({pid}, '1MB')")).collect();
    let text =
        format!("{{'mem_used': '1GB', 'mem_free': '1GB', 'pid-mem': [{}], 'cyclic_pattern': False}}", many.join(","));
    assert_eq!(decode_snapshot(&text).unwrap().0.listed.len(), MAX_LISTED);
}

#[test]
fn other_texts_are_refused_with_their_fault() {
    let with = |fields: &str| format!("{{'mem_used': '1GB', 'mem_free': '1GB', {fields}}}");
    for (text, what) in [
        (String::new(), "neither a text"),
        ("{".into(), "neither a text"),
        ("{'a' 1}".into(), "a colon is missing"),
        ("{'a': 1 'b': 2}".into(), "a comma is missing"),
        ("{'a': [1 2]}".into(), "a comma is missing"),
        ("{'a': 'b".into(), "a text has no end"),
        ("{'a': 'b\nc'}".into(), "ends at the end of its line"),
        ("{'a': '\\q'}".into(), "an escape that is not known"),
        ("{'a': '\\xq1'}".into(), "an escape without its digits"),
        ("{'a': '\\ud800\\u0041'}".into(), "half of a pair"),
        ("{'a': '\\U00110000'}".into(), "not a character"),
        ("{'a': 1}x".into(), "text after the end"),
        ("{'mem_used': '1GB'}".into(), "cyclic_pattern is neither"),
        (with("'cyclic_pattern': True"), "period is not a number"),
        (with("'cyclic_pattern': True, 'period': '-1'"), "period is not a number"),
        (with("'cyclic_pattern': True, 'period': 'nan'"), "period is not a number"),
        (with("'cyclic_pattern': False, 'max_mem_util': 101"), "a maximum is not a percentage"),
        (with("'cyclic_pattern': False, 'process_cnt': -1"), "process_cnt is not a number"),
        (with("'cyclic_pattern': False, 'pid-mem': [(1,)]"), "pid-mem is not like"),
        ("{'mem_used': 1, 'mem_free': '1GB', 'cyclic_pattern': False}".into(), "is not like 12GB"),
        ("[".repeat(100), "deeper than"),
        (format!("[{}]", "0,".repeat(5000)), "more than"),
        (" ".repeat(MAX_TEXT + 1), "bytes long"),
    ] {
        let fault = decode_snapshot(&text).unwrap_err();
        assert!(fault.what.contains(what), "{}: {fault}", &text[..text.len().min(60)]);
    }
    for text in ["", "x", "-1", "101", "nan"] {
        assert_eq!(decode_maximum(text), None, "{text}");
    }
    assert_eq!((decode_maximum("66"), encode_maximum(65.5)), (Some(66.0), "66".to_owned()));
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(text in "\\PC{0,100}") {
        let _ = (decode_static(&text), decode_snapshot(&text), decode_maximum(&text));
    }

    #[test]
    fn nothing_like_it_makes_it_panic(inner in "[\\[\\](){}:,'\"\\\\a-fuxU0-9.TrueFalse -]{0,80}") {
        let _ = decode_snapshot(&format!("{{'mem_used': '1GB', {inner}}}"));
        let _ = decode_static(&format!("{{'model': '{inner}'}}"));
    }

    #[test]
    fn facts_are_read_back(
        count in any::<u32>(), model in "\\PC{0,90}|[\\x00-\\x7f]{0,90}", memory in any::<u64>(), pcie in any::<Option<(u32, u32)>>(),
        json in any::<bool>(),
    ) {
        let form = if json { LiteralForm::Json } else { LiteralForm::Python };
        let facts = GpuStatic { count, model: model.into(), memory_gib: memory, pcie };
        let text = encode_static(&facts, form);
        prop_assert!(form == LiteralForm::Json || text.bytes().all(|byte| (b' '..=b'~').contains(&byte)));
        prop_assert_eq!(decode_static(&text), Ok((facts, form)));
    }

    #[test]
    fn a_gpu_is_read_back(
        memory in any::<(u64, u64)>(), processes in any::<Option<u32>>(),
        listed in prop::collection::btree_map(any::<u32>(), any::<u64>(), 0..MAX_LISTED),
        hundredths in prop::option::of(1..100_000_u64), maxima in any::<(Option<u8>, Option<u8>)>(), simulated in any::<bool>(),
        json in any::<bool>(),
    ) {
        let form = if json { LiteralForm::Json } else { LiteralForm::Python };
        let percent = |number: Option<u8>| number.map(|number| f64::from(number % 101));
        let written = GpuSnapshot {
            memory_used_gib: memory.0,
            memory_free_gib: memory.1,
            processes,
            listed: listed.into_iter().map(|(pid, memory)| (pid, Mib(memory))).collect(),
            period: hundredths.map(|count| Duration::from_millis(count * 10)),
            memory_copy_maximum: percent(maxima.0),
            utilization_maximum: percent(maxima.1),
            simulated,
        };
        let (read, read_form) = decode_snapshot(&encode_snapshot(&written, form)).unwrap();
        prop_assert_eq!(read_form, form);
        let apart = |one: Duration, other: Duration| one.abs_diff(other) < Duration::from_micros(1);
        let same_period = match (read.period, written.period) {
            (Some(one), Some(other)) => apart(one, other),
            (one, other) => one == other,
        };
        prop_assert!(same_period);
        prop_assert_eq!(GpuSnapshot { period: None, ..read }, GpuSnapshot { period: None, ..written });
    }
}
