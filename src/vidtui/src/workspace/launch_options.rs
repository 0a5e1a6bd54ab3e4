//! The options of a launch.

use super::Subject;
use crate::args::NodesArgs;
use rundir::RunId;

/// The options of a launch.
pub struct LaunchOptions<'a> {
    /// The recipe or stage to train.
    pub subject: &'a Subject,
    /// The number of ranks on this machine. By default, the size of the mesh.
    pub ranks: Option<usize>,
    /// The node flags of the command. If there are none, the node flags before the command apply, or else this machine.
    pub nodes: &'a NodesArgs,
    /// The name of the run. By default, the name in the recipe.
    pub name: Option<&'a str>,
    /// The source of the weights.
    pub init: Init<'a>,
    /// A warning that describes the changes of [`super::Workspace::fit`].
    pub fitted: Option<String>,
}

/// The source of the weights of a launch.
pub enum Init<'a> {
    /// The source that the stage names. Without a stage, random weights.
    ByStage,
    /// A checkpoint folder, or the newest checkpoint of a run.
    Given(&'a str),
    /// The newest checkpoint of this run.
    Run(&'a RunId),
}

impl<'a> From<Option<&'a str>> for Init<'a> {
    fn from(given: Option<&'a str>) -> Self {
        given.map_or(Self::ByStage, Self::Given)
    }
}
