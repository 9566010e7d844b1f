//! The frame of a picture: white background, title, legend, panels in a grid, caption.

use plotters::{
    coord::Shift,
    prelude::*,
    style::text_anchor::{HPos, Pos, VPos},
};

/// Area of a picture or of one of its panels.
pub type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;

pub const TEXT: RGBColor = RGBColor(36, 41, 47);
pub const MUTED: RGBColor = RGBColor(110, 119, 129);
pub const GRID: RGBColor = RGBColor(225, 228, 232);
pub const FONT: &str = "sans-serif";

const WIDTH: u32 = 960;
const HEADER: u32 = 66;
/// Part of the header that the legend takes.
const LEGEND: u32 = 22;
const FOOTER: u32 = 30;

/// A finished picture.
pub struct Figure(String);

/// Title, legend and caption of a picture.
pub struct Frame {
    pub title: String,
    /// Names and colours.
    pub legend: Vec<(String, RGBColor)>,
    pub caption: String,
}

impl Figure {
    /// Draws the panels into a grid with the given number of columns. The highest panel of a row sets its height.
    pub fn new<P>(
        frame: &Frame,
        columns: usize,
        panels: &[P],
        height_of: impl Fn(&P) -> u32,
        draw_panel: impl Fn(&P, &Area<'_>),
    ) -> Self {
        let rows = panels.chunks(columns.max(1));
        let row_height = |row: &[P]| row.iter().map(&height_of).max().unwrap_or(0);
        let grid_height: u32 = rows.clone().map(row_height).sum();
        let header = if frame.legend.is_empty() {
            HEADER - LEGEND
        } else {
            HEADER
        };
        let mut svg = String::new();
        {
            let size = (WIDTH, header + grid_height + FOOTER);
            let root = SVGBackend::with_string(&mut svg, size).into_drawing_area();
            root.fill(&WHITE).expect("draw the background");
            draw_text(&root, &frame.title, (20, 14), 18.0, TEXT, HPos::Left);
            draw_legend(&root, &frame.legend);
            let caption_y = i32::try_from(header + grid_height).expect("a small picture") + 8;
            draw_text(
                &root,
                &frame.caption,
                (20, caption_y),
                11.5,
                MUTED,
                HPos::Left,
            );
            let (_, mut rest) = root.split_vertically(header);
            for row in rows {
                let (area, below) = rest.split_vertically(row_height(row));
                for (panel, area) in row.iter().zip(area.split_evenly((1, columns))) {
                    draw_panel(panel, &area);
                }
                rest = below;
            }
            root.present().expect("finish the picture");
        }
        Self(svg)
    }

    pub fn into_svg(self) -> String {
        self.0
    }
}

fn draw_legend(root: &Area<'_>, legend: &[(String, RGBColor)]) {
    let mut x = 20;
    for (name, color) in legend {
        let square = Rectangle::new([(x, 44), (x + 12, 56)], color.filled());
        root.draw(&square).expect("draw the legend");
        draw_text(root, name, (x + 18, 43), 13.0, TEXT, HPos::Left);
        x += 18 + text_width(name, 13.0) + 22;
    }
}

/// Draws text whose top is at `y`.
pub fn draw_text(
    area: &Area<'_>,
    text: &str,
    (x, y): (i32, i32),
    size: f64,
    color: RGBColor,
    anchor: HPos,
) {
    let style = (FONT, size).into_font().color(&color);
    let style = style.pos(Pos::new(anchor, VPos::Top));
    let element = Text::new(text.to_owned(), (x, y), style);
    area.draw(&element).expect("draw text");
}

/// Estimates the width of a text. The font is that of the viewer, so an exact width is not known.
pub fn text_width(text: &str, size: f64) -> i32 {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_precision_loss,
        reason = "a short text"
    )]
    let width = (text.chars().count() as f64 * size * 0.54) as i32;
    width
}

/// Returns the name of a client for a reader who does not know the bench.
pub fn client_name(client: &str) -> String {
    match client {
        "ours" => "actix-etcd".to_owned(),
        "ours-in-place" => "actix-etcd on the caller's arbiter".to_owned(),
        "ours-actor" => "actix-etcd through Addr<Etcd>".to_owned(),
        "go" => "Go client".to_owned(),
        other => match other.strip_prefix("ours") {
            Some(variant) => format!("actix-etcd{variant}"),
            None => other.to_owned(),
        },
    }
}

/// Returns the colour of a client: blue tones for this client, others for its peers.
pub fn client_color(client: &str) -> RGBColor {
    match client {
        "ours" | "actix-etcd" => RGBColor(9, 105, 218),
        "ours-in-place" => RGBColor(84, 174, 255),
        "ours-actor" => RGBColor(27, 124, 131),
        "go" => RGBColor(87, 96, 106),
        ours if ours.starts_with("ours") => RGBColor(84, 174, 255),
        peer if peer.starts_with("etcd-client") => RGBColor(225, 111, 36),
        peer if peer.starts_with("etcdrs") => RGBColor(130, 80, 223),
        _ => MUTED,
    }
}

/// Formats a number for an axis or a bar: `950`, `12k`, `1.2M`.
pub fn short_number(number: f64) -> String {
    let (number, unit) = match number.abs() {
        large if large >= 999_500.0 => (number / 1e6, "M"),
        medium if medium >= 1e3 => (number / 1e3, "k"),
        _ => (number, ""),
    };
    let text = match number.abs() {
        number if number >= 100.0 || number.fract().abs() < 1e-9 => format!("{number:.0}"),
        number if number >= 10.0 => format!("{number:.1}"),
        number if number >= 0.1 => format!("{number:.2}"),
        number => format!("{number:.3}"),
    };
    let sign = if number < 0.0 { "-" } else { "" };
    let text = match text.split_once('.') {
        Some(_) => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        None => text,
    };
    format!("{sign}{text}{unit}")
}
