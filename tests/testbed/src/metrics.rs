//! Reads a figure from a page of Prometheus metrics.

/// The sum of the series with this name and, if given, these labels (`name{a="b"}`; others may be there too).
pub(crate) fn figure(page: &str, wanted: &str) -> Option<f64> {
    let (name, labels) = split(wanted);
    let series = page
        .lines()
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| {
            let (series, value) = line.rsplit_once(' ')?;
            let (found, carried) = split(series);
            let fits = found == name && labels.iter().all(|label| carried.contains(label));
            if fits {
                value.parse::<f64>().ok()
            } else {
                None
            }
        });
    series.reduce(|sum, value| sum + value)
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
    use super::figure;

    const PAGE: &str = "# HELP calls x\ncalls{m=\"Put\",c=\"OK\"} 3\ncalls{m=\"Put\",c=\"No\"} 1\ncalls{m=\"Get\",c=\"OK\"} 5\nup 1e+06\n";

    #[test]
    fn figures_are_summed_over_the_series_that_fit() {
        assert_eq!(figure(PAGE, "calls"), Some(9.0));
        assert_eq!(figure(PAGE, "calls{m=\"Put\"}"), Some(4.0));
        assert_eq!(figure(PAGE, "calls{c=\"OK\",m=\"Get\"}"), Some(5.0));
        assert_eq!(figure(PAGE, "up"), Some(1_000_000.0));
        assert_eq!(figure(PAGE, "call"), None);
    }
}
