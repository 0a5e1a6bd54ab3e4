//! Recipes, which describe what to train, encode or sample; curricula of recipes; meshes; and the table of a model's
//! parameters.
//!
//! A [`Recipe`] is complete and checked: every key has a value and every rule between keys holds. [`load`] makes one
//! from a TOML file, the files it builds on and `--set` flags, and records where each value came from. [`SCHEMA`] lists
//! the keys with their types, defaults and meanings.
//!
//! The crate reads only the files that it is given.

#[macro_use]
mod declare;

mod buckets;
mod check;
mod command;
mod condition;
mod cost;
mod curriculum;
mod ema;
mod encode;
mod env;
mod error;
pub mod families;
mod file;
mod fit;
mod fit_memory;
mod flat;
mod job;
mod key_search;
mod length;
mod limits;
mod load;
mod lora;
mod memory;
mod memory_table;
mod mesh;
mod model;
mod model_table;
mod name;
mod nearest;
mod optim;
#[cfg(test)]
#[path = "../../../tests/oracle/mod.rs"]
mod oracle;
mod params;
mod prompt;
mod recipe;
mod resume;
mod sample;
mod schedule;
mod schema;
mod secrets;
mod show;
mod slab;
mod train;
mod value;

pub use buckets::{Bucket, BucketRule, BucketSpec, Buckets, ClipSize, Misfit};
pub use command::{
    CheckpointFormat, CheckpointNames, CheckpointPreset, Command, CompleteRule, LogPattern, OtherTrainer, Per,
    TrainerKind, fill, literal_word,
};
pub use condition::{ConditionKind, Conditioning, MaskKind};
pub use cost::{BlockCost, Cost, Flops, GPU_SHARE, Offloaded, Overhead, RankMemory, Traffic, save_reserve_s};
pub use curriculum::{Curriculum, StageSpec, StageStart};
pub use ema::{Ema, EmaDevice, EmaWarmup, UseEma};
pub use encode::{CropMode, Encode, Encoders, FrameMode, LATENT_FRAMES, Task, Tiling, nearest_clip_frames};
pub use env::{Env, EnvPreset, SHARED_GPUS, is_reserved, is_variable_name};
pub use error::{RecipeError, RecipeErrorKind};
pub use families::cogvideox::{
    BetaSchedule, CogVideoXKeys, Layer, LrAlignment, Positions, Rotary, SEGMENT_FRAMES, TimestepSpacing,
};
pub use families::wan::{Flow, FlowWeighting, NoiseLevels};
pub use families::{Family, FamilyName, param_specs};
pub use file::first_comment;
pub use fit::MeshFit;
pub use fit_memory::MemoryFit;
pub use flat::{Flat, SHARD_ALIGNMENT, SLOT_ALIGNMENT};
pub use job::{JobKind, Reader};
pub use key_search::NoSuchKey;
pub use length::Length;
pub use limits::{OnFailure, RunSettings, TimeLimit};
pub use load::{Origin, Resolved, SettingRow, Settings, load, load_text, recipe_files, with_full_paths};
pub use lora::{Lora, LoraInit, NoSuchLayer};
pub use memory::{MemorySettings, OFFLOAD_FIX, OFFLOAD_SHARE, OffloadStore};
pub use memory_table::{MemoryRow, PublishedPeak};
pub use mesh::Mesh;
pub use model::{Model, Shape};
pub use name::{is_name_char, name_of};
pub use nearest::nearest;
pub use optim::{Optimizer, OptimizerGroup, OptimizerKind, StateBytes};
pub use params::{FsdpUnit, ParamGroup, ParamInit, ParamRole, ParamSpec, Split};
pub use prompt::{Prompt, WrongFlag, prompt_lines};
pub use recipe::Recipe;
pub use resume::{Change, ResumeChange, ResumeEffect};
pub use sample::{
    BadPrompt, DynamicGuidance, MaskedVideo, MergedLora, PIXELS, SampleScheduler, SampleSpec, Sampling, VIDEO_FRAMES,
    decoded_frames, latent_frames,
};
pub use schedule::{Anneal, ClipRule, LrSchedule, Warmup};
pub use schema::{Bounds, Key, Kind, MOST_STEPS, SCHEMA};
pub use secrets::Secrets;
pub use show::{completed, default_settings, shown_recipe, shown_settings};
pub use slab::{ALIGNMENT, Place, Slab};
pub use train::{
    Accumulate, CheckpointPolicy, ComputeDtype, Data, DataSet, Device, FrozenDtype, Fused, Log, Loss, LossWeighting,
    Pattern, Remat, RematMode, Shapes, TokenPieces, Train, Trainable, TttScan, WAIT_OUTSIDE_STEPS, WandbMode,
};
