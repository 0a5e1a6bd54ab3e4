//! How the checkpoints of a command are found, and when they are complete: `command.checkpoints` and `command.complete`.

use camino::Utf8Path;

use crate::{Command, Pattern, TimeLimit};

words! {
    /// Ways in which many trainers save.
    pub enum CheckpointPreset {
        /// Folders `checkpoint-STEP` of Hugging Face's Trainer and of accelerate.
        HuggingFace = "huggingface",
        /// Distributed checkpoints of PyTorch: folders whose names end with the step, with a file `.metadata`.
        Dcp = "dcp",
        /// Folders `global_stepSTEP` of DeepSpeed.
        DeepSpeed = "deepspeed",
        /// Single files of weights: `…stepSTEP.safetensors`, or `…_STEP.safetensors` with nine digits.
        Safetensors = "safetensors",
    }
}

/// How checkpoints are found.
#[derive(Debug, Clone)]
pub enum CheckpointFormat {
    /// As the trainer of `command.adapter` saves; with `auto`, by all presets.
    OfAdapter,
    /// By a preset.
    Preset(CheckpointPreset),
    /// By their names.
    Named(CheckpointNames),
}

/// When a checkpoint is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CompleteRule {
    /// As the preset defines; for names, when nothing has changed for ten seconds.
    Usual,
    /// When this file exists in it.
    File(String),
    /// When nothing has changed for this many seconds.
    Unchanged(u64),
}

/// The word for the default of both keys.
const AUTO: &str = "auto";
const STEP: &str = "{step}";

/// A name of checkpoints with the step in it, such as `*/step-{step}`.
#[derive(Debug, Clone)]
pub struct CheckpointNames(Pattern);

impl CheckpointNames {
    /// Parses a name. `*` is any text within the name of a file or folder.
    ///
    /// # Errors
    /// The reason why the text is no such name.
    pub fn parse(text: &str) -> Result<Self, String> {
        if text.matches(STEP).count() != 1 {
            return Err(format!("\"{text}\" is neither a preset nor a name with {STEP} in it"));
        }
        if text.starts_with('/') || text.split('/').any(|part| part.is_empty() || part == "..") {
            return Err(format!("\"{text}\" is not a path below command.output"));
        }
        let parts = text.split(STEP).map(|part| {
            let pieces: Vec<String> = part.split('*').map(regex::escape).collect();
            pieces.join("[^/]*")
        });
        let whole = parts.collect::<Vec<_>>().join("(?P<step>[0-9]{1,18})");
        Pattern::new(&format!("^{whole}$")).map(Self).map_err(|error| error.to_string())
    }

    /// Returns the step in a path below the output folder; `None` for other paths.
    pub fn step(&self, path: &Utf8Path) -> Option<u64> {
        self.0.captures(path.as_str())?.first()?.1.parse().ok()
    }
}

impl Command {
    /// Returns how checkpoints are found.
    ///
    /// # Errors
    /// The reason why `command.checkpoints` is not valid.
    pub fn checkpoint_format(&self) -> Result<CheckpointFormat, String> {
        let text = self.checkpoints.as_str();
        if text == AUTO {
            return Ok(CheckpointFormat::OfAdapter);
        }
        match CheckpointPreset::ALL.into_iter().find(|preset| preset.name() == text) {
            Some(preset) => Ok(CheckpointFormat::Preset(preset)),
            None => CheckpointNames::parse(text).map(CheckpointFormat::Named),
        }
    }

    /// Returns when a checkpoint is complete.
    pub fn complete_rule(&self) -> CompleteRule {
        match self.complete.as_str() {
            AUTO => CompleteRule::Usual,
            text => match text.parse::<TimeLimit>().ok().and_then(TimeLimit::seconds) {
                Some(seconds) => CompleteRule::Unchanged(seconds),
                None => CompleteRule::File(text.to_owned()),
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_step_is_read_from_paths_that_match_the_name() {
        let step = |name: &str, path: &str| CheckpointNames::parse(name).unwrap().step(Utf8Path::new(path));
        assert_eq!(step("checkpoint-{step}", "checkpoint-0040"), Some(40));
        assert_eq!(step("*/epoch*-step{step}.pt", "run/epoch3-step40.pt"), Some(40));
        for path in ["checkpoint-", "checkpoint-4x", "a/checkpoint-4", "checkpoint-4/b", "xcheckpoint-4"] {
            assert_eq!(step("checkpoint-{step}", path), None, "{path}");
        }
        assert_eq!(step("a.b{step}", "axb3"), None, "a point is no wildcard");
        for wrong in ["checkpoint", "{step}-{step}", "/out/{step}", "../{step}", "a//{step}"] {
            assert!(CheckpointNames::parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_duration_is_a_rule_and_any_other_text_is_a_file() {
        let rule = |text: &str| Command { complete: text.into(), ..Command::default() }.complete_rule();
        assert_eq!(rule("auto"), CompleteRule::Usual);
        assert_eq!(rule("1m30s"), CompleteRule::Unchanged(90));
        assert_eq!(rule("trainer_state.json"), CompleteRule::File("trainer_state.json".into()));
    }
}
