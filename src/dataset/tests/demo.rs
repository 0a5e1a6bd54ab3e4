//! Tests that the demo's recipes fit the demo's encoders.

use camino::Utf8Path;
use recipe::Curriculum;
use tokenizer::Tokenizer;
use weights::{T5Config, VaeConfig};

#[test]
fn the_recipes_of_the_demo_fit_its_encoders() {
    let root = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let curriculum = Curriculum::load(&root.join("configs/bunny/curriculum.toml"), &[]).unwrap();
    assert_eq!(curriculum.stages.len(), 2);
    for stage in &curriculum.stages {
        let recipe = &stage.resolved.recipe;
        let (model, folder) = (&recipe.model, &recipe.encoders.folder);
        let (vae, _) = VaeConfig::open(&folder.join("vae")).unwrap();
        assert_eq!((vae.latent_channels, vae.scaling_factor), (model.out_channels, model.latent_scale));
        assert_eq!([vae.sample_height, vae.sample_width], [8 * model.latent_height, 8 * model.latent_width]);
        let (t5, _) = T5Config::open(&folder.join("text_encoder")).unwrap();
        let tokenizer = Tokenizer::open(&folder.join("tokenizer")).unwrap();
        assert_eq!((t5.d_model, t5.vocab_size), (model.text_dim, tokenizer.vocabulary()));
        for prompt in &recipe.sample.prompts {
            assert!(tokenizer.count(prompt) <= model.text_len, "{prompt}");
        }
    }
}
