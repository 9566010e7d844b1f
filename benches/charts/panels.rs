//! The kinds of panels: lines over a logarithmic axis, and horizontal bars.

use std::ops::Range;

use plotters::{
    coord::ranged1d::{AsRangedCoord, ValueFormatter},
    prelude::*,
    style::text_anchor::HPos,
};

use super::figure::{Area, FONT, GRID, MUTED, TEXT, draw_text, short_number};

/// One line of a panel.
pub struct Line {
    pub color: RGBColor,
    pub points: Vec<(f64, f64)>,
}

/// Lines over a logarithmic x axis.
pub struct LinePanel {
    pub title: String,
    pub x_label: String,
    /// Whether the y axis is logarithmic, too. Otherwise it starts at 0.
    pub log_y: bool,
    pub lines: Vec<Line>,
}

impl LinePanel {
    pub fn draw(&self, area: &Area<'_>) {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let bounds = |coordinate: fn(&(f64, f64)) -> f64| {
            let values = points().map(coordinate);
            values.fold((f64::MAX, f64::MIN), |(low, high), value| {
                (low.min(value), high.max(value))
            })
        };
        let (x_low, x_high) = bounds(|point| point.0);
        let (y_low, y_high) = bounds(|point| point.1);
        let x = (x_low * 0.9)..(x_high * 1.15);
        let x_ticks = self.x_ticks();
        if self.log_y {
            let (low, high) = (y_low * 0.7, y_high * 1.4);
            let y = (low..high).log_scale();
            self.draw_on(area, x, x_ticks, y.with_key_points(log_ticks(low, high)));
        } else {
            self.draw_on(area, x, x_ticks, 0.0..(y_high * 1.1));
        }
    }

    /// Returns the measured positions if they are few, else the powers of ten.
    fn x_ticks(&self) -> Vec<f64> {
        let points = self.lines.iter().flat_map(|line| &line.points);
        let mut ticks: Vec<f64> = points.map(|point| point.0).collect();
        ticks.sort_by(f64::total_cmp);
        ticks.dedup();
        if ticks.len() > 7 {
            ticks.retain(|tick| tick.log10().fract() == 0.0);
        }
        ticks
    }

    fn draw_on<Y>(&self, area: &Area<'_>, x: Range<f64>, x_ticks: Vec<f64>, y: Y)
    where
        Y: AsRangedCoord<Value = f64>,
        Y::CoordDescType: ValueFormatter<f64>,
    {
        let x = x.log_scale().with_key_points(x_ticks);
        let mut chart = ChartBuilder::on(area)
            .margin_left(12)
            .margin_right(20)
            .margin_bottom(6)
            .caption(&self.title, (FONT, 14.0).into_font().color(&TEXT))
            .x_label_area_size(40)
            .y_label_area_size(48)
            .build_cartesian_2d(x, y)
            .expect("draw the axes");
        let label = |size: f64, color: RGBColor| (FONT, size).into_font().color(&color);
        chart
            .configure_mesh()
            .disable_x_mesh()
            .light_line_style(TRANSPARENT)
            .bold_line_style(GRID)
            .axis_style(MUTED)
            .x_desc(self.x_label.as_str())
            .axis_desc_style(label(12.5, TEXT))
            .label_style(label(11.5, MUTED))
            .x_label_formatter(&|value| short_number(*value))
            .y_label_formatter(&|value| short_number(*value))
            .y_labels(6)
            .draw()
            .expect("draw the mesh");
        for line in &self.lines {
            let path = LineSeries::new(line.points.iter().copied(), line.color.stroke_width(2));
            chart.draw_series(path).expect("draw a line");
            let dots = line.points.iter();
            let dots = dots.map(|point| Circle::new(*point, 3, line.color.filled()));
            chart.draw_series(dots).expect("draw the points");
        }
    }
}

/// Returns ticks of a logarithmic axis: powers of ten, with more values between them if the range is short.
fn log_ticks(low: f64, high: f64) -> Vec<f64> {
    let steps: &[f64] = match high / low {
        ..5.0 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 6.0, 8.0],
        ..2e3 => &[1.0, 2.0, 5.0],
        _ => &[1.0],
    };
    let mut ticks = Vec::new();
    let mut power = 10_f64.powf(low.log10().floor());
    while power <= high {
        ticks.extend(steps.iter().map(|step| step * power));
        power *= 10.0;
    }
    ticks.retain(|tick| (low..high).contains(tick));
    ticks
}

/// One bar of a panel.
pub struct Bar {
    pub name: String,
    pub color: RGBColor,
    pub value: f64,
    /// Text at the end of the bar.
    pub label: String,
}

/// Horizontal bars that start at 0.
pub struct BarPanel {
    pub title: String,
    pub bars: Vec<Bar>,
}

/// Height of a bar and of the space below it, in pixels.
const BAR_STEP: i32 = 26;
const BAR_HEIGHT: i32 = 17;
const BARS_TOP: i32 = 30;
/// Width of the names on the left.
const NAMES: i32 = 250;
/// Width of the labels on the right.
const LABELS: i32 = 180;

impl BarPanel {
    /// Returns the height that the panel needs.
    pub fn height(&self) -> u32 {
        let bars = u32::try_from(self.bars.len()).expect("few bars");
        bars * BAR_STEP.unsigned_abs() + BARS_TOP.unsigned_abs() + 14
    }

    pub fn draw(&self, area: &Area<'_>) {
        draw_text(area, &self.title, (20, 4), 14.0, TEXT, HPos::Left);
        let width = i32::try_from(area.dim_in_pixel().0).expect("a small picture");
        let room = f64::from(width - NAMES - LABELS);
        let largest = self.bars.iter().map(|bar| bar.value).fold(0.0, f64::max);
        let mut y = BARS_TOP;
        for bar in &self.bars {
            draw_text(
                area,
                &bar.name,
                (NAMES - 10, y + 3),
                12.5,
                TEXT,
                HPos::Right,
            );
            #[expect(clippy::cast_possible_truncation, reason = "a length in pixels")]
            let length = (bar.value / largest.max(f64::MIN_POSITIVE) * room).max(1.0) as i32;
            let corners = [(NAMES, y), (NAMES + length, y + BAR_HEIGHT)];
            let rectangle = Rectangle::new(corners, bar.color.filled());
            area.draw(&rectangle).expect("draw a bar");
            let label_x = NAMES + length + 8;
            draw_text(area, &bar.label, (label_x, y + 3), 12.5, TEXT, HPos::Left);
            y += BAR_STEP;
        }
    }
}
