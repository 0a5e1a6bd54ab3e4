//! Arguments of the commands that exchange runs with other tools.

use super::JsonArgs;
use camino::Utf8PathBuf;
use clap::Args as Arguments;

/// `vidtui import`.
#[derive(Debug, Arguments)]
pub struct ImportArgs {
    /// A folder of TensorBoard event files, an offline run of W&B, or a file of one of them
    pub path: Utf8PathBuf,
    /// Name of the run, a part of its id [default: that in the log, or of the folder]
    #[arg(long)]
    pub name: Option<String>,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui report`.
#[derive(Debug, Arguments)]
pub struct ReportArgs {
    /// The run
    pub run: String,
    /// The file to write [default: the id of the run, with .html, in this folder]
    #[arg(long, value_name = "FILE.html")]
    pub out: Option<Utf8PathBuf>,
    /// Embeds samples up to this total size, newest first; links to the others
    #[arg(long, value_name = "SIZE", value_parser = units::parse_size, default_value = "20MB")]
    pub embed: u64,
}
