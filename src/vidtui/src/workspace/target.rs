//! The target of a run: this machine, the nodes of a hostfile, a Slurm allocation, or the nodes of the last attempt.

use super::Workspace;
use crate::args::NodesArgs;
use crate::command_error::CommandError;
use camino::Utf8Path;
use cluster::hostfile::Filter;
use cluster::slurm::{Adopted, SlurmSpec};
use cluster::{Hostfile, NodeId};
use plan::Target;
use rundir::{Attempt, ErrorCode, Failure, Login, Run, RunId};
use std::ffi::OsString;

/// The choice of nodes for the next attempt of a run, among the nodes and spare nodes of the last attempt.
pub struct NodeChoice<'a> {
    /// The run.
    pub run: &'a RunId,
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
        let fix = "write a hostfile with one node per line, such as `gpu01 slots=8`, or use this machine: --local N";
        let text = self.read_nodes(path, &what, fix)?;
        let filter = Filter { include: nodes.include.clone(), exclude: nodes.exclude.clone() };
        let chosen = Hostfile::parse(&text).and_then(|file| file.select(&filter));
        chosen.map_err(|error| {
            CommandError::request(Failure::new(ErrorCode::InvalidHostfile, &*what, error.to_string(), &*error.fix))
        })
    }

    /// Reads a hostfile or a Slurm file. `fix` is the hint if the file system refuses it.
    fn read_nodes(&self, path: &Utf8Path, what: &str, fix: &str) -> Result<String, CommandError> {
        rundir::read_text(&self.here.join(path)).map_err(|error| {
            CommandError::request(match error {
                rundir::FileError::Io { source, .. } => {
                    Failure::new(ErrorCode::of_io(&source), what, source.to_string(), fix)
                }
                other => Failure { what: what.to_owned(), ..Failure::from(other) },
            })
        })
    }

    fn slurm_target(&self, path: &Utf8Path) -> Result<Target, CommandError> {
        let (spec, adopted) = self.slurm_spec(path)?;
        Ok(Target { adopted, ..Target::slurm(spec, format!("Slurm file {path}")) })
    }

    /// Reads a Slurm file, and adds what the user's environment variables request of sbatch.
    pub fn slurm_spec(&self, path: &Utf8Path) -> Result<(SlurmSpec, Adopted), CommandError> {
        let what = format!("cannot use Slurm file {path}");
        let fix = "write a file like hostfiles/slurm.toml, or name nodes: --hostfile FILE";
        let text = self.read_nodes(path, &what, fix)?;
        let mut spec = SlurmSpec::parse(&text)
            .map_err(|e| CommandError::request(Failure::new(ErrorCode::InvalidSlurmFile, &*what, e.why, e.fix)))?;
        let text = |text: OsString| text.into_string().ok();
        let variables = std::env::vars_os().filter_map(|(name, value)| Some((text(name)?, text(value)?)));
        let adopted = spec.adopt(variables);
        Ok((spec, adopted))
    }

    /// Returns the node flags of a command. If it has none, returns the flags that precede the command.
    pub fn wanted<'a>(&'a self, nodes: &'a NodesArgs) -> &'a NodesArgs {
        if *nodes == NodesArgs::default() { &self.nodes } else { nodes }
    }

    /// Returns the target of a resume, and a warning for each change of nodes: the nodes that the user chose for this resume, or those
    /// of the last attempt, with as many ranks as it had.
    ///
    /// * `ranks` — the number of ranks on this machine, if the user chose it.
    /// * `nodes` — the node flags of this resume. If there are none, those before the command apply only to a run without known nodes:
    ///   the hostfile of a console lists the nodes of new runs.
    pub(super) fn target_of_resume(
        &self,
        run: &Run,
        last: Option<&Attempt>,
        ranks: Option<usize>,
        nodes: &NodesArgs,
        spares: usize,
    ) -> Result<(Target, Vec<String>), CommandError> {
        let world = plan::last_ranks(run, last);
        let is_same_target = ranks.is_none() && nodes.hostfile.is_none() && nodes.slurm.is_none();
        let Some(last) = last.filter(|_| is_same_target) else {
            return Ok((self.target(ranks, nodes, world, spares)?, Vec::new()));
        };
        if let Some(slurm) = &last.slurm {
            let description = format!("the Slurm job of attempt {}", last.number);
            return Ok((Target::slurm(slurm.spec.clone(), description), Vec::new()));
        }
        let here = &self.connections.this_node().node;
        if last.logins.is_empty() && last.placement.ranks.iter().all(|place| place.node == *here) {
            // The options before the command do not apply.
            let nodes = NodesArgs { replaces: true, ..nodes.clone() };
            return Ok((self.target(None, &nodes, world, spares)?, Vec::new()));
        }
        match Target::for_resume(last, &self.listed_logins()) {
            Some(target) => {
                self.choose_nodes(target, world, &NodeChoice { run: &run.id, nodes, avoided: &[], unfit: &[] })
            }
            None => Ok((self.target(None, nodes, world, spares)?, Vec::new())),
        }
    }

    /// Returns the logins of the hostfile before the command. A hostfile that cannot be read has none: a resume does not need it.
    fn listed_logins(&self) -> Vec<Login> {
        let Some(path) = &self.nodes.hostfile else { return Vec::new() };
        let listed = self.hostfile(path, &NodesArgs::default());
        listed.map_or_else(|_| Vec::new(), |listed| Target::hostfile(&listed, 0, 0, "").logins)
    }

    /// Chooses nodes for the next attempt among the nodes and spare nodes of the last one, and returns a warning for each change: the
    /// nodes that are selected and can be reached, and spare nodes in place of the others.
    ///
    /// * `ranks` — the number of ranks that need slots.
    pub(super) fn choose_nodes(
        &self,
        mut target: Target,
        ranks: usize,
        choice: &NodeChoice<'_>,
    ) -> Result<(Target, Vec<String>), CommandError> {
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
                    warnings.push(format!("{node} is left out: {}", error.cause()));
                }
                unusable.push(node);
            }
        };
        let selected = |login: &&Login| before.contains(&login.node);
        reach(&target.logins.iter().filter(selected).cloned().collect::<Vec<_>>());
        reach(&target.spares.iter().map(|spare| spare.login.clone()).collect::<Vec<_>>());
        unusable.extend(choice.unfit.iter().map(|(node, _)| node.clone()));
        target.choose(ranks, choice.avoided, &|node| !unusable.contains(node));
        if target.nodes.is_empty() {
            let what = "cannot resume on the same nodes";
            let failure = if warnings.is_empty() {
                let fix = format!("name other nodes: {}", resume_on(choice.run));
                Failure::new(ErrorCode::InvalidArgument, what, "no node is selected", fix)
            } else {
                Failure::new(ErrorCode::NodeUnreachable, what, warnings.join("; "), retry_or_other_nodes(choice.run))
            };
            return Err(failure.into());
        }
        let added = target.nodes.iter().filter(|node| !before.contains(&node.id));
        warnings.extend(added.map(|node| format!("{} was a spare node and gets ranks", node.id)));
        Ok((self.with_address(target)?, warnings))
    }

    /// Adds the address of the first node, which the ranks of several nodes connect to.
    pub fn with_address(&self, mut target: Target) -> Result<Target, Failure> {
        let first = target.nodes.first().and_then(|node| target.logins.iter().find(|login| login.node == node.id));
        if let (Some(first), [_, _, ..]) = (first, &target.nodes[..]) {
            let address = self.connections.ssh(first).address();
            target.address =
                Some(address.map_err(|error| error.failure("cannot look up the address of the first node"))?);
        }
        Ok(target)
    }
}

/// Returns the hint for a resume whose nodes cannot be reached. A node that is booting can be reached some seconds later.
pub(super) fn retry_or_other_nodes(run: &RunId) -> String {
    format!("resume again when the nodes can be reached, or name other nodes: {}", resume_on(run))
}

fn resume_on(run: &RunId) -> String {
    format!("`vidtui resume {run} --hostfile FILE`")
}

#[cfg(test)]
mod tests {
    use super::*;
    use rundir::fixtures;
    use std::time::Duration;

    #[test]
    fn a_resume_keeps_node_and_ranks_of_the_run_unless_the_user_names_nodes_for_it() {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(keep.path()).unwrap();
        let listed = |name: &str, text: &str| {
            std::fs::write(folder.join(name), text).unwrap();
            NodesArgs { hostfile: Some(folder.join(name)), ..NodesArgs::default() }
        };
        let of_console = listed("console.txt", "gpu01 slots=8\n");
        let second = Duration::from_secs(1);
        let workspace = Workspace::new(folder, folder, of_console, second).unwrap();
        let here = workspace.connections.this_node().node.clone();
        let (run, last) = (fixtures::run(), fixtures::attempt(1, 0, &[here.as_str()]));
        let target = |last: Option<&Attempt>, nodes: &NodesArgs| {
            let (target, warnings) = workspace.target_of_resume(&run, last, None, nodes, 0).unwrap();
            assert_eq!(warnings, [""; 0]);
            let nodes: Vec<_> = target.nodes.iter().map(|node| (node.id.to_string(), node.slots)).collect();
            (nodes, target.logins.len())
        };
        let none = NodesArgs::default();
        assert_eq!(target(Some(&last), &none), (vec![(here.to_string(), 1)], 0));
        let for_this_resume = listed("others.txt", "gpu02 slots=4\n");
        assert_eq!(target(Some(&last), &for_this_resume), (vec![("gpu02".into(), 4)], 1));
        // The console's hostfile is used if the nodes of the run are not known.
        let elsewhere = fixtures::attempt(1, 0, &["elsewhere"]);
        for last in [None, Some(&elsewhere)] {
            assert_eq!(target(last, &none), (vec![("gpu01".into(), 8)], 1));
        }
        let of_job = Attempt {
            slurm: Some(rundir::SlurmJob {
                job: None,
                spec: SlurmSpec::parse("nodes = 2\ngpus_per_node = 1\ntime = '10:00'\n").unwrap(),
            }),
            ..last
        };
        assert_eq!(target(Some(&of_job), &none), (vec![], 0));
    }
}
