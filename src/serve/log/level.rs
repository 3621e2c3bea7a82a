//! The level of the log: the number of `-v`, which can change while the program runs, and levels for single targets:
//! `5,h2=debug`. Levels for single targets hold until the program ends or the level changes.

use crate::admin::LogLevel;
use parking_lot::Mutex;
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::registry::Registry;
use tracing_subscriber::reload;

/// The number of `-v`. docs/operations.md has a table of what each number shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Verbosity(pub u8);

impl Verbosity {
    /// The levels of `-v` that change what is logged.
    pub const STEPS: [u8; 4] = [0, 2, 4, 5];

    /// Reads 0, 2, 4 or 5. The numbers 1 and 3 mean the next lower number, as users of klog expect. A number above 5 is
    /// refused, because it would add nothing.
    ///
    /// # Errors
    /// The numbers that are expected, as a sentence.
    pub fn parse(text: &str) -> Result<Verbosity, String> {
        match text.parse::<u8>() {
            Ok(number) if number <= 5 => {
                let step = Verbosity::STEPS.into_iter().rev().find(|step| *step <= number).unwrap_or(0);
                Ok(Verbosity(step))
            }
            _ => Err("expected 0, 2, 4 or 5, which is the most detailed".into()),
        }
    }

    /// The next more detailed step.
    pub fn more(self) -> Verbosity {
        Verbosity(Self::STEPS.into_iter().find(|step| *step > self.0).unwrap_or(5))
    }

    /// The next less detailed step.
    pub fn less(self) -> Verbosity {
        Verbosity(Self::STEPS.into_iter().rev().find(|step| *step < self.0).unwrap_or(0))
    }
}

/// Decides whether an event is logged at all.
pub type Filter = Targets;

/// The crates of this program. All others are libraries.
const OURS: [&str; 17] = [
    "gpu_steward",
    "model",
    "clock",
    "wire",
    "decide",
    "profiles",
    "timeseries",
    "profile",
    "pprof",
    "serve",
    "stream",
    "apiserver",
    "sources",
    "effects",
    "agent",
    "extender",
    "doctor",
];

/// Libraries that log a line for each frame, poll or wake-up. At `-v 5` they would hide all other lines.
const CHATTY: [&str; 9] = ["h2", "hyper", "hyper_util", "mio", "rustls", "tokio_util", "tonic", "tower", "want"];

/// The target of the extender's lines that follow one pod through all its calls. Only `-v 5` shows them.
pub const POD_STEPS: &str = "pod_steps";

/// The filter of each number: 0 logs key events, warnings and errors; 2 what the agent does about them; 4 each step; 5 each step of
/// each pod ([`POD_STEPS`]), and the libraries too, except the libraries in `CHATTY`. Below 5 libraries log warnings and errors only,
/// because their info lines are not for operators. The API client (`kube_client`) logs nothing below 5: it would log failed requests
/// as errors, which its caller handles, counts and logs itself.
pub fn filter(verbosity: Verbosity) -> Filter {
    let (ours, libraries) = match verbosity.0 {
        0 | 1 => (LevelFilter::INFO, LevelFilter::WARN),
        2 | 3 => (LevelFilter::DEBUG, LevelFilter::WARN),
        4 => (LevelFilter::TRACE, LevelFilter::WARN),
        _ => (LevelFilter::TRACE, LevelFilter::DEBUG),
    };
    let client = if libraries == LevelFilter::DEBUG { libraries } else { LevelFilter::OFF };
    let targets = Targets::new().with_default(libraries).with_target("kube_client", client);
    let chatty = CHATTY.map(|target| (target, libraries.min(LevelFilter::INFO)));
    let steps = if verbosity.0 >= 5 { LevelFilter::TRACE } else { LevelFilter::OFF };
    targets.with_targets(chatty).with_targets(OURS.map(|target| (target, ours))).with_target(POD_STEPS, steps)
}

/// The current level.
#[derive(Clone, Debug, PartialEq, Eq)]
struct LevelSetting {
    verbosity: Verbosity,
    /// The levels of single targets, in addition to the number.
    targets: Vec<(String, LevelFilter)>,
}

impl LevelSetting {
    fn filter(&self) -> Filter {
        filter(self.verbosity).with_targets(self.targets.iter().map(|(target, level)| (target.as_str(), *level)))
    }
}

impl std::fmt::Display for LevelSetting {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.verbosity.0)?;
        self.targets.iter().try_for_each(|(target, level)| write!(f, ",{target}={level}"))
    }
}

/// Parses `4` or `5,h2=debug`. The admin port limits the length.
fn parse(text: &str) -> Result<LevelSetting, String> {
    let mut words = text.trim().split(',');
    let verbosity = Verbosity::parse(words.next().unwrap_or_default().trim())?;
    let target = |word: &str| {
        let (target, level) = word.trim().split_once('=')?;
        let name =
            !target.is_empty() && target.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_:".contains(&byte));
        Some((target.to_owned(), level.parse().ok().filter(|_| name)?))
    };
    let why = |word: &str| {
        format!(
            "{word:?} is not TARGET=LEVEL, such as h2=debug; the levels are off, error, warn, info, debug and trace"
        )
    };
    let targets: Result<Vec<_>, String> = words.map(|word| target(word).ok_or_else(|| why(word))).collect();
    Ok(LevelSetting { verbosity, targets: targets? })
}

/// The current level, and the handle to change it.
#[derive(Debug)]
pub struct Level {
    handle: reload::Handle<Filter, Registry>,
    now: Mutex<LevelSetting>,
}

impl Level {
    /// The level at the start of the log.
    pub fn new(handle: reload::Handle<Filter, Registry>, now: Verbosity) -> Self {
        Level { handle, now: Mutex::new(LevelSetting { verbosity: now, targets: Vec::new() }) }
    }

    /// Replaces the current number by `next(number)`, and removes the levels of single targets. `by` names the cause in
    /// the log.
    pub fn change(&self, by: &str, next: impl FnOnce(Verbosity) -> Verbosity) {
        self.apply(by, |now| LevelSetting { verbosity: next(now.verbosity), targets: Vec::new() });
    }

    fn apply(&self, by: &str, next: impl FnOnce(&LevelSetting) -> LevelSetting) {
        let mut now = self.now.lock();
        let (old, new) = (now.clone(), next(&now));
        if old != new && self.handle.reload(new.filter()).is_ok() {
            *now = new.clone();
            drop(now);
            tracing::info!(%old, %new, by, "log level changed");
        }
    }
}

impl LogLevel for Level {
    fn show(&self) -> String {
        self.now.lock().to_string()
    }

    fn set(&self, text: &str) -> Result<(), String> {
        let next = parse(text)?;
        self.apply("PUT /loglevel", |_| next);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::Level as Severity;

    /// A crate that is missing in `OURS` would be filtered like a library: its info lines would not be logged.
    #[test]
    fn every_crate_of_the_program_is_ours() {
        let manifest = include_str!("../../../Cargo.toml");
        let members = manifest.lines().filter_map(|line| line.trim().strip_prefix("\"src/")?.strip_suffix("\","));
        // The program's own crate has the name of its binary.
        let mut expected: Vec<&str> =
            members.map(|name| if name == "steward" { "gpu_steward" } else { name }).collect();
        let mut ours = OURS.to_vec();
        expected.sort_unstable();
        ours.sort_unstable();
        assert_eq!(ours, expected);
    }

    #[test]
    fn at_five_libraries_log_except_those_that_log_each_frame() {
        let five = filter(Verbosity(5));
        for ours in OURS {
            assert!(five.would_enable(ours, &Severity::TRACE), "{ours}");
        }
        assert!(
            five.would_enable("kube_client::client", &Severity::DEBUG) && five.would_enable("axum", &Severity::DEBUG)
        );
        for chatty in ["h2::codec::framed_read", "hyper::proto::h1", "hyper_util::client", "tower::buffer", "rustls"] {
            assert!(!five.would_enable(chatty, &Severity::DEBUG), "{chatty}");
            assert!(five.would_enable(chatty, &Severity::WARN), "{chatty}");
            assert!(!filter(Verbosity(4)).would_enable(chatty, &Severity::INFO), "{chatty}");
        }
    }

    #[test]
    fn only_five_follows_each_pod_and_a_single_target_can_too() {
        for verbosity in Verbosity::STEPS {
            for severity in [Severity::TRACE, Severity::INFO] {
                assert_eq!(filter(Verbosity(verbosity)).would_enable(POD_STEPS, &severity), verbosity == 5);
            }
        }
        let single = parse(&format!("2,{POD_STEPS}=trace")).unwrap().filter();
        assert!(single.would_enable(POD_STEPS, &Severity::TRACE) && !single.would_enable("extender", &Severity::TRACE));
    }

    #[test]
    fn a_single_target_can_have_its_own_level() {
        let parsed = parse(" 5, h2=debug ,sources::names=warn").unwrap();
        assert_eq!(parsed.to_string(), "5,h2=debug,sources::names=warn");
        let filter = parsed.filter();
        assert!(filter.would_enable("h2::codec", &Severity::DEBUG) && !filter.would_enable("hyper", &Severity::DEBUG));
        assert!(!filter.would_enable("sources::names::cri", &Severity::INFO));
        assert!(filter.would_enable("sources::sampler", &Severity::TRACE));
        for bad in ["", "9", "h2=debug", "5,", "5,h2", "5,=debug", "5,h2=loud", "5,h2 h3=debug"] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn detail_goes_up_and_down_in_steps() {
        for (now, more, less) in [(0, 2, 0), (2, 4, 0), (4, 5, 2), (5, 5, 4)] {
            assert_eq!((Verbosity(now).more(), Verbosity(now).less()), (Verbosity(more), Verbosity(less)));
        }
        assert_eq!(Verbosity::parse("3"), Ok(Verbosity(2)));
        for bad in ["-1", "6", "9", "10", "debug", ""] {
            assert!(Verbosity::parse(bad).is_err_and(|why| why.contains("0, 2, 4 or 5")), "{bad}");
        }
    }

    proptest::proptest! {
        #[test]
        fn any_text_is_refused_or_parsed_to_the_same_level(text in "\\PC{0,60}|[0-9],([a-z0-9:]{0,8}=[a-z]{0,6},?){0,4}") {
            if let Ok(parsed) = parse(&text) {
                proptest::prop_assert_eq!(parse(&parsed.to_string()).unwrap(), parsed);
            }
        }
    }
}
