//! What the calls and the history together say.

use std::collections::{BTreeMap, HashMap};

use serde_json::{Value, json};
use testbed::Change;

use crate::{Run, Window, calls::Call, faults::Fault, program::verdict};

/// A call that takes longer than this was held up by a fault.
const SLOW: u128 = 300_000;
/// Where not even the ideal succeeded for that long, in seconds, a leader was elected. That costs a caller one slow call of
/// its own: what a follower had passed on to the leader before is lost without a word.
const ELECTION: f64 = 0.5;
/// What a call may take, in seconds.
const DEADLINE: f64 = 5.0;

/// What the history of the cluster says of the writes.
pub struct Truth {
    /// Keys written more than once: each is written by one call only.
    pub twice: usize,
    /// Writes that were acknowledged and are not there.
    pub lost: usize,
    /// Writes that are there, of calls that said `not-sent` or `rejected`.
    pub denied: usize,
    pub written: usize,
}

impl Truth {
    pub fn new(writes: &[Call], history: &[Change]) -> Self {
        let mut times: HashMap<&[u8], usize> = HashMap::new();
        for change in history {
            *times.entry(&change.key).or_default() += 1;
        }
        let there = |call: &&Call| times.contains_key(call.key.as_bytes());
        let denies = |call: &&Call| {
            let failure = call.failure.as_ref();
            failure.is_some_and(|(_, outcome)| outcome == "not-sent" || outcome == "rejected")
        };
        let acknowledged = writes.iter().filter(|call| call.failure.is_none());
        Self {
            twice: times.values().filter(|times| **times > 1).count(),
            lost: acknowledged.filter(|call| !there(call)).count(),
            denied: writes.iter().filter(denies).filter(there).count(),
            written: times.len(),
        }
    }
}

/// What the windows of one fault say of a client.
struct Row {
    fault: Fault,
    ideal: Vec<f64>,
    gap: Vec<f64>,
    errors: BTreeMap<String, usize>,
    not_excused: usize,
    slow: usize,
    read_gap: f64,
    read_errors: BTreeMap<String, usize>,
}

impl Row {
    fn new(run: &Run, fault: Fault) -> Self {
        let windows = || {
            run.windows
                .iter()
                .filter(move |window| window.fault == fault)
        };
        let inside = |window: &Window, calls: &[Call]| -> Vec<Call> {
            let inside = |call: &&Call| (window.from..window.until).contains(&call.ended);
            calls.iter().filter(inside).cloned().collect()
        };
        let mut row = Self {
            fault,
            ideal: Vec::new(),
            gap: Vec::new(),
            errors: BTreeMap::new(),
            not_excused: 0,
            slow: 0,
            read_gap: 0.0,
            read_errors: BTreeMap::new(),
        };
        for window in windows() {
            let (writes, reads) = (inside(window, &run.writes), inside(window, &run.reads));
            let ideal = longest_gap(window, run.ideal.iter().copied());
            row.ideal.push(ideal);
            row.gap.push(longest_gap(window, successes(&writes)));
            row.read_gap = row.read_gap.max(longest_gap(window, successes(&reads)));
            for (kind, outcome) in writes.iter().filter_map(|call| call.failure.as_ref()) {
                *row.errors.entry(format!("{kind}/{outcome}")).or_default() += 1;
                row.not_excused += usize::from(!fault.excuses(kind, outcome));
            }
            for (kind, _) in reads.iter().filter_map(|call| call.failure.as_ref()) {
                *row.read_errors.entry(kind.clone()).or_default() += 1;
            }
            let elected = usize::from(ideal > ELECTION);
            let slow = slow_calls(&writes, &run.ideal).saturating_sub(elected);
            row.slow = row.slow.max(slow);
        }
        row
    }

    /// The worst of the members.
    fn excess(&self) -> f64 {
        let each = self.gap.iter().zip(&self.ideal);
        each.map(|(gap, ideal)| (gap - ideal).max(0.0))
            .fold(0.0, f64::max)
    }

    /// Whether nobody served for longer than a call may take.
    fn nobody_could_read(&self) -> bool {
        self.ideal.iter().any(|gap| *gap > DEADLINE)
    }

    /// What was promised and did not come true, for people.
    fn broken(&self) -> Vec<&'static str> {
        let limit = self.fault.slow_calls().unwrap_or(usize::MAX);
        let promises = [
            (self.excess() <= self.fault.excess(), "excess"),
            (self.not_excused == 0, "errors of writes"),
            (
                self.read_errors.is_empty() || self.nobody_could_read(),
                "errors of reads",
            ),
            (self.slow <= limit, "slow calls"),
        ];
        let broken = promises.into_iter().filter(|(holds, _)| !holds);
        broken.map(|(_, name)| name).collect()
    }
}

impl Truth {
    fn holds(&self) -> bool {
        self.twice == 0 && self.lost == 0 && self.denied == 0
    }
}

/// Whether everything that is promised came true.
pub fn holds(run: &Run) -> bool {
    run.truth.holds() && rows(run).iter().all(|row| row.broken().is_empty())
}

fn successes(calls: &[Call]) -> impl Iterator<Item = u128> + '_ {
    let succeeded = calls.iter().filter(|call| call.failure.is_none());
    succeeded.map(|call| call.ended)
}

/// The longest time in a window without a success, in seconds.
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

#[expect(
    clippy::cast_precision_loss,
    reason = "a bench takes minutes, not years"
)]
fn seconds(micros: u128) -> f64 {
    micros as f64 / 1e6
}

/// How many slow calls the caller had that had most of them. What nobody could have avoided, an election say, does not
/// make a call slow.
fn slow_calls(calls: &[Call], ideal: &[u128]) -> usize {
    let mut callers: HashMap<&str, usize> = HashMap::new();
    let slow = |call: &&Call| {
        let took = call.ended - call.sent;
        took > SLOW && took - longest_within(ideal, call.sent, call.ended) > SLOW
    };
    for call in calls.iter().filter(slow) {
        *callers.entry(call.caller()).or_default() += 1;
    }
    callers.into_values().max().unwrap_or(0)
}

/// The longest part of a time in which not even the ideal succeeded, in microseconds.
fn longest_within(ideal: &[u128], from: u128, until: u128) -> u128 {
    let first = ideal.partition_point(|at| *at < from);
    let inside = ideal[first..].iter().copied();
    let inside = inside.take_while(|at| *at < until);
    let (mut last, mut longest) = (from, 0);
    for at in inside.chain([until]) {
        longest = longest.max(at - last);
        last = at;
    }
    longest
}

fn rows(run: &Run) -> Vec<Row> {
    let mut faults: Vec<Fault> = run.windows.iter().map(|window| window.fault).collect();
    faults.dedup();
    faults
        .into_iter()
        .map(|fault| Row::new(run, fault))
        .collect()
}

/// The table of one client.
pub fn print(run: &Run) {
    println!(
        "  {:<20} {:>7} {:>7} {:>7} {:>7}  {:<8} {:>5}  errors of writes; reads: longest gap, errors",
        "", "ideal", "gap", "excess", "must", "", "slow"
    );
    for row in rows(run) {
        println!(
            "  {:<20} {:>6.2}s {:>6.2}s {:>6.2}s  ≤{:>4.1}s  {:<8} {:>5}  {}; reads {:.2}s {}",
            row.fault.describe(),
            row.ideal.iter().copied().fold(0.0, f64::max),
            row.gap.iter().copied().fold(0.0, f64::max),
            row.excess(),
            row.fault.excess(),
            verdict(row.broken().is_empty()),
            row.slow,
            counted(&row.errors),
            row.read_gap,
            counted(&row.read_errors),
        );
        if !row.broken().is_empty() {
            println!("  {:<20} broken: {}", "", row.broken().join(", "));
        }
    }
    let truth = &run.truth;
    println!(
        "  {} calls, {} keys written; twice: {}, acknowledged and lost: {}, denied and there: {}: {}",
        run.writes.len(),
        truth.written,
        truth.twice,
        truth.lost,
        truth.denied,
        verdict(truth.holds()),
    );
}

fn counted(errors: &BTreeMap<String, usize>) -> String {
    if errors.is_empty() {
        return "none".to_owned();
    }
    let each: Vec<String> = errors
        .iter()
        .map(|(kind, count)| format!("{count} {kind}"))
        .collect();
    each.join(", ")
}

/// The same for programs.
pub fn json(run: &Run) -> Value {
    let rows: Vec<Value> = rows(run)
        .iter()
        .map(|row| {
            json!({
                "fault": row.fault.describe(),
                "ideal_s": row.ideal,
                "gap_s": row.gap,
                "excess_s": row.excess(),
                "must_s": row.fault.excess(),
                "holds": row.broken().is_empty(),
                "broken": row.broken(),
                "errors": row.errors,
                "slow_calls_a_caller": row.slow,
                "read_gap_s": row.read_gap,
                "read_errors": row.read_errors,
            })
        })
        .collect();
    let members: Vec<Value> = run.windows.iter().map(|one| window(run, one)).collect();
    json!({
        "client": run.client,
        "holds": holds(run),
        "windows": members,
        "faults": rows,
        "calls": run.writes.len(),
        "keys_written": run.truth.written,
        "written_twice": run.truth.twice,
        "acknowledged_and_lost": run.truth.lost,
        "denied_and_there": run.truth.denied,
    })
}

/// One window, with every call that failed or was held up: what to read when a promise is broken.
fn window(run: &Run, window: &Window) -> Value {
    let inside = |call: &&Call| (window.from..window.until).contains(&call.ended);
    let notable = |call: &&Call| call.failure.is_some() || call.ended - call.sent > SLOW;
    let calls = run.writes.iter().chain(&run.reads).filter(inside);
    let calls: Vec<Value> = calls
        .filter(notable)
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
        "calls_held_up": calls,
    })
}
