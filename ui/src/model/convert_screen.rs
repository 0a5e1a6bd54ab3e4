//! The Convert screen: the chosen options, the preview and the conversion that runs.

use crate::msg::{ConvertForm, ConvertOptions, ConvertPreview, JobId};
use camino::Utf8PathBuf;
use rundir::Failure;

/// What the Convert screen remembers.
#[derive(Debug, Clone, Default)]
pub struct ConvertScreen {
    /// What is wished for.
    pub options: ConvertOptions,
    /// The selected field.
    pub field: usize,
    /// What would be done.
    pub preview: Preview,
    /// First visible line of the preview.
    pub scroll: usize,
    /// The conversion that is going on.
    pub work: Option<Work>,
}

/// What would be done, as far as it is known.
#[derive(Debug, Clone, Default)]
pub enum Preview {
    /// Nothing was asked for.
    #[default]
    None,
    /// The shell looks.
    Requested(JobId),
    /// This, as it will be done.
    Shown(Box<ConvertPreview>),
    /// It cannot be done.
    Refused(Failure),
    /// It was done.
    Made(Utf8PathBuf, ConvertForm),
}

/// A conversion that is going on.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// Its job.
    pub job: JobId,
    /// What is made.
    pub target: Utf8PathBuf,
    /// As what.
    pub to: ConvertForm,
    /// Bytes written.
    pub done: u64,
    /// Bytes to be written.
    pub total: u64,
    /// When it began, Unix seconds.
    pub since_s: f64,
    /// Whether somebody has cancelled it.
    pub stopping: bool,
}
