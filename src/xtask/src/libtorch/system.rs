//! Programs that a fresh machine may lack, and their Debian packages.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Stdio;

use crate::failure::{Failure, Result};
use crate::process::{command, run, works};

/// A required program.
pub struct Need {
    /// The name of the program for messages.
    what: &'static str,
    /// The Debian package that has the program.
    package: &'static str,
    /// Commands; the program is installed if one of them succeeds.
    any_of: &'static [(&'static str, &'static [&'static str])],
    /// The tests that are skipped without the program; `None` if the program is required.
    lost: Option<&'static str>,
}

/// Compiles torch-sys and the C++ of c10d.
pub const COMPILER: &[Need] = &[Need::new("a C++ compiler", "g++", &[("c++", &["--version"])])];

/// Downloads libtorch.
pub const PYTHON: &[Need] = &[
    Need::new("Python 3", "python3", &[("python3", &["--version"])]),
    Need::new(
        "pip",
        "python3-pip",
        &[("python3", &["-m", "pip", "--version"]), ("python3", &["-c", "import venv, ensurepip"])],
    ),
];

/// Needed to build the console's SSH library.
pub const OPENSSL: &[Need] = &[
    Need::new("pkg-config", "pkg-config", &[("pkg-config", &["--version"])]),
    Need::new("OpenSSL's headers", "libssl-dev", &[("pkg-config", &["--exists", "openssl"])]),
];

/// Reads and writes videos: the tests of `video` and of the demo's data make their clips with it.
pub const DECODER: &[Need] =
    &[Need::new("ffmpeg", "ffmpeg", &[("sh", &["-c", "ffmpeg -version && ffprobe -version"])])];

/// Changes the clock in the test of a clock that jumps.
pub const CLOCK: &[Need] = &[Need {
    lost: Some("test of a clock that jumps"),
    ..Need::new("faketime", "faketime", &[("faketime", &["--version"])])
}];

/// Creates the Python environment of the benches.
pub const VENV: &[Need] = &[Need {
    lost: Some("tests against diffusers"),
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

/// Installs all missing programs at once, if the user is root or may use `sudo` without a password.
///
/// # Errors
/// Fails if a required program is still missing. The failure names everything that is missing.
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
        let why = format!("apt-get installed {}, and it is still not on PATH", packages(&missing));
        Failure::new(format!("cannot continue without {}", names(&missing)), why, "put it on PATH")
    });
    if !required(&missing).is_empty() {
        return Err(failure);
    }
    println!("{failure}");
    for need in missing {
        println!("without {}, skipped: {}", need.what, need.lost.unwrap_or_default());
    }
    Ok(())
}

fn install(missing: &[&Need]) -> Result<()> {
    let what = format!("cannot continue without {}", names(missing));
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    let apt_get: &[&str] = if is_root { &["apt-get"] } else { &["sudo", "-n", "apt-get"] };
    let sudo = if is_root { "" } else { "sudo " };
    let typed = format!("{sudo}apt-get install --no-install-recommends {}", packages(missing));
    if !works("apt-get", &["--version"]) {
        let why = "it is not on PATH, and there is no apt-get";
        return Err(Failure::new(what, why, "install it and try again"));
    }
    if !works(apt_get[0], &[&apt_get[1..], &["--version"]].concat()) {
        let why = "it is not on PATH, and only root may install it";
        return Err(Failure::new(what, why, format!("run `{typed}` and try again")));
    }
    println!("missing: {}; installing with `{typed}`", names(missing));
    let apt = |args: &[&str]| {
        let mut apt = command(apt_get[0], apt_get[1..].iter().chain(args));
        // sudo may drop the variable. Then the closed standard input keeps apt-get from prompting.
        apt.env("DEBIAN_FRONTEND", "noninteractive").stdin(Stdio::null());
        run(&mut apt, "fix what apt-get reports above and run this again")
    };
    // A fresh container has no package lists, an old one has outdated ones.
    apt(&["update", "-q"])?;
    let get = |needs: &[&Need]| {
        let packages: Vec<&str> = needs.iter().map(|need| need.package).collect();
        apt(&[&["install", "-y", "-q", "--no-install-recommends"], &packages[..]].concat())
    };
    let tried = get(missing);
    let required = required(missing);
    if tried.is_err() && !required.is_empty() && required.len() < missing.len() {
        // If one package is unavailable, apt-get installs none. The caller checks what is installed.
        println!("retrying with the required packages: {}", names(&required));
        let _ = get(&required);
    }
    tried
}

/// Returns the programs that are required, not optional.
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

    const INSTALLED: &[Need] = &[Need::new("a shell", "dash", &[("no such program", &[]), ("true", &[])])];
    const MISSING: &[Need] =
        &[Need::new("a compiler", "gcc-99", &[("false", &[])]), Need::new("a linker", "ld-99", &[])];
    const OPTIONAL: &[Need] = &[Need { lost: Some("sound"), ..Need::new("a player", "player", &[("false", &[])]) }];

    #[test]
    fn everything_missing_is_named_at_once() {
        let missing = missing(&[INSTALLED, MISSING, OPTIONAL]);
        assert_eq!(names(&missing), "a compiler, a linker, a player");
        assert_eq!(packages(&missing), "gcc-99 ld-99 player");
        assert_eq!(packages(&required(&missing)), "gcc-99 ld-99");
        assert!(self::missing(&[INSTALLED, INSTALLED]).is_empty());
    }
}
