//! The target of a run: this machine, the nodes of a hostfile, a Slurm allocation, or the nodes of the last attempt.

use super::Workspace;
use crate::args::NodesArgs;
use crate::command_error::CommandError;
use camino::Utf8Path;
use cluster::hostfile::Filter;
use cluster::slurm::SlurmSpec;
use cluster::{Hostfile, NodeId};
use plan::Target;
use rundir::{Attempt, ErrorCode, Failure, Login};

/// The choice of nodes for the next attempt, among the nodes and spare nodes of the last attempt.
pub struct NodeChoice<'a> {
    /// The node flags of the user.
    pub nodes: &'a NodesArgs,
    /// The nodes that are used only if there are too few other nodes.
    pub avoided: &'a [NodeId],
    /// The nodes that are not used, each with the reason.
    pub unfit: &'a [(NodeId, String)],
}

impl Workspace {
    /// Returns the target of a run of `world` ranks: the nodes of a hostfile except the last `spares`, a Slurm allocation, or this
    /// machine.
    pub fn target(
        &self,
        ranks: Option<usize>,
        nodes: &NodesArgs,
        world: usize,
        spares: usize,
    ) -> Result<Target, CommandError> {
        let here = self.connections.this_node().node.as_str();
        let is_push = nodes.push;
        let nodes = self.wanted(nodes);
        if let Some(path) = nodes.slurm.as_ref().filter(|_| ranks.is_none()) {
            return self.slurm_target(path);
        }
        let Some(path) = nodes.hostfile.as_ref().filter(|_| ranks.is_none()) else {
            if ranks.is_none() && (nodes.include.is_some() || nodes.exclude.is_some()) {
                let why = "--include and --exclude select nodes from a hostfile, and no hostfile is given";
                return Err(CommandError::request(Failure::new(
                    ErrorCode::InvalidArgument,
                    "cannot choose nodes",
                    why,
                    "name the hostfile: --hostfile FILE",
                )));
            }
            if is_push {
                let why = "--push copies the trainer to the nodes of a hostfile, and no hostfile is given";
                let failure =
                    Failure::new(ErrorCode::InvalidArgument, "cannot copy the trainer", why, "leave out --push");
                return Err(CommandError::request(failure));
            }
            return Ok(Target::local(here, ranks.unwrap_or(world)));
        };
        let chosen = self.hostfile(path, nodes)?;
        Ok(self.with_address(Target::hostfile(&chosen, world, spares, format!("hostfile {path}")))?)
    }

    /// Reads a hostfile and keeps the selected nodes.
    pub fn hostfile(&self, path: &Utf8Path, nodes: &NodesArgs) -> Result<Hostfile, CommandError> {
        let what = format!("cannot use hostfile {path}");
        let text = std::fs::read_to_string(self.here.join(path)).map_err(|error| {
            let fix =
                "write a hostfile with one node per line, such as `gpu01 slots=8`, or use this machine: --local N";
            CommandError::request(Failure::new(ErrorCode::of_io(&error), &*what, error.to_string(), fix))
        })?;
        let filter = Filter { include: nodes.include.clone(), exclude: nodes.exclude.clone() };
        let chosen = Hostfile::parse(&text).and_then(|file| file.select(&filter));
        chosen.map_err(|error| {
            CommandError::request(Failure::new(ErrorCode::InvalidHostfile, &*what, error.to_string(), &*error.fix))
        })
    }

    fn slurm_target(&self, path: &Utf8Path) -> Result<Target, CommandError> {
        Ok(Target::slurm(self.slurm_spec(path)?, format!("Slurm file {path}")))
    }

    /// Reads a Slurm file.
    pub fn slurm_spec(&self, path: &Utf8Path) -> Result<SlurmSpec, CommandError> {
        let what = format!("cannot use Slurm file {path}");
        let text = std::fs::read_to_string(self.here.join(path)).map_err(|error| {
            let fix = "write a file like hostfiles/slurm.toml, or name nodes: --hostfile FILE";
            CommandError::request(Failure::new(ErrorCode::of_io(&error), &*what, error.to_string(), fix))
        })?;
        SlurmSpec::parse(&text)
            .map_err(|e| CommandError::request(Failure::new(ErrorCode::InvalidSlurmFile, &*what, e.why, e.fix)))
    }

    /// Returns the node flags of a command. If it has none, returns the flags that precede the command.
    pub fn wanted<'a>(&'a self, nodes: &'a NodesArgs) -> &'a NodesArgs {
        if *nodes == NodesArgs::default() { &self.nodes } else { nodes }
    }

    /// Returns the nodes for the next attempt, and a warning for each change: the nodes of the last attempt that are selected and can be
    /// reached, and spare nodes in place of the others.
    pub(super) fn target_of_attempt(
        &self,
        last: &Attempt,
        choice: &NodeChoice<'_>,
    ) -> Result<(Target, Vec<String>), CommandError> {
        let mut target = Target::of(last);
        let what = "cannot choose nodes";
        for (list, flag) in [(&choice.nodes.include, "--include"), (&choice.nodes.exclude, "--exclude")] {
            let Some(list) = list else { continue };
            let names = cluster::hostlist::expand(list).map_err(|error| {
                CommandError::request(Failure::new(
                    ErrorCode::InvalidArgument,
                    what,
                    format!("{flag} {list}: {error}"),
                    "write node names like gpu[001-024]",
                ))
            })?;
            let is_wanted =
                |node: &NodeId| (flag == "--include") == names.iter().any(|name| name.as_str() == node.as_str());
            target.nodes.retain(|node| is_wanted(&node.id));
            target.spares.retain(|spare| is_wanted(&spare.login.node));
        }
        let before: Vec<NodeId> = target.nodes.iter().map(|node| node.id.clone()).collect();
        let mut unusable = Vec::new();
        let mut warnings: Vec<String> =
            choice.unfit.iter().map(|(node, why)| format!("{node} is left out: {why}")).collect();
        let mut reach = |logins: &[Login]| {
            for (node, result) in self.connections.reach(logins) {
                let Err(error) = result else { continue };
                if before.contains(&node) {
                    warnings.push(format!("{node} is left out: {error}"));
                }
                unusable.push(node);
            }
        };
        let selected = |login: &&Login| before.contains(&login.node);
        reach(&target.logins.iter().filter(selected).cloned().collect::<Vec<_>>());
        reach(&target.spares.iter().map(|spare| spare.login.clone()).collect::<Vec<_>>());
        unusable.extend(choice.unfit.iter().map(|(node, _)| node.clone()));
        target.choose(last.mesh.world(), choice.avoided, &|node| !unusable.contains(node));
        if target.nodes.is_empty() {
            let why = if warnings.is_empty() { "no node is selected".into() } else { warnings.join("; ") };
            let code = if warnings.is_empty() { ErrorCode::InvalidArgument } else { ErrorCode::NodeUnreachable };
            return Err(Failure::new(
                code,
                "cannot resume on the same nodes",
                why,
                "name other nodes: --hostfile FILE",
            )
            .into());
        }
        let added = target.nodes.iter().filter(|node| !before.contains(&node.id));
        warnings.extend(added.map(|node| format!("{} was a spare node and gets ranks", node.id)));
        Ok((self.with_address(target)?, warnings))
    }

    /// Adds the address of the first node, which the ranks of several nodes connect to.
    fn with_address(&self, mut target: Target) -> Result<Target, Failure> {
        let first = target.nodes.first().and_then(|node| target.logins.iter().find(|login| login.node == node.id));
        if let (Some(first), [_, _, ..]) = (first, &target.nodes[..]) {
            let address = self.connections.ssh(first).address();
            target.address =
                Some(address.map_err(|error| error.failure("cannot look up the address of the first node"))?);
        }
        Ok(target)
    }
}
