//! Draws the pictures of the benches: reads a result file (JSON) and writes SVG files next to it.
//!
//! Every bench draws its own pictures at its end. The bench `plots` draws all of them from the result files.

mod bulk;
mod calls;
mod caption;
mod failover;
mod figure;
mod growth;
mod large_answers;
mod panels;
mod resume;

use std::{
    fs,
    path::{Path, PathBuf},
};

use serde_json::Value;

use caption::Caption;
use figure::Figure;

/// Draws the picture of a result file, or returns `None` if the file has no data for it.
type Draw = fn(&Value, &Caption) -> Option<Figure>;

/// Result file, picture and function that draws it.
const PICTURES: [(&str, &str, Draw); 6] = [
    ("unary.json", "calls.svg", calls::draw),
    ("failover.json", "failover.svg", failover::draw),
    ("watch_resume.json", "watch_resume.svg", resume::draw),
    ("bulk.json", "bulk.svg", bulk::draw),
    (
        "large_answers.json",
        "large_answers.svg",
        large_answers::draw,
    ),
    ("growth.json", "growth.svg", growth::draw),
];

/// Draws the pictures of one result file. Prints and returns their paths. Prints which picture it skips, and why.
pub fn draw(result: &Path) -> Vec<PathBuf> {
    let name = result.file_name().unwrap_or_default();
    let pictures = PICTURES.iter().filter(|(file, ..)| *file == name);
    let mut drawn = Vec::new();
    for (file, picture, draw) in pictures {
        let Ok(text) = fs::read_to_string(result) else {
            let bench = file.trim_end_matches(".json").trim_end_matches("_resume");
            println!(
                "{picture}: skipped, because {file} does not exist; `cargo bench --bench {bench}` writes it"
            );
            continue;
        };
        let value: Value = serde_json::from_str(&text).expect("a result file is JSON");
        let Some(figure) = draw(&value, &Caption::new(result)) else {
            println!("{picture}: skipped, because {file} has no data for it");
            continue;
        };
        let path = result.with_file_name(picture);
        fs::write(&path, figure.into_svg()).expect("write the picture");
        println!("{}", path.display());
        drawn.push(path);
    }
    drawn
}

/// Returns the names of all result files that have a picture.
#[allow(dead_code, reason = "only the bench `plots` draws all pictures")]
pub fn result_files() -> impl Iterator<Item = &'static str> {
    PICTURES.iter().map(|(file, ..)| *file)
}
