//! State of the Convert screen: the chosen options, the preview and the running conversion.

use crate::conversion::ConvertForm;
use crate::conversion::ConvertOptions;
use crate::conversion::ConvertPreview;
use crate::msg::JobId;
use camino::Utf8PathBuf;
use rundir::Failure;

/// State of the Convert screen.
#[derive(Debug, Clone, Default)]
pub struct ConvertScreen {
    /// The chosen options.
    pub options: ConvertOptions,
    /// The selected field.
    pub field: usize,
    /// The preview of the conversion.
    pub preview: Preview,
    /// First visible line of the preview.
    pub scroll: usize,
    /// The running conversion.
    pub work: Option<Work>,
}

/// The preview of a conversion.
#[derive(Debug, Clone, Default)]
pub enum Preview {
    /// There is no preview: the options are incomplete, or the last conversion failed or was cancelled.
    #[default]
    None,
    /// The shell is preparing the preview.
    Requested(JobId),
    /// The conversion as it will be executed.
    Shown(Box<ConvertPreview>),
    /// The conversion is not possible.
    Refused(Failure),
    /// The conversion has finished: its output folder and form.
    Made(Utf8PathBuf, ConvertForm),
}

/// A running conversion.
#[derive(Debug, Clone, PartialEq)]
pub struct Work {
    /// The job that executes the conversion.
    pub job: JobId,
    /// The output folder.
    pub target: Utf8PathBuf,
    /// The output form.
    pub to: ConvertForm,
    /// Bytes written.
    pub done: u64,
    /// Bytes to write.
    pub total: u64,
    /// When it started, Unix seconds.
    pub since_s: f64,
    /// Whether the user has cancelled it.
    pub stopping: bool,
}
