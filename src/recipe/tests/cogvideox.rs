//! The recipes of `configs/cogvideox` are sound and have the shapes, schedules and conditions of the published models.

use recipe::{ConditionKind, Positions, Recipe, load, param_specs};

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
        assert_eq!((model.positions, recipe.condition.kind), (positions, condition), "{name}");
        assert_eq!((model.snr_shift_scale, model.seq_len()), (shift, tokens), "{name}");
        assert_eq!(model.in_channels, condition.in_channels(16), "{name}");
        assert!(recipe.cost().params > 1_000_000_000, "{name}");
    }
    let files = camino::Utf8Path::new("../../configs/cogvideox").read_dir_utf8().unwrap().count();
    assert_eq!(files, wanted.len() + 1, "the base, and a recipe for each model");
}

#[test]
fn the_models_have_the_published_numbers_of_parameters() {
    let count = |name| param_specs(&recipe(name).model).iter().map(recipe::ParamSpec::len).sum::<u64>();
    // With its learned positions and sixteen more input channels.
    let positions = (226 + 13 * 1350) * 3072;
    assert_eq!((count("5b"), count("5b-i2v")), (5_570_283_072, 5_570_283_072 + positions + 3072 * 16 * 4));
    assert_eq!(count("fun-5b-inp"), 5_570_283_072 + 3072 * 17 * 4);
}
