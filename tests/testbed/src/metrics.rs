//! Parses a page of Prometheus metrics.

/// Sums the series with the name and the labels of `selector` (`name{a="b"}`). The series may have other labels too.
pub(crate) fn sum(page: &str, selector: &str) -> Option<f64> {
    let (name, labels) = split(selector);
    let series = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (series_name, series_labels) = split(series);
            let matches =
                series_name == name && labels.iter().all(|label| series_labels.contains(label));
            if matches {
                value.parse::<f64>().ok()
            } else {
                None
            }
        });
    series.reduce(|total, value| total + value)
}

fn split(series: &str) -> (&str, Vec<&str>) {
    match series.split_once('{') {
        Some((name, labels)) => (
            name,
            labels
                .trim_end_matches('}')
                .split(',')
                .map(str::trim)
                .collect(),
        ),
        None => (series, Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::sum;

    const PAGE: &str = "# HELP calls x\ncalls{m=\"Put\",c=\"OK\"} 3\ncalls{m=\"Put\",c=\"No\"} 1\ncalls{m=\"Get\",c=\"OK\"} 5\nup 1e+06\n";

    #[test]
    fn sum_covers_all_matching_series() {
        assert_eq!(sum(PAGE, "calls"), Some(9.0));
        assert_eq!(sum(PAGE, "calls{m=\"Put\"}"), Some(4.0));
        assert_eq!(sum(PAGE, "calls{c=\"OK\",m=\"Get\"}"), Some(5.0));
        assert_eq!(sum(PAGE, "up"), Some(1_000_000.0));
        assert_eq!(sum(PAGE, "call"), None);
    }
}
