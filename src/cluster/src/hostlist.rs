//! Slurm's notation for lists of names: `gpu[001-024,030],login`.

use crate::node::shortest_ipv6;

/// The maximum number of names in a list. A longer list is probably a typing mistake, and would use much memory.
const MAX_NAMES: usize = 65_536;

/// The reason why a list of names cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostlistError {
    /// A name is missing.
    #[error("a name is missing in {list:?}")]
    NoName {
        /// The list as given.
        list: String,
    },
    /// Brackets do not match or are nested.
    #[error("the brackets in {list:?} do not match")]
    Brackets {
        /// The list as given.
        list: String,
    },
    /// Brackets contain something other than numbers and ranges.
    #[error("{range:?} is not a number or a range such as 001-024")]
    NotARange {
        /// The part between commas.
        range: String,
    },
    /// The last number of a range is smaller than the first.
    #[error("the range {range} is in descending order")]
    Backwards {
        /// The range as given.
        range: String,
    },
    /// The list has too many names.
    #[error("{list:?} has more than {MAX_NAMES} names")]
    TooMany {
        /// The list as given.
        list: String,
    },
}

/// Returns the names of a list, in its order.
///
/// Numbers are as wide as the first number of their range: `gpu[008-010]` is gpu008, gpu009, gpu010. A name may contain several
/// brackets. An IPv6 address, in brackets or not, becomes its shortest form without brackets.
///
/// # Errors
/// A name is missing, brackets do not match, a range is not valid, or the list has too many names.
pub fn expand(list: &str) -> Result<Vec<String>, HostlistError> {
    let mut names = Vec::new();
    for item in items(list)? {
        names.append(&mut expand_item(item.trim(), list)?);
        if names.len() > MAX_NAMES {
            return Err(HostlistError::TooMany { list: list.into() });
        }
    }
    Ok(names)
}

/// Splits at the commas that are outside brackets.
fn items(list: &str) -> Result<Vec<&str>, HostlistError> {
    let (mut items, mut begin, mut inside) = (Vec::new(), 0, false);
    for (at, c) in list.char_indices() {
        match (c, inside) {
            ('[', false) | (']', true) => inside = !inside,
            ('[' | ']', _) => return Err(HostlistError::Brackets { list: list.into() }),
            (',', false) => {
                items.push(&list[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(HostlistError::Brackets { list: list.into() });
    }
    items.push(&list[begin..]);
    Ok(items)
}

fn expand_item(item: &str, list: &str) -> Result<Vec<String>, HostlistError> {
    if item.is_empty() {
        return Err(HostlistError::NoName { list: list.into() });
    }
    // Other brackets contain ranges.
    if let Some(address) = item.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')).and_then(shortest_ipv6) {
        return Ok(vec![address]);
    }
    let mut names = vec![String::new()];
    let mut rest = item;
    while let Some((before, after)) = rest.split_once('[') {
        let (ranges, after) = after.split_once(']').ok_or_else(|| HostlistError::Brackets { list: list.into() })?;
        let mut numbers = Vec::new();
        for range in ranges.split(',') {
            numbers.append(&mut expand_range(range.trim(), list)?);
        }
        if names.len().saturating_mul(numbers.len()) > MAX_NAMES {
            return Err(HostlistError::TooMany { list: list.into() });
        }
        let with = |name: &String| numbers.iter().map(|n| format!("{name}{before}{n}")).collect::<Vec<_>>();
        names = names.iter().flat_map(with).collect();
        rest = after;
    }
    for name in &mut names {
        name.push_str(rest);
        if let Some(address) = shortest_ipv6(name.as_str()) {
            *name = address;
        }
    }
    Ok(names)
}

fn expand_range(range: &str, list: &str) -> Result<Vec<String>, HostlistError> {
    let (from, to) = range.split_once('-').unwrap_or((range, range));
    let number = |text: &str| -> Result<u64, HostlistError> {
        let digits = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let number = digits.then(|| text.parse().ok()).flatten();
        number.ok_or_else(|| HostlistError::NotARange { range: range.into() })
    };
    let (first, last, width) = (number(from)?, number(to)?, from.len());
    if last < first {
        return Err(HostlistError::Backwards { range: range.into() });
    }
    if last - first >= MAX_NAMES as u64 {
        return Err(HostlistError::TooMany { list: list.into() });
    }
    Ok((first..=last).map(|number| format!("{number:0width$}")).collect())
}

/// Formats names as a list that [`expand`] reads: consecutive numbers become a range.
pub fn compress<S: AsRef<str>>(names: &[S]) -> String {
    let mut parts: Vec<Part> = Vec::new();
    for name in names.iter().map(AsRef::as_ref) {
        let (prefix, digits) = split_number(name);
        match parts.last_mut() {
            Some(part) if part.prefix == prefix && !digits.is_empty() && !part.ranges.is_empty() => part.push(digits),
            _ => parts.push(Part::new(prefix, digits)),
        }
    }
    parts.iter().map(Part::write).collect::<Vec<_>>().join(",")
}

/// Names that differ only in the number at their end.
struct Part<'a> {
    prefix: &'a str,
    /// The first and the last number as written.
    ranges: Vec<(&'a str, &'a str)>,
}

impl<'a> Part<'a> {
    fn new(prefix: &'a str, digits: &'a str) -> Self {
        Part { prefix, ranges: if digits.is_empty() { Vec::new() } else { vec![(digits, digits)] } }
    }

    fn push(&mut self, digits: &'a str) {
        match self.ranges.last_mut() {
            Some((first, last)) if follows(last, digits, first.len()) => *last = digits,
            _ => self.ranges.push((digits, digits)),
        }
    }

    fn write(&self) -> String {
        match self.ranges[..] {
            [] => self.prefix.into(),
            [(first, last)] if first == last => format!("{}{first}", self.prefix),
            _ => {
                let range = |(first, last): &(&str, &str)| {
                    if first == last { (*first).to_owned() } else { format!("{first}-{last}") }
                };
                format!("{}[{}]", self.prefix, self.ranges.iter().map(range).collect::<Vec<_>>().join(","))
            }
        }
    }
}

fn follows(last: &str, next: &str, width: usize) -> bool {
    last.parse::<u64>().is_ok_and(|last| last.checked_add(1).is_some_and(|n| format!("{n:0width$}") == next))
}

/// Splits a name before the number at its end.
fn split_number(name: &str) -> (&str, &str) {
    let digits = name.bytes().rev().take_while(u8::is_ascii_digit).count();
    // A longer number does not fit a u64.
    if digits > 18 { (name, "") } else { name.split_at(name.len() - digits) }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn ranges_lists_and_several_brackets_are_expanded_in_order() {
        let cases = [
            ("node01", "node01"),
            ("node[01-03,07],login", "node01 node02 node03 node07 login"),
            ("gpu[8-11]", "gpu8 gpu9 gpu10 gpu11"),
            ("gpu[008-010]", "gpu008 gpu009 gpu010"),
            ("rack[1-2]-n[01-02].lan", "rack1-n01.lan rack1-n02.lan rack2-n01.lan rack2-n02.lan"),
            ("a, b", "a b"),
            ("[1-2]", "1 2"),
            ("::1", "::1"),
            ("[::1],gpu[1-2],2001:DB8:0::7", "::1 gpu1 gpu2 2001:db8::7"),
            ("[fe80::1%eth0]", "fe80::1%eth0"),
            ("2001:db8::[9-10]", "2001:db8::9 2001:db8::10"),
        ];
        for (list, names) in cases {
            assert_eq!(expand(list).unwrap().join(" "), names, "{list}");
        }
    }

    #[test]
    fn an_invalid_list_is_refused_with_the_part_that_is_wrong() {
        let refused = |list: &str| expand(list).unwrap_err().to_string();
        let lists = ["", "a,,b", "gpu[1-3", "gpu1-3]", "gpu[[1]]", "gpu[]", "gpu[1-]", "gpu[a-b]", "gpu[9-1]", "[::g]"];
        insta::assert_snapshot!(lists.map(refused).join("\n"), @r#"
        a name is missing in ""
        a name is missing in "a,,b"
        the brackets in "gpu[1-3" do not match
        the brackets in "gpu1-3]" do not match
        the brackets in "gpu[[1]]" do not match
        "" is not a number or a range such as 001-024
        "1-" is not a number or a range such as 001-024
        "a-b" is not a number or a range such as 001-024
        the range 9-1 is in descending order
        "::g" is not a number or a range such as 001-024
        "#);
    }

    #[test]
    fn a_list_with_too_many_names_is_refused() {
        for list in ["n[1-999999999999]", "n[0-65536]", "n[1-999][1-999]", "n[1-99999999999999999999]"] {
            assert!(
                matches!(expand(list), Err(HostlistError::TooMany { .. } | HostlistError::NotARange { .. })),
                "{list}"
            );
        }
        assert_eq!(expand("n[1-65536]").unwrap().len(), 65_536);
    }

    #[test]
    fn consecutive_numbers_become_ranges() {
        let cases = [
            ("node01 node02 node03 node07 login", "node[01-03,07],login"),
            ("gpu8 gpu9 gpu10", "gpu[8-10]"),
            ("gpu09 gpu10 gpu011", "gpu[09-10,011]"),
            ("a1 b1 a2", "a1,b1,a2"),
            ("one", "one"),
            ("2001:db8::9 2001:db8::10 ::1", "2001:db8::[9-10],::1"),
            ("", ""),
        ];
        for (names, list) in cases {
            assert_eq!(compress(&names.split_whitespace().collect::<Vec<_>>()), list);
        }
    }

    proptest! {
        #[test]
        fn compressed_names_can_be_expanded(names in prop::collection::vec("[a-z.-]{0,3}[0-9]{0,3}[a-z]?[0-9]{1,2}|[a-z]{1,4}", 1..40)) {
            prop_assert_eq!(expand(&compress(&names)).unwrap(), names);
        }

        #[test]
        fn compressed_addresses_can_be_expanded(addresses in prop::collection::vec(any::<u128>(), 1..20)) {
            let names: Vec<String> = addresses.into_iter().map(|bits| std::net::Ipv6Addr::from(bits).to_string()).collect();
            prop_assert_eq!(expand(&compress(&names)).unwrap(), names);
        }

        #[test]
        fn no_text_panics(list in r"[a-c0-9\[\],\-é ]{0,24}|.{0,40}") {
            let _ = expand(&list);
            let _ = compress(&[list]);
        }
    }
}
