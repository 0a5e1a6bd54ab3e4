//! `configs/others` has a recipe for each training system whose logs and checkpoints vidtui reads.

use std::collections::BTreeSet;

use recipe::{OtherTrainer, TrainerKind, load};

#[test]
fn each_training_system_has_a_recipe_that_saves_to_output_and_resumes_from_a_checkpoint() {
    let mut trainers = BTreeSet::new();
    for entry in camino::Utf8Path::new("../../configs/others").read_dir_utf8().expect("a folder") {
        let path = entry.expect("an entry").into_path();
        let recipe = load(&path, &[]).unwrap_or_else(|error| panic!("{error}")).recipe;
        assert_eq!(recipe.trainer, TrainerKind::Command, "{path}");
        let (run, resume) = (recipe.command.run.join(" "), recipe.command.resume.join(" "));
        assert!(run.contains("{output}") && run.contains("{checkpoint_interval}"), "{path}: {run}");
        assert!(run.contains("{node_rank}") && run.contains("{master_addr}"), "{path} cannot span nodes");
        assert!(resume.contains("{checkpoint}") || resume.contains("{checkpoint_step}"), "{path}: {resume}");
        assert_ne!(recipe.command.trainer, OtherTrainer::None, "{path}");
        assert!(trainers.insert(format!("{:?}", recipe.command.trainer)), "{path}: a second recipe for this trainer");
    }
    assert_eq!(trainers.len(), 5, "{trainers:?}");
}
