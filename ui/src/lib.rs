//! The console's screens: their state ([`Model`]), inputs ([`Msg`]), requests to the shell ([`Effect`], [`Watch`]) and
//! drawing ([`view`]).
//!
//! Four functions, none of which does IO or reads a clock:
//!
//! * [`update`] applies one message to the model and returns effects; nothing else changes the model;
//! * [`view`] draws the model; nothing else writes cells;
//! * [`watches`] returns the streams that should run now; they follow from the model;
//! * [`context`] returns the screen or dialog that receives keys; dispatch, key bar and help share its tables.

mod action_plan;
pub mod advice;
mod bindings;
pub mod charts;
mod completion;
mod conditions;
mod conversion;
mod dispatch;
pub mod draft;
mod effect;
pub mod event_text;
pub mod fleet;
pub mod goodput_text;
pub mod jobs;
mod key_bar;
mod key_map;
pub mod layout;
pub mod log_lines;
mod memo;
pub mod modals;
mod model;
mod mouse;
mod msg;
pub mod panel_set;
mod places;
pub mod rank_set;
pub mod rank_times;
mod recipe_setting;
pub mod run_actions;
pub mod run_state;
pub mod screens;
pub mod series;
pub mod slurm;
mod start;
pub mod text;
mod theme;
mod update;
mod view;
mod watches;
pub mod widgets;

#[cfg(test)]
mod fixtures;
#[cfg(test)]
mod tests;

pub use action_plan::{ActionEnd, ActionPlan, ActionRequest, ActionResult, RunPlan, RunVerb};
pub use bindings::{Action, Binding, Context};
pub use conversion::{ConvertForm, ConvertOptions, ConvertPreview, ConvertRow, WeightType};
pub use effect::{ChartSpec, ComparisonSpec, Confirmed, Effect, ImageFormat, PlottedChart, Request, Watch};
pub use key_map::{KeyChange, KeyError, KeyMap};
pub use model::{Input, MOST_COMPARED, Model, Notice, Purpose, Screen, Session, closing_message, context};
pub use msg::{
    AlertRow, Clip, CurriculumView, EarlierError, EarlierErrors, JobId, JobMsg, Key, KeyCode, LogChunk, Mouse,
    MouseKind, Msg, NodeMsg, Outcome, QueueRow, RankLines, RecipeFacts, RecipeView, RunList, RunMsg, RunRow, RunStatus,
    Size, StageView,
};
pub use recipe_setting::{Difference, RecipeSetting, differences};
pub use run_state::short_id;
pub use series::XAxis;
pub use start::Setup;
pub use theme::{Symbols, Theme};
pub use update::update;
pub use view::view;
pub use watches::watches;
