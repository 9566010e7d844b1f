//! Time until all watches have the next event, without a fault and after a reset of all connections.

use plotters::style::RGBColor;
use serde_json::Value;

use super::{
    caption::Caption,
    figure::{Figure, Frame, MUTED, client_color},
    panels::{Bar, BarPanel},
};

pub fn draw(results: &Value, caption: &Caption) -> Option<Figure> {
    let mut panels = Vec::new();
    for row in results.as_array()? {
        let watches = row["watches"].as_u64()?;
        let rounds = row["rounds"].as_array()?;
        let mut bars = Vec::new();
        for (figure, name, color) in [
            ("put_ms", "no fault", MUTED),
            (
                "after_reset_ms",
                "all connections reset",
                client_color("ours"),
            ),
        ] {
            let mut times: Vec<f64> = rounds
                .iter()
                .filter_map(|round| round[figure].as_f64())
                .collect();
            times.sort_by(f64::total_cmp);
            let median = *times.get(times.len() / 2)?;
            bars.push(bar(&format!("{name}, median"), median, color));
            bars.push(bar(&format!("{name}, slowest"), *times.last()?, color));
        }
        panels.push(BarPanel {
            title: format!(
                "{watches} watches: ms until all have the next event ({} rounds)",
                rounds.len()
            ),
            bars,
        });
    }
    if panels.is_empty() {
        return None;
    }
    let frame = Frame {
        title: "Resume of watches after all connections were reset at once".to_owned(),
        legend: Vec::new(),
        caption: caption.text(true, &[]),
    };
    Some(Figure::new(
        &frame,
        1,
        &panels,
        BarPanel::height,
        BarPanel::draw,
    ))
}

fn bar(name: &str, millis: f64, color: RGBColor) -> Bar {
    Bar {
        name: name.to_owned(),
        color,
        value: millis,
        label: format!("{millis:.0} ms"),
    }
}
