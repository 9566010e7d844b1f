//! MB per second of large ranges, per client.

use serde_json::Value;

use super::{
    bulk::{bar_panels, rows},
    caption::Caption,
    figure::{Figure, Frame},
    panels::BarPanel,
};

pub fn draw(results: &Value, caption: &Caption) -> Option<Figure> {
    let rows = rows(results)?;
    let panels = bar_panels(
        rows,
        "size_mib",
        "mb_per_s",
        |size| format!("range of {size} MiB: MB per second"),
        |row| {
            let rate = row["mb_per_s"].as_f64().unwrap_or(0.0);
            match row["allocations_per_kv"].as_f64() {
                Some(allocations) => format!("{rate:.0}, {allocations:.1} allocations per key"),
                None => format!("{rate:.0}"),
            }
        },
    );
    if panels.is_empty() {
        return None;
    }
    let frame = Frame {
        title: "Reads of large ranges".to_owned(),
        legend: Vec::new(),
        caption: caption.text(true, &["etcd-client", "etcdrs"]),
    };
    Some(Figure::new(
        &frame,
        1,
        &panels,
        BarPanel::height,
        BarPanel::draw,
    ))
}
