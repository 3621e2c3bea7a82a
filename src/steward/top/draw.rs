//! Draws the state as one frame. It reads only the state.
//!
//! ```text
//!   node, age, marks            1 line
//!   host                        1 line
//!   GPUs                        overview only: headings and a line each; at most half of the screen, or the free lines
//!   rows of the view            headings and the rows that fit
//!   detail of the selected row  1 line
//!   keys, or the filter         1 line
//! ```

use crate::top::gpus;
use crate::top::look::Look;
use crate::top::show::{ABSENT, OLD_MARK, bytes, cores, duration, rate};
use crate::top::state::{State, View};
use crate::top::table::{Column, Flat, Order, Sort, flatten};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::Style;
use ratatui::text::{Line, Span, Text};
use ratatui::widgets::{Cell, Paragraph, Row, Table, Wrap};
use std::collections::BTreeSet;
use wire::api::ReadingJson;
use wire::api::Snapshot;

/// Columns and lines of the smallest screen. A smaller screen shows only a message.
const SMALLEST: (u16, u16) = (40, 8);

const HELP: &str = " 1 2 3 4   overview, GPUs, pods, processes        Tab  next view
 u g c m n sort by GPU use, GPU memory, CPU, memory, name; r reverses it
 /         filter by part of a name, command, owner, image, UUID; Esc clears
 up down   select a row: the line at the bottom says what it is and why a
           value is absent; PgUp PgDn Home End, j k
 space     pause; the ages keep growing
 Ctrl-L    redraw            q  quit        any key leaves this page

 –         could not be read; never zero. The line at the bottom says why
 *         read more than 10 s ago; the line at the bottom says when
 GPU       index; 2:0 is MIG instance 0 of GPU 2. PERIOD: of the cycles of LOAD
 GPU%      GPU: time with a kernel running. Pod, process: share of the SMs
 GPUMEM    device memory held by the processes of a pod, or by one process
 GPUCLAIM  device memory that the containers of a pod claim
 CPU       cores in use: 1.50 is one and a half cores
 MEM       working set of a pod, resident memory of a process
 MEMLIMIT  limit on the memory of the pod or of the container (cgroup)
 RX/s TX/s bytes received, sent in a second; READ/s WRITE/s: those of disks
 TASKS     processes and threads. OOM: kills for lack of memory. QOS: class
 v ^       rows are sorted by this column: largest first, smallest first
 no pod    processes of the host, and memory that no listed process explains
 SIMULATED the GPUs are simulated: gpu-steward agent --gpus simulated";

/// Draws one frame and returns how many rows of the view fit.
pub(crate) fn draw(frame: &mut Frame<'_>, state: &State, look: Look) -> usize {
    let area = frame.area();
    if area.width < SMALLEST.0 || area.height < SMALLEST.1 {
        let text = format!("this screen is too small: at least {} x {}", SMALLEST.0, SMALLEST.1);
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), area);
        return 1;
    }
    let rows_of_gpus = gpu_rows(state, area);
    let heights = [1, 1, u16::try_from(rows_of_gpus.len()).unwrap_or(u16::MAX)];
    let [title, host, gpus, body, detail, keys] = Layout::vertical([
        Constraint::Length(heights[0]),
        Constraint::Length(heights[1]),
        Constraint::Length(if rows_of_gpus.is_empty() { 0 } else { heights[2] + 1 }),
        Constraint::Min(2),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(area);
    frame.render_widget(title_line(state, look), title);
    if state.help {
        let rest = Rect { height: area.height.saturating_sub(2), y: area.y + 1, ..area };
        frame.render_widget(Paragraph::new(HELP), rest);
        frame.render_widget(Line::styled(" any key leaves this page", look.quiet()), keys);
        return usize::from(body.height);
    }
    let Some(snapshot) = &state.snapshot else {
        let text = state.failure.clone().unwrap_or_else(|| "asking the agent ...".to_owned());
        frame.render_widget(Paragraph::new(text).wrap(Wrap { trim: true }), body);
        return usize::from(body.height);
    };
    frame.render_widget(host_line(snapshot, area.width), host);
    if !rows_of_gpus.is_empty() {
        let columns = gpus::line_columns(area.width);
        frame.render_widget(table(&columns, &rows_of_gpus, None, Paint { look, width: area.width, state }), gpus);
    }
    let body = no_gpus(frame, snapshot, state, body);
    let visible = usize::from(body.height.saturating_sub(1)).max(1);
    let first = (state.selected + 1).saturating_sub(visible);
    let shown: Vec<Flat> = state.rows.iter().skip(first).take(visible).cloned().collect();
    let selected = state.selected.checked_sub(first);
    frame.render_widget(table(state.view.columns(), &shown, selected, Paint { look, width: area.width, state }), body);
    frame.render_widget(detail_line(state, look, area.width), detail);
    frame.render_widget(key_line(state, look), keys);
    visible
}

/// The height of a frame that shows everything.
pub(crate) fn whole_height(state: &State, width: u16) -> u16 {
    let gpu_rows = match (&state.snapshot, state.view) {
        (Some(snapshot), View::Overview) => all_gpus(snapshot, width).len() + 1,
        _ => 0,
    };
    let advice = 4;
    u16::try_from(state.rows.len() + gpu_rows + advice + 6).unwrap_or(u16::MAX).max(SMALLEST.1)
}

fn all_gpus(snapshot: &Snapshot, width: u16) -> Vec<Flat> {
    let order = Order { sort: Sort::Name, reverse: false, filter: String::new() };
    flatten(gpus::lines(snapshot, width), &order)
}

/// The lines of GPUs that fit into half of the screen or into the lines that the rows below leave free, whichever is
/// more. If some do not fit, the last line has their number.
fn gpu_rows(state: &State, area: Rect) -> Vec<Flat> {
    let (View::Overview, Some(snapshot), false) = (state.view, &state.snapshot, state.help) else { return Vec::new() };
    let mut rows = all_gpus(snapshot, area.width);
    let height = usize::from(area.height);
    let half = (height / 2).saturating_sub(2).max(1);
    // Title, host, detail and keys; the GPUs' headings; the rows' headings; and one line if there are no rows.
    let free = height.saturating_sub(4 + 1 + 1 + state.rows.len().max(1));
    let most = half.max(free);
    if rows.len() > most {
        let left_out = rows.len() - (most - 1);
        rows.truncate(most - 1);
        let mut more =
            Flat { id: String::new(), name: String::new(), cells: Default::default(), head: false, depth: 0 };
        // Two cells, so that the text also fits if the model column is narrow.
        more.cells.text(format!("+{left_out}")).text("more: key 2");
        rows.push(more);
    }
    rows
}

fn title_line(state: &State, look: Look) -> Line<'static> {
    let mut spans = vec![Span::raw("gpu-steward top")];
    let mut add = |text: String, style: Style| spans.extend([Span::raw("  "), Span::styled(text, style)]);
    let snapshot = state.snapshot.as_deref();
    if let Some(snapshot) = snapshot {
        add(snapshot.head().node.clone(), look.head());
    }
    if snapshot.is_some_and(Snapshot::simulated) {
        add(" SIMULATED GPUs ".to_owned(), look.warning());
    }
    if state.paused {
        add(" PAUSED ".to_owned(), look.warning());
    }
    if let Some(age) = state.age().filter(|_| state.stale()) {
        add(format!(" {} OLD ", duration(age)), look.warning());
    }
    if let Some(snapshot) = snapshot {
        let (gpus, pods) = (snapshot.gpus.gpus.len(), snapshot.pods.pods.len());
        add(format!("{gpus} GPUs, {pods} pods, {} processes", snapshot.processes.processes.len()), Style::new());
    }
    Line::from(spans)
}

/// The readings of the host that fit into one line, the most important first.
fn host_line(snapshot: &Snapshot, width: u16) -> Line<'static> {
    let node = &snapshot.node;
    let absent = || ABSENT.to_owned();
    let cpu = node.cpu_cores.value().map_or_else(absent, cores);
    let of = node.processors.value().map_or_else(absent, u64::to_string);
    let total = node.memory_total_bytes.value();
    let used = total.zip(node.memory_available_bytes.value()).map(|(total, free)| total.saturating_sub(*free));
    let size = |known: Option<u64>| known.map_or_else(absent, bytes);
    let load = node.load.value().map_or_else(absent, |load| format!("{:.2} {:.2} {:.2}", load[0], load[1], load[2]));
    let flow = |reading: &ReadingJson<f64>| reading.value().map_or_else(absent, rate);
    let parts = [
        format!("CPU {cpu} of {of}"),
        format!("  MEM {} of {}", size(used), size(total.copied())),
        format!("  net {}/s in {}/s out", flow(&node.net_rx_bytes_per_second), flow(&node.net_tx_bytes_per_second)),
        format!("  load {load}"),
        format!(
            "  disk {}/s in {}/s out",
            flow(&node.disk_read_bytes_per_second),
            flow(&node.disk_write_bytes_per_second)
        ),
    ];
    let mut line = Line::default();
    for part in parts {
        if line.width() + Span::raw(part.as_str()).width() <= usize::from(width) {
            line.push_span(part);
        }
    }
    line
}

/// If there are no GPUs, shows the reason and the advice. Returns the area that is left.
fn no_gpus(frame: &mut Frame<'_>, snapshot: &Snapshot, state: &State, body: Rect) -> Rect {
    let source = &snapshot.node.gpu_source;
    let some = !snapshot.gpus.gpus.is_empty() || !snapshot.gpus.gpus_unidentified.is_empty();
    if some || !matches!(state.view, View::Overview | View::Gpus) {
        return body;
    }
    let text = match (&source.reason, &source.advice, source.state.as_str()) {
        (Some(reason), Some(advice), _) => format!("No GPUs: {reason}. {advice}"),
        (_, _, "switched_off") => "No GPUs: switched off (--gpus none)".to_owned(),
        (_, _, "starting") => "No GPUs yet: the driver has not been asked".to_owned(),
        (_, _, "released") => "No GPU readings: the driver is released at an operator's request".to_owned(),
        (_, _, "hanging") => "No GPUs: every call to the driver hangs".to_owned(),
        _ => "No GPUs on this machine".to_owned(),
    };
    let words = Paragraph::new(text).wrap(Wrap { trim: true });
    let [above, below] = Layout::vertical([Constraint::Length(3), Constraint::Min(2)]).areas(body);
    frame.render_widget(words, above);
    below
}

/// The inputs of a table in addition to its rows.
#[derive(Clone, Copy)]
struct Paint<'a> {
    look: Look,
    width: u16,
    state: &'a State,
}

fn table<'a>(columns: &[Column], rows: &'a [Flat], selected: Option<usize>, paint: Paint<'_>) -> Table<'a> {
    let shown: Vec<usize> = (0..columns.len()).filter(|n| columns[*n].from <= paint.width).collect();
    let widths = shown.iter().map(|n| match columns[*n].width {
        0 => Constraint::Fill(1),
        width => Constraint::Length(width),
    });
    let aligned = |n: usize, text: String| {
        let line = Line::from(text);
        Cell::from(Text::from(if columns[n].right { line.right_aligned() } else { line }))
    };
    let headings = shown.iter().map(|n| aligned(*n, heading(&columns[*n], paint.state)));
    let lines = rows.iter().enumerate().map(|(place, row)| {
        let cells = shown.iter().map(|n| {
            let text = row.cells.texts.get(*n).cloned().unwrap_or_default();
            let style = if columns[*n].title == "HEALTH" { paint.look.health(&text) } else { Style::new() };
            let indent = if columns[*n].width == 0 {
                "  ".repeat(if row.head { 0 } else { row.depth.min(1) })
            } else {
                String::new()
            };
            let text = if paint.state.view == View::Pods { format!("{indent}{text}") } else { text };
            aligned(*n, text).style(style)
        });
        let line = Row::new(cells.collect::<Vec<_>>());
        match (selected == Some(place), row.head && row.depth == 0) {
            (true, _) => line.style(paint.look.selected()),
            (false, true) if columns[0].title != "GPU" => line.style(paint.look.head()),
            _ => line,
        }
    });
    let lines: Vec<Row<'a>> = lines.collect();
    Table::new(lines, widths).column_spacing(1).header(Row::new(headings).style(paint.look.heading()))
}

/// The title of a column, with a sign if the rows are sorted by it.
fn heading(column: &Column, state: &State) -> String {
    let sorted = match state.order.sort {
        Sort::Gpu => column.title == "GPU%",
        Sort::GpuMemory => column.title == "GPUMEM",
        Sort::Cpu => column.title == "CPU",
        Sort::Memory => column.title == "MEM",
        Sort::Name => matches!(column.title, "POD" | "GPU, POD, PROCESS"),
    };
    let simulated = state.snapshot.as_ref().is_some_and(|snapshot| snapshot.simulated());
    match column.title {
        "MODEL" if simulated => "SIMULATED GPU".to_owned(),
        title if sorted => format!("{title}{}", if state.order.reverse { '^' } else { 'v' }),
        title => title.to_owned(),
    }
}

/// The detail line: the failure if the agent does not answer, otherwise the name of the selected row and its notes.
fn detail_line(state: &State, look: Look, width: u16) -> Line<'static> {
    if let Some(failure) = &state.failure {
        return Line::styled(format!(" {failure} "), look.warning());
    }
    let Some(row) = state.selection() else {
        let filter = &state.order.filter;
        let nothing =
            if filter.is_empty() { "nothing to show".to_owned() } else { format!("nothing matches {filter:?}") };
        return Line::styled(nothing, look.quiet());
    };
    // Columns that are not shown have no notes.
    let columns = state.view.columns();
    let shown = |column: usize| columns.get(column).is_none_or(|column| column.from <= width);
    let notes = row.cells.notes.iter().filter(|(column, _)| shown(*column)).map(|(_, words)| words.as_str());
    let notes = notes.collect::<Vec<_>>().join("; ");
    Line::from(if notes.is_empty() { row.name.clone() } else { format!("{}: {notes}", row.name) })
}

fn key_line(state: &State, look: Look) -> Line<'static> {
    let filter = &state.order.filter;
    if state.typing {
        return Line::from(format!("filter: {filter}_   Enter keeps it, Esc clears it"));
    }
    let place = if state.rows.is_empty() { 0 } else { state.selected + 1 };
    let found = if filter.is_empty() { String::new() } else { format!("  filter {filter:?}") };
    let text = format!("{} {place}/{}{found}", state.view.title(), state.rows.len());
    Line::styled(format!("{text}  Tab view  / filter  ugcmn sort  space pause  ? help  q quit"), look.quiet())
}

/// The text below the rows of a plain frame: the notes of every row, because no row can be selected in it.
pub(crate) fn notes(state: &State, width: u16) -> Vec<String> {
    let snapshot = state.snapshot.as_deref().filter(|_| state.view == View::Overview);
    let gpu_rows = snapshot.map(|snapshot| (gpus::line_columns(width).to_vec(), all_gpus(snapshot, width)));
    let rows = (state.view.columns().to_vec(), state.rows.clone());
    let mut unique = BTreeSet::new();
    for (columns, rows) in gpu_rows.into_iter().chain([rows]) {
        let notes = rows.iter().flat_map(|row| &row.cells.notes);
        let shown = notes.filter(|(column, _)| columns.get(*column).is_some_and(|column| column.from <= width));
        unique.extend(shown.map(|(_, words)| words.clone()));
    }
    let mark = |words: &String| if words.contains(" was read ") { OLD_MARK.to_string() } else { ABSENT.to_owned() };
    unique.iter().map(|words| format!("{} {words}", mark(words))).collect()
}
