//! Times between two things as people write them: `5s`, `500ms`, `2m`; a bare number is seconds.

use std::time::Duration;

const UNITS: [(&str, f64); 4] = [("ms", 1e-3), ("s", 1.0), ("m", 60.0), ("h", 3600.0)];
const LEAST: Duration = Duration::from_millis(1);
const MOST: Duration = Duration::from_secs(24 * 3600);

/// Parses a time from a millisecond to a day; used by the argument parser.
pub fn parse(text: &str) -> Result<Duration, String> {
    let explain = || format!("`{text}` is no time up to a day; write for example 5s, 500ms or 2m");
    let lower = text.trim().to_ascii_lowercase();
    let (number, unit) = UNITS
        .iter()
        .find_map(|(unit, seconds)| Some((lower.strip_suffix(unit)?, *seconds)))
        .unwrap_or((&lower, 1.0));
    let value: f64 = number.trim().parse().map_err(|_| explain())?;
    let parsed = Duration::try_from_secs_f64(value * unit).map_err(|_| explain())?;
    match (LEAST..=MOST).contains(&parsed) {
        true => Ok(parsed),
        false => Err(explain()),
    }
}

/// As [`parse`] reads it.
pub fn argument(time: Duration) -> String {
    match time.subsec_millis() {
        0 => time.as_secs().to_string(),
        _ => format!("{}ms", time.as_millis()),
    }
}

/// `5 s`, `500 ms`.
pub fn human(time: Duration) -> String {
    match time.subsec_millis() {
        0 => format!("{} s", time.as_secs()),
        _ => format!("{} ms", time.as_millis()),
    }
}

#[cfg(test)]
mod tests {
    use super::{argument, human, parse};
    use std::time::Duration;

    #[test]
    fn times_have_units() {
        assert_eq!(parse("5"), Ok(Duration::from_secs(5)));
        assert_eq!(parse("5s"), Ok(Duration::from_secs(5)));
        assert_eq!(parse("0.5 s"), Ok(Duration::from_millis(500)));
        assert_eq!(parse("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse("2M"), Ok(Duration::from_secs(120)));
    }

    #[test]
    fn what_is_written_is_read_again() {
        for time in [1, 999, 1000, 61_000, 61_001].map(Duration::from_millis) {
            assert_eq!(parse(&argument(time)), Ok(time));
        }
        assert_eq!(human(Duration::from_millis(500)), "500 ms");
    }

    #[test]
    fn nonsense_is_explained() {
        for text in ["", "s", "0", "-1s", "1d", "nan", "25h", "0.1ms"] {
            assert!(
                parse(text).is_err_and(|why| why.contains("500ms")),
                "{text}"
            );
        }
    }
}
