//! Recipes for other programs: the `[command]` section and its placeholders.

mod checkpoints;

use camino::Utf8PathBuf;
use serde::{Deserialize, Serialize};

use crate::schema::{COMMAND, Kind, OPTIONAL_PATH, Spec, TEXT, TEXTS, word};
use crate::{Pattern, ResumeEffect};

pub use checkpoints::{CheckpointFormat, CheckpointNames, CheckpointPreset, CompleteRule};

words! {
    /// The trainer of a recipe.
    pub enum TrainerKind {
        /// vidtui's own trainer.
        Embedded = "embedded",
        /// Another program, which the section `[command]` describes.
        Command = "command",
    }
}

section! {
    /// A program that trains, and how its output is read.
    pub struct Command("command", COMMAND, ResumeEffect::Training) with Default {
        /// the program and its arguments, one word each, started without a shell; placeholders such as {master_addr} are filled in
        pub run: Vec<String> => TEXTS;
        /// starts the command once per node (torchrun, accelerate, colossalai) or once per rank (python)
        pub per: Per = Per::Node => word::<Per>();
        /// working folder of the command; default: the run directory
        pub folder: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH;
        /// how log lines and checkpoint folders are read: as those of this training system; auto: by what the first lines contain; none: not
        /// at all
        pub adapter: OtherTrainer = OtherTrainer::Auto => word::<OtherTrainer>().on_resume(ResumeEffect::OtherRun);
        /// lines of the log that auto does not know: regular expressions whose named groups are step and metrics (loss, lr, step_s or
        /// step_ms, mem_gib …); a group with another name is a value of that name
        pub patterns: Vec<LogPattern> = Vec::new() => Spec::of(Kind::LogPatterns);
        /// folder in which the command writes event files of TensorBoard: the metrics are read from these instead of the log; default: none
        pub tensorboard: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH.on_resume(ResumeEffect::OtherRun);
        /// folder in which the command writes a run of W&B (offline-run-… or run-…): the metrics are read from it instead of the log;
        /// default: none
        pub wandb: Utf8PathBuf = Utf8PathBuf::new() => OPTIONAL_PATH.on_resume(ResumeEffect::OtherRun);
        /// folder in which the command saves checkpoints, {output} in its arguments
        pub output: String = "{run_dir}/output".to_owned()
            => TEXT.on_resume(ResumeEffect::Refused("the checkpoints of the run are in the old folder"));
        /// how checkpoints below command.output are found; auto: as command.adapter saves them; presets: huggingface (checkpoint-STEP), dcp,
        /// deepspeed (global_stepSTEP), safetensors (one file); or a name with {step}, such as "*/step-{step}"
        pub checkpoints: String = "auto".to_owned() => TEXT.on_resume(ResumeEffect::OtherRun);
        /// when a checkpoint is complete: a file in it, such as "trainer_state.json", or a time without a change, such as "30s"; auto: as
        /// the preset defines, or 10s
        pub complete: String = "auto".to_owned() => TEXT.on_resume(ResumeEffect::None);
        /// arguments that are added when a run starts from weights (a stage after another one, --init); {weights} is their path, and
        /// {previous} too if another run saved them
        pub start: Vec<String> = Vec::new() => TEXTS;
        /// arguments that are added on a resume; {checkpoint} is the folder and {checkpoint_step} the step to continue from
        pub resume: Vec<String> = Vec::new() => TEXTS;
        /// arguments that follow those of command.resume on a resume with --fresh-data, which starts a new run at step 0
        pub fresh_data: Vec<String> = Vec::new() => TEXTS;
    }
}

/// An entry of `command.patterns`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LogPattern {
    /// The regular expression.
    #[serde(rename = "match")]
    pub pattern: Pattern,
}

impl Command {
    /// Returns whether the command can start from weights.
    pub fn takes_weights(&self) -> bool {
        !self.start.is_empty() || self.needs_weights()
    }

    /// Returns whether the command cannot start without weights.
    pub fn needs_weights(&self) -> bool {
        OF_WEIGHTS.iter().any(|name| is_named(name, &self.run))
    }

    /// Returns whether the weights must be a checkpoint of another run.
    pub fn needs_previous(&self) -> bool {
        is_named(PREVIOUS, &self.run) || is_named(PREVIOUS, &self.start)
    }
}

words! {
    /// Whether a command is started once per node or once per rank.
    pub enum Per {
        /// Once per node; the command starts the ranks, as torchrun does.
        Node = "node",
        /// Once per rank.
        Rank = "rank",
    }
}

words! {
    /// The trainers whose log lines and checkpoint folders vidtui reads.
    pub enum OtherTrainer {
        /// Any program: vidtui recognizes the steps in its log.
        Auto = "auto",
        /// Any other program: vidtui reads neither its log nor its checkpoints.
        None = "none",
        /// Open-Sora 1.2 and 2, and Lambda's fork.
        OpenSora = "open_sora",
        /// finetrainers.
        Finetrainers = "finetrainers",
        /// cogvideox-factory, now in the examples of finetrainers.
        CogvideoxFactory = "cogvideox_factory",
        /// VideoX-Fun, formerly CogVideoX-Fun.
        VideoxFun = "videox_fun",
        /// ttt-video-dit.
        TttVideoDit = "ttt_video_dit",
    }
}

impl OtherTrainer {
    /// Returns the name of the training system; `None` for any other program.
    pub fn program(self) -> Option<&'static str> {
        Some(match self {
            Self::Auto | Self::None => return None,
            Self::OpenSora => "Open-Sora",
            Self::Finetrainers => "finetrainers",
            Self::CogvideoxFactory => "cogvideox-factory",
            Self::VideoxFun => "VideoX-Fun",
            Self::TttVideoDit => "ttt-video-dit",
        })
    }
}

/// The names of placeholders.
pub(crate) struct Placeholders;

/// Placeholders whose values are known before ranks are placed on nodes.
const OF_RUN: &[&str] = &["run", "name", "run_dir"];
const OF_NODE: &[&str] = &[
    "output",
    "attempt",
    "steps",
    "checkpoint_interval",
    "node",
    "node_rank",
    "nnodes",
    "nproc_per_node",
    "world_size",
    "master_addr",
    "master_port",
];
const OF_RANK: &[&str] = &["rank", "local_rank"];
const OF_RESUME: &[&str] = &["checkpoint", "checkpoint_step"];
const PREVIOUS: &str = "previous";
/// Placeholders that need initial weights.
pub(crate) const OF_WEIGHTS: &[&str] = &["weights", PREVIOUS];

impl Placeholders {
    /// Returns the names that a key of `[command]` may use.
    pub fn of(key: &str, per: Per) -> Vec<&'static str> {
        let mut names = OF_RUN.to_vec();
        if key != "output" {
            names.extend(OF_NODE);
            names.extend(OF_RANK.iter().filter(|_| per == Per::Rank));
        }
        match key {
            "run" | "start" => names.extend(OF_WEIGHTS),
            "resume" | "fresh_data" => names.extend(OF_RESUME),
            _ => {}
        }
        names
    }
}

/// A part of a word: literal text or a placeholder.
enum Piece<'a> {
    Text(&'a str),
    Name(&'a str),
}

/// Splits a word. `{name}` is a placeholder and `{{name}}` the text `{name}`; every other brace is literal, so that JSON
/// needs no escapes.
fn pieces(word: &str) -> Vec<Piece<'_>> {
    let mut pieces = Vec::new();
    let (mut rest, mut from) = (word, 0);
    while let Some(open) = rest[from..].find('{').map(|at| from + at) {
        let braces = if rest[open..].starts_with("{{") { 2 } else { 1 };
        let inner = open + braces;
        let end = rest[inner..].find(|c: char| !c.is_ascii_lowercase() && c != '_').map_or(rest.len(), |at| inner + at);
        if end == inner || !rest[end..].starts_with(&"}}"[..braces]) {
            from = open + 1;
            continue;
        }
        pieces.push(Piece::Text(&rest[..open]));
        pieces.push(match braces {
            1 => Piece::Name(&rest[inner..end]),
            _ => Piece::Text(&rest[open + 1..=end]),
        });
        (rest, from) = (&rest[end + braces..], 0);
    }
    pieces.push(Piece::Text(rest));
    pieces
}

/// Lists the placeholders of a word.
pub(crate) fn names(word: &str) -> Vec<&str> {
    let name = |piece| match piece {
        Piece::Name(name) => Some(name),
        Piece::Text(_) => None,
    };
    pieces(word).into_iter().filter_map(name).collect()
}

fn is_named(name: &str, words: &[String]) -> bool {
    words.iter().any(|word| names(word).contains(&name))
}

/// Returns a word that [`fill`] turns into `text`, whatever braces it has.
pub fn literal_word(text: &str) -> String {
    let (mut word, mut rest) = (String::new(), text);
    while let Some(open) = rest.find('{') {
        let inner = &rest[open + 1..];
        let end = inner.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(inner.len());
        word += &rest[..open];
        if end > 0 && inner[end..].starts_with('}') {
            word += &format!("{{{{{}}}}}", &inner[..end]);
            rest = &inner[end + 1..];
        } else {
            word.push('{');
            rest = inner;
        }
    }
    word + rest
}

/// Fills in the placeholders of a word. Placeholders for which `value` returns `None` stay unchanged.
pub fn fill(word: &str, value: impl Fn(&str) -> Option<String>) -> String {
    let piece = |piece| match piece {
        Piece::Text(text) => text.to_owned(),
        Piece::Name(name) => value(name).unwrap_or_else(|| format!("{{{name}}}")),
    };
    pieces(word).into_iter().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(word: &str) -> String {
        fill(word, |name| (name == "rank").then(|| "7".to_owned()))
    }

    #[test]
    fn placeholders_are_filled_in_and_other_braces_are_literal() {
        assert_eq!(filled("--rank={rank}{rank}"), "--rank=77");
        assert_eq!(filled("{rank"), "{rank");
        assert_eq!(filled("{other}"), "{other}");
        assert_eq!(filled("{{rank}} {rank}"), "{rank} 7");
        assert_eq!(filled(r#"{"lora":{"r":{rank},"a":{}}}"#), r#"{"lora":{"r":7,"a":{}}}"#);
        assert_eq!(filled("é{rank}é{{"), "é7é{{");
        assert_eq!(names("{rank}-{{node}}-{nnodes}"), ["rank", "nnodes"]);
    }

    #[test]
    fn a_literal_text_is_filled_in_as_it_is() {
        for text in ["", "a", "{", "{rank}", "{{rank}}", "{{{rank}}}", "x{rank}{", "{}{é}{rank", "{a}{b}}", "{a{rank}"]
        {
            assert_eq!(filled(&literal_word(text)), text);
            assert_eq!(names(&literal_word(text)), [""; 0]);
        }
    }
}
