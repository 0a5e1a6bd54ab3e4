//! Checkpoints of programs that vidtui does not know: presets, and names that the recipe describes.

use crate::accelerate;
use crate::contents::{Contents, Defect};
use crate::formats::{Formats, Order};
use crate::table::formats;
use camino::Utf8Path;
use recipe::{CheckpointFormat, CheckpointNames, CheckpointPreset, Command, CompleteRule, OtherTrainer};
use rundir::read_regular;
use std::time::Duration;

/// The time without a change after which a checkpoint counts as complete if nothing else shows it.
const UNCHANGED: Duration = Duration::from_secs(10);
/// The digits of the step in the names of ai-toolkit: `lora_000000250.safetensors`.
const DIGITS: usize = 9;
/// The most bytes of DeepSpeed's file `latest`.
const MOST_LATEST: u64 = 4096;

/// How the checkpoints of a command are found and checked.
pub(crate) struct Finder {
    kind: Kind,
    complete: CompleteRule,
}

enum Kind {
    None,
    Trainer(&'static Formats),
    /// Any of these, the first whose name matches.
    Presets(&'static [CheckpointPreset]),
    Named(CheckpointNames),
}

impl Finder {
    /// Makes the finder of a recipe's command.
    pub fn new(command: &Command) -> Self {
        let kind = match (command.checkpoint_format(), command.adapter) {
            (Ok(CheckpointFormat::Named(names)), _) => Kind::Named(names),
            (Ok(CheckpointFormat::Preset(preset)), _) => Kind::Presets(alone(preset)),
            (Ok(CheckpointFormat::OfAdapter), OtherTrainer::Auto) => Kind::Presets(&CheckpointPreset::ALL),
            (Ok(CheckpointFormat::OfAdapter), trainer) => formats(trainer).map_or(Kind::None, Kind::Trainer),
            // The recipe was checked when it was read.
            (Err(_), _) => Kind::None,
        };
        Self { kind, complete: command.complete_rule() }
    }

    /// Reads the numbers in the name of a checkpoint; `None` for other names.
    ///
    /// * `below` — the path below the output folder.
    pub fn order(&self, path: &Utf8Path, below: &Utf8Path) -> Option<Order> {
        match &self.kind {
            Kind::None => None,
            Kind::Trainer(formats) => (formats.order)(path),
            Kind::Presets(presets) => presets.iter().find_map(|preset| order_of(*preset, path)),
            Kind::Named(names) => names.step(below).map(|step| Order { epoch: 0, step }),
        }
    }

    /// Returns whether a file or folder with the name of a checkpoint is one.
    pub fn is_checkpoint(&self, path: &Utf8Path, contents: &Contents) -> bool {
        match &self.kind {
            Kind::Trainer(formats) => !(formats.leaves_empty_folders && contents.is_empty()),
            // `samples/step-40` has the name of a distributed checkpoint.
            Kind::Presets(presets) if presets.len() > 1 => match preset_of(presets, path) {
                Some(CheckpointPreset::Dcp) => contents.distributed().is_some() || has_parts(contents),
                _ => true,
            },
            _ => true,
        }
    }

    /// Returns whether a path with the name of a distributed checkpoint has none of its files directly in it.
    pub fn may_contain_checkpoints(&self, path: &Utf8Path) -> bool {
        let Kind::Presets(presets) = &self.kind else { return false };
        let is_part = |name: &str| name == ".metadata" || name.ends_with(".distcp");
        let has_no_part = || {
            path.read_dir_utf8()
                .is_ok_and(|mut entries| !entries.any(|entry| entry.is_ok_and(|entry| is_part(entry.file_name()))))
        };
        preset_of(presets, path) == Some(CheckpointPreset::Dcp) && has_no_part()
    }

    /// Returns whether the program must be started from weights alone with such a checkpoint.
    pub fn is_weights_alone(&self, contents: &Contents) -> bool {
        matches!(self.kind, Kind::Presets(presets) if presets.len() > 1) && contents.is_file
    }

    /// Returns the name of the file that shows that the checkpoint of a step is complete, if there is one.
    pub fn marker(&self, step: u64) -> Option<String> {
        match &self.complete {
            CompleteRule::File(name) => Some(name.replace("{step}", &step.to_string())),
            _ => None,
        }
    }

    /// Checks that the checkpoint of a step is complete.
    pub fn check(&self, path: &Utf8Path, contents: &Contents, step: u64) -> Result<(), Defect> {
        match (&self.complete, &self.kind) {
            (CompleteRule::File(_), _) => {
                let marker = self.marker(step).unwrap_or_default();
                match contents.folder().join(&marker).exists() {
                    true => Ok(()),
                    false => Err(format!("{marker} is missing").into()),
                }
            }
            (CompleteRule::Unchanged(seconds), _) => contents.need_unchanged(Duration::from_secs(*seconds)),
            (CompleteRule::Usual, Kind::Trainer(formats)) => (formats.check)(contents, step),
            (CompleteRule::Usual, Kind::Presets(presets)) => match preset_of(presets, path) {
                Some(preset) => check_preset(preset, contents, step),
                None => Ok(()),
            },
            (CompleteRule::Usual, Kind::Named(_)) => contents.need_unchanged(UNCHANGED),
            (CompleteRule::Usual, Kind::None) => Ok(()),
        }
    }
}

fn alone(preset: CheckpointPreset) -> &'static [CheckpointPreset] {
    let at = CheckpointPreset::ALL.iter().position(|other| *other == preset).unwrap_or(0);
    const ALL: &[CheckpointPreset] = &CheckpointPreset::ALL;
    &ALL[at..=at]
}

fn preset_of(presets: &[CheckpointPreset], path: &Utf8Path) -> Option<CheckpointPreset> {
    presets.iter().copied().find(|preset| order_of(*preset, path).is_some())
}

fn order_of(preset: CheckpointPreset, path: &Utf8Path) -> Option<Order> {
    let name = path.file_name()?;
    let digits = |text: &str| text.len() - text.trim_end_matches(|c: char| c.is_ascii_digit()).len();
    match preset {
        CheckpointPreset::HuggingFace => {
            // musubi-tuner saves the state of accelerate as `NAME-step00000100-state`.
            let state = name.strip_suffix("-state").and_then(|name| Some(name.rsplit_once("-step")?.1));
            Order::step(name.strip_prefix("checkpoint-").or(state)?)
        }
        CheckpointPreset::DeepSpeed => Order::step(name.strip_prefix("global_step")?),
        CheckpointPreset::Dcp => {
            let (before, step) = name.split_at(name.len() - digits(name));
            before.ends_with(['-', '_']).then(|| Order::step(step))?
        }
        CheckpointPreset::Safetensors => {
            let stem = name.strip_suffix(".safetensors")?;
            let (before, step) = stem.split_at(stem.len() - digits(stem));
            let has_word = before.trim_end_matches(['-', '_']).ends_with("step");
            let has_digits = before.ends_with('_') && step.len() == DIGITS;
            (has_word || has_digits).then(|| Order::step(step))?
        }
    }
}

fn has_parts(contents: &Contents) -> bool {
    contents.files.iter().any(|file| file.path.extension() == Some("distcp"))
}

fn check_preset(preset: CheckpointPreset, contents: &Contents, step: u64) -> Result<(), Defect> {
    match preset {
        CheckpointPreset::HuggingFace => check_folder(contents),
        CheckpointPreset::Dcp => match contents.distributed() {
            Some(folder) => contents.need_distributed_in(folder),
            None => Err(".metadata is missing, which is written last".into()),
        },
        CheckpointPreset::DeepSpeed => check_deepspeed(contents, step),
        // The header of the file has its length, which is checked for every file.
        CheckpointPreset::Safetensors if contents.is_file => Ok(()),
        CheckpointPreset::Safetensors => Err("it is a folder, not a file of weights".into()),
    }
}

/// Checks a folder of Hugging Face's Trainer, which writes `trainer_state.json` last, or of accelerate. Programs of FastVideo save a
/// distributed checkpoint under the same name.
fn check_folder(contents: &Contents) -> Result<(), Defect> {
    if let Some(folder) = contents.distributed() {
        return contents.need_distributed_in(folder);
    }
    // Both files are written after the weights.
    if !contents.has("trainer_state.json") && contents.has("training_args.bin") {
        return Err("trainer_state.json is missing, which is written last".into());
    }
    if contents.has("trainer_state.json") {
        let state = contents.bytes("trainer_state.json")?;
        return serde_json::from_slice::<serde_json::Value>(&state)
            .map(drop)
            .map_err(|error| format!("trainer_state.json is damaged: {error}").into());
    }
    accelerate::check(contents, &[])
}

/// Checks a checkpoint of DeepSpeed. After all ranks have written their files, rank 0 writes its name into `latest` beside it.
fn check_deepspeed(contents: &Contents, step: u64) -> Result<(), Defect> {
    let has_states = contents.files.iter().any(|file| file.path.as_str().ends_with("_states.pt"));
    if !has_states {
        return Err("it has no files …_states.pt".into());
    }
    let latest = read_regular(contents.folder_around().join("latest"), MOST_LATEST).ok();
    let latest = latest.map(|name| String::from_utf8_lossy(&name).trim().to_owned());
    match latest.as_deref().and_then(|name| name.strip_prefix("global_step")?.parse::<u64>().ok()) {
        Some(newest) if newest >= step => Ok(()),
        Some(newest) => Err(format!("the file latest still names global_step{newest}").into()),
        None => contents.need_unchanged(UNCHANGED),
    }
}
