//! The rule for growth: the cost grows linearly or better with the number of units.

use serde_json::{Value, json};

use crate::load_program::verdict;

/// Bound of the ratio of the cost per unit at the largest number of units to the lowest cost at a smaller one.
const MAX_RATIO: f64 = 1.5;

/// Cost per unit by number of units.
pub struct Growth {
    /// What is counted on the x axis.
    pub units: &'static str,
    /// What a figure is.
    pub cost: &'static str,
    /// Number of units from which on the fixed cost of a client does not dominate. Smaller numbers are only printed.
    pub base: usize,
    /// Number of units and cost per unit, in order.
    pub points: Vec<(usize, f64)>,
}

impl Growth {
    /// Measures each number of units `rounds` times. The lowest cost counts, because other load on the machine only
    /// adds to it.
    pub fn measure(
        units: &'static str,
        cost: &'static str,
        base: usize,
        (numbers, rounds): (&[usize], usize),
        measure: impl Fn(usize) -> f64,
    ) -> Self {
        let lowest = |number| {
            let costs = (0..rounds).map(|_| measure(number));
            costs.fold(f64::MAX, f64::min)
        };
        let points = numbers.iter();
        Self {
            units,
            cost,
            base,
            points: points.map(|number| (*number, lowest(*number))).collect(),
        }
    }

    /// Returns the ratio of the cost per unit at the largest number of units to the lowest cost at a smaller number
    /// that is not below the base.
    fn ratio(&self) -> f64 {
        let (last, smaller) = self.points.split_last().expect("a measurement");
        let comparable = smaller.iter().filter(|(number, _)| *number >= self.base);
        let lowest = comparable.map(|point| point.1).fold(f64::MAX, f64::min);
        last.1 / lowest
    }

    fn is_linear(&self) -> bool {
        self.ratio() <= MAX_RATIO
    }

    /// Prints the figures. Returns whether the rule is met, and the figures as JSON.
    pub fn report(&self) -> (bool, Value) {
        println!("\n{} by number of {}", self.cost, self.units);
        for (number, cost) in &self.points {
            println!("  {number:>7} {cost:>10.2}");
        }
        let (ratio, met) = (self.ratio(), self.is_linear());
        let most = self.points.last().map_or(0, |point| point.0);
        println!(
            "  {most} to the lowest from {} on: {ratio:.2} × (target ≤ {MAX_RATIO}): {}",
            self.base,
            verdict(met)
        );
        let json = json!({
            "units": self.units,
            "cost": self.cost,
            "base": self.base,
            "points": self.points,
            "ratio": ratio,
            "met": met,
        });
        (met, json)
    }
}
