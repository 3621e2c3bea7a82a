//! Parses the texts of settings into typed values. The parsing is pure: the same text gives the same value on every
//! machine.

use agent::settings::Topology;
use decide::cluster::{AnsweredNodes, NodeChoice};
use decide::labels::Labelling;
use model::placement::{GpuPolicy, NodePolicy, ScoreWeights};
use model::pod::{LabelKeys, MAX_LABEL_KEYS};
use model::realtime::CheckMode;
use model::unit::Bytes;
use model::xid;
use sources::names::CriSocket;
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use wire::alnair::LiteralForm;
use wire::device_config::DeviceScaling;
use wire::{placement, time_span};

/// The reason why a text is not a valid value. It follows "invalid value … for …: ".
pub(crate) type Why = String;

/// On or off.
pub(crate) fn switch(text: &str) -> Result<bool, Why> {
    match text {
        "true" | "on" | "yes" | "1" => Ok(true),
        "false" | "off" | "no" | "0" => Ok(false),
        _ => Err("expected true or false".into()),
    }
}

/// `500ms`, `1s`, `2m`, `1h`, `1d`.
pub(crate) fn time(text: &str) -> Result<Duration, Why> {
    time_span::parse(text).map_err(str::to_owned)
}

/// The number of containers that may share a GPU.
pub(crate) fn split_count(text: &str) -> Result<u32, Why> {
    let most = u32::from(model::slot::MAX_SLOTS_PER_DEVICE);
    match text.parse() {
        Ok(count) if (1..=most).contains(&count) => Ok(count),
        _ => Err(format!("expected a whole number from 1 to {most}")),
    }
}

/// `A100=20,T4=4`.
pub(crate) fn split_counts(text: &str) -> Result<Vec<(String, u32)>, Why> {
    let pair = |pair: &str| {
        let (model, count) = pair.split_once('=').ok_or_else(|| format!("{pair:?} is not MODEL=NUMBER"))?;
        if model.trim().is_empty() {
            return Err(format!("{pair:?} names no model"));
        }
        Ok((model.trim().to_owned(), split_count(count.trim())?))
    };
    text.split(',').map(pair).collect()
}

/// A factor above 0 and at most 10. With a larger factor, swapping could not make up for the missing GPU memory.
pub(crate) fn scaling(text: &str) -> Result<DeviceScaling, Why> {
    let factor = text.parse::<f64>().ok().filter(|factor| *factor <= 10.0).and_then(DeviceScaling::new);
    factor.ok_or_else(|| "expected a factor above 0 and at most 10".into())
}

/// A resource name that kubelet accepts: `domain/name`.
pub(crate) fn resource(text: &str) -> Result<String, Why> {
    let part = |part: &str, most: usize| {
        let end = |byte: Option<&u8>| byte.is_some_and(u8::is_ascii_alphanumeric);
        let bytes = part.as_bytes();
        part.len() <= most
            && end(bytes.first())
            && end(bytes.last())
            && bytes.iter().all(|b| b.is_ascii_alphanumeric() || b"-_.".contains(b))
    };
    match text.split_once('/') {
        Some((domain, name)) if part(domain, 253) && part(name, 63) && !text.contains("kubernetes.io/") => {
            Ok(text.into())
        }
        _ => {
            Err("expected a resource such as nvidia.com/gpu: a domain that is not kubernetes.io, a slash and a name"
                .into())
        }
    }
}

/// A topology manager policy, by kubelet's names.
pub(crate) fn topology(text: &str) -> Result<Topology, Why> {
    Topology::of_policy(text).ok_or_else(|| "expected auto, none, best-effort, restricted or single-numa-node".into())
}

/// What happens to a pod without a claim.
pub(crate) fn without_claim(text: &str) -> Result<decide::allocator::WithoutClaim, Why> {
    use decide::allocator::WithoutClaim::{Auto, Refuse, Share};
    match text {
        "auto" => Ok(Auto),
        "share" => Ok(Share),
        "refuse" => Ok(Refuse),
        _ => Err("expected auto, share or refuse".into()),
    }
}

/// Whether a container may get the same GPU twice.
pub(crate) fn same_gpu_twice(text: &str) -> Result<bool, Why> {
    match text {
        "refuse" => Ok(false),
        "allow" => Ok(true),
        _ => Err("expected refuse or allow".into()),
    }
}

/// How much a pod may write, 4 MiB to 1 GiB. HAMi-core's own file takes 2 MiB, and counting more than 1 GiB takes too
/// long.
pub(crate) fn files_limit(text: &str) -> Result<Bytes, Why> {
    let limit = size(text)?;
    if (Bytes(4 << 20)..=Bytes(1 << 30)).contains(&limit) { Ok(limit) } else { Err("expected 4MiB to 1GiB".into()) }
}

/// The margin of the real-time check. A margin of 1 TiB is more than any GPU has.
pub(crate) fn margin(text: &str) -> Result<Bytes, Why> {
    let margin = size(text)?;
    if margin <= Bytes(1 << 40) { Ok(margin) } else { Err("at most 1024GiB".into()) }
}

/// The mode of the real-time check.
pub(crate) fn check_mode(text: &str) -> Result<CheckMode, Why> {
    CheckMode::parse(text).ok_or_else(|| "expected strict, warning or disabled".into())
}

/// Whether pods may only switch the real-time check on.
pub(crate) fn check_override(text: &str) -> Result<bool, Why> {
    match text {
        "any" => Ok(false),
        "only-on" => Ok(true),
        _ => Err("expected any or only-on".into()),
    }
}

/// `64MiB`.
fn size(text: &str) -> Result<Bytes, Why> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let known = units.into_iter().find_map(|(unit, shift)| Some((text.strip_suffix(unit)?, shift)));
    let (number, shift) = known.ok_or("a size needs a unit: KiB, MiB or GiB")?;
    let number: u64 = number.trim_end().parse().map_err(|_| "expected a size such as 64MiB")?;
    number.checked_mul(1 << shift).map(Bytes).ok_or_else(|| "too large".into())
}

/// `auto`, `on`, `off`.
pub(crate) fn labelling(text: &str) -> Result<Labelling, Why> {
    match text {
        "auto" => Ok(Labelling::Auto),
        "on" => Ok(Labelling::On),
        "off" => Ok(Labelling::Off),
        _ => Err("expected auto, on or off".into()),
    }
}

/// `python`, `json`, `off`.
pub(crate) fn profile_annotations(text: &str) -> Result<Option<LiteralForm>, Why> {
    match text {
        "python" => Ok(Some(LiteralForm::Python)),
        "json" => Ok(Some(LiteralForm::Json)),
        "off" => Ok(None),
        _ => Err("expected python, json or off".into()),
    }
}

/// XIDs of NVIDIA's catalogue that an application cannot cause by itself: `48,79`, or `none`.
pub(crate) fn xids(text: &str) -> Result<BTreeSet<u32>, Why> {
    if text == "none" {
        return Ok(BTreeSet::new());
    }
    let one = |text: &str| {
        let code: u32 = text.trim().parse().map_err(|_| format!("{text:?} is not an XID number"))?;
        let entry = xid::find(code).ok_or_else(|| format!("NVIDIA's catalogue has no XID {code}"))?;
        if xid::of_application(code) {
            return Err(format!("XID {code} ({}) is an application's error, which makes no GPU unfit", entry.meaning));
        }
        Ok(code)
    };
    text.split(',').map(one).collect()
}

/// The quiet period of a GPU, at most 24 h, because no operator would wait longer for a GPU.
pub(crate) fn quiet(text: &str) -> Result<Duration, Why> {
    let quiet = time(text)?;
    if quiet <= Duration::from_secs(86_400) { Ok(quiet) } else { Err("at most 24h".into()) }
}

/// A time between two readings. Below 100 ms the readings themselves would be a load; above an hour they would be
/// stale.
pub(crate) fn period(text: &str) -> Result<Duration, Why> {
    let period = time(text)?;
    if (Duration::from_millis(100)..=Duration::from_secs(3600)).contains(&period) {
        Ok(period)
    } else {
        Err("a period must be between 100ms and 1h".into())
    }
}

/// The time limit of a shutdown: at most ten minutes, so that a typing error does not make the program unstoppable.
pub(crate) fn drain_timeout(text: &str) -> Result<Duration, Why> {
    let limit = time(text)?;
    if limit <= Duration::from_secs(600) { Ok(limit) } else { Err("at most 10m".into()) }
}

/// `0.0.0.0:9410`, `[::]:9410`, or `:9410` for every address of the machine.
pub(crate) fn address(text: &str) -> Result<SocketAddr, Why> {
    let full = if text.starts_with(':') { format!("0.0.0.0{text}") } else { text.to_owned() };
    full.parse().map_err(|_| {
        "expected ADDRESS:PORT with a numeric address, such as 127.0.0.1:9410, [::]:9410 or :9410".to_owned()
    })
}

/// A name or an address with a port: `gpu-steward-extender.gpu.svc:9443`.
pub(crate) fn host_port(text: &str) -> Result<String, Why> {
    let expected = || "expected HOST:PORT, such as gpu-steward-extender.gpu-steward.svc:9443".to_owned();
    if text.parse::<SocketAddr>().is_ok() {
        return Ok(text.to_owned());
    }
    let (host, port) = text.rsplit_once(':').ok_or_else(expected)?;
    let fits = port.parse::<u16>().is_ok_and(|port| port > 0) && !host.contains(',') && hosts(host).is_ok();
    if fits { Ok(text.to_owned()) } else { Err(expected()) }
}

/// Service accounts, `NAMESPACE:NAME` separated by commas, converted to the subjects of their tokens.
pub(crate) fn accounts(text: &str) -> Result<Vec<String>, Why> {
    let one = |account: &str| match account.trim().split_once(':') {
        Some((namespace, name)) if object_name(namespace).is_ok() && object_name(name).is_ok() => {
            Ok(format!("system:serviceaccount:{namespace}:{name}"))
        }
        _ => Err(format!(
            "{account:?} is not a service account: expected NAMESPACE:NAME, such as gpu-steward:gpu-steward-agent"
        )),
    };
    text.split(',').map(one).collect()
}

/// The audience of a token.
pub(crate) fn audience(text: &str) -> Result<String, Why> {
    let fits = (1..=253).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
    if fits { Ok(text.to_owned()) } else { Err("expected a word without spaces".into()) }
}

/// Host names or addresses, separated by commas, without ports.
pub(crate) fn hosts(text: &str) -> Result<Vec<String>, Why> {
    let one = |name: &str| {
        let name = name.trim();
        let address = name.parse::<std::net::IpAddr>().is_ok();
        let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        if address || (!name.is_empty() && name.len() <= 253 && name.bytes().all(fits)) {
            Ok(name.to_owned())
        } else {
            Err(format!(
                "{name:?} is not a host: expected names or addresses without ports, such as gpu.example,10.0.0.7"
            ))
        }
    };
    text.split(',').map(one).collect()
}

/// Keys of pod labels. Two keys that would become the same metric label are refused.
pub(crate) fn label_keys(text: &str) -> Result<LabelKeys, Why> {
    let mut keys: Vec<Arc<str>> = Vec::new();
    for key in text.split(',').map(str::trim) {
        let (domain, name) = key.rsplit_once('/').unwrap_or(("", key));
        let fits = |text: &str, most| {
            text.len() <= most && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
        };
        if name.is_empty() || !fits(name, 63) || !fits(domain, 253) || key.starts_with('/') {
            return Err(format!("{key:?} is not a label key: expected keys such as app.kubernetes.io/name,team"));
        }
        let in_series = |key: &str| key.replace(['-', '.', '/'], "_");
        if let Some(other) = keys.iter().find(|other| in_series(other) == in_series(key)) {
            return Err(format!("{other} and {key} would be the same label of a metric"));
        }
        keys.push(key.into());
    }
    if keys.len() > MAX_LABEL_KEYS {
        return Err(format!("{} keys, but at most {MAX_LABEL_KEYS} can be shown", keys.len()));
    }
    keys.sort();
    Ok(keys.into())
}

/// `None` for `none`, otherwise the result of `parse`.
pub(crate) fn unless_none<T>(text: &str, parse: impl Fn(&str) -> Result<T, Why>) -> Result<Option<T>, Why> {
    if text == "none" { Ok(None) } else { parse(text).map(Some) }
}

/// `None` for `auto`, otherwise the result of `parse`.
pub(crate) fn unless_auto<T>(text: &str, parse: impl Fn(&str) -> Result<T, Why>) -> Result<Option<T>, Why> {
    if text == "auto" { Ok(None) } else { parse(text).map(Some) }
}

/// A path.
pub(crate) fn path(text: &str) -> Result<PathBuf, Why> {
    if text.is_empty() {
        Err("a path cannot be empty".into())
    } else if text.contains('\0') {
        Err("a path cannot contain a NUL".into())
    } else {
        Ok(Path::new(text).to_path_buf())
    }
}

/// Paths, separated by commas.
pub(crate) fn paths(text: &str) -> Result<Vec<PathBuf>, Why> {
    text.split(',').map(|part| path(part.trim())).collect()
}

/// A path that fits into a unix socket's address (107 bytes and a NUL).
pub(crate) fn socket_path(text: &str) -> Result<PathBuf, Why> {
    if text.len() > 107 {
        return Err(format!("a unix socket's path has at most 107 bytes, this one has {}", text.len()));
    }
    path(text)
}

/// `auto`, `none`, or the path of a socket.
pub(crate) fn cri_socket(text: &str) -> Result<CriSocket, Why> {
    match text {
        "auto" => Ok(CriSocket::Auto),
        "none" => Ok(CriSocket::None),
        other => socket_path(other).map(CriSocket::At),
    }
}

/// The name of an object or a namespace of Kubernetes.
pub(crate) fn object_name(text: &str) -> Result<String, Why> {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-.".contains(&byte);
    let fits = (1..=253).contains(&text.len()) && text.bytes().all(plain);
    if fits { Ok(text.to_owned()) } else { Err("expected a name of lower-case letters, digits, - and .".into()) }
}

/// Which nodes a pod prefers.
pub(crate) fn node_policy(text: &str) -> Result<NodePolicy, Why> {
    placement::node_policy(text).map_err(|_| "expected binpack or spread".into())
}

/// Which GPUs of a node a container prefers: a list of words from HAMi's annotation, the most important word first.
pub(crate) fn gpu_policy(text: &str) -> Result<GpuPolicy, Why> {
    placement::gpu_policy(text).map_err(|_| "expected a list of binpack, spread, numa, mutex and topology-aware".into())
}

/// The weights of slots, SM time and memory: `slot=1,core=1,memory=1`.
pub(crate) fn score_weights(text: &str) -> Result<ScoreWeights, Why> {
    let expected = "expected slot=N,core=N,memory=N, each once, and at least one above 0";
    placement::weights(text).map_err(|_| expected.into())
}

/// Whether kube-scheduler or the extender chooses among the nodes that fit.
pub(crate) fn node_choice(text: &str) -> Result<NodeChoice, Why> {
    match text {
        "scheduler" => Ok(NodeChoice::Scheduler),
        "extender" => Ok(NodeChoice::Extender),
        _ => Err("expected scheduler or extender".into()),
    }
}

/// The largest number of nodes in the answer of a filter call: `auto`, or a number; 0 means all nodes that fit.
pub(crate) fn answered_nodes(text: &str) -> Result<AnsweredNodes, Why> {
    let number = unless_auto(text, |text| text.parse::<u32>().map_err(|_| "expected auto or a whole number".into()))?;
    Ok(match number.map(|number| usize::try_from(number).unwrap_or(usize::MAX)) {
        None => AnsweredNodes::Share,
        Some(number) => NonZeroUsize::new(number).map_or(AnsweredNodes::All, AnsweredNodes::AtMost),
    })
}

/// The difference between the scores of two neighbours in the order of the node policy. A score is at most this step
/// times the number of nodes, and kube-scheduler multiplies it by 10. The result must stay far below 2^63.
pub(crate) fn score_step(text: &str) -> Result<i64, Why> {
    match text.parse() {
        Ok(step) if (1..=1_000_000).contains(&step) => Ok(step),
        _ => Err("expected a whole number from 1 to 1000000".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent::settings::Gpus;

    #[test]
    fn times_need_a_unit() {
        for (text, expect) in [
            ("1s", Some(1_000)),
            ("500ms", Some(500)),
            ("2m", Some(120_000)),
            ("1h", Some(3_600_000)),
            ("5", None),
            ("s", None),
            ("-1s", None),
            ("1.5s", None),
            ("1 s", None),
            ("", None),
            ("99999999999999999999s", None),
        ] {
            let milliseconds = time(text).ok().map(|time| time.as_millis());
            assert_eq!(milliseconds, expect, "{text}");
        }
    }

    #[test]
    fn xids_outside_the_catalogue_and_xids_of_applications_are_refused() {
        assert_eq!(xids("79, 48"), Ok([48, 79].into()));
        assert_eq!(xids("none"), Ok([].into()));
        for (text, why) in [
            ("79,x", "\"x\" is not an XID number"),
            ("", "\"\" is not an XID number"),
            ("999", "NVIDIA's catalogue has no XID 999"),
            ("48,31", "XID 31 (GPU memory page fault) is an application's error, which makes no GPU unfit"),
        ] {
            assert_eq!(xids(text), Err(why.into()), "{text}");
        }
        assert_eq!(quiet("0s"), Ok(Duration::ZERO));
        assert!(quiet("25h").is_err());
    }

    #[test]
    fn addresses_are_parsed() {
        for (text, expect) in [
            (":9410", Some("0.0.0.0:9410")),
            ("[::1]:0", Some("[::1]:0")),
            ("localhost:1", None),
            ("9410", None),
            ("1.2.3.4:65536", None),
        ] {
            assert_eq!(address(text).ok().map(|a| a.to_string()).as_deref(), expect, "{text}");
        }
    }

    #[test]
    fn hosts_have_no_port() {
        assert_eq!(
            hosts("gpu.example, 10.0.0.7,fd00::1"),
            Ok(["gpu.example", "10.0.0.7", "fd00::1"].map(Into::into).into())
        );
        for bad in ["", "a,", "a:80", "http://a", "a b", "[::1]"] {
            assert!(hosts(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn keys_of_labels_are_distinct_in_a_series() {
        let keys = label_keys("team, app.kubernetes.io/name").unwrap();
        assert_eq!(keys.iter().map(|key| &**key).collect::<Vec<_>>(), ["app.kubernetes.io/name", "team"]);
        for bad in ["", "a,", "a b", "/a", "a/", "a,a", "a.b,a-b", "a\nb", &"x".repeat(64)] {
            assert!(label_keys(bad).is_err(), "{bad}");
        }
        let many: Vec<String> = (0..=MAX_LABEL_KEYS).map(|number| format!("k{number}")).collect();
        assert!(label_keys(&many.join(",")).is_err());
    }

    proptest::proptest! {
        #[test]
        fn any_text_gives_a_value_or_an_error(text in ".{0,40}") {
            let _ = (time(&text), address(&text), Gpus::parse(&text), path(&text), socket_path(&text));
        }
    }
}
