//! Runs the clients in interleaved rounds.

use std::process::{Command, Stdio};

use serde_json::Value;

use super::{
    load_program::{LoadProgram, program_command},
    plan::{Plan, Workload},
    results::{ClientResults, Measurement, WorkloadResults},
};

/// Measures a workload: every round runs each client once, and starts with another client.
pub fn measure(
    program: &LoadProgram,
    plan: &Plan,
    workload: &Workload,
    endpoints: &str,
    rounds: usize,
) -> WorkloadResults {
    let mut clients: Vec<ClientResults> = plan
        .clients_for(workload)
        .into_iter()
        .map(|client| ClientResults {
            client,
            rounds: Vec::new(),
        })
        .collect();
    let count = clients.len().max(1);
    for round in 0..rounds {
        let shift = round % count;
        clients.rotate_left(shift);
        for results in &mut clients {
            let measurement = run(program, plan, workload, endpoints, &results.client);
            results.rounds.push(measurement);
        }
        clients.rotate_right(shift);
    }
    WorkloadResults {
        workload: workload.clone(),
        clients,
    }
}

fn run(
    program: &LoadProgram,
    plan: &Plan,
    workload: &Workload,
    endpoints: &str,
    client: &str,
) -> Measurement {
    let callers = workload.callers.to_string();
    let arguments = [
        ("client", client),
        ("op", &workload.op),
        ("callers", &callers),
        ("runtime", &workload.threads),
        ("endpoints", endpoints),
        ("warmup", "0.1"),
        ("secs", &plan.secs),
    ];
    let mut command: Command = match &plan.go_client {
        Some(go_client) if client == "go" => {
            program_command(go_client.as_ref(), "load", &arguments)
        }
        _ => program.command("load", &arguments),
    };
    let output = command
        .stderr(Stdio::inherit())
        .output()
        .expect("start the load program");
    assert!(output.status.success(), "{client} failed: {workload}");
    let text = String::from_utf8_lossy(&output.stdout);
    let output: Value = serde_json::from_str(text.trim()).expect("the load program prints JSON");
    let number = |name: &str| output[name].as_f64().expect("a number in the output");
    assert!(
        number("calls") > 0.0,
        "no call of {client} succeeded: {workload}: {output}"
    );
    Measurement {
        calls_per_sec: number("calls_per_s"),
        p50: number("p50_us"),
        p99: number("p99_us"),
        cpu: number("cpu_us"),
        errors: output["errors"].clone(),
    }
}
