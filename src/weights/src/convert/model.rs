//! Planning the conversion of a whole model.

use super::{ConvertPlan, ConvertRequest, Form, link};
use crate::config::{config_text, pretty};
use crate::initial_values::InitialValues;
use crate::lora::Lora;
use crate::report::{Initialized, Mapped, Report};
use crate::source::{CONFIG_FILE, MODEL_FILE, Names, Source, TTT_FILE, TTT_MODEL};
use crate::stream::{Segment, Target};
use crate::tensor_spans::StoredTensor;
use crate::write::{NewFile, pack};
use crate::{Dtype, cast};
use recipe::{Layer, Model, ParamSpec, param_specs};
use rundir::{ErrorCode, Failure};
use std::collections::{BTreeMap, BTreeSet};

/// Size of the files of a checkpoint; ranks share the checking of checksums out by file.
const CHECKPOINT_SHARD: u64 = 1 << 30;
/// Size of the files of a diffusers model.
const DIFFUSERS_SHARD: u64 = 5 << 30;
/// How diffusers names the files of a model.
const DIFFUSERS_STEM: &str = "diffusion_pytorch_model";

/// Plans the conversion of a model; `merge` is added to it.
pub(super) fn plan(request: &ConvertRequest, source: Source, merge: Option<&Lora>) -> Result<ConvertPlan, Failure> {
    link::check(request, &source)?;
    let model = target_model(&source, request)?;
    let mut report = Report::default();
    let (mut body, mut ttt, mut used, mut merged) = (Vec::new(), Vec::new(), BTreeSet::new(), BTreeSet::new());
    let default = source.tensors.values().next().map_or(Dtype::F32, |tensor| tensor.dtype);
    for spec in param_specs(&model) {
        let from = source.name_of(&spec);
        let (list, to) = match (request.to, &spec.diffusers) {
            (Form::Internal, _) => (&mut body, &spec.name),
            (_, Some(name)) => (&mut body, name),
            (_, None) => (&mut ttt, &spec.name),
        };
        if let Some(stored) = source.tensors.get(&from) {
            let (mut target, mapped) = mapped(&source, &model, &spec, stored, (&from, to), request.dtype)?;
            if let Some(lora) = merge {
                target.merge = lora.for_parameter(&spec, request.scale, &mut merged)?;
            }
            if mapped.new_channels > 0 {
                let (was, is) = (model.in_channels - mapped.new_channels, model.in_channels);
                report.notes.push(format!("{to} grew from {was} to {is} input channels, the new ones zero"));
            }
            used.insert(from);
            report.mapped.push(mapped);
            list.push(target);
        } else if let Some(target) = added(&source, &spec, &model, to, request.dtype.unwrap_or(default), request.seed) {
            report.initialized.push(Initialized {
                target: to.clone(),
                shape: spec.shape.clone(),
                to: target.to.name(),
                values: InitialValues::words(spec.init),
            });
            list.push(target);
        } else {
            report.missing.push(from);
        }
    }
    let left = source.tensors.keys().filter(|name| !used.contains(*name)).cloned();
    (report.waived, report.unused) =
        left.partition(|name| request.allow_unused.iter().any(|known| stands_for(known, name)));
    if let Some(lora) = merge {
        report.unused.extend(lora.names_except(&merged));
        report.notes.push(format!("{} layers of {} are merged, scaled by {}", merged.len(), lora.path, request.scale));
    }
    report.note_changes();
    if !source.optimizer.is_empty() {
        let count = source.optimizer.len();
        report.notes.push(match count {
            1 => "1 tensor of the state of training stays behind".into(),
            _ => format!("{count} tensors of the state of training stay behind"),
        });
    }
    if source.names == Names::TttVideo {
        report.notes.push("the size of the video is not in the weights: model.toml says 49 frames of 480 × 720".into());
        report
            .notes
            .push("weights trained upstream on several segments want model.ttt_lr_alignment = \"upstream\"".into());
    }
    if request.to == Form::Internal && source.names == Names::Diffusers && model.patch_size_t > 1 {
        // The published CogVideoX 1.5 says 300 × 300 there: diffusers only draws its positions up to that size.
        report.notes.push(format!(
            "{} × {} is the largest latent that its positions allow, not one to train on: set model.latent_height, \
             model.latent_width and model.latent_frames to those of your data",
            model.latent_height, model.latent_width
        ));
    }
    if request.to == Form::Internal && !source.latent_scale_known {
        let why = "no vae/config.json beside the source: set model.latent_scale to the VAE's scaling_factor";
        report.notes.push(format!("{why} (CogVideoX-2B 1.15258426, 5B 0.7)"));
    }
    let mut links = Vec::new();
    if request.link {
        let keys = report.mapped.iter().map(|row| (row.target.clone(), row.source.clone())).collect();
        links = link::taken_over(&mut body, &keys)?;
        report.notes.push(match links.len() {
            0 => "no file can be taken over as it is: each has a tensor that changes".into(),
            n => format!(
                "{n} of the source's files are taken over as they are, as hard links: who writes into one changes both, \
                 which the checksums will show"
            ),
        });
    }
    let files = new_files(request, &model, body, ttt);
    let texts = match request.to {
        Form::Internal => {
            let config = source.config.clone().map(|text| (CONFIG_FILE.into(), text));
            [(MODEL_FILE.into(), model_toml(&source, &model))].into_iter().chain(config).collect()
        }
        _ => {
            let (config, notes) = config_text(&model, source.config.as_deref());
            report.notes.extend(notes);
            let index = index(&files).map(|index| (format!("{DIFFUSERS_STEM}.safetensors.index.json"), pretty(&index)));
            [(CONFIG_FILE.into(), config)].into_iter().chain(index).collect()
        }
    };
    let (target, merge) = (request.target.clone(), request.merge.clone());
    Ok(ConvertPlan { source, target, to: request.to, merge, model: Some(model), report, files, links, texts })
}

pub(super) fn stands_for(known: &str, name: &str) -> bool {
    known == name || known.strip_suffix('*').is_some_and(|start| name.starts_with(start))
}

/// The model of the source, with what the request adds to it.
fn target_model(source: &Source, request: &ConvertRequest) -> Result<Model, Failure> {
    let mut model = source.model()?.clone();
    let refuse = |why: String, fix: String| {
        Err(Failure::new(ErrorCode::InvalidArgument, format!("cannot convert {}", request.source), why, fix))
    };
    if let Some(channels) = request.in_channels {
        if channels < model.in_channels {
            let why = format!("it has {} input channels, {channels} were asked for", model.in_channels);
            return refuse(why, format!("ask for {} or more: --in-channels {}", model.in_channels, model.in_channels));
        }
        model.in_channels = channels;
    }
    if let Some(layer) = request.layer
        && layer != model.layer
    {
        if model.layer != Layer::None && layer != Layer::None {
            return refuse(
                format!("its layers are {}, which cannot become {}", word(model.layer), word(layer)),
                "convert from weights without TTT layers".into(),
            );
        }
        model.layer = layer;
        // What the reference trains with.
        (model.ttt_mini_batch, model.ttt_base_lr) = match layer {
            Layer::None => (0, model.ttt_base_lr),
            Layer::TttLinear => (16, 1.0),
            Layer::TttMlp => (64, 0.1),
        };
    }
    // The table that a recipe is checked by says how large a model may be.
    match Model::from_table(&model.to_table()) {
        Ok(model) => Ok(model),
        Err(error) => refuse(error.why, error.fix),
    }
}

/// A layer as recipes write it.
pub(super) fn word(layer: Layer) -> &'static str {
    match layer {
        Layer::None => "none",
        Layer::TttLinear => "ttt_linear",
        Layer::TttMlp => "ttt_mlp",
    }
}

/// A tensor that goes from the source to the target.
fn mapped(
    source: &Source,
    model: &Model,
    spec: &ParamSpec,
    stored: &StoredTensor,
    (from, to): (&str, &str),
    dtype: Option<Dtype>,
) -> Result<(Target, Mapped), Failure> {
    let bad = |why: String| {
        let fix = "use the configuration that belongs to these weights, or copy both again";
        Failure::new(ErrorCode::TensorMismatch, format!("cannot convert {}", source.location.path), why, fix)
    };
    if !cast::FLOATS.contains(&stored.dtype) {
        return Err(bad(format!(
            "{from} in {} is {}, and parameters are F32, BF16 or F16",
            stored.file(),
            stored.dtype
        )));
    }
    let dtype = dtype.unwrap_or(stored.dtype);
    let mut row = Mapped::new(from, to, &spec.shape, stored.dtype, dtype);
    let segments = if stored.shape == spec.shape {
        stored.spans.iter().cloned().map(Segment::File).collect()
    } else if let Some((channels, segments)) = grown(source.model()?, model, spec, stored) {
        row.new_channels = channels;
        segments
    } else {
        return Err(bad(format!(
            "{from} is {:?} in {}, and its configuration says {:?}",
            stored.shape,
            stored.file(),
            spec.shape
        )));
    };
    let target = Target::new(to, &spec.shape, stored.dtype, dtype, segments);
    Ok((target, row))
}

/// The weight of the patch embedding with more input channels, and how many more: zeros after each row's own numbers,
/// which lie channel by channel.
fn grown(had: &Model, wanted: &Model, spec: &ParamSpec, stored: &StoredTensor) -> Option<(usize, Vec<Segment>)> {
    let was = param_specs(had).into_iter().find(|was| was.name == spec.name)?;
    if spec.name != "patch_embed.video.weight" || was.shape != stored.shape || wanted.in_channels <= had.in_channels {
        return None;
    }
    let row = |spec: &ParamSpec| spec.len() / spec.shape[0] as u64 * stored.dtype.size() as u64;
    let (own, zeros) = (row(&was), row(spec) - row(&was));
    let segments = (0..spec.shape[0] as u64).flat_map(|n| {
        let kept = stored.cut(n * own, own).into_iter().map(Segment::File);
        kept.chain([Segment::Zeros(zeros)])
    });
    Some((wanted.in_channels - had.in_channels, segments.collect()))
}

/// A tensor of a layer that the target has and the source does not.
fn added(source: &Source, spec: &ParamSpec, model: &Model, to: &str, dtype: Dtype, seed: u64) -> Option<Target> {
    let had = source.model().ok()?.layer;
    if spec.family != recipe::Family::Ttt || had == model.layer {
        return None;
    }
    let segments = vec![Segment::Initial(InitialValues::new(spec.init, seed, &spec.name)?, spec.len() * 4)];
    Some(Target::new(to, &spec.shape, Dtype::F32, dtype, segments))
}

/// Shares the tensors out to files and names those.
fn new_files(request: &ConvertRequest, model: &Model, body: Vec<Target>, ttt: Vec<Target>) -> Vec<NewFile> {
    let (stem, limit) = match request.to {
        Form::Internal => ("weights", CHECKPOINT_SHARD),
        _ => (DIFFUSERS_STEM, DIFFUSERS_SHARD),
    };
    let format = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    let shards = pack(body, request.shard_bytes.unwrap_or(limit));
    let count = shards.len();
    let name = |n: usize| match (count, request.to) {
        (1, Form::Diffusers) => format!("{stem}.safetensors"),
        _ => format!("{stem}-{:05}-of-{count:05}.safetensors", n + 1),
    };
    let mut files: Vec<NewFile> = shards
        .into_iter()
        .enumerate()
        .map(|(n, tensors)| NewFile { name: name(n), metadata: format.clone(), tensors })
        .collect();
    if !ttt.is_empty() {
        let mut metadata = format;
        metadata.insert(TTT_MODEL.into(), model.to_table().to_string());
        metadata
            .insert("note".into(), "TTT layers of the model in this folder, which diffusers has no place for".into());
        files.push(NewFile { name: TTT_FILE.into(), metadata, tensors: ttt });
    }
    files
}

/// The index of a diffusers model; none when it has one file.
fn index(files: &[NewFile]) -> Option<serde_json::Value> {
    let shards: Vec<&NewFile> = files.iter().filter(|file| file.name != TTT_FILE).collect();
    let tensors = || shards.iter().flat_map(|file| file.tensors.iter().map(move |tensor| (tensor, &file.name)));
    let map: BTreeMap<&str, &String> = tensors().map(|(tensor, file)| (tensor.name.as_str(), file)).collect();
    let size: u64 = tensors().map(|(tensor, _)| tensor.bytes()).sum();
    (shards.len() > 1).then(|| serde_json::json!({ "metadata": { "total_size": size }, "weight_map": map }))
}

/// The `[model]` section of a recipe that fits the weights.
fn model_toml(source: &Source, model: &Model) -> String {
    let mut model = model.to_table();
    if !source.latent_scale_known {
        model.remove("latent_scale");
    }
    let table = toml::Table::from_iter([("model".to_owned(), toml::Value::Table(model))]);
    format!(
        "# The model of these weights. A recipe that begins with `base = \"…/{MODEL_FILE}\"` takes it over.\n\n{table}"
    )
}
