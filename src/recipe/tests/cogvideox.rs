//! The recipes of `configs/cogvideox` are valid and have the shapes, schedules and conditions of the published models.

use recipe::{Bucket, ClipSize, ConditionKind, Curriculum, Positions, Recipe, load, param_specs};

fn recipe(name: &str) -> Recipe {
    load(format!("../../configs/cogvideox/{name}.toml").as_str().into(), &[]).unwrap_or_else(|e| panic!("{e}")).recipe
}

#[test]
fn the_recipes_of_released_models_are_sound() {
    use ConditionKind::{Image, Inpaint, None};
    use Positions::{Learned, Rope, SinCos};
    let wanted = [
        ("2b", SinCos, None, 3.0, 226 + 13 * 1350),
        ("5b", Rope, None, 1.0, 226 + 13 * 1350),
        ("5b-i2v", Learned, Image, 1.0, 226 + 13 * 1350),
        ("1.5-5b", Rope, None, 1.0, 226 + 11 * 48 * 85),
        ("1.5-5b-i2v", Rope, Image, 1.0, 226 + 11 * 48 * 85),
        ("fun-5b-inp", Rope, Inpaint, 1.0, 226 + 13 * 1024),
    ];
    for (name, positions, condition, shift, tokens) in wanted {
        let recipe = recipe(name);
        let model = &recipe.model;
        assert_eq!((model.cogvideox().positions, recipe.condition.kind), (positions, condition), "{name}");
        assert_eq!((model.cogvideox().snr_shift_scale, model.seq_len()), (shift, tokens), "{name}");
        assert_eq!(model.in_channels, condition.in_channels(16), "{name}");
        assert!(recipe.cost().params > 1_000_000_000, "{name}");
    }
    let files = camino::Utf8Path::new("../../configs/cogvideox").read_dir_utf8().unwrap();
    let full = files.filter(|file| !file.as_ref().unwrap().file_name().ends_with("-lora.toml")).count();
    assert_eq!(full, wanted.len() + 1, "the base, and a recipe for each model");
}

#[test]
fn the_lora_recipes_have_the_values_of_the_scripts_that_they_follow() {
    // Recipe, rank, alpha, adapted layers of a block, learning rate, and ranks.
    let wanted = [
        ("2b-lora", 128, 128.0, 4, 1e-4, 1),
        ("5b-lora", 128, 128.0, 4, 1e-4, 1),
        ("5b-i2v-lora", 128, 128.0, 4, 1e-4, 1),
        ("1.5-5b-lora", 32, 32.0, 4, 5e-5, 2),
        ("../fun/5b-inp-lora", 64, 32.0, 3, 1e-4, 1),
        ("../fun/2b-inp-lora", 64, 32.0, 3, 1e-4, 1),
    ];
    for (name, rank, alpha, layers, lr, ranks) in wanted {
        let recipe = recipe(name);
        let (lora, model) = (&recipe.lora, &recipe.model);
        assert_eq!((lora.rank, lora.alpha(), recipe.optimizer.lr), (rank, alpha, lr), "{name}");
        assert_eq!(lora.layers(model).unwrap().len(), layers * model.num_layers, "{name}");
        assert_eq!(recipe.mesh.world(), ranks, "{name}");
        assert!(recipe.saves_adapters_only(), "{name}");
        // A and B of square layers, and their weights and moments in float32.
        let adapters = (layers * model.num_layers * 2 * rank * model.dim()) as u64;
        assert_eq!((recipe.cost().trainable, recipe.cost().checkpoint_bytes), (adapters, 12 * adapters), "{name}");
    }
    // The number that finetrainers prints for rank 128 on 5B.
    assert_eq!(recipe("5b-lora").cost().trainable, 132_120_576);
    let lora = |folder: &str| {
        let files = camino::Utf8Path::new("../../configs").join(folder).read_dir_utf8().unwrap();
        files.filter(|file| file.as_ref().unwrap().file_name().ends_with("-lora.toml")).count()
    };
    assert_eq!(lora("cogvideox") + lora("fun"), wanted.len());
}

#[test]
fn the_models_have_the_published_numbers_of_parameters() {
    let count = |name| param_specs(&recipe(name).model).iter().map(recipe::ParamSpec::len).sum::<u64>();
    // The image-to-video model also has learned positions and 16 more input channels.
    let positions = (226 + 13 * 1350) * 3072;
    assert_eq!((count("5b"), count("5b-i2v")), (5_570_283_072, 5_570_283_072 + positions + 3072 * 16 * 4));
    assert_eq!(count("fun-5b-inp"), 5_570_283_072 + 3072 * 17 * 4);
}

#[test]
fn the_stages_of_cogvideox_fun_have_the_published_token_budgets() {
    let curriculum = Curriculum::load("../../configs/fun/curriculum.toml".into(), &[]).unwrap();
    let wanted = [("13k", 512, 13_312, 128, 7000), ("30k", 768, 29_952, 256, 6500), ("53k", 1024, 53_248, 128, 5000)];
    assert_eq!(curriculum.stages.len(), wanted.len());
    for (stage, (name, side, tokens, batch, steps)) in curriculum.stages.iter().zip(wanted) {
        let recipe = &stage.resolved.recipe;
        let (model, train) = (&recipe.model, &recipe.train);
        assert_eq!((stage.name.as_str(), model.video_tokens()), (name, tokens));
        assert_eq!((train.global_batch, train.length), (batch, recipe::Length::Steps(steps)), "{name}");
        assert_eq!(
            (recipe.condition.kind, recipe.micro_batch_at(model.shape())),
            (ConditionKind::Inpaint, 1),
            "{name}"
        );
        let buckets = recipe.buckets().unwrap();
        let whole = Bucket { frames: 49, height: side, width: side };
        assert!(buckets.all().contains(&whole), "{name}");
        // A clip of any size and length has a bucket, of 49 frames up to the side of the budget.
        for (seed, height, width) in [(1, 1080, 1920), (2, 1920, 1080), (3, 240, 320), (4, 4000, 500)] {
            let bucket = buckets.assign(ClipSize { frames: 100, height, width }, seed).unwrap();
            let pixels = bucket.height * bucket.width;
            assert!(bucket.frames == 49 || pixels > side * side, "{name}: {bucket}");
            assert!(pixels <= 1024 * 1024, "{name}: {bucket}");
        }
    }
}
