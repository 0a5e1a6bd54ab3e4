//! Arguments of the commands that list and answer alerts.

use super::JsonArgs;
use clap::{Args as Arguments, Subcommand};

/// `vidtui alerts`.
#[derive(Debug, Arguments)]
#[command(args_conflicts_with_subcommands = true)]
pub struct AlertsArgs {
    #[command(subcommand)]
    pub command: Option<AlertsCommand>,
    /// The most alerts to list
    #[arg(long, value_name = "N", default_value_t = 20)]
    pub limit: usize,
    #[command(flatten)]
    pub output: JsonArgs,
}

/// `vidtui alerts …`.
#[derive(Debug, Subcommand)]
pub enum AlertsCommand {
    /// Sends a test alert to each channel of alerts.toml, or to one
    Test {
        /// The channel, such as slack
        channel: Option<String>,
        #[command(flatten)]
        output: JsonArgs,
    },
    /// Acknowledges an alert, so that it is not open any more
    Ack {
        /// The id of the alert, or its beginning
        id: String,
        #[command(flatten)]
        output: JsonArgs,
    },
    /// Sends no alerts of a run, or none like this alert, for a time
    Snooze {
        /// The id of an alert, or a run
        #[arg(value_name = "RUN|ID")]
        what: String,
        /// The time, such as 30m or 2h
        time: recipe::TimeLimit,
        #[command(flatten)]
        output: JsonArgs,
    },
}

impl AlertsArgs {
    pub fn is_json(&self) -> bool {
        match &self.command {
            None => self.output.json,
            Some(
                AlertsCommand::Test { output, .. }
                | AlertsCommand::Ack { output, .. }
                | AlertsCommand::Snooze { output, .. },
            ) => output.json,
        }
    }
}
