//! Compares the calls with the bounds and with the history of the cluster.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use testbed::Change;

use crate::{Run, Window, faults::ClusterFault, load_process::CallRecord, load_program::verdict};

/// A call that takes longer, in microseconds, was delayed by a fault.
const SLOW_CALL_MICROS: u128 = 300_000;
/// A baseline gap longer than this, in seconds, is an election. It may cost a caller one more slow call, because
/// requests that a follower forwarded to the old leader are lost.
const ELECTION_SECS: f64 = 0.5;
/// Length of the buckets of the timelines, in milliseconds.
const BUCKET_MILLIS: u128 = 50;
/// Deadline of a call, in seconds.
const DEADLINE_SECS: f64 = 5.0;

/// Writes compared with the history of the cluster.
pub struct WriteCheck {
    /// Number of keys written more than once; each key belongs to one call.
    pub duplicated: usize,
    /// Number of acknowledged writes that are not in the history.
    pub lost: usize,
    /// Number of writes in the history whose calls reported `not-sent` or `rejected`.
    pub wrongly_denied: usize,
    /// Number of keys in the history.
    pub written: usize,
}

impl WriteCheck {
    pub fn new(writes: &[CallRecord], history: &[Change]) -> Self {
        let mut writes_per_key: HashMap<&[u8], usize> = HashMap::new();
        for change in history {
            *writes_per_key.entry(&change.key).or_default() += 1;
        }
        let was_applied = |call: &&CallRecord| writes_per_key.contains_key(call.key.as_bytes());
        let reports_not_applied = |call: &&CallRecord| {
            let failure = call.failure.as_ref();
            failure.is_some_and(|(_, outcome)| outcome == "not-sent" || outcome == "rejected")
        };
        let acknowledged = writes.iter().filter(|call| call.failure.is_none());
        Self {
            duplicated: writes_per_key
                .values()
                .filter(|writes| **writes > 1)
                .count(),
            lost: acknowledged.filter(|call| !was_applied(call)).count(),
            wrongly_denied: writes
                .iter()
                .filter(reports_not_applied)
                .filter(was_applied)
                .count(),
            written: writes_per_key.len(),
        }
    }
}

/// Results of a client in all windows of one fault.
struct FaultResult {
    fault: ClusterFault,
    /// Longest gap of the baseline per window, in seconds.
    baseline_gaps: Vec<f64>,
    /// Longest gap of the client's writes per window, in seconds.
    gaps: Vec<f64>,
    errors: BTreeMap<String, usize>,
    /// Number of write errors that the fault does not allow.
    disallowed_errors: usize,
    /// Largest number of slow calls per caller and window.
    slow_calls: usize,
    /// Longest gap of the client's reads, in seconds.
    read_gap: f64,
    read_errors: BTreeMap<String, usize>,
}

impl FaultResult {
    fn new(run: &Run, fault: ClusterFault) -> Self {
        let windows = || {
            run.windows
                .iter()
                .filter(move |window| window.fault == fault)
        };
        let inside = |window: &Window, calls: &[CallRecord]| -> Vec<CallRecord> {
            let inside = |call: &&CallRecord| (window.from..window.until).contains(&call.ended);
            calls.iter().filter(inside).cloned().collect()
        };
        let mut result = Self {
            fault,
            baseline_gaps: Vec::new(),
            gaps: Vec::new(),
            errors: BTreeMap::new(),
            disallowed_errors: 0,
            slow_calls: 0,
            read_gap: 0.0,
            read_errors: BTreeMap::new(),
        };
        for window in windows() {
            let (writes, reads) = (inside(window, &run.writes), inside(window, &run.reads));
            let baseline_gap = longest_gap(window, run.baseline.iter().copied());
            result.baseline_gaps.push(baseline_gap);
            result.gaps.push(longest_gap(window, successes(&writes)));
            result.read_gap = result.read_gap.max(longest_gap(window, successes(&reads)));
            for (kind, outcome) in writes.iter().filter_map(|call| call.failure.as_ref()) {
                *result
                    .errors
                    .entry(format!("{kind}/{outcome}"))
                    .or_default() += 1;
                result.disallowed_errors += usize::from(!fault.allows_write_error(kind, outcome));
            }
            for (kind, _) in reads.iter().filter_map(|call| call.failure.as_ref()) {
                *result.read_errors.entry(kind.clone()).or_default() += 1;
            }
            let elections = usize::from(baseline_gap > ELECTION_SECS);
            let slow = slow_calls(&writes, &run.baseline).saturating_sub(elections);
            result.slow_calls = result.slow_calls.max(slow);
        }
        result
    }

    /// Returns the largest excess over the baseline of all windows, in seconds.
    fn excess(&self) -> f64 {
        let each = self.gaps.iter().zip(&self.baseline_gaps);
        each.map(|(gap, baseline)| (gap - baseline).max(0.0))
            .fold(0.0, f64::max)
    }

    /// Returns whether the cluster was unavailable for longer than the deadline of a call.
    fn unavailable_past_deadline(&self) -> bool {
        self.baseline_gaps.iter().any(|gap| *gap > DEADLINE_SECS)
    }

    /// Returns the names of the missed bounds.
    fn missed_bounds(&self) -> Vec<&'static str> {
        let limit = self.fault.max_slow_calls().unwrap_or(usize::MAX);
        let bounds = [
            (self.excess() <= self.fault.max_excess_secs(), "excess"),
            (self.disallowed_errors == 0, "write errors"),
            (
                self.read_errors.is_empty() || self.unavailable_past_deadline(),
                "read errors",
            ),
            (self.slow_calls <= limit, "slow calls"),
        ];
        let missed = bounds.into_iter().filter(|(met, _)| !met);
        missed.map(|(_, name)| name).collect()
    }
}

impl WriteCheck {
    fn is_met(&self) -> bool {
        self.duplicated == 0 && self.lost == 0 && self.wrongly_denied == 0
    }
}

/// Returns whether all bounds were met.
pub fn all_bounds_met(run: &Run) -> bool {
    run.write_check.is_met()
        && fault_results(run)
            .iter()
            .all(|result| result.missed_bounds().is_empty())
}

fn successes(calls: &[CallRecord]) -> impl Iterator<Item = u128> + '_ {
    let succeeded = calls.iter().filter(|call| call.failure.is_none());
    succeeded.map(|call| call.ended)
}

/// Returns the longest time without a success in a window, in seconds.
fn longest_gap(window: &Window, successes: impl Iterator<Item = u128>) -> f64 {
    let mut last = window.from;
    let mut longest = 0;
    let inside = successes.filter(|at| (window.from..window.until).contains(at));
    for at in inside.chain([window.until]) {
        longest = longest.max(at - last);
        last = at;
    }
    seconds(longest)
}

#[expect(clippy::cast_precision_loss, reason = "a bench takes minutes")]
fn seconds(micros: u128) -> f64 {
    micros as f64 / 1e6
}

/// Returns the largest number of slow calls of one caller. Delays that no client can avoid, such as an election, do not
/// make a call slow.
fn slow_calls(calls: &[CallRecord], baseline: &[u128]) -> usize {
    let mut callers: HashMap<&str, usize> = HashMap::new();
    let slow = |call: &&CallRecord| {
        let took = call.ended - call.sent;
        took > SLOW_CALL_MICROS
            && took - longest_baseline_gap(baseline, call.sent, call.ended) > SLOW_CALL_MICROS
    };
    for call in calls.iter().filter(slow) {
        *callers.entry(call.caller()).or_default() += 1;
    }
    callers.into_values().max().unwrap_or(0)
}

/// Returns the longest gap of the baseline within a time range, in microseconds.
fn longest_baseline_gap(baseline: &[u128], from: u128, until: u128) -> u128 {
    let first = baseline.partition_point(|at| *at < from);
    let inside = baseline[first..].iter().copied();
    let inside = inside.take_while(|at| *at < until);
    let (mut last, mut longest) = (from, 0);
    for at in inside.chain([until]) {
        longest = longest.max(at - last);
        last = at;
    }
    longest
}

fn fault_results(run: &Run) -> Vec<FaultResult> {
    let mut faults: Vec<ClusterFault> = run.windows.iter().map(|window| window.fault).collect();
    faults.dedup();
    faults
        .into_iter()
        .map(|fault| FaultResult::new(run, fault))
        .collect()
}

/// Prints the results of one client.
pub fn print(run: &Run) {
    println!(
        "  {:<20} {:>8} {:>7} {:>7} {:>7}  {:<8} {:>5}  write errors; reads: longest gap, errors",
        "", "baseline", "gap", "excess", "bound", "", "slow"
    );
    for result in fault_results(run) {
        println!(
            "  {:<20} {:>7.2}s {:>6.2}s {:>6.2}s  ≤{:>4.1}s  {:<8} {:>5}  {}; reads {:.2}s {}",
            result.fault.describe(),
            result.baseline_gaps.iter().copied().fold(0.0, f64::max),
            result.gaps.iter().copied().fold(0.0, f64::max),
            result.excess(),
            result.fault.max_excess_secs(),
            verdict(result.missed_bounds().is_empty()),
            result.slow_calls,
            format_counts(&result.errors),
            result.read_gap,
            format_counts(&result.read_errors),
        );
        if !result.missed_bounds().is_empty() {
            println!("  {:<20} missed: {}", "", result.missed_bounds().join(", "));
        }
    }
    let write_check = &run.write_check;
    println!(
        "  {} calls, {} keys written; written twice: {}, acknowledged but lost: {}, denied but applied: {}: {}",
        run.writes.len(),
        write_check.written,
        write_check.duplicated,
        write_check.lost,
        write_check.wrongly_denied,
        verdict(write_check.is_met()),
    );
}

fn format_counts(errors: &BTreeMap<String, usize>) -> String {
    if errors.is_empty() {
        return "none".to_owned();
    }
    let each: Vec<String> = errors
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    each.join(", ")
}

/// Returns the results of one client as JSON.
pub fn json(run: &Run) -> Value {
    let faults: Vec<Value> = fault_results(run)
        .iter()
        .map(|result| {
            json!({
                "fault": result.fault.describe(),
                "baseline_gap_s": result.baseline_gaps,
                "gap_s": result.gaps,
                "excess_s": result.excess(),
                "max_excess_s": result.fault.max_excess_secs(),
                "met": result.missed_bounds().is_empty(),
                "missed": result.missed_bounds(),
                "errors": result.errors,
                "slow_calls_per_caller": result.slow_calls,
                "read_gap_s": result.read_gap,
                "read_errors": result.read_errors,
            })
        })
        .collect();
    let windows: Vec<Value> = run
        .windows
        .iter()
        .map(|window| window_json(run, window))
        .collect();
    json!({
        "client": run.client,
        "met": all_bounds_met(run),
        "windows": windows,
        "faults": faults,
        "calls": run.writes.len(),
        "keys_written": run.write_check.written,
        "written_twice": run.write_check.duplicated,
        "acknowledged_but_lost": run.write_check.lost,
        "denied_but_applied": run.write_check.wrongly_denied,
    })
}

/// Returns the number of successes in each bucket of a window.
fn timeline(window: &Window, successes: impl Iterator<Item = u128>) -> Vec<u64> {
    let bucket = BUCKET_MILLIS * 1_000;
    let length = (window.until - window.from).div_ceil(bucket);
    let mut counts = vec![0; usize::try_from(length).unwrap_or(0)];
    for at in successes.filter(|at| (window.from..window.until).contains(at)) {
        let index = usize::try_from((at - window.from) / bucket).unwrap_or(usize::MAX);
        if let Some(count) = counts.get_mut(index) {
            *count += 1;
        }
    }
    counts
}

/// Returns a window as JSON: the timelines of the writes and of the baseline, and all failed and slow calls, to
/// investigate a missed bound.
fn window_json(run: &Run, window: &Window) -> Value {
    let inside = |call: &&CallRecord| (window.from..window.until).contains(&call.ended);
    let failed_or_slow =
        |call: &&CallRecord| call.failure.is_some() || call.ended - call.sent > SLOW_CALL_MICROS;
    let calls = run.writes.iter().chain(&run.reads).filter(inside);
    let calls: Vec<Value> = calls
        .filter(failed_or_slow)
        .map(|call| {
            let failure = call.failure.as_ref();
            json!({
                "key": call.key,
                "ended_s": seconds(call.ended - window.from),
                "took_s": seconds(call.ended - call.sent),
                "failure": failure.map(|(kind, outcome)| format!("{kind}/{outcome}")),
            })
        })
        .collect();
    json!({
        "fault": window.fault.describe(),
        "member": window.member,
        "length_s": seconds(window.until - window.from),
        "bucket_ms": u64::try_from(BUCKET_MILLIS).unwrap_or(u64::MAX),
        "successes": timeline(window, successes(&run.writes)),
        "ideal_successes": timeline(window, run.baseline.iter().copied()),
        "failed_or_slow_calls": calls,
    })
}
