//! The programs a fresh machine may lack, and the Debian packages that bring them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use crate::failure::{Failure, Result};
use crate::process::{command, run, works};

/// A program that is needed.
pub struct Need {
    /// What it is, for people.
    what: &'static str,
    /// The Debian package that brings it.
    package: &'static str,
    /// Commands of which one must succeed.
    any_of: &'static [(&'static str, &'static [&'static str])],
    /// What cannot be done without it, when all the rest can.
    lost: Option<&'static str>,
}

/// What compiles torch-sys and the shim of c10d.
pub const COMPILER: &[Need] = &[Need::new("a C++ compiler", "g++", &[("c++", &["--version"])])];

/// What fetches libtorch.
pub const PYTHON: &[Need] = &[
    Need::new("Python 3", "python3", &[("python3", &["--version"])]),
    Need::new(
        "pip",
        "python3-pip",
        &[("python3", &["-m", "pip", "--version"]), ("python3", &["-c", "import venv, ensurepip"])],
    ),
];

/// What the console's SSH library is built against.
pub const OPENSSL: &[Need] = &[
    Need::new("pkg-config", "pkg-config", &[("pkg-config", &["--version"])]),
    Need::new("OpenSSL's headers", "libssl-dev", &[("pkg-config", &["--exists", "openssl"])]),
];

/// What the test of the demo's data decodes its clip with.
pub const DECODER: &[Need] =
    &[Need { lost: Some("tests on the demo's clip"), ..Need::new("ffmpeg", "ffmpeg", &[("ffmpeg", &["-version"])]) }];

/// What the test of a clock that jumps makes it jump with.
pub const CLOCK: &[Need] = &[Need {
    lost: Some("test of a clock that jumps"),
    ..Need::new("faketime", "faketime", &[("faketime", &["--version"])])
}];

/// What makes the Python environment of the benches.
pub const VENV: &[Need] = &[Need {
    lost: Some("what runs diffusers"),
    ..Need::new("Python's venv", "python3-venv", &[("python3", &["-c", "import venv, ensurepip"])])
}];

impl Need {
    const fn new(
        what: &'static str,
        package: &'static str,
        any_of: &'static [(&'static str, &'static [&'static str])],
    ) -> Self {
        Self { what, package, any_of, lost: None }
    }

    fn is_met(&self) -> bool {
        self.any_of.iter().any(|(program, args)| works(program, args))
    }
}

/// Makes sure that everything needed is there, and installs what is not when that is allowed, all of it at once.
///
/// # Errors
/// Names all that is missing, when some of it cannot be done without.
pub fn require(needs: &[&[Need]]) -> Result<()> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let tried = install(&missing);
    let missing = self::missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let failure = tried.err().unwrap_or_else(|| {
        let why = format!("apt-get installed {}, and that is still not on PATH", packages(&missing));
        Failure::new(format!("cannot go on without {}", names(&missing)), why, "put it on PATH")
    });
    if !required(&missing).is_empty() {
        return Err(failure);
    }
    println!("{failure}");
    for need in missing {
        println!("without {} there will be no {}", need.what, need.lost.unwrap_or_default());
    }
    Ok(())
}

fn install(missing: &[&Need]) -> Result<()> {
    let what = format!("cannot go on without {}", names(missing));
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let apt_get: &[&str] = if is_root { &["apt-get"] } else { &["sudo", "-n", "apt-get"] };
    let sudo = if is_root { "" } else { "sudo " };
    let typed = format!("{sudo}apt-get install --no-install-recommends {}", packages(missing));
    if !works("apt-get", &["--version"]) {
        let why = "nothing of the kind is on PATH, and there is no apt-get";
        return Err(Failure::new(what, why, "install that and try again"));
    }
    if !works(apt_get[0], &[&apt_get[1..], &["--version"]].concat()) {
        let why = "nothing of the kind is on PATH, and only root may install it";
        return Err(Failure::new(what, why, format!("run `{typed}` and try again")));
    }
    println!("missing: {}; installing with `{typed}`", names(missing));
    let apt = |args: &[&str]| {
        let mut apt = command(apt_get[0], apt_get[1..].iter().chain(args));
        // Where sudo forgets the variable, there is nobody to ask either.
        apt.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        run(&mut apt, "see what apt-get printed above; when it is put right, run this again")
    };
    // A fresh container has no package lists, an old one has stale ones.
    apt(&["update", "-q"])?;
    let get = |needs: &[&Need]| {
        let packages: Vec<&str> = needs.iter().map(|need| need.package).collect();
        apt(&[&["install", "-y", "-q", "--no-install-recommends"], &packages[..]].concat())
    };
    let tried = get(missing);
    let required = required(missing);
    if tried.is_err() && !required.is_empty() && required.len() < missing.len() {
        // A package that cannot be had keeps apt-get from all the others; what came of this is seen by looking again.
        println!("trying again with what cannot be done without: {}", names(&required));
        let _ = get(&required);
    }
    tried
}

/// Those that cannot be done without.
fn required<'a>(needs: &[&'a Need]) -> Vec<&'a Need> {
    needs.iter().copied().filter(|need| need.lost.is_none()).collect()
}

fn missing<'a>(needs: &[&'a [Need]]) -> Vec<&'a Need> {
    needs.iter().copied().flatten().filter(|need| !need.is_met()).collect()
}

fn names(needs: &[&Need]) -> String {
    needs.iter().map(|need| need.what).collect::<Vec<_>>().join(", ")
}

fn packages(needs: &[&Need]) -> String {
    needs.iter().map(|need| need.package).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const THERE: &[Need] = &[Need::new("a shell", "dash", &[("no such program", &[]), ("true", &[])])];
    const NOT: &[Need] = &[Need::new("a dream", "dream", &[("false", &[])]), Need::new("a wish", "wish", &[])];
    const SPARED: &[Need] = &[Need { lost: Some("songs"), ..Need::new("a bird", "bird", &[("false", &[])]) }];

    #[test]
    fn all_that_is_missing_of_all_groups_is_named_at_once() {
        let missing = missing(&[THERE, NOT, SPARED]);
        assert_eq!(names(&missing), "a dream, a wish, a bird");
        assert_eq!(packages(&missing), "dream wish bird");
        assert_eq!(packages(&required(&missing)), "dream wish");
        assert!(self::missing(&[THERE, THERE]).is_empty());
    }
}
