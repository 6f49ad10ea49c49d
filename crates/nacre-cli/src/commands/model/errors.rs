//! How far a model is from what was published.

use serde::Serialize;

/// Errors of several cells, in percent of what was published.
#[derive(Debug, PartialEq, Serialize)]
pub struct Errors {
    pub name: String,
    pub cells: usize,
    pub mean: f64,
    pub median: f64,
    pub p90: f64,
    /// Mean with its sign: above 0 the model promises too much.
    pub bias: f64,
}

/// Sums up errors with their signs.
pub fn errors(name: &str, errors: impl Iterator<Item = f64>) -> Errors {
    let signed: Vec<f64> = errors.collect();
    let mut sizes: Vec<f64> = signed.iter().map(|error| error.abs()).collect();
    sizes.sort_by(f64::total_cmp);
    let mean = |all: &[f64]| all.iter().sum::<f64>() / all.len().max(1) as f64;
    let at = |share: f64| {
        let place = (share * sizes.len() as f64).ceil() as usize;
        sizes.get(place.saturating_sub(1)).copied().unwrap_or(0.0)
    };
    let digits = |value: f64| (value * 10.0).round() / 10.0;
    Errors {
        name: name.to_owned(),
        cells: sizes.len(),
        mean: digits(mean(&sizes)),
        median: digits(at(0.5)),
        p90: digits(at(0.9)),
        bias: digits(mean(&signed)),
    }
}

#[cfg(test)]
mod tests {
    use super::errors;

    #[test]
    fn errors_have_a_median_a_percentile_and_a_sign() {
        let of = errors(
            "all",
            [-10.0, -1.0, 2.0, 3.0, -4.0, 5.0, 6.0, 7.0, 8.0, 90.0].into_iter(),
        );
        assert_eq!(
            (of.mean, of.median, of.p90, of.bias, of.cells),
            (13.6, 5.0, 10.0, 10.6, 10)
        );
        assert_eq!(errors("none", [].into_iter()).cells, 0);
    }
}
