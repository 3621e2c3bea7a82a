//! The state of `top`: the data to show and the user's choices. It is pure: the same inputs at the same times give the
//! same state.
//!
//! ```text
//!   Snapshot | Failed | Key | Tick ──apply──▶ State ──▶ draw
//! ```

use crate::top::key::Key;
use crate::top::table::{Column, Flat, Order, Row, Sort, flatten};
use crate::top::{gpus, pods, processes};
use std::sync::Arc;
use std::time::Duration;
use wire::api::Snapshot;

/// Maximum size of a filter in bytes.
const MAX_FILTER: usize = 64;

/// An input of the state.
#[derive(Clone, Debug)]
pub(crate) enum Input {
    /// The agent answered.
    Snapshot(Arc<Snapshot>),
    /// The agent did not answer, for this reason.
    Failed(String),
    /// The user pressed a key.
    Key(Key),
    /// Time passed.
    Tick,
}

/// The view in the lower part of the screen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum View {
    /// One line for each GPU, and the pods.
    Overview,
    /// GPUs with the pods and processes on them.
    Gpus,
    /// Pods with their containers.
    Pods,
    /// Processes.
    Processes,
}

impl View {
    /// All views in the order of their keys `1` to `4`.
    pub(crate) const ALL: [View; 4] = [View::Overview, View::Gpus, View::Pods, View::Processes];

    /// The name on the screen.
    pub(crate) fn title(self) -> &'static str {
        match self {
            View::Overview => "overview",
            View::Gpus => "GPUs",
            View::Pods => "pods",
            View::Processes => "processes",
        }
    }

    /// The columns of the view.
    pub(crate) fn columns(self) -> &'static [Column] {
        match self {
            View::Overview | View::Pods => &pods::COLUMNS,
            View::Gpus => &gpus::TREE_COLUMNS,
            View::Processes => &processes::COLUMNS,
        }
    }

    fn rows(self, snapshot: &Snapshot) -> Vec<Row> {
        match self {
            View::Overview => pods::rows(snapshot, false),
            View::Gpus => gpus::tree(snapshot),
            View::Pods => pods::rows(snapshot, true),
            View::Processes => processes::rows(snapshot),
        }
    }

    fn neighbour(self, step: usize) -> View {
        let place = View::ALL.iter().position(|view| *view == self).unwrap_or(0);
        View::ALL[(place + step) % View::ALL.len()]
    }
}

/// The state from which everything is drawn.
#[derive(Clone, Debug)]
pub(crate) struct State {
    /// The last answer.
    pub(crate) snapshot: Option<Arc<Snapshot>>,
    /// The time of the last answer.
    received: Duration,
    /// The current time on the same clock.
    now: Duration,
    /// The reason why the last request had no answer.
    pub(crate) failure: Option<String>,
    pub(crate) view: View,
    pub(crate) order: Order,
    /// The user is typing a filter.
    pub(crate) typing: bool,
    pub(crate) help: bool,
    pub(crate) paused: bool,
    /// The rows in order.
    pub(crate) rows: Vec<Flat>,
    /// Index of the selected row, which the line at the bottom describes.
    pub(crate) selected: usize,
    /// Time between two fetches.
    pub(crate) interval: Duration,
    /// The user has quit.
    pub(crate) done: bool,
    /// The whole screen must be redrawn, because other programs may have written to it.
    pub(crate) redraw: bool,
    /// Number of rows on the screen, for the page keys.
    page: usize,
}

// === impl State ===

impl State {
    /// The state before the first answer.
    pub(crate) fn new(interval: Duration) -> State {
        State {
            snapshot: None,
            received: Duration::ZERO,
            now: Duration::ZERO,
            failure: None,
            view: View::Overview,
            order: Order { sort: Sort::Gpu, reverse: false, filter: String::new() },
            typing: false,
            help: false,
            paused: false,
            rows: Vec::new(),
            selected: 0,
            interval,
            done: false,
            redraw: false,
            page: 10,
        }
    }

    /// Applies one input. `now` is the time since the start, on a monotonic clock.
    pub(crate) fn apply(&mut self, input: Input, now: Duration) {
        self.now = now;
        match input {
            Input::Tick => {}
            Input::Failed(why) => self.failure = Some(why),
            Input::Snapshot(_) if self.paused => self.failure = None,
            Input::Snapshot(snapshot) => {
                self.failure = None;
                self.received = now;
                self.snapshot = Some(snapshot);
                self.refresh();
            }
            Input::Key(key) => self.key(key),
        }
    }

    /// Sets the number of rows that fit on the screen.
    pub(crate) fn page(&mut self, rows: usize) {
        self.page = rows.max(1);
    }

    /// The age of the shown view in seconds: its age at the answer, plus the time since.
    pub(crate) fn age(&self) -> Option<f64> {
        let answered = self.snapshot.as_ref()?.head().age_seconds;
        Some(answered + self.now.saturating_sub(self.received).as_secs_f64())
    }

    /// Whether the shown view is older than two intervals plus two seconds.
    pub(crate) fn stale(&self) -> bool {
        self.age().is_some_and(|age| age > 2.0 * self.interval.as_secs_f64() + 2.0)
    }

    /// The selected row.
    pub(crate) fn selection(&self) -> Option<&Flat> {
        self.rows.get(self.selected)
    }

    fn key(&mut self, key: Key) {
        match key {
            Key::Interrupt => self.done = true,
            Key::Redraw => self.redraw = true,
            _ if self.typing => self.type_filter(key),
            // On the help page, any key only leaves the page.
            _ if self.help => self.help = false,
            _ => self.command(key),
        }
    }

    fn type_filter(&mut self, key: Key) {
        match key {
            Key::Enter => self.typing = false,
            Key::Escape => {
                self.typing = false;
                self.order.filter.clear();
            }
            Key::Backspace => drop(self.order.filter.pop()),
            Key::Character(c) if self.order.filter.len() < MAX_FILTER && !c.is_control() => {
                self.order.filter.extend(c.to_lowercase());
            }
            _ => {}
        }
        self.refresh();
    }

    fn command(&mut self, key: Key) {
        let last = self.rows.len().saturating_sub(1);
        match key {
            Key::Character('q') => self.done = true,
            Key::Character('?' | 'h') => self.help = true,
            Key::Character('/') => self.typing = true,
            Key::Character(' ') => self.paused = !self.paused,
            Key::Character('r') => {
                self.order.reverse = !self.order.reverse;
                self.refresh();
            }
            Key::Character(c @ '1'..='4') => self.show(View::ALL[(c as usize - '1' as usize) % View::ALL.len()]),
            Key::Character(c) => self.sort(c),
            Key::Escape => {
                self.order.filter.clear();
                self.refresh();
            }
            Key::Next => self.show(self.view.neighbour(1)),
            Key::Previous => self.show(self.view.neighbour(View::ALL.len() - 1)),
            Key::Up => self.selected = self.selected.saturating_sub(1),
            Key::Down => self.selected = (self.selected + 1).min(last),
            Key::PageUp => self.selected = self.selected.saturating_sub(self.page),
            Key::PageDown => self.selected = (self.selected + self.page).min(last),
            Key::Home => self.selected = 0,
            Key::End => self.selected = last,
            Key::Enter | Key::Backspace | Key::Interrupt | Key::Redraw => {}
        }
    }

    fn sort(&mut self, key: char) {
        self.order.sort = match key {
            'u' => Sort::Gpu,
            'g' => Sort::GpuMemory,
            'c' => Sort::Cpu,
            'm' => Sort::Memory,
            'n' => Sort::Name,
            // The keys of vi.
            'j' => return self.command(Key::Down),
            'k' => return self.command(Key::Up),
            _ => return,
        };
        self.refresh();
    }

    fn show(&mut self, view: View) {
        self.view = view;
        self.selected = 0;
        self.rows.clear();
        self.refresh();
    }

    /// Rebuilds the rows. The selection stays with its row while that row exists.
    fn refresh(&mut self) {
        let Some(snapshot) = &self.snapshot else { return };
        let chosen = self.selection().map(|row| row.id.clone());
        self.rows = flatten(self.view.rows(snapshot), &self.order);
        let found = if self.selected == 0 { None } else { chosen };
        let place = found.and_then(|id| self.rows.iter().position(|row| row.id == id));
        self.selected = place.unwrap_or(self.selected).min(self.rows.len().saturating_sub(1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::stage;
    use proptest::prelude::*;

    fn pressed(keys: &str) -> State {
        let mut state = stage::state();
        for key in keys.chars() {
            let key = match key {
                '\n' => Key::Enter,
                '\t' => Key::Next,
                'v' => Key::Down,
                c => Key::Character(c),
            };
            state.apply(Input::Key(key), Duration::ZERO);
        }
        state
    }

    fn names(state: &State) -> Vec<&str> {
        state.rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn sort_keys_put_the_largest_first_and_r_reverses_the_order() {
        let by_memory = pressed("m");
        let mut reversed = names(&by_memory);
        reversed.reverse();
        assert_eq!(names(&pressed("mr")), reversed);
        assert_eq!(names(&by_memory)[0], "vision/resnet-7f9c");
        assert_eq!(names(&pressed("c"))[0], "nlp/train-0");
    }

    #[test]
    fn enter_keeps_a_filter_and_escape_clears_it() {
        assert_eq!(names(&pressed("/TRAIN\n")), ["nlp/train-0"]);
        let mut state = pressed("/nothing");
        assert!(state.rows.is_empty() && state.typing);
        state.apply(Input::Key(Key::Escape), Duration::ZERO);
        assert!(!state.rows.is_empty() && !state.typing);
    }

    #[test]
    fn while_a_filter_is_typed_keys_are_letters() {
        let state = pressed("/q1?");
        assert_eq!((state.order.filter.as_str(), state.done, state.help), ("q1?", false, false));
    }

    #[test]
    fn a_pause_keeps_the_snapshot_and_its_age_grows() {
        let mut state = pressed(" ");
        let shown = state.snapshot.clone();
        let mut other = stage::snapshot();
        other.node.view.sequence += 1;
        state.apply(Input::Snapshot(Arc::new(other)), Duration::from_secs(60));
        assert_eq!(state.snapshot.map(|it| it.node.view.sequence), shown.map(|it| it.node.view.sequence));
        state.snapshot = Some(Arc::new(stage::snapshot()));
        assert!(state.stale());
    }

    #[test]
    fn the_selection_stays_with_its_row() {
        let mut state = pressed("nv");
        let chosen = state.selection().map(|row| row.id.clone());
        state.apply(Input::Key(Key::Character('r')), Duration::ZERO);
        assert_eq!(state.selection().map(|row| row.id.clone()), chosen);
    }

    #[test]
    fn a_failure_keeps_the_last_snapshot() {
        let mut state = stage::state();
        state.apply(Input::Failed("no agent".into()), Duration::from_secs(9));
        assert!(state.snapshot.is_some() && state.stale());
        assert_eq!(state.failure.as_deref(), Some("no agent"));
    }

    proptest! {
        #[test]
        fn no_sequence_of_keys_loses_the_selection(keys in prop::collection::vec(any::<char>(), 0..60), steps in 0_usize..40) {
            let mut state = stage::state();
            for key in keys {
                state.apply(Input::Key(Key::Character(key)), Duration::ZERO);
            }
            for _ in 0..steps {
                state.apply(Input::Key(Key::Next), Duration::ZERO);
                state.apply(Input::Key(Key::PageDown), Duration::ZERO);
            }
            prop_assert!(state.rows.is_empty() || state.selected < state.rows.len());
        }
    }
}
