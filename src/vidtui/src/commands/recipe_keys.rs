//! `vidtui recipe keys`: lists the keys of recipes.

use crate::args::RecipeKeysArgs;
use crate::command_error::CommandError;
use crate::documents::KeyDocument;
use crate::output;
use recipe::{JobKind, Key, NoSuchKey, ResumeEffect};
use rundir::{ErrorCode, Failure};

/// Lists the keys that contain the words, or all keys.
pub fn run(args: &RecipeKeysArgs) -> Result<(), CommandError> {
    let keys = Key::search(&args.words).map_err(|error| not_found(&args.words, error))?;
    if args.output.json {
        let keys: Vec<_> = keys.into_iter().map(KeyDocument::new).collect();
        return output::json(&serde_json::json!({ "keys": keys }));
    }
    let texts: Vec<String> = keys.into_iter().map(text).collect();
    output::text(&texts.join("\n"))
}

fn not_found(words: &[String], error: NoSuchKey) -> CommandError {
    let words = words.join(" ");
    let what = format!("cannot find a key with {words}");
    let (why, fix) = match error {
        NoSuchKey::Unknown { word, nearest } => {
            let why = format!("no key has {word} in its name or its meaning");
            (why, format!("the nearest keys are {}; without words, all keys are listed", nearest.join(", ")))
        }
        NoSuchKey::NotTogether => {
            ("some keys contain one of the words, but none contains all".into(), "leave out a word".into())
        }
    };
    CommandError::request(Failure::new(ErrorCode::UnknownName, what, why, fix))
}

/// Returns the lines about a key.
fn text(key: &Key) -> String {
    let facts = [
        ("meaning", key.doc.to_owned()),
        ("values", key.kind.in_words()),
        ("default", default(key)),
        ("read by", listed(key.jobs.iter().copied())),
        ("on resume", on_resume(key.on_resume)),
    ];
    let facts = facts.map(|(name, value)| (format!("  {name}"), value));
    format!("{}\n{}", key.path, output::facts(&facts))
}

/// Returns the default, and when a recipe needs another value.
fn default(key: &Key) -> String {
    let Some(mut text) = key.default_text() else {
        let other = key.alternative.map(|other| format!(", or {other}")).unwrap_or_default();
        return format!("none: a recipe must set it{other}");
    };
    let needed: Vec<JobKind> = key.jobs.iter().copied().filter(|job| key.is_needed(*job)).collect();
    if !needed.is_empty() {
        let unless = key.unless.map(|other| format!(" or {other}")).unwrap_or_default();
        let verb = if needed.len() == 1 { "needs" } else { "need" };
        text += &format!("; {} {verb} another value{unless}", listed(needed.into_iter()));
    }
    if let Some(other) = key.alternative {
        text += &format!("; {other} can be set instead");
    }
    text
}

fn on_resume(effect: ResumeEffect) -> String {
    match effect {
        ResumeEffect::Refused(_) | ResumeEffect::OtherRun => format!("refused: {}", effect.in_words()),
        _ => effect.in_words().to_owned(),
    }
}

fn listed(jobs: impl Iterator<Item = JobKind>) -> String {
    jobs.map(JobKind::name).collect::<Vec<_>>().join(", ")
}
