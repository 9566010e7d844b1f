//! Memory per watch, lease, client, connection and call, and cost by their numbers.

use serde_json::Value;

use super::{
    caption::Caption,
    figure::{Area, Figure, Frame, MUTED, client_color, short_number},
    panels::{Bar, BarPanel, Line, LinePanel},
};

const LINE_PANEL_HEIGHT: u32 = 250;

/// The picture has panels of both kinds.
enum GrowthPanel {
    Bars(BarPanel),
    Lines(LinePanel),
}

impl GrowthPanel {
    fn height(&self) -> u32 {
        match self {
            Self::Bars(panel) => panel.height(),
            Self::Lines(_) => LINE_PANEL_HEIGHT,
        }
    }

    fn draw(&self, area: &Area<'_>) {
        match self {
            Self::Bars(panel) => panel.draw(area),
            Self::Lines(panel) => panel.draw(area),
        }
    }
}

pub fn draw(results: &Value, caption: &Caption) -> Option<Figure> {
    let mut panels = vec![
        GrowthPanel::Bars(memory(results)?),
        GrowthPanel::Bars(idle(results)?),
    ];
    for growth in results["growth"].as_array()? {
        panels.push(GrowthPanel::Lines(line_panel(growth)?));
    }
    let frame = Frame {
        title: "Memory, and cost by number of watches, leases, callers and endpoints".to_owned(),
        legend: Vec::new(),
        caption: caption.text(false, &[]),
    };
    Some(Figure::new(
        &frame,
        2,
        &panels,
        GrowthPanel::height,
        GrowthPanel::draw,
    ))
}

fn memory(results: &Value) -> Option<BarPanel> {
    let mut bars = Vec::new();
    for row in results["memory"].as_array()? {
        let kib = row["bytes"].as_f64()? / 1024.0;
        let label = match row["target"].as_f64() {
            Some(target) => format!("{kib:.1} (target ≤ {:.0})", target / 1024.0),
            None => format!("{kib:.1}"),
        };
        bars.push(Bar {
            name: row["name"].as_str()?.to_owned(),
            color: client_color("ours"),
            value: kib,
            label,
        });
    }
    Some(BarPanel {
        title: "resident memory in KiB per".to_owned(),
        bars,
    })
}

fn idle(results: &Value) -> Option<BarPanel> {
    let mut bars = Vec::new();
    for row in results["idle"].as_array()? {
        let watches = short_number(row["watches"].as_f64()?);
        for (figure, name, color) in [
            (
                "deliveries_percent",
                "delivered to an actor",
                client_color("ours"),
            ),
            ("streams_percent", "held as streams", MUTED),
        ] {
            let value = row[figure].as_f64()?;
            bars.push(Bar {
                name: format!("{watches} {name}"),
                color,
                value,
                label: format!("{value:.2} %"),
            });
        }
    }
    Some(BarPanel {
        title: "CPU of idle watches in percent of one core".to_owned(),
        bars,
    })
}

fn line_panel(growth: &Value) -> Option<LinePanel> {
    let mut points = Vec::new();
    for point in growth["points"].as_array()? {
        points.push((point[0].as_f64()?, point[1].as_f64()?));
    }
    Some(LinePanel {
        title: growth["cost"].as_str()?.to_owned(),
        x_label: growth["units"].as_str()?.to_owned(),
        log_y: true,
        lines: vec![Line {
            color: client_color("ours"),
            points,
        }],
    })
}
