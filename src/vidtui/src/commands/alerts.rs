//! `vidtui alerts`: lists the alerts of all runs, acknowledges and snoozes them, and tests the channels.

use crate::args::{AlertsArgs, AlertsCommand};
use crate::command_error::CommandError;
use crate::commands::named_run;
use crate::documents::AlertDocument;
use crate::inbox::Inbox;
use crate::output::{self, Side, note};
use crate::terminal;
use crate::workspace::{Needs, Workspace};
use alerts::{Limits, Settings, test_alert};
use rundir::{AlertState, ErrorCode, Failure, Mute, now_s};
use serde_json::json;
use ui::run_state::short_id;

/// The mark of a channel that accepted the test alert, and of one that did not.
const MARKS: [char; 2] = ['✓', '✗'];

/// Runs the command.
pub fn run(workspace: &Workspace, args: &AlertsArgs) -> Result<(), CommandError> {
    match &args.command {
        None => list(workspace, args),
        Some(AlertsCommand::Test { channel, output }) => test(channel.as_deref(), output.json),
        Some(AlertsCommand::Ack { id, output }) => {
            let found = find(workspace, id)?;
            mute(workspace, &found, None)?;
            match output.json {
                true => output::json(&json!({ "run": found.alert.run, "id": found.alert.id, "until_s": null })),
                false => output::line(&format!("alert {} is acknowledged", found.alert.id)),
            }
        }
        Some(AlertsCommand::Snooze { what, time, output }) => {
            let until_s = time.seconds().map(|seconds| now_s() + seconds as f64);
            let until_s = until_s.ok_or_else(|| {
                let fix = "write a time such as 2h, or acknowledge the alert: vidtui alerts ack ID";
                let what = "cannot snooze without end";
                CommandError::request(Failure::new(ErrorCode::InvalidArgument, what, "the time is none", fix))
            })?;
            let (run, id) = match find(workspace, what) {
                Ok(found) => {
                    mute(workspace, &found, Some(until_s))?;
                    (found.alert.run.clone(), Some(found.alert.id))
                }
                Err(_) => {
                    let dir = named_run(workspace, what, Needs::Nothing, output.json)?;
                    dir.mute_alerts(Mute::new(now_s(), None, Some(until_s), workspace.user()))?;
                    (dir.read_run()?.id, None)
                }
            };
            match output.json {
                true => output::json(&json!({ "run": run, "id": id, "until_s": until_s })),
                false => output::line(&match id {
                    Some(id) => format!("alert {id} is not sent again for {time}"),
                    None => format!("{run} sends no alerts for {time}"),
                }),
            }
        }
    }
}

fn list(workspace: &Workspace, args: &AlertsArgs) -> Result<(), CommandError> {
    let mut alerts = Inbox::default().poll(&workspace.runs);
    alerts.truncate(args.limit);
    let now_s = now_s();
    if args.output.json {
        let alerts: Vec<_> = alerts.iter().map(|state| AlertDocument::new(state, now_s)).collect();
        return output::json(&json!({ "alerts": alerts }));
    }
    // Report an invalid alerts.toml here, because this is where a user looks for missing alerts.
    if let Err(failure) = Settings::of_user() {
        note!("{failure}");
    }
    if alerts.is_empty() {
        return output::line(&format!("no alerts of the runs in {}", workspace.runs));
    }
    const COLUMNS: [(&str, Side); 6] = [
        ("id", Side::Left),
        ("raised", Side::Left),
        ("run", Side::Left),
        ("alert", Side::Left),
        ("state", Side::Left),
        ("what", Side::Left),
    ];
    let row = |state: &AlertState| {
        let alert = &state.alert;
        let mut what = alert.what.clone();
        for not_sent in &state.not_sent {
            what += &format!(" (not sent to {}: {})", not_sent.channel, not_sent.why);
        }
        let raised = units::ago(now_s, alert.t);
        let name = short_id(&alert.run).to_owned();
        vec![alert.id.clone(), raised, name, alert.kind.name().into(), state_word(state, now_s).into(), what]
    };
    output::text(&output::table(&COLUMNS, &alerts.iter().map(row).collect::<Vec<_>>()))
}

/// Returns the state of an alert as one word.
pub fn state_word(state: &AlertState, now_s: f64) -> &'static str {
    match state {
        _ if state.acknowledged => "acknowledged",
        _ if state.is_snoozed(now_s) => "snoozed",
        _ if state.is_open(now_s) => "open",
        _ => "notice",
    }
}

/// Finds an alert by its id, or the beginning of its id.
fn find(workspace: &Workspace, id: &str) -> Result<AlertState, CommandError> {
    let alerts = Inbox::default().poll(&workspace.runs);
    let mut found = alerts.into_iter().filter(|state| state.alert.id.starts_with(id));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (first, _) => {
            let (code, why) = match first {
                Some(_) => (ErrorCode::AmbiguousName, "several ids begin with it"),
                None => (ErrorCode::UnknownName, "no id begins with it"),
            };
            let what = format!("there is no alert '{id}'");
            Err(CommandError::request(Failure::new(code, what, why, "list the alerts: vidtui alerts")))
        }
    }
}

fn mute(workspace: &Workspace, state: &AlertState, until_s: Option<f64>) -> Result<(), CommandError> {
    let mute = Mute::new(now_s(), Some(state.alert.id.clone()), until_s, workspace.user());
    Ok(workspace.dir(&state.alert.run).mute_alerts(mute)?)
}

fn test(channel: Option<&str>, json: bool) -> Result<(), CommandError> {
    let settings = user_settings()?;
    let mut results = test_alert(&settings, channel, Limits::default().request).map_err(CommandError::request)?;
    for to in settings.channels.iter().map(|it| &it.to).filter(|to| to.is_terminal()) {
        if channel.is_none_or(|channel| channel == to.name()) {
            results.push((to.name(), terminal::test_notification(to)));
        }
    }
    if json {
        let results = results.iter().map(
            |(channel, result)| json!({ "channel": channel, "sent": result.is_ok(), "failure": result.as_ref().err() }),
        );
        output::json(&json!({ "channels": results.collect::<Vec<_>>() }))?;
    } else {
        for (name, result) in &results {
            match result {
                Ok(()) => output::line(&format!("{} {name}", MARKS[0]))?,
                Err(failure) => {
                    output::line(&format!("{} {name}: {}\n  hint: {}", MARKS[1], failure.why, failure.fix))?;
                }
            }
        }
    }
    let failed: Vec<&str> = results.iter().filter(|(_, result)| result.is_err()).map(|(name, _)| *name).collect();
    if failed.is_empty() {
        return Ok(());
    }
    let why = format!("{} of {}: {}", failed.len(), units::counted(results.len(), "channel"), failed.join(", "));
    Err(Failure::new(ErrorCode::AlertNotSent, "the test alert did not reach every channel", why, "see the hints")
        .into())
}

/// Returns the alert settings of this user.
///
/// # Errors
/// alerts.toml is missing or invalid, or has no channel.
pub fn user_settings() -> Result<Settings, CommandError> {
    let missing = || {
        let path = Settings::user_file().map_or_else(|| "alerts.toml".into(), |path| path.to_string());
        let fix = format!("write {path}; docs/alerts.md has an example");
        let what = "no channel of alerts is set";
        Failure::new(ErrorCode::NotFound, what, format!("{path} does not exist or has no channel"), fix)
    };
    let settings = Settings::of_user().map_err(CommandError::request)?;
    settings.filter(|settings| !settings.channels.is_empty()).ok_or_else(|| CommandError::request(missing()))
}
