//! Sizes as people write them: `512M`, `10G`, `1.5T`; always powers of 1024.

const UNITS: [(&str, u32); 5] = [("K", 10), ("M", 20), ("G", 30), ("T", 40), ("P", 50)];

/// Parses a size in bytes; used by the argument parser.
pub fn parse(text: &str) -> Result<u64, String> {
    let explain = || format!("`{text}` is no size; write for example 512M, 10G or 1.5T");
    let upper = text.trim().to_ascii_uppercase();
    let number = upper.trim_end_matches('B').trim_end_matches('I');
    let (number, shift) = UNITS
        .iter()
        .find_map(|(unit, shift)| Some((number.strip_suffix(unit)?, *shift)))
        .unwrap_or((number, 0));
    let value: f64 = number.trim().parse().map_err(|_| explain())?;
    let bytes = value * (1u64 << shift) as f64;
    if !(1.0..9.0e18).contains(&bytes) {
        return Err(explain());
    }
    Ok(bytes as u64)
}

/// MB a second as GB a second; `None`: not measured.
pub fn rate(mb_s: u32) -> Option<String> {
    (mb_s > 0).then(|| format!("{:.1} GB/s", f64::from(mb_s) / 1000.0))
}

/// Bytes with three digits and a unit: `1.50 GiB`.
pub fn human(bytes: u64) -> String {
    let found = UNITS.iter().rev().find(|(_, shift)| bytes >> shift > 0);
    let Some((unit, shift)) = found else {
        return format!("{bytes} B");
    };
    let value = bytes as f64 / (1u64 << shift) as f64;
    let digits = if value < 10.0 {
        2
    } else {
        usize::from(value < 100.0)
    };
    format!("{value:.digits$} {unit}iB")
}

#[cfg(test)]
mod tests {
    use super::{human, parse};

    #[test]
    fn sizes_are_powers_of_1024() {
        assert_eq!(parse("4096"), Ok(4096));
        assert_eq!(parse("1k"), Ok(1024));
        assert_eq!(parse("1.5G"), Ok(3 << 29));
        assert_eq!(parse("2MiB"), Ok(2 << 20));
        assert_eq!(parse("2 MB"), Ok(2 << 20));
    }

    #[test]
    fn nonsense_is_explained() {
        for text in ["", "G", "-1", "0", "1X", "nan", "1e40"] {
            assert!(parse(text).is_err_and(|why| why.contains("10G")), "{text}");
        }
    }

    #[test]
    fn sizes_are_readable() {
        assert_eq!(human(17), "17 B");
        assert_eq!(human(1536), "1.50 KiB");
        assert_eq!(human(10 << 30), "10.0 GiB");
        assert_eq!(human(512 << 20), "512 MiB");
    }
}
