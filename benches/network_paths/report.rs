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
        "\n{} puts: {} written twice, {} denied but there, {} acknowledged but lost. {} events: {} missed, {} repeated.",
        outcomes.puts,
        outcomes.written_twice,
        outcomes.denied_but_there,
        outcomes.acknowledged_but_lost,
        outcomes.events,
        outcomes.missed_revisions,
        outcomes.repeated_revisions,
    );
}

/// Prints one line per path and one column per fault.
pub fn print_matrix(runs: &[Run]) {
    let mut faults: Vec<&str> = Vec::new();
    for (fault, _) in runs.iter().flat_map(|run| &run.cells) {
        if !faults.contains(&fault.as_str()) {
            faults.push(fault);
        }
    }
    println!("\n### Excess in seconds: put / get / watch / lease\n");
    println!("| path | {} |", faults.join(" | "));
    println!("|---|{}", "---|".repeat(faults.len()));
    for run in runs {
        let cell = |fault: &&str| {
            let found = run.cells.iter().find(|(name, _)| name == fault);
            found.map_or_else(String::new, |(_, cell)| short(cell))
        };
        let cells: Vec<String> = faults.iter().map(cell).collect();
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
