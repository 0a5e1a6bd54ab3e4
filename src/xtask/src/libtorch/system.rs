//! The programs a fresh machine may lack, and the Debian packages that bring them.

use std::fs;
use std::os::unix::fs::MetadataExt;

use crate::failure::{Failure, Result};
use crate::process::{command, run, works};

/// A program that is needed.
pub struct Need {
    /// What it is, for people.
    pub what: &'static str,
    /// The Debian package that brings it.
    package: &'static str,
    /// Commands of which one must succeed.
    any_of: &'static [(&'static str, &'static [&'static str])],
}

/// What compiles torch-sys and the shim of c10d.
pub const COMPILER: [Need; 1] = [Need { what: "a C++ compiler", package: "g++", any_of: &[("c++", &["--version"])] }];

/// What fetches libtorch.
pub const PYTHON: [Need; 2] = [
    Need { what: "Python 3", package: "python3", any_of: &[("python3", &["--version"])] },
    Need {
        what: "pip",
        package: "python3-pip",
        any_of: &[("python3", &["-m", "pip", "--version"]), ("python3", &["-c", "import venv, ensurepip"])],
    },
];

/// What the console's SSH library is built against.
pub const OPENSSL: [Need; 2] = [
    Need { what: "pkg-config", package: "pkg-config", any_of: &[("pkg-config", &["--version"])] },
    Need { what: "OpenSSL's headers", package: "libssl-dev", any_of: &[("pkg-config", &["--exists", "openssl"])] },
];

/// What the test of the demo's data decodes its clip with.
pub const DECODER: [Need; 1] = [Need { what: "ffmpeg", package: "ffmpeg", any_of: &[("ffmpeg", &["-version"])] }];

/// Makes sure that everything needed is there, and installs what is not when that is allowed.
pub fn require(needs: &[Need]) -> Result<()> {
    let missing = missing(needs);
    if missing.is_empty() {
        return Ok(());
    }
    let names = missing.iter().map(|n| n.what).collect::<Vec<_>>().join(", ");
    let packages: Vec<&str> = missing.iter().map(|n| n.package).collect();
    let what = format!("cannot go on without {names}");
    if !works("apt-get", &["--version"]) {
        return Err(Failure::new(
            what,
            "nothing of the kind is on PATH, and there is no apt-get",
            "install that and try again",
        ));
    }
    let typed = format!("apt-get install --no-install-recommends {}", packages.join(" "));
    if fs::metadata("/proc/self").map_or(1, |m| m.uid()) != 0 {
        let why = "nothing of the kind is on PATH, and only root may install it";
        return Err(Failure::new(what, why, format!("run `sudo {typed}` and try again")));
    }
    println!("missing: {names}; installing with `{typed}`");
    let apt = |args: &[&str]| {
        let mut apt = command("apt-get", args);
        apt.env("DEBIAN_FRONTEND", "noninteractive");
        run(&mut apt, "see what apt-get printed above; when it is put right, run this again")
    };
    let install: Vec<&str> = ["install", "-y", "-q", "--no-install-recommends"].into_iter().chain(packages).collect();
    // A fresh container has no package lists, an old one has stale ones.
    apt(&["update", "-q"]).and_then(|()| apt(&install))?;
    match self::missing(needs)[..] {
        [] => Ok(()),
        [need, ..] => Err(Failure::new(
            format!("cannot go on without {}", need.what),
            format!("apt-get installed {}, and it is still not on PATH", need.package),
            "put it on PATH",
        )),
    }
}

fn missing(needs: &[Need]) -> Vec<&Need> {
    needs.iter().filter(|need| !need.any_of.iter().any(|(program, args)| works(program, args))).collect()
}
