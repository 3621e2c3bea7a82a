//! Rows of a view as a tree: sorted among their siblings, filtered with their family, flattened for the screen.

use crate::top::show::Cells;
use std::cmp::Ordering;

/// What the rows are sorted by; the largest first, names from a to z.
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

/// A column. At least `from` screen columns must be there for it to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Column {
    pub(crate) title: &'static str,
    /// Characters; 0 takes what is left.
    pub(crate) width: u16,
    pub(crate) from: u16,
    pub(crate) right: bool,
}

/// A column that takes what is left.
pub(crate) const fn fill(title: &'static str) -> Column {
    Column { title, width: 0, from: 0, right: false }
}

/// A column of words.
pub(crate) const fn left(title: &'static str, width: u16, from: u16) -> Column {
    Column { title, width, from, right: false }
}

/// A column of numbers.
pub(crate) const fn right(title: &'static str, width: u16, from: u16) -> Column {
    Column { title, width, from, right: true }
}

/// What a row is sorted by; absent sorts last.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Amounts {
    pub(crate) gpu: Option<f64>,
    pub(crate) gpu_memory: Option<f64>,
    pub(crate) cpu: Option<f64>,
    pub(crate) memory: Option<f64>,
}

/// One row with those below it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Row {
    /// Stays the same from look to look, so that the selection stays with its row.
    pub(crate) id: String,
    /// The whole name, for the line at the bottom and for the filter.
    pub(crate) name: String,
    /// More words that the filter finds it by.
    pub(crate) words: String,
    pub(crate) cells: Cells,
    pub(crate) amounts: Amounts,
    /// A card or other head of a family: stays in its place among its siblings and stands out.
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

/// How rows are put in order and which are left out.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Order {
    pub(crate) sort: Sort,
    pub(crate) reverse: bool,
    /// Lower case; empty takes all.
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

/// A row that is found keeps its whole family below; one that is not stays for the sake of those below it.
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
    fn a_filter_keeps_the_family_of_what_it_finds() {
        let rows = || {
            let leaves = vec![row("Train", None, vec![]), row("idle", None, vec![])];
            vec![row("gpu 0", None, leaves), row("gpu 1", None, vec![])]
        };
        assert_eq!(names(&order(Sort::Name, false, "train"), rows()), ["gpu 0", "-Train"]);
        assert_eq!(names(&order(Sort::Name, false, "gpu 0"), rows()), ["gpu 0", "-Train", "-idle"]);
        assert!(names(&order(Sort::Name, false, "nothing"), rows()).is_empty());
    }

    #[test]
    fn heads_stay_where_they_are() {
        let head = |name: &str, cpu| Row { head: true, ..row(name, Some(cpu), vec![]) };
        assert_eq!(names(&order(Sort::Cpu, true, ""), vec![head("0", 1.0), head("1", 9.0)]), ["0", "1"]);
    }
}
