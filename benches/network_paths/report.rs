//! Prints the results as Markdown.

use crate::Run;
use crate::measure::Cell;

/// Prints all cells of one path.
pub fn print_run(run: &Run) {
    println!("\n### {}\n", run.path);
    println!(
        "| fault | cluster itself | put | get | watch | lease | puts unknown | puts failed otherwise | gets failed | leases lost |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    for (fault, cell) in &run.cells {
        println!(
            "| {fault} | {:.2} s | {:.2} s | {:.2} s | {:.2} s | {:.2} s | {} | {} | {} | {} |",
            cell.baseline,
            cell.put,
            cell.get,
            cell.watch,
            cell.lease,
            cell.unknown_puts,
            cell.failed_puts,
            cell.failed_gets,
            cell.lost_leases,
        );
    }
    let outcomes = &run.outcomes;
    println!(
        "\n{} puts: {} written twice, {} applied although the error excludes it, {} acknowledged but missing. {} events: {} missed, {} repeated.",
        outcomes.puts,
        outcomes.written_twice,
        outcomes.applied_despite_error,
        outcomes.missing,
        outcomes.events,
        outcomes.missed_revisions,
        outcomes.repeated_revisions,
    );
}

/// Prints one line per path and one column per fault, as in `src/behind_proxies.md`.
pub fn print_matrix(runs: &[&Run]) {
    let Some(first) = runs.first() else { return };
    let faults: Vec<&str> = first
        .cells
        .iter()
        .map(|(fault, _)| fault.as_str())
        .collect();
    println!("\n### Excess in seconds: put / get / watch / lease\n");
    println!("| path | {} |", faults.join(" | "));
    println!("|---|{}", "---|".repeat(faults.len()));
    for run in runs {
        let cells: Vec<String> = run.cells.iter().map(|(_, cell)| short(cell)).collect();
        println!("| {} | {} |", run.path, cells.join(" | "));
    }
}

fn short(cell: &Cell) -> String {
    let lease = if cell.lost_leases > 0 {
        "lost".to_owned()
    } else {
        format!("{:.1}", cell.lease)
    };
    format!(
        "{:.1} / {:.1} / {:.1} / {lease}",
        cell.put, cell.get, cell.watch
    )
}
