/// Writes a number of bytes as people read it: `300 MiB`, `1.2 GiB`.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    // Three digits say enough, and whole bytes have no parts.
    let decimals = usize::from(unit > 0 && value < 99.95);
    format!("{value:.decimals$} {}", UNITS[unit])
}

/// Writes a count with its noun: `1 rank`, `2 ranks`, `3 processes`.
pub fn counted(n: usize, noun: &str) -> String {
    let plural = match n {
        1 => "",
        _ if noun.ends_with('s') => "es",
        _ => "s",
    };
    format!("{n} {noun}{plural}")
}

/// Formats an integer with a thin gap between thousands: `12 480`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    if digits.len() <= 4 {
        return digits;
    }
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(' ');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_written_in_the_largest_unit_that_fits() {
        let sizes = [0, 1023, 1024, 300 << 20, 1_288_490_189, 5 << 50].map(size);
        assert_eq!(sizes, ["0 bytes", "1023 bytes", "1.0 KiB", "300 MiB", "1.2 GiB", "5120 TiB"]);
    }
}
