use camino::Utf8PathBuf;
use cluster::Node;
use rundir::Lineage;

/// What a plan needs from outside: clock, dice, user, trainer and place. Whoever plans reads them.
#[derive(Debug, Clone, PartialEq)]
pub struct Context {
    /// Now, Unix seconds.
    pub now_s: f64,
    /// Any random number; it becomes the tail of a new run's id.
    pub random: u32,
    /// Who asks, as `user@node`.
    pub by: String,
    /// The folder of all runs, absolute.
    pub runs_root: Utf8PathBuf,
    /// The git commit of the working folder, where there is one.
    pub git_commit: Option<String>,
    /// The trainer that will run.
    pub trainer: Trainer,
    /// Where it will run.
    pub place: Place,
}

/// The trainer binary as it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trainer {
    /// Where it is.
    pub path: Utf8PathBuf,
    /// Its version.
    pub version: String,
    /// The version of its binding to libtorch.
    pub tch: String,
    /// The version of the libtorch it runs with.
    pub libtorch: String,
    /// Whether that libtorch was built for GPUs.
    pub cuda: bool,
    /// Hash of the file.
    pub sha256: String,
}

/// Where the ranks of a run go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The nodes, each with its slots.
    pub nodes: Vec<Node>,
    /// How the user said it, such as `--local 2`; refusals repeat it.
    pub said: String,
}

impl Place {
    /// Takes this machine, with room for `ranks` ranks.
    pub fn local(hostname: &str, ranks: usize) -> Self {
        Self { nodes: vec![Node::local(hostname, ranks)], said: format!("--local {ranks}") }
    }

    /// Returns the ranks that all nodes take together.
    pub fn slots(&self) -> usize {
        self.nodes.iter().map(|node| node.slots).sum()
    }
}

/// Weights that a run begins from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Weights {
    /// A complete step directory.
    pub path: Utf8PathBuf,
    /// The run that trained them, when they lie in one.
    pub lineage: Option<Lineage>,
}
