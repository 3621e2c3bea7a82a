//! Which way containers get their devices on this node: as it was told, or by what runs here and what came of it.

use decide::share::{Binding, choose};
use model::id::NodeName;
use sources::kubernetes::Connection;
use sources::kubernetes::versions;
use std::path::{Path, PathBuf};
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use wire::versions::Versions;

/// kubelet waits in `Allocate` meanwhile: after this long what was found at the last start is taken.
const AT_ONCE: Duration = Duration::from_secs(3);
/// Between two later questions.
const AGAIN: Duration = Duration::from_secs(10);
/// In the state directory: what was found last, and on which runtime.
const FILE: &str = "binding";
/// In that file, of a runtime that has CDI by its version and did not do as it was told.
const DISPROVED: &str = "disproved";

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Way {
    /// Which.
    pub binding: Binding,
    /// Whether what comes of it may change it.
    pub auto: bool,
    runtime: String,
}

/// Finds it out.
#[derive(Debug)]
pub(crate) struct Finder {
    setting: Option<Binding>,
    connection: Connection,
    node: NodeName,
    file: PathBuf,
}

impl Finder {
    pub(crate) fn new(setting: Option<Binding>, connection: Connection, node: NodeName, state: &Path) -> Finder {
        Finder { setting, connection, node, file: state.join(FILE) }
    }

    /// Says it as soon as it is known, and once more if a guess was wrong.
    pub(crate) async fn run(self, say: watch::Sender<Option<Way>>) {
        if let Some(binding) = self.setting {
            tracing::info!(?binding, "containers get their devices as --binding says");
            say.send_replace(Some(Way { binding, auto: false, runtime: String::new() }));
            return;
        }
        let ask = || versions::of_own_node(&self.connection, &self.node);
        let mut answer = timeout(AT_ONCE, ask()).await.unwrap_or_else(|_| Err("no answer at once".into()));
        if let Err(why) = &answer {
            let (binding, runtime) = match self.remembered() {
                Some((word, runtime)) if word == DISPROVED || word == "early" => (Binding::Early, runtime),
                Some((_, runtime)) => (Binding::Late, runtime),
                None => (Binding::Late, String::new()),
            };
            tracing::warn!(why, ?binding, "it is not known which runtime runs here: what was found last is taken");
            say.send_replace(Some(Way { binding, auto: true, runtime }));
        }
        loop {
            match answer {
                Ok(versions) => {
                    say.send_replace(Some(self.by(versions)));
                    return;
                }
                Err(_) => sleep(AGAIN).await,
            }
            answer = ask().await;
        }
    }

    fn by(&self, Versions { kubelet, runtime }: Versions) -> Way {
        let disproved = self.remembered().is_some_and(|(word, seen)| word == DISPROVED && seen == runtime);
        let mut choice = choose(&kubelet, &runtime);
        if disproved && choice.binding == Binding::Late {
            choice.binding = Binding::Early;
            choice.why = format!(
                "{runtime} did not make the edits of a CDI device when that was last tried; --binding=late tries it again"
            );
        } else {
            let word = if choice.binding == Binding::Late { "late" } else { "early" };
            remember(&self.file, word, &runtime);
        }
        tracing::info!(binding = ?choice.binding, why = choice.why, "how containers get their devices");
        Way { binding: choice.binding, auto: true, runtime }
    }

    fn remembered(&self) -> Option<(String, String)> {
        let text = std::fs::read_to_string(&self.file).ok().filter(|text| text.len() < 1024)?;
        let (word, runtime) = text.trim_end().split_once(' ')?;
        Some((word.into(), runtime.into()))
    }
}

impl Way {
    /// The runtime has CDI by its version and does not do as it is told: everything that comes is given early.
    pub(super) fn disproved(&self, state: &Path) -> Way {
        remember(&state.join(FILE), DISPROVED, &self.runtime);
        Way { binding: Binding::Early, ..self.clone() }
    }
}

fn remember(file: &Path, word: &str, runtime: &str) {
    if let Err(error) = std::fs::write(file, format!("{word} {runtime}\n")) {
        tracing::warn!(file = %file.display(), %error, "cannot keep this for the next start");
    }
}
