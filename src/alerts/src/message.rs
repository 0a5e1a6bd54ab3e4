//! The title and text of an alert, as people read them.

use rundir::Alert;

/// Returns the title: the run and the kind.
pub fn title(alert: &Alert) -> String {
    format!("{}: {}", alert.run, alert.kind.name().replace('-', " "))
}

/// Returns the text: what happened, why, at which step and for how long, and the hint.
pub fn body(alert: &Alert) -> String {
    let mut text = alert.what.clone();
    if !alert.why.is_empty() {
        text += &format!(": {}", alert.why);
    }
    let mut facts = Vec::new();
    facts.extend(alert.step.map(|step| format!("step {}", units::grouped(step))));
    let ago_s = alert.t - alert.since_s;
    facts.extend((ago_s >= 10.0).then(|| format!("for {}", units::duration(ago_s))));
    if !facts.is_empty() {
        text += &format!(" ({})", facts.join(", "));
    }
    if !alert.fix.is_empty() {
        text += &format!("\nHint: {}", alert.fix);
    }
    text
}
