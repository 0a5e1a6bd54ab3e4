//! Plans the conversion of a model: maps its tensors, adds new layers and channels, and merges an adapter.

use super::{ConvertPlan, ConvertRequest, Form, link};
use crate::config::{Config, config_text, model_from_diffusers};
use crate::initial_values::InitialValues;
use crate::json_text::pretty;
use crate::location::TTT_FILE;
use crate::lora::LoraFile;
use crate::naming::Names;
use crate::report::{Initialized, Mapped, Report};
use crate::source::{CONFIG_FILE, DIFFUSERS_STEM, MODEL_FILE, OWN_KEYS, TTT_MODEL, WeightsSource};
use crate::stream::{Segment, TensorToWrite};
use crate::tensor_spans::StoredTensor;
use crate::write::{NewTensorFile, pack};
use crate::{Dtype, cast};
use recipe::{ConditionKind, FamilyName, Layer, Model, ParamSpec, param_specs};
use rundir::{ErrorCode, Failure};
use std::collections::{BTreeMap, BTreeSet};

/// The largest size of a checkpoint file in bytes. The ranks verify checksums in parallel, one file at a time.
const CHECKPOINT_SHARD: u64 = 1 << 30;
/// The largest size of a file of a diffusers model in bytes.
const DIFFUSERS_SHARD: u64 = 5 << 30;

/// Plans the conversion of a model, with the adapter `merge` merged into it.
pub(super) fn plan(
    request: &ConvertRequest,
    source: WeightsSource,
    merge: Option<&LoraFile>,
) -> Result<ConvertPlan, Failure> {
    link::check(request, &source)?;
    let model = target_model(&source, request)?;
    if let Some(lora) = merge {
        // The report lists unused tensors of the source. Tensors of an adapter cannot stay unused.
        lora.check_model(&param_specs(source.model()?))?;
    }
    let mut report = Report::default();
    let (mut body, mut ttt, mut used, mut merged) = (Vec::new(), Vec::new(), BTreeSet::new(), BTreeSet::new());
    let default = source.tensors.values().next().and_then(|tensor| cast::kept(tensor.dtype)).unwrap_or(Dtype::F32);
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
                report.notes.push(format!("{to} grows from {was} to {is} input channels; the new ones are zero"));
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
        left.partition(|name| request.allow_unused.iter().any(|known| matches_pattern(known, name)));
    if let Some(lora) = merge {
        let left = lora.layers.keys().find(|module| !merged.contains(*module));
        if let Some(module) = left.filter(|_| report.missing.is_empty()) {
            return Err(Failure::new(
                ErrorCode::TensorMismatch,
                format!("cannot merge {}", lora.path),
                format!("the converted model has no layer {module}"),
                "keep the layers of the source: omit --layer",
            ));
        }
        report.notes.push(format!("{} layers of {} are merged, scaled by {}", merged.len(), lora.path, request.scale));
    }
    report.note_changes();
    if source.averages > 0 {
        report.notes.push(format!("{} are moving averages (EMA)", units::counted(source.averages, "tensor")));
    }
    match source.optimizer.len() - source.averages {
        0 => {}
        1 => report.notes.push("1 tensor of the training state is not converted".into()),
        count => report.notes.push(format!("{count} tensors of the training state are not converted")),
    }
    if source.names == Names::TttVideo {
        report
            .notes
            .push("the weights do not contain the size of the video: model.toml assumes 49 frames of 480 × 720".into());
        report.notes.push(
            "for weights that ttt-video-dit trained on several segments, set model.ttt_lr_alignment = \"upstream\""
                .into(),
        );
    }
    if request.to == Form::Internal && source.names == Names::Diffusers && model.patch_size_t > 1 {
        // The published CogVideoX 1.5 has a sample size of 300 × 300, the largest size for which diffusers computes
        // positions.
        report.notes.push(format!(
            "{} × {} is the largest latent that its positions support, not a training size: set model.latent_height, \
             model.latent_width and model.latent_frames to the size of your data",
            model.latent_height, model.latent_width
        ));
    }
    if request.to == Form::Internal && !source.latent_scale_known {
        let why = "the source has no vae/config.json: set model.latent_scale to the VAE's scaling_factor";
        report.notes.push(format!("{why} (CogVideoX-2B 1.15258426, 5B 0.7)"));
    }
    if request.to == Form::Internal && source.names == Names::Diffusers && !source.schedule_known {
        report.notes.push(format!(
            "the source has no scheduler/scheduler_config.json: the noise schedule is assumed, model.snr_shift_scale = {} \
             (CogVideoX-2B 3.0, later models 1.0)",
            model.cogvideox().snr_shift_scale
        ));
    }
    let mut links = Vec::new();
    if request.link {
        if !source.renamed {
            let keys = report.mapped.iter().map(|row| (row.target.clone(), row.source.clone())).collect();
            links = link::linked_files(&mut body, &keys)?;
        }
        report.notes.push(match links.len() {
            0 if source.renamed => "no file can be linked: its tensor names have the prefix of a wrapper".into(),
            0 => "no file can be linked: every file has a tensor that changes".into(),
            n => format!(
                "{} of the source become hard links: a write to the source also changes the checkpoint and breaks its \
                 checksums",
                units::counted(n, "file")
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
            let own = (own_keys(&model, &config)?).map(|keys| {
                report.notes.push(format!(
                    "{MODEL_FILE} holds what config.json has no place for: {}. Samples need the same: set it in the scheduler \
                     and the pipeline",
                    keys.join(", ")
                ));
                (MODEL_FILE.into(), model_toml(&source, &model))
            });
            let index = index(&files).map(|index| (format!("{DIFFUSERS_STEM}.safetensors.index.json"), pretty(&index)));
            [(CONFIG_FILE.into(), config)].into_iter().chain(index).chain(own).collect()
        }
    };
    let (target, merge) = (request.target.clone(), request.merge.clone());
    let allow_not_finite = request.allow_not_finite;
    Ok(ConvertPlan {
        source,
        target,
        to: request.to,
        merge,
        model: Some(model),
        report,
        allow_not_finite,
        files,
        links,
        texts,
    })
}

pub(super) fn matches_pattern(known: &str, name: &str) -> bool {
    known == name || known.strip_suffix('*').is_some_and(|start| name.starts_with(start))
}

/// Returns the model of the source with the changes of the request.
fn target_model(source: &WeightsSource, request: &ConvertRequest) -> Result<Model, Failure> {
    let mut model = source.model()?.clone();
    let refuse = |why: String, fix: String| {
        Err(Failure::new(ErrorCode::InvalidArgument, format!("cannot convert {}", request.source), why, fix))
    };
    if let Some(channels) = request.in_channels {
        if channels < model.in_channels {
            let why = format!("it has {} input channels, and --in-channels is {channels}", model.in_channels);
            return refuse(why, format!("set --in-channels to {} or more", model.in_channels));
        }
        model.in_channels = channels;
    }
    if let Some(layer) = request.layer
        && layer != model.layer()
    {
        let had = model.layer();
        if model.family.name() != FamilyName::CogVideoX {
            let family = model.family.name().name();
            return refuse(
                format!("only models of CogVideoX have TTT layers, and this is one of {family}"),
                "omit --layer".into(),
            );
        }
        if had != Layer::None && layer != Layer::None {
            return refuse(
                format!("its layers are {}, which cannot become {}", word(had), word(layer)),
                "convert weights without TTT layers".into(),
            );
        }
        model = model.with_cogvideox(|keys| {
            keys.layer = layer;
            // The defaults of ttt-video-dit.
            (keys.ttt_mini_batch, keys.ttt_base_lr) = match layer {
                Layer::None => (0, keys.ttt_base_lr),
                Layer::TttLinear => (16, 1.0),
                Layer::TttMlp => (64, 0.1),
            };
        });
    }
    // `Model::from_table` checks the limits of a model's size.
    match Model::from_table(&model.to_table()) {
        Ok(model) => Ok(model),
        Err(error) => refuse(error.why, error.fix),
    }
}

/// Returns the name of a layer in recipes.
pub(super) fn word(layer: Layer) -> &'static str {
    match layer {
        Layer::None => "none",
        Layer::TttLinear => "ttt_linear",
        Layer::TttMlp => "ttt_mlp",
    }
}

/// Plans the copy of a tensor from the source to the target.
fn mapped(
    source: &WeightsSource,
    model: &Model,
    spec: &ParamSpec,
    stored: &StoredTensor,
    (from, to): (&str, &str),
    dtype: Option<Dtype>,
) -> Result<(TensorToWrite, Mapped), Failure> {
    let bad = |why: String| {
        let fix = "use the config.json of these weights, or download both again";
        Failure::new(ErrorCode::TensorMismatch, format!("cannot convert {}", source.location.path), why, fix)
    };
    let Some(kept) = cast::kept(stored.dtype) else {
        return Err(bad(format!(
            "{from} in {} has dtype {}; parameters must be F64, F32, BF16 or F16",
            stored.file(),
            stored.dtype
        )));
    };
    let dtype = dtype.unwrap_or(kept);
    let mut row = Mapped::new(from, to, &spec.shape, stored.dtype, dtype);
    let segments = if stored.shape == spec.shape {
        stored.spans.iter().cloned().map(Segment::File).collect()
    } else if let Some((channels, segments)) = grown(source.model()?, model, spec, stored) {
        row.new_channels = channels;
        segments
    } else {
        return Err(bad(format!(
            "{from} has shape {:?} in {}; its configuration expects {:?}",
            stored.shape,
            stored.file(),
            spec.shape
        )));
    };
    let target = TensorToWrite::new(to, &spec.shape, stored.dtype, dtype, segments);
    Ok((target, row))
}

/// Returns the number of new input channels and the segments of the patch embedding's weight, which has zeros for the new
/// channels at the end of each row. Rows are ordered by channel. `None` for other tensors, or if no channel is new.
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

/// Returns the initial values of a tensor of a TTT layer that only the target has; `None` for other tensors.
fn added(
    source: &WeightsSource,
    spec: &ParamSpec,
    model: &Model,
    to: &str,
    dtype: Dtype,
    seed: u64,
) -> Option<TensorToWrite> {
    let had = source.model().ok()?.layer();
    if spec.group != recipe::ParamGroup::Ttt || had == model.layer() {
        return None;
    }
    let segments = vec![Segment::Initial(InitialValues::new(spec.init, seed, &spec.name)?, spec.len() * 4)];
    Some(TensorToWrite::new(to, &spec.shape, Dtype::F32, dtype, segments))
}

/// Assigns the tensors to named files.
fn new_files(
    request: &ConvertRequest,
    model: &Model,
    body: Vec<TensorToWrite>,
    ttt: Vec<TensorToWrite>,
) -> Vec<NewTensorFile> {
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
    let mut files: Vec<NewTensorFile> = shards
        .into_iter()
        .enumerate()
        .map(|(n, tensors)| NewTensorFile { name: name(n), metadata: format.clone(), tensors })
        .collect();
    if !ttt.is_empty() {
        let mut metadata = format;
        metadata.insert(TTT_MODEL.into(), model.to_table().to_string());
        metadata
            .insert("note".into(), "TTT layers of the model in this folder, which diffusers does not support".into());
        files.push(NewTensorFile { name: TTT_FILE.into(), metadata, tensors: ttt });
    }
    files
}

/// Returns the index of a diffusers model; `None` if the model has one file.
fn index(files: &[NewTensorFile]) -> Option<serde_json::Value> {
    let shards: Vec<&NewTensorFile> = files.iter().filter(|file| file.name != TTT_FILE).collect();
    let tensors = || shards.iter().flat_map(|file| file.tensors.iter().map(move |tensor| (tensor, &file.name)));
    let map: BTreeMap<&str, &String> = tensors().map(|(tensor, file)| (tensor.name.as_str(), file)).collect();
    let size: u64 = tensors().map(|(tensor, _)| tensor.bytes()).sum();
    (shards.len() > 1).then(|| serde_json::json!({ "metadata": { "total_size": size }, "weight_map": map }))
}

/// Returns the keys of a model, with their values, that its `config.json` does not imply; `None` if it implies all keys.
fn own_keys(model: &Model, config: &str) -> Result<Option<Vec<String>>, Failure> {
    if model.family.name() != FamilyName::CogVideoX {
        return Ok(None);
    }
    let implied = model_from_diffusers(&Config::parse(CONFIG_FILE.into(), config)?)?.to_table();
    let table = model.to_table();
    // The latent scale has its own note.
    let own = OWN_KEYS.into_iter().filter(|key| *key != "latent_scale" && table.get(*key) != implied.get(*key));
    let own: Vec<String> = own.map(|key| format!("{key} = {}", table[key])).collect();
    Ok(Some(own).filter(|own| !own.is_empty()))
}

/// Returns the `[model]` section of a recipe for the weights, and the condition that their channels imply.
fn model_toml(source: &WeightsSource, model: &Model) -> String {
    let condition = model.condition().filter(|kind| *kind != ConditionKind::None);
    let mut model = model.to_table();
    if !source.latent_scale_known {
        model.remove("latent_scale");
    }
    let mut table = toml::Table::from_iter([("model".to_owned(), toml::Value::Table(model))]);
    if let Some(kind) = condition {
        let section = toml::Table::from_iter([("kind".to_owned(), kind.name().into())]);
        table.insert("condition".to_owned(), toml::Value::Table(section));
    }
    format!(
        "# The model of these weights. A recipe that begins with `base = \"…/{MODEL_FILE}\"` inherits it.\n\n{table}"
    )
}
