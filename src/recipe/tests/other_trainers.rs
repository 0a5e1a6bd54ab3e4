//! `configs/others` has a recipe for each training system whose logs and checkpoints vidtui reads.

use std::collections::BTreeSet;

use recipe::{Curriculum, OtherTrainer, StageStart, TrainerKind, load};

/// Programs whose own configuration names the output folder, so that they are started on one node.
const CONFIGURED_ELSEWHERE: [&str; 2] = ["diffusion-pipe", "ai-toolkit"];

#[test]
fn each_training_system_has_a_recipe_that_saves_to_output_and_resumes_from_a_checkpoint() {
    let mut trainers = BTreeSet::new();
    let mut recognized = BTreeSet::new();
    for entry in camino::Utf8Path::new("../../configs/others").read_dir_utf8().expect("a folder") {
        let path = entry.expect("an entry").into_path();
        let recipe = load(&path, &[]).unwrap_or_else(|error| panic!("{error}")).recipe;
        assert_eq!(recipe.trainer, TrainerKind::Command, "{path}");
        let (run, resume) = (recipe.command.run.join(" "), recipe.command.resume.join(" "));
        let name = path.file_stem().unwrap_or_default().to_owned();
        if CONFIGURED_ELSEWHERE.contains(&name.as_str()) {
            assert!(recipe.command.output.starts_with('/') && recipe.command.checkpoints != "auto", "{path}");
            recognized.insert(name);
            continue;
        }
        assert!(run.contains("{output}") && run.contains("{checkpoint_interval}"), "{path}: {run}");
        assert!(run.contains("{node_rank}") && run.contains("{master_addr}"), "{path} cannot span nodes");
        assert!(resume.contains("{checkpoint}") || resume.contains("{checkpoint_step}"), "{path}: {resume}");
        match recipe.command.adapter {
            OtherTrainer::Auto => assert!(recognized.insert(name) && recipe.command.checkpoints != "auto", "{path}"),
            adapter => assert!(trainers.insert(adapter.name()), "{path}: a second recipe for this trainer"),
        }
    }
    assert_eq!((trainers.len(), recognized.len()), (5, 8), "{trainers:?} {recognized:?}");
    assert!(!trainers.contains("none"));
}

#[test]
fn each_stage_of_a_curriculum_of_commands_starts_from_the_stage_before() {
    for (path, stages) in [("lambda", 7), ("open-sora", 3)] {
        let path = camino::Utf8Path::new("../../configs").join(path).join("curriculum.toml");
        let curriculum = Curriculum::load(&path, &[]).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(curriculum.stages.len(), stages, "{path}");
        assert!(matches!(curriculum.stages[0].start, StageStart::Path(_)), "{path}");
        assert!(curriculum.stages[1..].iter().all(|stage| stage.start == StageStart::Previous), "{path}");
        let mut commands = BTreeSet::new();
        for stage in &curriculum.stages {
            let command = &stage.resolved.recipe.command;
            let words = [command.run.join(" "), command.start.join(" "), command.resume.join(" ")];
            assert!(words[0].contains("{node_rank}") && words[0].contains("{output}"), "{path} {}", stage.name);
            assert!(words[1].contains("{weights}") && words[2].contains("{checkpoint}"), "{path} {}", stage.name);
            assert!(!command.fresh_data.is_empty(), "{path} {}", stage.name);
            commands.insert(words[0].clone());
        }
        // Stage 7 of Lambda repeats stage 6.
        assert_eq!(commands.len(), stages.min(6), "{path}");
    }
}

#[test]
fn presets_carry_no_names_of_interfaces() {
    let mut files = 0;
    for folder in ["lambda", "open-sora", "others"] {
        for entry in camino::Utf8Path::new("../../configs").join(folder).read_dir_utf8().expect("a folder") {
            let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a file");
            let settings = text.lines().filter(|line| !line.starts_with('#'));
            assert!(!settings.clone().any(|line| line.contains("SOCKET_IFNAME") || line.contains("IB_HCA")));
            files += 1;
        }
    }
    assert!(files > 15);
}
