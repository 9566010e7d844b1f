//! Keys per second of import, `get_many` and export, per client.

use serde_json::Value;

use super::{
    caption::Caption,
    figure::{Figure, Frame, client_color, client_name, short_number},
    panels::{Bar, BarPanel},
};

pub fn draw(results: &Value, caption: &Caption) -> Option<Figure> {
    let rows = rows(results)?;
    let panels = bar_panels(
        rows,
        "task",
        "keys_per_s",
        |task| format!("{task}: keys per second"),
        |row| {
            let rate = short_number(row["keys_per_s"].as_f64().unwrap_or(0.0));
            match row["cpu_us_per_key"].as_f64() {
                Some(cpu) => format!("{rate}, {cpu:.1} µs CPU per key"),
                None => rate,
            }
        },
    );
    if panels.is_empty() {
        return None;
    }
    let frame = Frame {
        title: "Bulk operations on three members".to_owned(),
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

/// Returns the rows of a result file: the file itself, or its field `rows`.
pub fn rows(results: &Value) -> Option<&Vec<Value>> {
    results.as_array().or_else(|| results["rows"].as_array())
}

/// Returns one panel per value of the field `group`, with one bar per row. Rows without the figure are left out.
pub fn bar_panels(
    rows: &[Value],
    group: &str,
    figure: &str,
    title: impl Fn(&str) -> String,
    label: impl Fn(&Value) -> String,
) -> Vec<BarPanel> {
    let mut panels: Vec<BarPanel> = Vec::new();
    for row in rows {
        let (Some(value), Some(client)) = (row[figure].as_f64(), row["client"].as_str()) else {
            continue;
        };
        let group = match &row[group] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let title = title(&group);
        let bar = Bar {
            name: client_name(client),
            color: client_color(client),
            value,
            label: label(row),
        };
        match panels.iter_mut().find(|panel| panel.title == title) {
            Some(panel) => panel.bars.push(bar),
            None => panels.push(BarPanel {
                title,
                bars: vec![bar],
            }),
        }
    }
    panels
}
