//! One chart: axes, lines with gaps, bands, marks.

use super::PlotError;
use crate::figures::value;
use plotters::coord::Shift;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;

pub(super) type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Context<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

/// Colours that people with any colour vision tell apart (Okabe and Ito 2008): blue, vermilion, light blue, orange.
pub(super) const LINE: RGBColor = RGBColor(0, 114, 178);
pub(super) const SECOND_LINE: RGBColor = RGBColor(213, 94, 0);
pub(super) const BAND: RGBColor = RGBColor(170, 212, 236);
pub(super) const MARK: RGBColor = RGBColor(230, 159, 0);

/// Height for one label of the values, with space around it.
const PIXELS_OF_LABEL: u32 = 60;
const FONT: &str = "sans-serif";
/// Points of a line: two for each pixel of the widest chart. A longer series is drawn by the extremes of its parts.
const MAX_POINTS: usize = 2000;

/// The unit of an axis of times.
#[derive(Clone, Copy, Debug)]
pub(super) struct Axis {
    seconds: f64,
    name: &'static str,
}

impl Axis {
    /// The largest unit of which `span` seconds have at least three.
    pub(super) fn of(span: f64) -> Axis {
        let units =
            [(86_400.0, "days"), (3600.0, "hours"), (60.0, "minutes"), (1.0, "seconds"), (1e-3, "milliseconds")];
        let fitting = units.into_iter().find(|(seconds, _)| span >= seconds * 3.0);
        let (seconds, name) = fitting.unwrap_or((1e-3, "milliseconds"));
        Axis { seconds, name }
    }

    pub(super) fn place(self, seconds: f64) -> f64 {
        seconds / self.seconds
    }

    pub(super) fn name(self) -> &'static str {
        self.name
    }

    /// The text below the axis.
    pub(super) fn since(self, start: &str) -> String {
        format!("{} since {start}", self.name)
    }
}

/// What a chart shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    x: (f64, f64),
    y: (f64, f64),
}

impl Bounds {
    /// Adds a margin above and below. A range of nothing, or of less than doubles can tell apart, becomes one that can be drawn.
    pub(super) fn new((left, right): (f64, f64), (low, high): (f64, f64)) -> Bounds {
        let wide = |from: f64, to: f64| {
            let size = from.abs().max(to.abs()).max(1e-9);
            if to - from >= size * 1e-6 { (from, to) } else { (from - size * 0.1, to + size * 0.1) }
        };
        let (low, high) = if low.is_finite() && high.is_finite() { wide(low, high) } else { (0.0, 1.0) };
        let margin = (high - low) * 0.05;
        Bounds { x: wide(left, right), y: (low - margin, high + margin) }
    }
}

/// A chart that is being drawn.
pub(super) struct Chart<'a, 'b> {
    context: Context<'a, 'b>,
    bounds: Bounds,
}

impl<'b> Chart<'_, 'b> {
    /// Draws the axes.
    pub(super) fn on<'a>(
        area: &'a Area<'b>,
        title: &str,
        bounds: &Bounds,
        below: &str,
    ) -> Result<Chart<'a, 'b>, PlotError> {
        let mut context = ChartBuilder::on(area)
            .caption(title, (FONT, 16))
            .margin(10)
            .x_label_area_size(42)
            .y_label_area_size(64)
            .build_cartesian_2d(bounds.x.0..bounds.x.1, bounds.y.0..bounds.y.1)?;
        let labels = usize::try_from(area.dim_in_pixel().1 / PIXELS_OF_LABEL).unwrap_or(2).max(2);
        context
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(RGBColor(230, 230, 230))
            .x_labels(10)
            .y_labels(labels)
            .x_label_formatter(&|x| value(*x))
            .y_label_formatter(&|y| value(*y))
            .label_style((FONT, 13))
            .axis_desc_style((FONT, 13))
            .x_desc(below)
            .draw()?;
        Ok(Chart { context, bounds: *bounds })
    }

    /// Draws a line, with a hole at each gap.
    pub(super) fn line(&mut self, points: &[(f64, Option<f64>)], colour: RGBColor) -> Result<(), PlotError> {
        for part in thinned(points).split(|(_, value)| value.is_none()) {
            let part: Vec<(f64, f64)> = part.iter().filter_map(|(x, value)| Some((*x, (*value)?))).collect();
            match part.as_slice() {
                [] => {}
                [point] => {
                    self.context.draw_series([Circle::new(*point, 2, colour.filled())])?;
                }
                _ => {
                    self.context.draw_series(LineSeries::new(part, colour.stroke_width(1)))?;
                }
            }
        }
        Ok(())
    }

    /// Fills what is between two lines: place, lower and upper value.
    pub(super) fn band(&mut self, points: &[(f64, f64, f64)], colour: RGBColor) -> Result<(), PlotError> {
        let there = points.iter().map(|(x, low, _)| (*x, *low));
        let back = points.iter().rev().map(|(x, _, high)| (*x, *high));
        let outline: Vec<(f64, f64)> = there.chain(back).collect();
        self.context.draw_series([Polygon::new(outline, colour.filled())])?;
        Ok(())
    }

    /// Draws a line from the bottom to the top.
    pub(super) fn vertical(&mut self, x: f64, colour: RGBColor) -> Result<(), PlotError> {
        let (low, high) = self.bounds.y;
        self.context.draw_series([PathElement::new(vec![(x, low), (x, high)], colour)])?;
        Ok(())
    }
}

/// The points, or the smallest and largest value of each part if they are too many. A part without a value is a gap.
fn thinned(points: &[(f64, Option<f64>)]) -> Vec<(f64, Option<f64>)> {
    if points.len() <= MAX_POINTS {
        return points.to_vec();
    }
    let parts = points.chunks(points.len().div_ceil(MAX_POINTS / 2));
    let extremes = parts.flat_map(|part| {
        let x = part.first().map_or(0.0, |(x, _)| *x);
        let values = || part.iter().filter_map(|(_, value)| *value);
        [values().reduce(f64::min), values().reduce(f64::max)].map(|value| (x, value))
    });
    extremes.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_series_keeps_its_extremes_and_its_gaps() {
        let mut points: Vec<(f64, Option<f64>)> = (0..100_000).map(|at| (f64::from(at), Some(1.0))).collect();
        points[777].1 = Some(99.0);
        points[50_000..60_000].iter_mut().for_each(|point| point.1 = None);
        let thin = thinned(&points);
        assert!(thin.len() <= MAX_POINTS);
        assert_eq!(thin.iter().filter_map(|(_, value)| *value).fold(0.0, f64::max), 99.0);
        assert!(thin.iter().filter(|(_, value)| value.is_none()).count() >= 190);
    }

    #[test]
    fn every_range_can_be_drawn() {
        for (low, high) in
            [(5.0, 5.0), (0.0, 0.0), (1e15, 1e15 + 1.0), (f64::INFINITY, f64::NEG_INFINITY), (-1e150, 1e150)]
        {
            let bounds = Bounds::new((0.0, 0.0), (low, high));
            assert!(bounds.x.1 > bounds.x.0 && bounds.y.1 > bounds.y.0, "{bounds:?}");
            assert!(bounds.y.1.is_finite() && bounds.y.0.is_finite());
        }
        assert_eq!(
            (Axis::of(7200.0).name(), Axis::of(12.0).name(), Axis::of(1.0).name()),
            ("minutes", "seconds", "milliseconds")
        );
    }
}
