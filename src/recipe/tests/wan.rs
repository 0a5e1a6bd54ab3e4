//! Recipes of models of Wan, and the keys of each family.

use camino::Utf8Path;
use recipe::{FamilyName, Flow, Layer, Model, Recipe, RecipeError, RecipeErrorKind, Resolved, SampleScheduler, load};

fn valid(name: &str, sets: &[&str]) -> Result<Resolved, RecipeError> {
    let sets: Vec<_> = sets.iter().map(|set| (*set).to_owned()).collect();
    load(&Utf8Path::new("../../tests/fixtures/configs/valid").join(name), &sets)
}

fn wan(sets: &[&str]) -> Recipe {
    valid("wan.toml", sets).expect("the recipe is valid").recipe
}

#[test]
fn a_recipe_has_the_keys_of_its_family_alone() {
    let Resolved { recipe, table, .. } = valid("wan.toml", &[]).unwrap();
    assert_eq!(recipe.model.family.name(), FamilyName::Wan);
    let model = table["model"].as_table().unwrap();
    assert_eq!((model["family"].as_str(), model["ffn_dim"].as_integer()), (Some("wan"), Some(256)));
    assert!(!model.contains_key("positions") && !table.contains_key("loss") && table.contains_key("objective"));
    assert_eq!(Recipe::from_table(&table), Ok(recipe.clone()));
    assert_eq!(Model::from_table(&recipe.model.to_table()), Ok(recipe.model));

    let other = valid("minimal.toml", &[]).unwrap();
    assert_eq!(other.table["model"]["family"].as_str(), Some("cogvideox"));
    assert!(!other.table.contains_key("objective"));
}

#[test]
fn a_recipe_without_a_family_is_for_cogvideox() {
    let mut table = valid("minimal.toml", &[]).unwrap().table;
    table.get_mut("model").and_then(toml::Value::as_table_mut).unwrap().remove("family");
    let recipe = Recipe::from_table(&table).unwrap();
    assert_eq!((recipe.model.family.name(), recipe.model.layer()), (FamilyName::CogVideoX, Layer::None));
}

#[test]
fn a_key_of_another_family_is_refused_by_name() {
    let errors = [
        valid("wan.toml", &["model.snr_shift_scale=3"]),
        valid("wan.toml", &["condition.kind=image"]),
        valid("minimal.toml", &["objective.shift=3"]),
        valid("wan.toml", &["model.family=flux"]),
        valid("wan.toml", &["sample.scheduler=dpm"]),
        valid("wan.toml", &["model.in_channels=36"]),
        valid("wan.toml", &["objective.min_level=0.9", "objective.max_level=0.5"]),
        valid("wan.toml", &["model.head_dim=5"]),
        valid("wan.toml", &["model.num_heads=6", "mesh.tp=3"]),
        valid("wan.toml", &["objective.levels=steps", "objective.shift=12", "objective.max_level=0.011"]),
        valid("wan.toml", &["train.fused=kernel"]),
    ]
    .map(|recipe| recipe.unwrap_err());
    assert_eq!(errors[0].kind, RecipeErrorKind::WrongFamily);
    let texts = errors.map(|error| error.to_string());
    insta::assert_snapshot!(texts.join("\n\n").replace("../../tests/fixtures/configs/", ""));
}

#[test]
fn the_text_is_no_part_of_the_tokens_and_samples_have_whole_groups_of_four_frames() {
    let sets = ["model.latent_frames=21", "model.latent_height=60", "model.latent_width=104"];
    assert_eq!(wan(&sets).model.seq_len(), 32_760);
    let sample = |frames: &str| {
        let prompts = format!("sample.prompts=[\"a rabbit --f {frames}\"]");
        wan(&[&prompts, "encoders.folder=/model"]).samples()
    };
    let spec = &sample("9").unwrap()[0];
    assert_eq!((spec.frames, spec.scheduler, spec.shift), (9, SampleScheduler::Unipc, 5.0));
    assert!(!spec.dynamic_guidance);
    let refused = valid("wan.toml", &["sample.prompts=[\"a rabbit --f 8\"]", "encoders.folder=/model"]).unwrap_err();
    assert!(refused.to_string().contains("use 5 or 9 frames"), "{refused}");
}

#[test]
fn a_step_of_the_1_3b_model_has_the_flops_of_its_layers() {
    let model = [
        "model.num_layers=30",
        "model.num_heads=12",
        "model.head_dim=128",
        "model.ffn_dim=8960",
        "model.text_len=512",
        "model.latent_frames=21",
        "model.latent_height=60",
        "model.latent_width=104",
    ];
    let cost = wan(&model).cost();
    assert_eq!(cost.params, 1_418_996_800);
    // 2 FLOPs for each weight of a block and token, and 4·L·(L + T)·D of attention.
    let (l, t, d, h) = (32_760.0, 512.0, 1536.0, 8960.0);
    let block = 4.0 * l * (l + t) * d + 2.0 * d * d * (6.0 * l + 2.0 * t) + 4.0 * l * d * h;
    assert!((cost.forward_flops / (30.0 * block) - 1.0).abs() < 0.002, "{}", cost.forward_flops / (30.0 * block));
}

#[test]
fn adapters_and_trained_projections_include_the_attention_to_the_text() {
    let recipe = load(Utf8Path::new("../../configs/wan/2.1-1.3b-lora.toml"), &[]).unwrap().recipe;
    let layers = recipe.lora.layers(&recipe.model).unwrap();
    assert_eq!(layers.len(), 30 * 10, "q, k, v and o of both attentions, and two layers of the MLP");
    let qkvo = wan(&["train.trainable=qkvo"]);
    assert!(qkvo.param_specs().iter().any(|spec| spec.name.contains("cross_attn.q.") && qkvo.train.trains(spec)));
}

#[test]
fn weights_of_wan_without_a_recipe_can_be_sampled() {
    let recipe = Recipe::for_sampling(&wan(&[]).model, None).unwrap();
    assert_eq!((recipe.model.family.name(), recipe.sample.fps), (FamilyName::Wan, 16.0));
}

#[test]
fn a_vae_with_16_pixels_per_latent_pixel_changes_the_sizes_of_samples_and_buckets() {
    let path = Utf8Path::new("../../configs/wan/2.2-5b-lora.toml");
    let with = |sets: &[&str]| load(path, &sets.iter().map(|set| (*set).to_owned()).collect::<Vec<_>>());
    let prompt = |flags: &str| {
        let prompts = format!("sample.prompts=[\"a rabbit{flags}\"]");
        with(&[&prompts, "sample.every=1", "encoders.folder=/model"])
    };
    let spec = prompt("").unwrap().recipe.samples().unwrap().remove(0);
    assert_eq!((spec.height, spec.width, spec.frames, spec.fps), (704, 1280, 121, 24.0));
    let spec = prompt(" --w 832 --h 480 --f 49").unwrap().recipe.samples().unwrap().remove(0);
    assert_eq!(spec.model.shape(), recipe::Shape { frames: 13, height: 30, width: 52 });
    let refused = prompt(" --w 816").unwrap_err().to_string();
    assert!(refused.contains("816 is not a multiple of 32"), "{refused}");

    let bucket = |height: usize| {
        let list = format!("data.buckets=[{{ frames = 9, height = {height}, width = 832 }}]");
        with(&[&list])
    };
    let fits = bucket(480).unwrap().recipe;
    let largest = fits.largest_bucket().unwrap();
    assert_eq!(fits.latent_of(largest), recipe::Shape { frames: 3, height: 30, width: 52 });
    assert_eq!(fits.clip_of(fits.latent_of(largest)), largest);
    let refused = bucket(488).unwrap_err().to_string();
    assert!(refused.contains("not a multiple of 16, the pixels of the VAE per latent pixel"), "{refused}");
}

#[test]
fn networks_of_wan_take_an_image_as_a_first_frame_or_as_a_clip() {
    let sampled = |sets: &[&str], image: &str| {
        let mut recipe = wan(sets);
        recipe.sample.prompts = vec![format!("a rabbit{image}")];
        recipe.samples().map(|mut specs| specs.remove(0).image).map_err(|bad| bad.why)
    };
    let first_frame = ["condition.kind=first_frame"];
    let clip = ["condition.kind=image_clip", "model.in_channels=36"];
    assert_eq!(sampled(&first_frame, ""), Ok(None));
    assert_eq!(sampled(&first_frame, " --i /a.png"), Ok(Some("/a.png".into())));
    assert_eq!(sampled(&clip, " --i /a.png"), Ok(Some("/a.png".into())));
    assert!(sampled(&clip, "").unwrap_err().contains("there is no first image"));
    assert!(sampled(&[], " --i /a.png").unwrap_err().contains("text-to-video"));
}

#[test]
fn the_recipes_of_configs_wan_have_the_published_sizes_and_ranges() {
    let folder = Utf8Path::new("../../configs/wan");
    let billions = |name: &str| {
        let recipe = load(&folder.join(format!("{name}.toml")), &[]).unwrap_or_else(|error| panic!("{error}")).recipe;
        let Flow { min_level, max_level, .. } = recipe.objective;
        ((recipe.cost().params as f64 / 1e7).round() / 100.0, [min_level, max_level], recipe.model.seq_len())
    };
    let all = [
        ("2.1-1.3b", (1.42, [0.0, 1.0], 32_760)),
        ("2.1-1.3b-lora", (1.42, [0.0, 1.0], 32_760)),
        ("2.1-14b", (14.29, [0.0, 1.0], 32_760)),
        ("2.1-14b-lora", (14.29, [0.0, 1.0], 32_760)),
        ("2.2-a14b-high-lora", (14.29, [0.875, 1.0], 32_760)),
        ("2.2-a14b-low-lora", (14.29, [0.0, 0.875], 32_760)),
        ("2.2-i2v-a14b-high-lora", (14.29, [0.9, 1.0], 32_760)),
        ("2.2-i2v-a14b-low-lora", (14.29, [0.0, 0.9], 32_760)),
        ("2.2-5b", (5.0, [0.0, 1.0], 27_280)),
        ("2.2-5b-lora", (5.0, [0.0, 1.0], 27_280)),
    ];
    for (name, wanted) in all {
        assert_eq!(billions(name), wanted, "{name}");
    }
    assert_eq!(folder.read_dir_utf8().unwrap().count(), all.len() + 1, "base.toml is tested by the others");
}
