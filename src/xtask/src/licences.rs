//! `cargo xtask licences`: checks that the licence of every dependency allows this project to ship it.
//!
//! cargo-deny also does this, but CI would have to compile it, which takes minutes. Its parser of licence expressions is used here.

use std::collections::BTreeSet;

use spdx::{Expression, ParseMode};

use crate::failure::{Failure, Result};
use crate::process::{cargo, output};

/// Licences that require only a copy of their text.
const ALLOWED: &[&str] = &[
    "0BSD",
    "Apache-2.0",
    "Apache-2.0 WITH LLVM-exception",
    "BSD-2-Clause",
    "BSD-3-Clause",
    "BSL-1.0",
    "CC0-1.0",
    "CDLA-Permissive-2.0",
    "ISC",
    "MIT",
    "Unicode-3.0",
    "Unlicense",
    "Zlib",
];

/// Runs the command.
pub fn run(args: &[String]) -> Result<()> {
    if let [first, ..] = args {
        return Err(Failure::request(
            "cannot check the licences",
            format!("{first:?} is not known"),
            "give no arguments",
        ));
    }
    let edges = "normal,build,dev";
    let mut tree = cargo(["tree", "--workspace", "--edges", edges, "--prefix", "none", "--format", "{p}|{l}"]);
    let printed = output(&mut tree, "see the message above")?;
    let printed = String::from_utf8_lossy(&printed.stdout);
    let packages: BTreeSet<(&str, &str)> = printed.lines().filter_map(package).collect();
    let refused: Vec<String> = packages
        .iter()
        .filter(|(_, licence)| !is_allowed(licence))
        .map(|(name, licence)| format!("{name}: {}", if licence.is_empty() { "no licence" } else { licence }))
        .collect();
    if refused.is_empty() {
        println!("{} crates, every licence is allowed", packages.len());
        return Ok(());
    }
    let fix =
        "use another crate, or add the licence to ALLOWED in src/xtask/src/licences.rs if the project may ship it";
    Err(Failure::new("a dependency has a licence that is not allowed", refused.join("\n"), fix))
}

/// Reads a line `camino v1.2.6|MIT OR Apache-2.0`; a package that was listed before ends in `(*)`.
fn package(line: &str) -> Option<(&str, &str)> {
    let (name, licence) = line.split_once('|')?;
    Some((name.trim(), licence.trim().trim_end_matches("(*)").trim()))
}

/// Returns whether an SPDX expression can be met with allowed licences alone. crates.io also has expressions that are not quite valid, such
/// as `MIT/Apache-2.0`.
fn is_allowed(expression: &str) -> bool {
    let expression = Expression::parse_mode(expression, ParseMode::LAX);
    expression.is_ok_and(|it| it.evaluate(|licence| ALLOWED.contains(&licence.to_string().as_str())))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_allowed_alternative_is_enough_and_all_parts_must_be_allowed() {
        for (expression, allowed) in [
            ("MIT", true),
            ("GPL-3.0-only", false),
            ("GPL-3.0-only OR MIT", true),
            ("MIT AND GPL-3.0-only", false),
            ("MIT/Apache-2.0", true),
            ("(MIT OR Apache-2.0) AND Unicode-3.0", true),
            ("(MIT OR Apache-2.0) AND GPL-2.0", false),
            ("MIT OR (GPL-2.0 AND Zlib)", true),
            ("Apache-2.0 WITH LLVM-exception OR GPL-2.0", true),
            ("GPL-2.0 WITH Classpath-exception-2.0", false),
            ("", false),
            ("MIT MIT", false),
        ] {
            assert_eq!(is_allowed(expression), allowed, "{expression:?}");
        }
    }

    #[test]
    fn every_dependency_of_this_workspace_is_allowed() {
        run(&[]).unwrap();
    }

    #[test]
    fn a_package_is_read_with_its_licence() {
        assert_eq!(package("camino v1.2.6|MIT OR Apache-2.0"), Some(("camino v1.2.6", "MIT OR Apache-2.0")));
        assert_eq!(package("camino v1.2.6|MIT (*)"), Some(("camino v1.2.6", "MIT")));
        assert_eq!(package("camino v1.2.6|"), Some(("camino v1.2.6", "")));
    }
}
