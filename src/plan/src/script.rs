//! The script that starts one node.

use camino::{Utf8Path, Utf8PathBuf};
use cluster::{NodeId, RankPlace};
use rundir::{Attempt, RunDir, RunId};

use crate::{Master, command_line, quote};

/// Returns the arguments of the command that starts the supervisor of one node.
pub fn supervise_command(trainer: &Utf8Path, dir: &RunDir, attempt: u32, node: &NodeId) -> Vec<String> {
    let number = attempt.to_string();
    [trainer.as_str(), "supervise", "--run-dir", dir.root.as_str(), "--attempt", &number, "--node", node.as_str()]
        .map(str::to_owned)
        .to_vec()
}

/// The optional contents of a script.
#[derive(Debug, Clone, Copy, Default)]
pub struct Details<'a> {
    /// The rendezvous of the ranks of several nodes.
    pub master: Option<&'a Master>,
    /// The commands that the supervisor starts, if the recipe runs a command.
    pub commands: &'a [String],
    /// The file of secrets, if the recipe names one.
    pub secrets: Option<&'a Utf8Path>,
}

/// Returns the script that starts one node. The console runs it, and a user can run it by hand.
pub fn script(
    trainer: &Utf8Path,
    dir: &RunDir,
    run: &RunId,
    attempt: &Attempt,
    node: &NodeId,
    details: &Details<'_>,
) -> String {
    let Details { master, commands, secrets } = *details;
    let number = attempt.number;
    let world = attempt.placement.world();
    let here = attempt.placement.ranks.iter().filter(|place| place.node == *node);
    let ranks = ranks_in_words(&here.collect::<Vec<_>>());
    let log = quote(dir.supervisor_log(node, number).as_str());
    let log_dir = quote(dir.log_dir(node).as_str());
    let in_comment = |path: Utf8PathBuf| quote(path.as_str()).replace(['\n', '\r'], "?");
    let id = quote(run.as_str());
    let rendezvous = master.map_or(String::new(), |Master { address, port }| {
        format!(
            "\n# The rendezvous of all ranks, where rank 0 listens. Start all nodes within three minutes.\n\
             export MASTER_ADDR={}\nexport MASTER_PORT={port}\n",
            quote(address)
        )
    });
    let command = command_line(&supervise_command(trainer, dir, number, node));
    let commands: String =
        commands.iter().map(|command| format!("#   {}\n", command.replace(['\n', '\r'], "?"))).collect();
    let commands = match &commands[..] {
        "" => String::new(),
        commands => format!("#\n# The supervisor starts here:\n{commands}"),
    };
    format!(
        "\
#!/usr/bin/env bash
# Starts {ranks} of {world} on node {node}: attempt {number} of run {run}.
#
# To start it by hand, on that node:
#   bash {by_hand} &
{secret}# The run continues when the terminal closes. The log of the supervisor is
#   {log_path}
# and its process id is in
#   {pid_file}
{term}
{commands}set -eu

# All processes of the run have its id in their environment; no other process is ever signalled.
export VIDTUI_RUN={id}
export VIDTUI_ATTEMPT={number}
{rendezvous}
mkdir -p {log_dir}
exec {command} \\
  {stdin}>>{log} 2>&1
",
        term = if commands.is_empty() {
            "# SIGTERM to that process stops every rank; training saves a checkpoint first."
        } else {
            "# SIGTERM to that process is forwarded to the command, which may save a checkpoint before it ends."
        },
        secret = secrets.map_or(String::new(), |path| {
            format!(
                "# The supervisor reads secrets from {} unless the launch sends them.\n",
                in_comment(path.to_owned())
            )
        }),
        stdin = if secrets.is_some() { "" } else { "</dev/null " },
        by_hand = in_comment(dir.launch_script(number, node)),
        log_path = in_comment(dir.supervisor_log(node, number)),
        pid_file = in_comment(dir.pid_toml(node, number)),
    )
}

/// Formats the ranks of a node, which are consecutive: `rank 0`, `ranks 0 to 7`.
fn ranks_in_words(places: &[&RankPlace]) -> String {
    match places {
        [] => "no rank".into(),
        [only] => format!("rank {}", only.rank),
        [first, .., last] => format!("ranks {} to {}", first.rank, last.rank),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::fixtures;

    #[test]
    fn a_launch_script_explains_itself_and_how_to_run_it_by_hand() {
        let plan = fixtures::launch_plan();
        insta::assert_snapshot!(plan.nodes[0].script);
    }

    #[test]
    fn an_ipv6_address_has_no_brackets_in_variables_and_no_colons_in_paths() {
        let (run, mut attempt) = fixtures::run_and_attempt();
        let node = NodeId::new("2001:db8::1").unwrap();
        attempt.placement.ranks[0].node = node.clone();
        let master = Master { address: "2001:db8::1".into(), port: 29_500 };
        let details = Details { master: Some(&master), ..Details::default() };
        let dir = RunDir::of(Utf8Path::new("/runs"), &run.id);
        let text = script(Utf8Path::new("/opt/vidtui-train"), &dir, &run.id, &attempt, &node, &details);
        for part in ["export MASTER_ADDR=2001:db8::1\n", "--node 2001:db8::1 ", "/nodes/2001+db8++1/logs"] {
            assert!(text.contains(part), "{part} is not in {text}");
        }
    }

    #[test]
    fn a_path_with_special_characters_reaches_the_trainer_unchanged() {
        let temp = tempfile::tempdir().expect("a temporary folder");
        let root = Utf8Path::from_path(temp.path()).expect("UTF-8").join("it's $HOME; `id`\nexit 3\n\"runs\" é");
        let trainer = root.join("bin/vidtui train");
        std::fs::create_dir_all(root.join("bin")).expect("a folder");
        std::fs::write(&trainer, "#!/bin/sh\nprintf '<%s>' \"$VIDTUI_RUN\" \"$@\"\n").expect("a file");
        assert!(Command::new("chmod").arg("+x").arg(&trainer).status().expect("chmod").success());

        let (run, attempt) = fixtures::run_and_attempt();
        let dir = RunDir::of(&root, &run.id);
        let node = &attempt.placement.ranks[0].node;
        let text = script(&trainer, &dir, &run.id, &attempt, node, &Details::default());
        let status = Command::new("bash").arg("-c").arg(&text).status().expect("bash starts");
        assert!(status.success());
        let log = std::fs::read_to_string(dir.supervisor_log(node, attempt.number)).expect("a log");
        let expected = format!("<{}><supervise><--run-dir><{}><--attempt><1><--node><vm>", run.id, dir.root);
        assert_eq!(log, expected);
    }
}
