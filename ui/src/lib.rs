//! The screen: what it knows ([`Model`]), what can happen ([`Msg`]), what it asks for ([`Effect`], [`Watch`]), and how
//! it looks ([`view`]).
//!
//! Four functions, none of which does IO or reads a clock:
//!
//! * [`update`] takes in one message and returns effects: the only place where the model changes;
//! * [`view`] draws the model: the only place that writes cells;
//! * [`watches`] says which streams should be running now: they follow from what is shown, so none is forgotten;
//! * [`keymap`] says which keys work now: dispatch, key bar and help read the same table.

pub mod advice;
pub mod charts;
mod effect;
pub mod event_text;
pub mod fleet;
pub mod jobs;
mod keymap;
pub mod layout;
pub mod modals;
mod model;
mod msg;
pub mod rank_times;
pub mod run_actions;
pub mod run_state;
pub mod screens;
pub mod series;
pub mod slurm;
pub mod text;
mod theme;
mod update;
mod view;
pub mod widgets;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

pub use effect::{ChartSpec, Confirmed, Effect, ImageFormat, Watch, XAxis};
pub use keymap::{Action, Binding, Context};
pub use model::{Input, Model, Notice, Purpose, Screen, Setup, farewell, keymap, watches};
pub use msg::{
    ConvertForm, ConvertOptions, ConvertPreview, ConvertRow, CurriculumView, JobId, JobMsg, Key, KeyCode, LogChunk,
    Msg, NodeMsg, Outcome, RunList, RunMsg, RunRow, RunStatus, Size, StageView, WeightType,
};
pub use theme::{Symbols, Theme};
pub use update::update;
pub use view::view;
