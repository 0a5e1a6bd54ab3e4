//! Tests of adapters (LoRA): trained on a diffusers model, exported, merged at sampling, trained further, with dropout.

use crate::harness::{RunUnderTest, Scene, assert_close, latest, losses, tensors};
use crate::oracle;
use crate::samples::{TinyModel, failure, pixels, sidecar};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::{Layer, Recipe};
use rundir::{ErrorCode, SampleLora, StartFrom};
use safetensors::tensor::TensorView;
use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::process::Command;
use weights::{ConvertRequest, Form, LoraFile, LoraForm};

const RANK: usize = 3;
const ALPHA: f64 = 6.0;

/// Returns the settings of a recipe that trains adapters of the tiny model, on data of its size.
fn adapted(scene: &Scene, model: &TinyModel) -> Vec<String> {
    let source = weights::WeightsSource::open(&model.checkpoint).unwrap();
    let table = source.model().unwrap().to_table();
    let shape = source.model().unwrap();
    let latents = scene.dataset("clips", shape.latent_frames, [shape.latent_height, shape.latent_width], 5);
    let index = scene.text_dataset_of_width(&latents, shape.text_len, 1, shape.text_dim);
    let mut sets: Vec<String> = table.iter().map(|(key, value)| format!("model.{key}={value}")).collect();
    sets.extend([
        format!("data.index={index}"),
        "train.trainable=lora".to_owned(),
        "train.global_batch=2".to_owned(),
        "train.steps=3".to_owned(),
        format!("lora.rank={RANK}"),
        format!("lora.alpha={ALPHA}"),
        "lora.targets=[\"attention\", \"mlp.up\"]".to_owned(),
        "optimizer.lr=0.05".to_owned(),
        "optimizer.clip_norm=1".to_owned(),
        "optimizer.schedule=constant".to_owned(),
        "optimizer.warmup_steps=0".to_owned(),
        "checkpoint.interval=0".to_owned(),
    ]);
    sets
}

/// Trains a run from weights, with `sets` and then `more` settings.
fn train(scene: &Scene, name: &str, mesh: &[usize], from: &Utf8Path, sets: &[String], more: &[&str]) -> RunUnderTest {
    let sets: Vec<&str> = sets.iter().map(String::as_str).chain(more.iter().copied()).collect();
    scene.launch_from(name, mesh, &sets, StartFrom::Weights { path: from.to_owned() }).finish()
}

fn convert(request: &ConvertRequest) -> Utf8PathBuf {
    let plan = weights::plan_conversion(request).unwrap_or_else(|failure| panic!("{failure}"));
    plan.execute(false, 0.0, 1, &mut |_| ControlFlow::Continue(())).unwrap_or_else(|failure| panic!("{failure}"));
    request.target.clone()
}

/// Exports the adapters of a run in each form of a file.
fn exported(scene: &Scene, run: &RunUnderTest) -> [Utf8PathBuf; 3] {
    [LoraForm::Diffusers, LoraForm::Peft, LoraForm::Kohya].map(|form| {
        let target = scene.path.join(format!("exported-{form}"));
        convert(&ConvertRequest::new(latest(&run.dir).unwrap().dir, target, Form::Lora(form)))
    })
}

/// Returns the largest difference between two videos, on a scale of 255.
fn apart(a: &[u8], b: &[u8]) -> u8 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| a.abs_diff(*b)).max().unwrap()
}

#[test]
fn adapters_of_a_checkpoint_and_of_files_sample_as_merged_weights_do() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let run = train(&scene, "trained", &[1, 1], &model.checkpoint, &adapted(&scene, &model), &[]);
    let checkpoint = latest(&run.dir).unwrap().dir;
    let merging = |name: &str, scale| {
        let target = scene.path.join(name);
        let merge = Some(checkpoint.clone());
        convert(&ConvertRequest { merge, scale, ..ConvertRequest::new(&model.checkpoint, target, Form::Internal) })
    };
    let (merged, half) = (merging("merged", 1.0), merging("half", 0.5));
    // The adapter records the weights that it was trained on. Merging into other weights gives a note.
    let lora = LoraFile::open(&checkpoint).unwrap();
    let warnings = |weights: &Utf8Path| {
        let merge = Some(checkpoint.clone());
        let request = ConvertRequest { merge, ..ConvertRequest::new(weights, scene.path.join("x"), Form::Internal) };
        let notes = weights::plan_conversion(&request).unwrap().report.notes.len();
        (lora.other_base(&weights::WeightsSource::open(weights).unwrap()).is_some(), notes)
    };
    let ((own, notes), (other, more)) = (warnings(&model.checkpoint), warnings(&merged));
    assert!(!own && other && more == notes + 1, "{notes} notes, {more} notes with other weights");
    let sample = |name: &str, mesh: &[usize], weights: &Utf8Path, change: &dyn Fn(&mut Recipe)| {
        let running = scene.sample(name, mesh, weights, Vec::new(), |recipe| {
            recipe.encoders.folder = model.folder.clone();
            recipe.sample.prompts = vec!["a rabbit --d 7".to_owned()];
            (recipe.sample.height, recipe.sample.width, recipe.sample.png) = (32, 32, true);
            change(recipe);
        });
        running.finish()
    };
    let plain = |_: &mut Recipe| ();
    let want = pixels(&sample("want", &[1, 1], &merged, &plain), 0);
    let want_half = pixels(&sample("want-half", &[1, 1], &half, &plain), 0);
    let without = pixels(&sample("without", &[1, 1], &model.checkpoint, &plain), 0);
    assert!(apart(&want, &without) > 20 && apart(&want, &want_half) > 5, "the adapters have no effect");

    // The adapters of the checkpoint, with the base weights that it names.
    let own = |recipe: &mut Recipe| recipe.lora = run.dir.read_run().unwrap().recipe().unwrap().lora;
    // Files of each form and the checkpoint, merged into the base.
    let files = exported(&scene, &run);
    for file in files.iter().flat_map(|folder| folder.read_dir_utf8().unwrap()).map(|file| file.unwrap().into_path()) {
        let rotary = || weights::Header::read(&file).unwrap().metadata["vidtui_rotary"].clone();
        assert!(file.extension() != Some("safetensors") || rotary() == "diffusers", "{file}");
    }
    let forms: Vec<&Utf8PathBuf> = files.iter().chain([&checkpoint]).collect();
    for (number, mesh) in [&[1, 1][..], &[1, 2], &[1, 1, 2]].into_iter().enumerate() {
        let close = |what: &str, run: &RunUnderTest, want: &[u8]| {
            let found = apart(&pixels(run, 0), want);
            assert!(found <= 1, "{what} on mesh {mesh:?} differs by {found} of 255");
        };
        let adapters = scene.path.join("runs").join(run.dir.name()).join("checkpoints/step-00000003");
        close("the checkpoint", &sample(&format!("own-{number}"), mesh, &adapters, &own), &want);
        for (n, file) in forms.iter().enumerate() {
            let add = |recipe: &mut Recipe| recipe.sample.lora = vec![file.to_string()];
            let found = sample(&format!("file-{number}-{n}"), mesh, &model.checkpoint, &add);
            close(file.as_str(), &found, &want);
            let [SampleLora { path, weight, xxh3 }] = &sidecar(&found, 0).lora[..] else { panic!("one adapter") };
            assert_eq!((path, *weight), (*file, 1.0));
            assert_eq!(xxh3.len(), 16);
        }
        // The weights of several adapters add up to a half.
        let several = |recipe: &mut Recipe| {
            let weights = [0.7, -0.5, -0.4, 0.7];
            recipe.sample.lora = forms.iter().zip(weights).map(|(file, weight)| format!("{file}:{weight}")).collect();
        };
        close("several adapters", &sample(&format!("several-{number}"), mesh, &model.checkpoint, &several), &want_half);
    }
}

#[test]
fn adapters_of_ttt_layers_are_merged_and_start_training() {
    let scene = Scene::new();
    let model = TinyModel::new(&scene, "cogvideox_5b_tiny", Some(Layer::TttMlp));
    let mut sets = adapted(&scene, &model);
    sets.extend(["lora.targets=[\"attention\", \"ttt\"]", "model.ttt_mini_batch=2"].map(str::to_owned));
    let run = train(&scene, "trained", &[1, 1], &model.checkpoint, &sets, &[]);
    let checkpoint = latest(&run.dir).unwrap().dir;
    let merge = Some(checkpoint.clone());
    let merged = convert(&ConvertRequest {
        merge,
        ..ConvertRequest::new(&model.checkpoint, scene.path.join("merged"), Form::Internal)
    });
    let sample = |name: &str, mesh: &[usize], weights: &Utf8Path, lora: &[&Utf8Path]| {
        let running = scene.sample(name, mesh, weights, Vec::new(), |recipe| {
            recipe.encoders.folder = model.folder.clone();
            recipe.sample.prompts = vec!["a rabbit --d 7".to_owned()];
            recipe.sample.lora = lora.iter().map(ToString::to_string).collect();
            (recipe.sample.height, recipe.sample.width, recipe.sample.png) = (32, 32, true);
        });
        pixels(&running.finish(), 0)
    };
    let want = sample("want", &[1, 1], &merged, &[]);
    assert!(apart(&want, &sample("without", &[1, 1], &model.checkpoint, &[])) > 5, "the adapters have no effect");
    for (name, mesh) in [("alone", &[1, 1][..]), ("tp", &[1, 1, 2])] {
        let found = apart(&sample(name, mesh, &model.checkpoint, &[&checkpoint]), &want);
        assert!(found <= 1, "merged at sampling on {name}: differs by {found} of 255");
    }

    // The first loss of a run that starts from the adapters is that of a run whose base has them merged.
    let from = format!("lora.from={checkpoint}");
    let first =
        |name: &str, weights: &Utf8Path, more: &[&str]| losses(&train(&scene, name, &[1, 1], weights, &sets, more))[0];
    let (started, fresh) = (first("from", &model.checkpoint, &[&from]), first("fresh", &merged, &[]));
    assert!((started - fresh).abs() < 1e-5, "first loss {started}, with merged weights {fresh}");

    // Adapter files have no names for TTT layers, so the export leaves them out.
    let request = ConvertRequest::new(&checkpoint, scene.path.join("file"), Form::Lora(LoraForm::Peft));
    let report = weights::plan_conversion(&request).unwrap().report;
    assert!(
        !report.unused.is_empty() && report.unused.iter().all(|name| name.contains(".ttt.")),
        "{:?}",
        report.unused
    );
    assert!(!report.mapped.is_empty() && report.mapped.iter().all(|row| !row.target.contains("ttt")));
}

#[test]
fn diffusers_and_peft_compute_with_exported_adapters_what_merged_weights_give() {
    let Some(python) = oracle::python("complete-lora") else { return };
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let run = train(&scene, "trained", &[1, 1], &model.checkpoint, &adapted(&scene, &model), &[]);
    let (base, merge) = (model.folder.join("transformer"), Some(latest(&run.dir).unwrap().dir));
    let to = scene.path.join("merged");
    let merged = convert(&ConvertRequest { merge, ..ConvertRequest::new(&base, to, Form::Diffusers) });
    let mut program = Command::new(python);
    let done = program.args(["-c", COMPARES]).args([base, merged]).args(exported(&scene, &run)).output().unwrap();
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    let errors: BTreeMap<String, f64> = serde_json::from_slice(&done.stdout).unwrap();
    assert!(errors["without"] > 1e-2, "the adapters have no effect: {errors:?}");
    for form in ["diffusers", "peft", "kohya"] {
        assert!(errors[form] < 1e-5, "{errors:?}");
    }
}

/// Prints the relative error of the network's output against that of merged weights: without adapters, and with the file of
/// each form. kohya's formula is written out, because ComfyUI is not a Python package.
const COMPARES: &str = r#"
import json, sys, torch
from diffusers import CogVideoXDDIMScheduler, CogVideoXPipeline, CogVideoXTransformer3DModel
from peft import PeftModel
from safetensors.torch import load_file
base, merged, diffusers, peft, kohya = sys.argv[1:]
load = lambda path: CogVideoXTransformer3DModel.from_pretrained(path).eval()
reference = load(merged)
size = reference.config
torch.manual_seed(0)
latent = torch.randn(1, 3, size.in_channels, size.sample_height, size.sample_width)
text = torch.randn(1, size.max_text_seq_length, size.text_embed_dim)
@torch.no_grad()
def run(model):
    return model(latent, text, torch.tensor([500]), return_dict=False)[0]
wanted = run(reference)
error = lambda model: ((run(model) - wanted).norm() / wanted.norm()).item()
parts = dict(tokenizer=None, text_encoder=None, vae=None, scheduler=CogVideoXDDIMScheduler())
pipeline = CogVideoXPipeline(transformer=load(base), **parts)
pipeline.load_lora_weights(diffusers)
by_hand, tensors = load(base), load_file(kohya + "/lora.safetensors")
for name, module in by_hand.named_modules():
    key = "lora_unet__" + name.replace(".", "_")
    if key + ".alpha" in tensors:
        down, up = (tensors.pop(f"{key}.lora_{which}.weight") for which in ("down", "up"))
        module.weight.data += tensors.pop(key + ".alpha") / len(down) * (up @ down)
assert not tensors, list(tensors)
models = dict(without=load(base), diffusers=pipeline.transformer, peft=PeftModel.from_pretrained(load(base), peft), kohya=by_hand)
print(json.dumps({name: error(model) for name, model in models.items()}))
"#;

/// Writes an adapter of rank 2 for one square layer.
fn adapter_of(scene: &Scene, module: &str, width: usize) -> Utf8PathBuf {
    let path = scene.path.join("stray.safetensors");
    let numbers = vec![0; 4 * 2 * width];
    let factor = |name: &str, shape: [usize; 2]| {
        let view = TensorView::new(safetensors::Dtype::F32, shape.to_vec(), &numbers).unwrap();
        (format!("transformer.{module}.lora_{name}.weight"), view)
    };
    let tensors = [factor("A", [2, width]), factor("B", [width, 2])];
    std::fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    path
}

#[test]
fn an_adapter_of_another_model_is_refused_by_the_ranks() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    for (name, module, width) in
        [("shape", "transformer_blocks.0.attn1.to_q", 32), ("layer", "transformer_blocks.7.attn1.to_q", 64)]
    {
        let lora = adapter_of(&scene, module, width);
        let merging = |recipe: &mut Recipe| recipe.sample.lora = vec![lora.to_string()];
        let (run, outputs) = model.sample(&scene, name, &[1, 2], &["a rabbit"], Vec::new(), merging).wait();
        assert!(outputs.iter().all(|output| !output.status.success()));
        assert_eq!(failure(&run).code, ErrorCode::TensorMismatch, "{}", failure(&run));
        assert!(failure(&run).what.contains("stray.safetensors"), "{}", failure(&run));
    }
}

#[test]
fn training_starts_from_an_adapter_file_as_from_its_checkpoint() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let sets = adapted(&scene, &model);
    let run = train(&scene, "trained", &[1, 1], &model.checkpoint, &sets, &[]);
    let checkpoint = latest(&run.dir).unwrap().dir;
    let want = losses(&train(&scene, "checkpoint", &[1, 1], &checkpoint, &sets, &[]));
    for (number, file) in exported(&scene, &run).iter().enumerate() {
        for mesh in [[1, 1, 1], [1, 2, 1], [1, 1, 2]] {
            let name = format!("file-{number}-{}", mesh.map(|n| n.to_string()).join("x"));
            let from = format!("lora.from={file}");
            let run = train(&scene, &name, &mesh, &model.checkpoint, &sets, &[&from]);
            assert_close(&losses(&run), &want, 1e-4, &name);
        }
    }
    // With another alpha, the trainer rescales B, so that the product of the factors stays the same.
    let from = format!("lora.from={}", exported_once(&scene, &run));
    let rescaled = losses(&train(&scene, "alpha", &[1, 1], &model.checkpoint, &sets, &[&from, "lora.alpha=1.5"]));
    assert_close(&rescaled[..1], &want[..1], 1e-4, "the first loss with another alpha");

    let refused = |name: &str, set: &str| {
        let sets: Vec<&str> = sets.iter().map(String::as_str).chain([from.as_str(), set]).collect();
        let start = StartFrom::Weights { path: model.checkpoint.clone() };
        let (run, _) = scene.launch_from(name, &[1, 1], &sets, start).wait();
        run.failure_code()
    };
    assert_eq!(refused("rank", "lora.rank=4"), Some(ErrorCode::TensorMismatch));
    assert_eq!(refused("fewer", "lora.targets=[\"attention\"]"), Some(ErrorCode::TensorMismatch));
    assert_eq!(refused("more", "lora.targets=[\"attention\", \"feed_forward\"]"), Some(ErrorCode::TensorMismatch));
}

/// Exports the adapters of a run to another file, in the form of diffusers.
fn exported_once(scene: &Scene, run: &RunUnderTest) -> Utf8PathBuf {
    let target = scene.path.join("again");
    convert(&ConvertRequest::new(latest(&run.dir).unwrap().dir, target, Form::Lora(LoraForm::Diffusers)))
}

#[test]
fn dropout_draws_the_same_masks_on_every_mesh_in_recomputed_blocks_and_after_a_resume() {
    let scene = Scene::new();
    let model = TinyModel::text_to_video(&scene);
    let sets = adapted(&scene, &model);
    let run = |name: &str, mesh: &[usize], more: &[&str]| {
        let more =
            [&["train.global_batch=4", "train.steps=6", "lora.dropout=0.5", "optimizer.lr=0.02"][..], more].concat();
        train(&scene, name, mesh, &model.checkpoint, &sets, &more)
    };
    let first = run("one", &[1, 1], &["checkpoint.interval=3"]);
    let want = losses(&first);
    // B is zero at first, so that only its gradient depends on the masks.
    let never = losses(&run("never", &[1, 1], &["lora.dropout=0"]));
    assert!(never[0] == want[0] && never[1] != want[1] && never[5] != want[5], "{never:?} {want:?}");
    let others = losses(&run("seed", &[1, 1], &["train.seed=7"]));
    assert!(others[1] != want[1]);
    for mesh in [&[1, 2][..], &[2, 1], &[1, 1, 2], &[1, 2, 2]] {
        let name = mesh.iter().map(|n| n.to_string()).collect::<Vec<_>>().join("x");
        assert_close(&losses(&run(&name, mesh, &[])), &want, 1e-4, &format!("mesh {name}"));
    }
    assert_close(&losses(&run("accumulated", &[1, 1], &["train.grad_accum=2"])), &want, 1e-4, "accumulation");
    assert_eq!(losses(&run("pairs", &[1, 1], &["remat.group=2", "remat.keep_attention=false"])), want);
    assert_eq!(losses(&run("none", &[1, 1], &["remat.mode=none"])), want);

    let saved = tensors(&first.dir.step_dir(6));
    let start = StartFrom::Checkpoint { run: first.id(), step: 3 };
    let again = first.attempt(&[1, 1], start, 3).finish();
    assert_eq!(losses(&again), want);
    assert!(tensors(&again.dir.step_dir(6)) == saved, "other adapters after a resume");
}
