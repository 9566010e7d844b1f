//! Timelines of the failover bench: when the writes of each client succeeded during each fault.

use plotters::{prelude::*, style::text_anchor::HPos};
use serde_json::Value;

use super::{
    caption::Caption,
    figure::{Area, Figure, Frame, GRID, MUTED, TEXT, client_color, client_name, draw_text},
};

const LANE_HEIGHT: i32 = 34;
const IDEAL_HEIGHT: i32 = 4;
const LANE_STEP: i32 = 50;
const LANES_TOP: i32 = 30;
const NAMES: i32 = 100;
/// Longest time that a panel shows, in seconds. A window ends when all members are healthy, which can take longer.
const MAX_SECS: f64 = 7.0;
const IDEAL: RGBColor = MUTED;

/// One fault: a lane per client.
struct FaultPanel {
    title: String,
    length: f64,
    lanes: Vec<Lane>,
}

/// Successes of one client during one fault.
struct Lane {
    client: String,
    bucket_secs: f64,
    /// Successful writes per bucket, as part of the client's usual number, at most 1.
    parts: Vec<f64>,
    /// Whether a write was possible, per bucket.
    ideal: Vec<bool>,
}

pub fn draw(results: &Value, caption: &Caption) -> Option<Figure> {
    let runs = results.as_array()?;
    let mut panels: Vec<FaultPanel> = Vec::new();
    let mut clients = Vec::new();
    for run in runs {
        let client = run["client"].as_str()?;
        clients.push(client);
        let windows = run["windows"].as_array()?;
        let usual = usual_count(windows);
        for fault in faults(windows) {
            let Some(window) = longest_interruption(windows, fault) else {
                continue;
            };
            let lane = Lane::new(client, window, usual)?;
            let length = window["length_s"].as_f64()?.min(MAX_SECS);
            match panels.iter_mut().find(|panel| panel.title == fault) {
                Some(panel) => {
                    panel.length = panel.length.max(length);
                    panel.lanes.push(lane);
                }
                None => panels.push(FaultPanel {
                    title: fault.to_owned(),
                    length,
                    lanes: vec![lane],
                }),
            }
        }
    }
    if panels.is_empty() {
        return None;
    }
    let mut legend: Vec<(String, RGBColor)> = clients
        .iter()
        .map(|client| {
            (
                format!("{}: writes", client_name(client)),
                client_color(client),
            )
        })
        .collect();
    legend.push(("the ideal: a write is possible".to_owned(), IDEAL));
    let frame = Frame {
        title: "Successful writes through six faults of a three-member cluster, longest interruption of each client"
            .to_owned(),
        legend,
        caption: caption.text(true, &["etcd-client", "etcdrs"]),
    };
    Some(Figure::new(
        &frame,
        2,
        &panels,
        FaultPanel::height,
        FaultPanel::draw,
    ))
}

fn faults(windows: &[Value]) -> Vec<&str> {
    let mut faults: Vec<&str> = windows
        .iter()
        .filter_map(|window| window["fault"].as_str())
        .collect();
    faults.dedup();
    faults
}

/// Returns the window of a fault with the longest time without a success.
fn longest_interruption<'a>(windows: &'a [Value], fault: &str) -> Option<&'a Value> {
    let of_fault = windows.iter().filter(|window| window["fault"] == fault);
    of_fault.max_by_key(|window| {
        let counts = counts(window, "successes");
        counts.split(|count| *count > 0.0).map(<[f64]>::len).max()
    })
}

fn counts(window: &Value, name: &str) -> Vec<f64> {
    let counts = window[name].as_array().into_iter().flatten();
    counts.filter_map(Value::as_f64).collect()
}

/// Returns the number of successes per bucket that a client reaches in a tenth of all buckets.
fn usual_count(windows: &[Value]) -> f64 {
    let mut all: Vec<f64> = windows
        .iter()
        .flat_map(|window| counts(window, "successes"))
        .collect();
    all.sort_by(f64::total_cmp);
    all.get(all.len() * 9 / 10).copied().unwrap_or(1.0).max(1.0)
}

impl Lane {
    fn new(client: &str, window: &Value, usual: f64) -> Option<Self> {
        let bucket_secs = window["bucket_ms"].as_f64()? / 1e3;
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a small positive number"
        )]
        let shown = (MAX_SECS / bucket_secs) as usize;
        let parts = counts(window, "successes").into_iter().take(shown);
        let ideal = counts(window, "ideal_successes").into_iter().take(shown);
        Some(Self {
            client: client.to_owned(),
            bucket_secs,
            parts: parts.map(|count| (count / usual).min(1.0)).collect(),
            ideal: ideal.map(|count| count > 0.0).collect(),
        })
    }
}

impl FaultPanel {
    fn height(&self) -> u32 {
        let lanes = i32::try_from(self.lanes.len()).expect("few lanes");
        (LANES_TOP + LANE_STEP * lanes + 36).unsigned_abs()
    }

    fn draw(&self, area: &Area<'_>) {
        draw_text(area, &self.title, (NAMES, 4), 14.0, TEXT, HPos::Left);
        let width = i32::try_from(area.dim_in_pixel().0).expect("a small picture");
        let scale = f64::from(width - NAMES - 24) / self.length;
        #[expect(clippy::cast_possible_truncation, reason = "a position in pixels")]
        let x_of = |secs: f64| NAMES + (secs * scale).round() as i32;
        let lanes = i32::try_from(self.lanes.len()).expect("few lanes");
        let bottom = LANES_TOP + lanes * LANE_STEP;
        let mut second = 0;
        while f64::from(second) <= self.length {
            let x = x_of(f64::from(second));
            let line = PathElement::new([(x, LANES_TOP), (x, bottom)], GRID);
            area.draw(&line).expect("draw the grid");
            let label = if second == 0 {
                "0 s".to_owned()
            } else {
                second.to_string()
            };
            draw_text(area, &label, (x, bottom + 3), 11.0, MUTED, HPos::Center);
            second += 1;
        }
        let mut top = LANES_TOP;
        for lane in &self.lanes {
            lane.draw(area, top, &x_of);
            top += LANE_STEP;
        }
    }
}

impl Lane {
    fn draw(&self, area: &Area<'_>, top: i32, x_of: &impl Fn(f64) -> i32) {
        let base = top + LANE_HEIGHT;
        let name = client_name(&self.client);
        draw_text(area, &name, (NAMES - 10, top + 12), 12.5, TEXT, HPos::Right);
        let color = client_color(&self.client);
        let mut from = 0.0;
        for part in &self.parts {
            #[expect(clippy::cast_possible_truncation, reason = "a height in pixels")]
            let height = (part * f64::from(LANE_HEIGHT)).ceil() as i32;
            if height > 0 {
                let corners = [
                    (x_of(from), base - height),
                    (x_of(from + self.bucket_secs), base),
                ];
                let bar = Rectangle::new(corners, color.filled());
                area.draw(&bar).expect("draw a bar");
            }
            from += self.bucket_secs;
        }
        let mut from = 0.0;
        for possible in &self.ideal {
            if *possible {
                let corners = [
                    (x_of(from), base + 3),
                    (x_of(from + self.bucket_secs), base + 3 + IDEAL_HEIGHT),
                ];
                let strip = Rectangle::new(corners, IDEAL.filled());
                area.draw(&strip).expect("draw the ideal");
            }
            from += self.bucket_secs;
        }
    }
}
