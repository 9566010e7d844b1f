//! Large ranges, for the bench `large_answers`; see [`ranges`].

#[path = "../ranges/mod.rs"]
mod ranges;

fn main() -> std::process::ExitCode {
    ranges::main(|| 0)
}
