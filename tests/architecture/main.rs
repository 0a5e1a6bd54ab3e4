//! Checks that the workspace matches ARCHITECTURE.md: the dependencies between crates, and what crates must not contain.

#![expect(clippy::unwrap_used, reason = "a panic shows the failing line")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

/// External crates that ARCHITECTURE.md lists among the dependencies.
const OUTSIDE: [&str; 1] = ["tch"];

/// The crates that call C++.
const CPP: [&str; 3] = ["c10d", "kernels", "torch_error"];

/// The crates that may use unsafe code.
const UNSAFE: [&str; 4] = ["c10d", "heap", "kernels", "torch_error"];

/// The direct dependencies of each crate: the block of arrows in ARCHITECTURE.md.
type Arrows = BTreeMap<String, BTreeSet<String>>;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn cargo(args: &[&str]) -> String {
    let mut command = Command::new(env!("CARGO"));
    // With this variable, `cargo tree` would list for each crate the dependencies of features that only other crates enable.
    command.env_remove("CARGO_RESOLVER_FEATURE_UNIFICATION");
    let out = command.args(args).current_dir(root()).output().unwrap();
    assert!(out.status.success(), "cargo {args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).unwrap()
}

/// Returns the packages of the workspace as `cargo metadata` lists them.
fn packages() -> Vec<Value> {
    let metadata: Value = serde_json::from_str(&cargo(&["metadata", "--format-version=1", "--no-deps"])).unwrap();
    metadata["packages"].as_array().unwrap().clone()
}

fn name(package: &Value) -> &str {
    package["name"].as_str().unwrap()
}

fn folder(package: &Value) -> &Path {
    Path::new(package["manifest_path"].as_str().unwrap()).parent().unwrap()
}

/// Returns the names of a crate and of all its direct and indirect dependencies.
fn tree(package: &str, edges: &str) -> BTreeSet<String> {
    let lines = cargo(&["tree", "--package", package, "--edges", edges, "--prefix", "none", "--format", "{p}"]);
    lines.lines().filter_map(|line| line.split_whitespace().next()).map(str::to_owned).collect()
}

/// Parses the block of lines `crate -> dependency dependency` in ARCHITECTURE.md.
fn drawn_arrows(text: &str) -> Arrows {
    let (_, rest) = text.split_once("```arrows\n").expect("ARCHITECTURE.md has a block of arrows");
    let (block, _) = rest.split_once("```").expect("the block of arrows ends");
    let arrows = block.lines().filter(|line| !line.trim().is_empty()).map(|line| {
        let (from, to) = line.split_once("->").unwrap_or_else(|| panic!("no arrow in {line:?}"));
        (from.trim().to_owned(), to.split_whitespace().map(str::to_owned).collect())
    });
    arrows.collect()
}

fn real_arrows() -> Arrows {
    let packages = packages();
    let known: BTreeSet<&str> = packages.iter().map(name).chain(OUTSIDE).collect();
    let arrow = |package: &Value| {
        let normal = package["dependencies"].as_array().unwrap().iter().filter(|d| d["kind"].is_null());
        let to = normal.map(name).filter(|name| known.contains(name)).map(str::to_owned).collect();
        (name(package).to_owned(), to)
    };
    packages.iter().map(arrow).collect()
}

/// Calls `each` for every file with one of these extensions in a folder and its subfolders.
fn walk(folder: &Path, endings: &[&str], each: &mut dyn FnMut(&Path)) {
    for entry in fs::read_dir(folder).unwrap_or_else(|e| panic!("{}: {e}", folder.display())) {
        let path = entry.unwrap().path();
        if path.is_dir() {
            walk(&path, endings, each);
        } else if path.extension().is_some_and(|e| endings.iter().any(|ending| e == *ending)) {
            each(&path);
        }
    }
}

/// The number of modules at the top of a crate that import each other in circles. Every other crate has none: each of its modules
/// imports only modules below it. These numbers may only fall.
const CIRCLES: [(&str, usize); 9] = [
    ("cluster", 2),
    ("dataset", 7),
    ("recipe", 27),
    ("rundir", 5),
    ("trainer", 17),
    ("video", 4),
    ("vidtui", 12),
    ("weights", 8),
    ("xtask", 2),
];

/// The modules of a crate that each module imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// Returns the names after `prefix` in a text: `a` and `b` for `prefix::a::c` or `prefix::{a::c, b}`.
fn names_after(text: &str, prefix: &str) -> Vec<String> {
    let is_name = |c: char| c.is_alphanumeric() || c == '_';
    let name = |text: &str| text.trim_start().chars().take_while(|c| is_name(*c)).collect::<String>();
    let mut names = Vec::new();
    for (at, _) in text.match_indices(prefix) {
        let before = text[..at].chars().next_back();
        let rest = &text[at + prefix.len()..];
        if before.is_some_and(is_name) {
            continue;
        }
        let Some(group) = rest.strip_prefix('{') else {
            names.push(name(rest));
            continue;
        };
        // The items of the group, without those of groups inside it.
        let mut depth = 0;
        let mut starts = true;
        for (at, c) in group.char_indices() {
            if starts && depth == 0 && !c.is_whitespace() {
                names.push(name(&group[at..]));
                starts = false;
            }
            match c {
                '{' => depth += 1,
                '}' if depth == 0 => break,
                '}' => depth -= 1,
                ',' if depth == 0 => starts = true,
                _ => {}
            }
        }
    }
    names
}

/// Returns the code of a file without comments and without its module of tests.
fn code(path: &Path) -> String {
    let text = read(path);
    let (code, _) = text.split_once("#[cfg(test)]\nmod tests {").unwrap_or((&text, ""));
    let code = code.lines().map(|line| line.split("//").next().unwrap_or_default());
    code.collect::<Vec<_>>().join("\n")
}

/// Returns which modules at the top of a crate import which. Modules that only tests contain are left out.
fn imports(sources: &Path) -> Imports {
    let top = ["lib.rs", "main.rs"].map(|name| sources.join(name));
    let roots: Vec<String> = top.iter().filter(|path| path.exists()).map(|path| read(path)).collect();
    let of_tests = |module: &str| {
        roots.iter().any(|text| text.contains(&format!("#[cfg(test)]\nmod {module};")))
            || module == "lib"
            || module == "main"
    };
    let module_of = |path: &Path| {
        let first = path.strip_prefix(sources).unwrap().components().next().unwrap();
        Path::new(first.as_os_str()).file_stem().unwrap().to_str().unwrap().to_owned()
    };
    let mut files = Vec::new();
    walk(sources, &["rs"], &mut |path| files.push(path.to_owned()));
    files.retain(|path| !of_tests(&module_of(path)));
    let mut imports: Imports = files.iter().map(|path| (module_of(path), BTreeSet::new())).collect();
    // A name that the top of the crate exports belongs to its module.
    let mut exported = BTreeMap::new();
    for module in imports.keys() {
        for root in &roots {
            let names = names_after(root, &format!("pub use {module}::"));
            exported.extend(names.into_iter().map(|name| (name, module.clone())));
        }
    }
    for path in &files {
        let from = module_of(path);
        for name in names_after(&code(path), "crate::") {
            let to = if imports.contains_key(&name) { Some(&name) } else { exported.get(&name) };
            if let Some(to) = to.filter(|to| **to != from).cloned() {
                imports.get_mut(&from).unwrap().insert(to);
            }
        }
    }
    imports
}

/// Returns the modules that a module imports directly or through others.
fn reached(imports: &Imports, from: &str) -> BTreeSet<String> {
    let mut reached = BTreeSet::new();
    let mut next = vec![from.to_owned()];
    while let Some(module) = next.pop() {
        let new = imports[&module].iter().filter(|to| reached.insert((*to).clone())).cloned();
        next.extend(new.collect::<Vec<_>>());
    }
    reached
}

/// Returns the modules that import themselves through others, each with those of its imports that lead back to it.
fn in_circles(imports: &Imports) -> Imports {
    let all: BTreeMap<&String, BTreeSet<String>> =
        imports.keys().map(|module| (module, reached(imports, module))).collect();
    let back = |(module, to): (&String, &BTreeSet<String>)| {
        let back: BTreeSet<String> = to.iter().filter(|to| all[to].contains(module)).cloned().collect();
        (!back.is_empty()).then(|| (module.clone(), back))
    };
    imports.iter().filter_map(back).collect()
}

#[test]
fn modules_import_each_other_in_no_circle() {
    let mut wrong = Vec::new();
    for package in packages() {
        let circles = in_circles(&imports(&folder(&package).join("src")));
        let known = CIRCLES.iter().find(|(of, _)| *of == name(&package)).map_or(0, |(_, count)| *count);
        if circles.len() > known {
            let arrows = circles.iter().map(|(from, to)| format!("  {from} -> {to:?}")).collect::<Vec<_>>();
            let found = circles.len();
            wrong.push(format!("{}: {found} modules in circles, {known} known\n{}", name(&package), arrows.join("\n")));
        }
    }
    assert!(wrong.is_empty(), "move what two modules share below both:\n{}", wrong.join("\n"));
}

#[test]
fn imports_in_circles_are_found() {
    assert_eq!(
        names_after("use crate::{a::{x, y}, b, c::z};\nlet d = crate::e::f();", "crate::"),
        ["a", "b", "c", "e"]
    );
    let arrow = |(from, to): (&str, &[&str])| (from.to_owned(), to.iter().map(|to| (*to).to_owned()).collect());
    let imports: Imports =
        [("a", &["b"][..]), ("b", &["c"]), ("c", &["b", "d"]), ("d", &[])].into_iter().map(arrow).collect();
    let expected: Imports = [("b", &["c"][..]), ("c", &["b"])].into_iter().map(arrow).collect();
    assert_eq!(in_circles(&imports), expected);
}

#[test]
fn the_dependencies_between_crates_are_those_in_architecture_md() {
    let drawn = drawn_arrows(&read(&root().join("ARCHITECTURE.md")));
    let mut wrong = Vec::new();
    let real = real_arrows();
    for crate_name in drawn.keys().chain(real.keys()).collect::<BTreeSet<_>>() {
        match (drawn.get(crate_name), real.get(crate_name)) {
            (Some(drawn), Some(real)) if drawn == real => {}
            (Some(drawn), Some(real)) => wrong.push(format!(
                "{crate_name}: only in ARCHITECTURE.md {:?}, only in Cargo.toml {:?}",
                drawn.difference(real).collect::<Vec<_>>(),
                real.difference(drawn).collect::<Vec<_>>()
            )),
            (None, _) => wrong.push(format!("{crate_name}: missing in ARCHITECTURE.md")),
            (_, None) => wrong.push(format!("{crate_name}: in ARCHITECTURE.md, but there is no such crate")),
        }
    }
    assert!(wrong.is_empty(), "ARCHITECTURE.md and the Cargo.toml files disagree:\n{}", wrong.join("\n"));
}

#[test]
fn each_folder_has_the_name_of_its_crate() {
    for package in packages() {
        assert_eq!(folder(&package).file_name().unwrap(), name(&package));
    }
}

#[test]
fn only_c10d_heap_kernels_and_torch_error_may_use_unsafe_code() {
    assert!(read(&root().join("Cargo.toml")).contains("\nunsafe_code = \"forbid\"\n"));
    for package in packages().iter().filter(|p| !UNSAFE.contains(&name(p))) {
        let manifest = read(&folder(package).join("Cargo.toml"));
        assert!(manifest.contains("[lints]\nworkspace = true\n"), "{} has lints of its own", name(package));
    }
}

#[test]
fn only_c10d_kernels_and_torch_error_contain_c_or_cpp() {
    let root = root();
    let mut misplaced = Vec::new();
    for part in ["src", "ui", "tests"] {
        walk(&root.join(part), &["c", "cc", "cpp", "cu", "h", "hpp"], &mut |path| {
            let is_allowed = CPP.iter().any(|name| path.starts_with(root.join("src").join(name)));
            // A library that tests preload.
            if !is_allowed && !path.starts_with(root.join("tests/faults")) {
                misplaced.push(path.to_owned());
            }
        });
    }
    assert!(misplaced.is_empty(), "{misplaced:?}");
}

#[test]
fn code_blocks_in_doc_comments_are_text() {
    // Examples in Rust belong in tests: rustdoc would compile each as a separate program, and takes longer to find them than to run them.
    let root = root();
    let mut tested = Vec::new();
    for part in ["src", "ui"] {
        walk(&root.join(part), &["rs"], &mut |path| {
            let fence = |line: &str| {
                let line = line.trim_start();
                let text = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
                text.trim().strip_prefix("```").map(str::to_owned)
            };
            let fences: Vec<String> = read(path).lines().filter_map(fence).collect();
            tested.extend(fences.iter().step_by(2).any(|language| language != "text").then(|| path.to_owned()));
        });
    }
    assert!(tested.is_empty(), "`cargo xtask test` runs no documentation tests; write ```text or a test: {tested:?}");
}

#[test]
fn ui_is_built_from_no_terminal_or_runtime_crate_and_calls_no_system_crate() {
    let tree = tree("ui", "normal");
    let banned = ["crossterm", "mio", "ratatui", "signal-hook", "termion", "tokio"].map(str::to_owned);
    let found: Vec<_> = banned.iter().filter(|name| tree.contains(*name)).collect();
    assert!(found.is_empty(), "ui is built from {found:?}; see `cargo tree -p ui -i {}`", found[0]);
    // The crates that read files of runs need some of the system, such as the owners of files.
    let direct =
        cargo(&["tree", "--package", "ui", "--edges", "normal", "--depth", "1", "--prefix", "none", "--format", "{p}"]);
    let is_system =
        |line: &&str| ["libc", "nix", "rustix"].contains(&line.split_whitespace().next().unwrap_or_default());
    let system: Vec<&str> = direct.lines().filter(is_system).collect();
    assert!(system.is_empty(), "ui calls {system:?}");
}

#[test]
fn the_console_does_not_depend_on_libtorch() {
    let tree = tree("vidtui", "normal,build");
    assert!(tree.contains("ui"), "the tree is empty");
    assert!(!tree.contains("tch") && !tree.contains("torch-sys"), "see `cargo tree -p vidtui -i torch-sys`");
}

#[test]
fn the_trainer_links_no_openssl() {
    let tree = tree("trainer", "normal,build");
    assert!(tree.contains("rustls"), "it sends alerts");
    assert!(!tree.iter().any(|name| name.contains("openssl-sys")), "see `cargo tree -p trainer -i openssl-sys`");
}

#[test]
fn dit_does_not_depend_on_c10d_nor_sharding_on_dit() {
    assert!(!tree("dit", "normal").contains("c10d"));
    assert!(!tree("sharding", "normal").contains("dit"));
}
