//! Checks that the code in `gen/` is what the `.proto` files generate. `UPDATE_GOLDEN=1 cargo test -p proto` generates
//! it again.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const FILES: [&str; 5] = ["usage.proto", "stream.proto", "podresources.proto", "cri.proto", "deviceplugin.proto"];

fn sources_in(folder: &Path) -> BTreeMap<String, String> {
    fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), fs::read_to_string(&path).unwrap()))
        .collect()
}

#[test]
fn generated_code_matches_the_proto_files() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let made = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("gen-{}", std::process::id()));
    fs::create_dir_all(&made).unwrap();

    let descriptors = protox::compile(FILES, [here]).unwrap_or_else(|error| panic!("{error:?}"));
    tonic_prost_build::configure()
        .out_dir(&made)
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)
        .expect("descriptors become Rust");
    let fresh = sources_in(&made);
    fs::remove_dir_all(&made).unwrap();

    let kept = here.join("gen");
    if std::env::var_os("UPDATE_GOLDEN").is_some_and(|value| value == "1") {
        for old in sources_in(&kept).into_keys().filter(|name| !fresh.contains_key(name)) {
            fs::remove_file(kept.join(old)).unwrap();
        }
        for (name, text) in &fresh {
            fs::write(kept.join(name), text).unwrap();
        }
    }
    let checked_in = sources_in(&kept);
    assert_eq!(
        fresh.keys().collect::<Vec<_>>(),
        checked_in.keys().collect::<Vec<_>>(),
        "proto/gen has other files than the .proto files generate: UPDATE_GOLDEN=1 cargo test -p proto"
    );
    for (name, text) in &fresh {
        assert!(text == &checked_in[name], "proto/gen/{name} is stale: UPDATE_GOLDEN=1 cargo test -p proto");
    }
}
