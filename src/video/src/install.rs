//! The hint that errors show if ffmpeg is missing.

use std::ffi::OsStr;

/// The environment variables that replace the programs on `PATH`.
pub(crate) const VARIABLES: [&str; 2] = ["VIDTUI_FFMPEG", "VIDTUI_FFPROBE"];

/// Returns the hint with the command that installs ffmpeg on this machine.
pub(crate) fn install_hint() -> String {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let has = |program: &str| std::env::split_paths(&path).any(|folder| folder.join(OsStr::new(program)).is_file());
    hint(&has)
}

fn hint(has: &dyn Fn(&str) -> bool) -> String {
    const COMMANDS: [(&str, &str); 5] = [
        ("apt-get", "sudo apt-get install ffmpeg"),
        ("dnf", "sudo dnf install ffmpeg"),
        ("pacman", "sudo pacman -S ffmpeg"),
        ("brew", "brew install ffmpeg"),
        ("zypper", "sudo zypper install ffmpeg"),
    ];
    const CONDA: &str = "conda install -c conda-forge ffmpeg";
    let [ffmpeg, ffprobe] = VARIABLES;
    let install = COMMANDS.iter().find(|(manager, _)| has(manager)).map_or(CONDA, |(_, install)| *install);
    let or = if install == CONDA { String::new() } else { format!(" (without root: `{CONDA}`)") };
    format!("install ffmpeg: `{install}`{or}, or set {ffmpeg} and {ffprobe} to the programs")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hint_names_a_command_of_this_machine() {
        assert!(hint(&|name| name == "dnf").contains("sudo dnf install ffmpeg"));
        assert!(hint(&|name| name == "apt-get").contains("sudo apt-get install ffmpeg"));
        assert!(hint(&|_| false).contains("conda install"));
    }
}
