//! Rows of a view as a tree: sorted among their siblings, filtered with their children, flattened for the screen.

use crate::top::show::Cells;
use std::cmp::Ordering;

/// The sort key of the rows: the largest first, names from a to z.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sort {
    /// Use of GPUs.
    Gpu,
    /// Memory of GPUs.
    GpuMemory,
    /// Processor.
    Cpu,
    /// Memory.
    Memory,
    /// Name.
    Name,
}

/// A column. It is shown on screens with at least `from` columns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// Width in characters; 0 takes the space that is left.
    pub(crate) width: u16,
    pub(crate) from: u16,
    pub(crate) right: bool,
}

/// A column that takes the space that is left.
pub(crate) const fn fill(title: &'static str) -> Column {
    Column { title, width: 0, from: 0, right: false }
}

/// A column of text, aligned left.
pub(crate) const fn left(title: &'static str, width: u16, from: u16) -> Column {
    Column { title, width, from, right: false }
}

/// A column of numbers, aligned right.
pub(crate) const fn right(title: &'static str, width: u16, from: u16) -> Column {
    Column { title, width, from, right: true }
}

/// The values by which a row is sorted; absent values sort last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Amounts {
    pub(crate) gpu: Option<f64>,
    pub(crate) gpu_memory: Option<f64>,
    pub(crate) cpu: Option<f64>,
    pub(crate) memory: Option<f64>,
}

/// One row with its children.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// The id is the same in every snapshot, so that the selection stays with its row.
    pub(crate) id: String,
    /// The whole name, for the line at the bottom and for the filter.
    pub(crate) name: String,
    /// More words for the filter.
    pub(crate) words: String,
    pub(crate) cells: Cells,
    pub(crate) amounts: Amounts,
    /// The top row of a group, such as a GPU: it keeps its place among its siblings and is highlighted.
    pub(crate) head: bool,
    pub(crate) children: Vec<Row>,
}

/// A row of the screen.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Flat {
    pub(crate) id: String,
    pub(crate) name: String,
    pub(crate) cells: Cells,
    pub(crate) head: bool,
    pub(crate) depth: usize,
}

/// Sort order and filter of the rows.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Order {
    pub(crate) sort: Sort,
    pub(crate) reverse: bool,
    /// Filter text in lower case; empty keeps all rows.
    pub(crate) filter: String,
}

/// The rows of the screen.
pub(crate) fn flatten(mut rows: Vec<Row>, order: &Order) -> Vec<Flat> {
    if !order.filter.is_empty() {
        rows.retain_mut(|row| keep(row, &order.filter));
    }
    let mut flat = Vec::new();
    lay(rows, order, 0, &mut flat);
    flat
}

/// Whether a row stays. A row that matches keeps all its children; a row that does not match stays if one of its
/// children matches.
fn keep(row: &mut Row, filter: &str) -> bool {
    if row.name.to_lowercase().contains(filter) || row.words.to_lowercase().contains(filter) {
        return true;
    }
    row.children.retain_mut(|child| keep(child, filter));
    !row.children.is_empty()
}

fn lay(mut rows: Vec<Row>, order: &Order, depth: usize, flat: &mut Vec<Flat>) {
    rows.sort_by(|a, b| compare(a, b, order));
    for row in rows {
        flat.push(Flat { id: row.id, name: row.name, cells: row.cells, head: row.head, depth });
        lay(row.children, order, depth + 1, flat);
    }
}

fn compare(a: &Row, b: &Row, order: &Order) -> Ordering {
    if a.head && b.head {
        return Ordering::Equal;
    }
    let amount = |row: &Row| match order.sort {
        Sort::Gpu => row.amounts.gpu,
        Sort::GpuMemory => row.amounts.gpu_memory,
        Sort::Cpu => row.amounts.cpu,
        Sort::Memory => row.amounts.memory,
        Sort::Name => None,
    };
    let largest_first = match (amount(a), amount(b)) {
        (Some(a), Some(b)) => b.total_cmp(&a),
        (a, b) => b.is_some().cmp(&a.is_some()),
    };
    let cpu = b.amounts.cpu.unwrap_or(0.0).total_cmp(&a.amounts.cpu.unwrap_or(0.0));
    let tie = if order.sort == Sort::Name { Ordering::Equal } else { cpu };
    let natural = largest_first.then(tie).then_with(|| a.name.cmp(&b.name)).then_with(|| a.id.cmp(&b.id));
    if order.reverse { natural.reverse() } else { natural }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, cpu: Option<f64>, children: Vec<Row>) -> Row {
        let amounts = Amounts { cpu, ..Amounts::default() };
        Row { id: name.into(), name: name.into(), amounts, children, ..Row::default() }
    }

    fn names(order: &Order, rows: Vec<Row>) -> Vec<String> {
        flatten(rows, order).into_iter().map(|flat| format!("{}{}", "-".repeat(flat.depth), flat.name)).collect()
    }

    fn order(sort: Sort, reverse: bool, filter: &str) -> Order {
        Order { sort, reverse, filter: filter.to_owned() }
    }

    #[test]
    fn the_largest_comes_first_and_the_unknown_last() {
        let rows = || vec![row("a", None, vec![]), row("b", Some(1.0), vec![]), row("c", Some(2.0), vec![])];
        assert_eq!(names(&order(Sort::Cpu, false, ""), rows()), ["c", "b", "a"]);
        assert_eq!(names(&order(Sort::Cpu, true, ""), rows()), ["a", "b", "c"]);
        assert_eq!(names(&order(Sort::Name, false, ""), rows()), ["a", "b", "c"]);
    }

    #[test]
    fn a_filter_keeps_the_parents_and_children_of_a_match() {
        let rows = || {
            let leaves = vec![row("Train", None, vec![]), row("idle", None, vec![])];
            vec![row("gpu 0", None, leaves), row("gpu 1", None, vec![])]
        };
        assert_eq!(names(&order(Sort::Name, false, "train"), rows()), ["gpu 0", "-Train"]);
        assert_eq!(names(&order(Sort::Name, false, "gpu 0"), rows()), ["gpu 0", "-Train", "-idle"]);
        assert!(names(&order(Sort::Name, false, "nothing"), rows()).is_empty());
    }

    #[test]
    fn head_rows_keep_their_order() {
        let head = |name: &str, cpu| Row { head: true, ..row(name, Some(cpu), vec![]) };
        assert_eq!(names(&order(Sort::Cpu, true, ""), vec![head("0", 1.0), head("1", 9.0)]), ["0", "1"]);
    }
}
