//! Calls per second and latency by number of callers.

use serde_json::Value;

use super::{
    caption::Caption,
    figure::{Figure, Frame, client_color, client_name},
    panels::{Line, LinePanel},
};

pub fn draw(results: &Value, caption: &Caption) -> Option<Figure> {
    let rows: Vec<&Value> = results["rows"]
        .as_array()?
        .iter()
        .filter(|row| row["server"] == "constant" && row["op"] == "get")
        .collect();
    let mut clients: Vec<&str> = Vec::new();
    for client in rows
        .iter()
        .filter_map(|row| row["clients"].as_array())
        .flatten()
    {
        let name = client["client"].as_str()?;
        if !clients.contains(&name) {
            clients.push(name);
        }
    }
    let mut panels = Vec::new();
    for (figure, name, log_y) in [
        ("calls_per_s", "gets per second", false),
        ("p50_us", "median latency in µs", true),
    ] {
        for (threads, application) in [("one", "one thread"), ("two", "two workers")] {
            let line = |client: &&str| Line {
                color: client_color(client),
                points: points(&rows, threads, client, figure),
            };
            panels.push(LinePanel {
                title: format!("{name}, application on {application}"),
                x_label: "concurrent callers".to_owned(),
                log_y,
                lines: clients.iter().map(line).collect(),
            });
        }
    }
    panels.retain(|panel| panel.lines.iter().any(|line| !line.points.is_empty()));
    if panels.is_empty() {
        return None;
    }
    let legend = clients.iter();
    let frame = Frame {
        title:
            "Throughput and latency of gets by number of callers, server with a constant response"
                .to_owned(),
        legend: legend
            .map(|client| (client_name(client), client_color(client)))
            .collect(),
        caption: caption.text(false, &["etcd-client", "etcdrs"]),
    };
    Some(Figure::new(&frame, 2, &panels, |_| 270, LinePanel::draw))
}

fn points(rows: &[&Value], threads: &str, client: &str, figure: &str) -> Vec<(f64, f64)> {
    let mut points = Vec::new();
    for row in rows.iter().filter(|row| row["threads"] == threads) {
        let clients = row["clients"].as_array().into_iter().flatten();
        let found = clients.into_iter().find(|each| each["client"] == client);
        let rounds = found.and_then(|found| found[figure].as_array());
        let values = rounds.into_iter().flatten().filter_map(Value::as_f64);
        let median = median(values.collect());
        if let (Some(callers), Some(median)) = (row["callers"].as_f64(), median) {
            points.push((callers, median));
        }
    }
    points.sort_by(|left, right| left.0.total_cmp(&right.0));
    points
}

fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = values[(values.len() - 1) / 2];
    Some(f64::midpoint(lower, upper))
}
