//! Where a run goes: this machine, the nodes of a hostfile, those that Slurm chooses, or those where it was.

use super::Workspace;
use crate::args::NodesArgs;
use crate::refusal::Refusal;
use camino::Utf8Path;
use cluster::Hostfile;
use cluster::hostfile::Filter;
use cluster::slurm::SlurmSpec;
use plan::Target;
use rundir::{Attempt, Failure};

impl Workspace {
    /// Where a run of `world` ranks goes: to the nodes of a hostfile or those that Slurm chooses, or to this machine.
    pub fn target(&self, ranks: Option<usize>, nodes: &NodesArgs, world: usize) -> Result<Target, Refusal> {
        let here = self.fleet.this_node().node.as_str();
        let nodes = self.wanted(nodes);
        if let Some(path) = nodes.slurm.as_ref().filter(|_| ranks.is_none()) {
            return self.slurm_target(path);
        }
        let Some(path) = nodes.hostfile.as_ref().filter(|_| ranks.is_none()) else {
            if ranks.is_none() && (nodes.include.is_some() || nodes.exclude.is_some()) {
                let why = "there is no hostfile from which to choose nodes";
                return Err(Refusal::request(Failure::new(
                    rundir::ErrorCode::Unclassified,
                    "cannot choose nodes",
                    why,
                    "name it: --hostfile FILE",
                )));
            }
            return Ok(Target::local(here, ranks.unwrap_or(world)));
        };
        let chosen = self.hostfile(path, nodes)?;
        Ok(self.with_address(Target::hostfile(&chosen, world, format!("hostfile {path}")))?)
    }

    /// Reads a hostfile, and keeps the nodes that are wanted.
    pub fn hostfile(&self, path: &Utf8Path, nodes: &NodesArgs) -> Result<Hostfile, Refusal> {
        let what = format!("cannot use hostfile {path}");
        let text = std::fs::read_to_string(self.here.join(path)).map_err(|error| {
            let fix = "write one with a node to each line, such as `gpu01 slots=8`, or train here: --local N";
            Refusal::request(Failure::new(rundir::ErrorCode::Unclassified, &*what, error.to_string(), fix))
        })?;
        let filter = Filter { include: nodes.include.clone(), exclude: nodes.exclude.clone() };
        let chosen = Hostfile::parse(&text).and_then(|file| file.select(&filter));
        chosen.map_err(|error| {
            Refusal::request(Failure::new(rundir::ErrorCode::Unclassified, &*what, error.to_string(), &*error.fix))
        })
    }

    fn slurm_target(&self, path: &Utf8Path) -> Result<Target, Refusal> {
        Ok(Target::slurm(self.slurm_spec(path)?, format!("Slurm file {path}")))
    }

    /// Reads what is asked of Slurm.
    pub fn slurm_spec(&self, path: &Utf8Path) -> Result<SlurmSpec, Refusal> {
        let what = format!("cannot use Slurm file {path}");
        let text = std::fs::read_to_string(self.here.join(path)).map_err(|error| {
            let fix = "write one like hostfiles/slurm.toml, or name nodes: --hostfile FILE";
            Refusal::request(Failure::new(rundir::ErrorCode::Unclassified, &*what, error.to_string(), fix))
        })?;
        SlurmSpec::parse(&text)
            .map_err(|e| Refusal::request(Failure::new(rundir::ErrorCode::Unclassified, &*what, e.why, e.fix)))
    }

    /// The nodes that a command names; those named before the command, when it names none.
    pub fn wanted<'a>(&'a self, nodes: &'a NodesArgs) -> &'a NodesArgs {
        if *nodes == NodesArgs::default() { &self.nodes } else { nodes }
    }

    /// The nodes of an attempt, less those that are not wanted or cannot be reached. Says which of the latter there are.
    pub(super) fn target_of_attempt(
        &self,
        last: &Attempt,
        nodes: &NodesArgs,
    ) -> Result<(Target, Vec<String>), Refusal> {
        let mut target = Target::of(last);
        let what = "cannot choose nodes";
        for (list, flag) in [(&nodes.include, "--include"), (&nodes.exclude, "--exclude")] {
            let Some(list) = list else { continue };
            let names = cluster::hostlist::expand(list).map_err(|error| {
                Refusal::request(Failure::new(
                    rundir::ErrorCode::Unclassified,
                    what,
                    format!("{flag} {list}: {error}"),
                    "write names as in gpu[001-024]",
                ))
            })?;
            let named: Vec<bool> =
                target.nodes.iter().map(|node| names.iter().any(|name| name == node.id.as_str())).collect();
            let wanted = flag == "--include";
            let mut keep = named.into_iter().map(|named| named == wanted);
            target.nodes.retain(|_| keep.next().unwrap_or(false));
        }
        let reached = self.fleet.reach(&target.logins);
        let away: Vec<_> = reached.into_iter().filter_map(|(node, result)| Some((node, result.err()?))).collect();
        let mut warnings = Vec::new();
        for (node, error) in away {
            if target.nodes.iter().any(|other| other.id == node) {
                target.without(&node);
                warnings.push(format!("{node} is left out: {error}"));
            }
        }
        if target.nodes.is_empty() {
            let why = if warnings.is_empty() { "none of its nodes is left".into() } else { warnings.join("; ") };
            return Err(Failure::new(
                rundir::ErrorCode::Unclassified,
                "cannot resume on the same nodes",
                why,
                "name others: --hostfile FILE",
            )
            .into());
        }
        Ok((self.with_address(target)?, warnings))
    }

    /// Looks up where the ranks of several nodes meet.
    fn with_address(&self, mut target: Target) -> Result<Target, Failure> {
        let first = target.nodes.first().and_then(|node| target.logins.iter().find(|login| login.node == node.id));
        if let (Some(first), [_, _, ..]) = (first, &target.nodes[..]) {
            let address = self.fleet.ssh(first).address();
            target.address = Some(address.map_err(|error| error.failure("cannot plan on these nodes"))?);
        }
        Ok(target)
    }
}
