//! Tests of the names of tensors: every form that programs write, and the refusal of each other method.

use super::*;
use crate::Dtype;
use crate::tensor_spans::StoredTensor;
use proptest::prelude::*;

fn tensors(names: &[impl AsRef<str>]) -> Tensors {
    let tensor = StoredTensor { dtype: Dtype::F32, shape: vec![1, 1], spans: Vec::new() };
    names.iter().map(|name| (name.as_ref().to_owned(), tensor.clone())).collect()
}

fn found(names: &[impl AsRef<str>]) -> Names {
    find(&tensors(names)).unwrap().unwrap()
}

fn refused(names: &[impl AsRef<str>]) -> Refusal {
    find(&tensors(names)).unwrap_err()
}

const QUERY: &str = "transformer_blocks.0.attn1.to_q";

/// Modules in blocks and outside of them.
const MODULES: [&str; 9] = [
    QUERY,
    "transformer_blocks.12.attn1.to_out.0",
    "transformer_blocks.3.ff.net.0.proj",
    "transformer_blocks.3.norm1.linear",
    "patch_embed.proj",
    "patch_embed.text_proj",
    "time_embedding.linear_1",
    "norm_out.linear",
    "proj_out",
];

/// The pairs of ends of names: of the down and the up projection.
const ENDS: [[&str; 2]; 9] = [
    [".lora_A.weight", ".lora_B.weight"],
    [".lora_A.default.weight", ".lora_B.default.weight"],
    [".lora_A.my_style.weight", ".lora_B.my_style.weight"],
    [".lora_A", ".lora_B"],
    [".lora_A.default_0", ".lora_B.default_0"],
    [".lora_down.weight", ".lora_up.weight"],
    [".lora.down.weight", ".lora.up.weight"],
    ["_lora.down.weight", "_lora.up.weight"],
    [".lora_linear_layer.down.weight", ".lora_linear_layer.up.weight"],
];

#[test]
fn every_prefix_and_every_end_of_names_gives_the_modules_of_diffusers() {
    let dotted = [
        "",
        "transformer.",
        "diffusion_model.",
        "base_model.model.",
        "base_model.model.transformer.",
        "transformer.base_model.model.",
        "module.",
        "model.diffusion_model.",
        "unet.",
    ];
    let underscored = ["lora_unet_", "lora_unet__", "lora_transformer_", "lycoris_", "network.lora_unet__"];
    for prefix in dotted.iter().chain(&underscored) {
        for [down, up] in ENDS {
            let names: Vec<[String; 3]> = MODULES
                .iter()
                .map(|module| match dotted.contains(prefix) {
                    true => (*module).to_owned(),
                    false => module.replace('.', "_"),
                })
                .map(|layer| [down, up, ".alpha"].map(|end| format!("{prefix}{layer}{end}")))
                .collect();
            let all = found(&names.concat());
            assert_eq!((all.prefix.as_str(), all.layers.len()), (*prefix, MODULES.len()), "{prefix} {down}");
            for (module, [down, up, alpha]) in MODULES.iter().zip(names) {
                assert_eq!(all.layers[*module], LayerNames { down, up, alpha: Some(alpha) });
            }
        }
    }
}

#[test]
fn parts_of_wrappers_within_names_are_removed() {
    let pair = |layer: &str| [".lora_A.weight", ".lora_B.weight"].map(|end| format!("{layer}{end}"));
    for layer in [
        "transformer._orig_mod.transformer_blocks.0.attn1.to_q",
        "transformer.transformer_blocks.0._orig_mod.attn1.to_q",
        "transformer._fsdp_wrapped_module.transformer_blocks.0._checkpoint_wrapped_module.attn1.to_q",
        "transformer.transformer_blocks.0.attn1.processor.to_q",
    ] {
        let names = found(&pair(layer));
        assert_eq!((names.prefix.as_str(), names.layers.contains_key(QUERY)), ("transformer.", true), "{layer}");
    }
    let names = found(&pair("transformer_blocks.1.attn1.processor.to_out"));
    assert!(names.layers.contains_key("transformer_blocks.1.attn1.to_out.0"));
}

#[test]
fn two_adapters_in_one_file_are_refused() {
    let pair = |begin: &str, end: &str| ["lora_A", "lora_B"].map(|factor| format!("{begin}{QUERY}.{factor}{end}"));
    let twice = [pair("transformer.", ".weight"), pair("", ".weight")].concat();
    assert!(refused(&twice).why.contains("twice"), "{:?}", refused(&twice));
    let twice = [pair("", ".weight"), [".lora_down", ".lora_up"].map(|end| format!("{QUERY}{end}.weight"))].concat();
    assert!(refused(&twice).why.contains("twice"), "{:?}", refused(&twice));
    let named = [pair("", ".default.weight"), pair("", ".style.weight")].concat();
    let why = refused(&named).why;
    assert!(why.contains("default") && why.contains("style"), "{why}");
    let other = ["lora_A", "lora_B"].map(|factor| format!("transformer.proj_out.{factor}.weight"));
    assert!(refused(&[pair("", ".weight"), other].concat()).why.contains("prefixes"));
}

#[test]
fn the_tensors_of_other_methods_are_refused_by_name() {
    let lora = [".lora_A.weight", ".lora_B.weight"].map(|end| format!("transformer.{QUERY}{end}"));
    let alone: &[(&[&str], &str)] = &[
        (&["hada_w1_a", "hada_w1_b", "hada_w2_a", "hada_w2_b", "alpha"], "LoHa"),
        (&["lokr_w1", "lokr_w2", "alpha"], "LoKr"),
        (&["oft_blocks", "alpha"], "OFT"),
        (&["oft_R.weight"], "OFT"),
        (&["boft_R", "boft_s"], "BOFT"),
        (&["ia3_l"], "IA3"),
        (&["a1.weight", "a2.weight", "b1.weight", "b2.weight", "alpha"], "GLoRA"),
        (&["lora_A", "lora_B", "lora_E", "ranknum"], "AdaLoRA"),
        (&["vera_lambda_b", "vera_lambda_d"], "VeRA"),
        (&["fourierft_spectrum"], "FourierFT"),
        (&["lora_A.weight", "lora_B.weight", "lora_magnitude_vector"], "DoRA"),
        (&["lora_A.default.weight", "lora_B.default.weight", "lora_magnitude_vector.default.weight"], "DoRA"),
        (&["lora_down.weight", "lora_up.weight", "dora_scale", "alpha"], "DoRA"),
        (&["lora_down.weight", "lora_up.weight", "magnitude"], "DoRA"),
        (&["hada_w1_a", "dora_scale"], "LoHa"),
        (&["lora_down.weight", "lora_mid.weight", "lora_up.weight"], "convolution"),
        (&["lora_A.weight", "lora_B.weight", "lora_B.bias"], "biases"),
        (&["lora_A.weight", "lora_B.weight", "base_layer.bias"], "biases"),
        (&["lora_A.weight", "lora_B.weight", "base_layer.bias", "base_layer.weight"], "not merged"),
        (&["diff", "diff_b"], "differences of whole weights and no LoRA"),
        (&["w_norm", "b_norm"], "differences of whole weights and no LoRA"),
        (&["lora_up.weight", "lora_down.weight", "diff_b"], "besides LoRA factors"),
        (&["lora_A.weight", "lora_B.weight", "something"], "not supported"),
        (&["matrix_A.0", "matrix_B.0"], "SAT"),
    ];
    for (ends, word) in alone {
        let names: Vec<String> = ends.iter().map(|end| format!("transformer.{QUERY}.{end}")).collect();
        let Refusal { why, fix } = refused(&names);
        assert!(why.contains(*word), "{ends:?}: {why}");
        assert!(!fix.contains("--allow-unused"), "{fix}");
    }
    let beside = [
        ("transformer.proj_out.weight", "whole weights"),
        ("text_encoder.encoder.block.0.layer.0.SelfAttention.q.lora_A.weight", "also adapts a text encoder"),
        ("lora_te__encoder_block_0.lora_down.weight", "also adapts a text encoder"),
        ("transformer.single_transformer_blocks.7.proj_out.lora_A.weight", "1 of its 2 layers"),
        ("transformer.transformer_blocks.0.attn.add_q_proj.lora_A.weight", "1 of its 2 layers"),
        ("transformer.proj_out.alpha", "without factors"),
        ("transformer.proj_out.lora_A.weight", "only one of its two factors"),
    ];
    for (name, word) in beside {
        let why = refused(&[&lora[..], &[name.to_owned()]].concat()).why;
        assert!(why.contains(word), "{name}: {why}");
    }
    for layer in ["blocks.0.attn3.to_q", "lora_unet_single_transformer_blocks_0_proj_out", "diffusion_model.x_proj_out"]
    {
        let names = [".lora_A.weight", ".lora_B.weight"].map(|end| format!("{layer}{end}"));
        assert!(refused(&names).why.contains("not those of CogVideoX"), "{layer}");
    }
}

#[test]
fn models_and_other_files_are_no_adapters() {
    let specs = param_specs(&any_model(FamilyName::CogVideoX));
    let names: Vec<String> = specs.into_iter().flat_map(|spec| [Some(spec.name), spec.diffusers]).flatten().collect();
    assert_eq!(find(&tensors(&names)), Ok(None));
    let others = ["encoder.conv_in.weight", "decoder.act.alpha", "layers.0.a1.weight", "blocks.0.diff", "latent"];
    assert_eq!(find(&tensors(&others)), Ok(None));
    assert_eq!(unmerged(&tensors(&names)), None);
    let factor = format!("{QUERY}.lora_A.default.weight");
    assert!(unmerged(&tensors(&[names, vec![factor]].concat())).is_some_and(|no| no.why.contains("not merged")));
}

proptest! {
    #[test]
    fn any_prefix_before_a_module_is_found(
        parts in proptest::collection::vec("[a-z]{1,8}", 0..4),
        module in proptest::sample::select(&MODULES[..]),
        underscores: bool,
    ) {
        let (separator, layer) = if underscores { ("_", module.replace('.', "_")) } else { (".", module.to_owned()) };
        let prefix: String = parts.iter().map(|part| format!("{part}{separator}")).collect();
        let names = ["down", "up"].map(|factor| format!("{prefix}{layer}.lora_{factor}.weight"));
        let found = found(&names);
        prop_assert_eq!(found.prefix, prefix);
        prop_assert!(found.layers.contains_key(module));
    }
}
