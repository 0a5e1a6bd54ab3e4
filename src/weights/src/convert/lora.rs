//! Plans the conversion of a LoRA adapter from one format to another.

use super::{ConvertPlan, ConvertRequest, Form, model::matches_pattern};
use crate::Dtype;
use crate::config::rotary_note;
use crate::lora::{self, LoraFile, LoraForm, LoraLayer};
use crate::report::{Mapped, Report, some};
use crate::source::WeightsSource;
use crate::stream::{Segment, TensorToWrite};
use crate::tensor_spans::StoredTensor;
use crate::write::NewTensorFile;
use rundir::{ErrorCode, Failure};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};
use units::counted;

/// Plans the conversion of an adapter to another format.
pub(super) fn plan(request: &ConvertRequest, source: WeightsSource, form: LoraForm) -> Result<ConvertPlan, Failure> {
    let ignored = [
        ("--layer", request.layer.is_some()),
        ("--in-channels", request.in_channels.is_some()),
        ("--shard-gb", request.shard_bytes.is_some()),
        ("--link", request.link),
        ("--merge", request.merge.is_some()),
    ];
    if let Some((option, _)) = ignored.into_iter().find(|(_, given)| *given) {
        let what = format!("cannot convert {}", request.source);
        let fix = format!("omit {option}, or convert a model");
        return Err(Failure::new(
            ErrorCode::InvalidArgument,
            what,
            format!("it is an adapter, and {option} applies to models only"),
            fix,
        ));
    }
    let lora = LoraFile::open_location(&source.location, request.ema)?.only_diffusers_layers();
    let mut report = Report::default();
    let mut tensors = Vec::new();
    for (module, layer) in &lora.layers {
        let ours = form.names(module);
        for ((from, stored), to) in layer.factors().zip(&ours) {
            let dtype = request.dtype.unwrap_or(stored.dtype);
            report.mapped.push(Mapped::new(from, to, &stored.shape, stored.dtype, dtype));
            tensors.push(target(to, stored, dtype));
        }
        if form == LoraForm::Kohya {
            let name = format!("{}.alpha", ours[0].trim_end_matches(".lora_down.weight"));
            let alpha = Segment::Given((layer.alpha as f32).to_le_bytes().to_vec());
            tensors.push(TensorToWrite::new(&name, &[], Dtype::F32, Dtype::F32, vec![alpha]));
        }
    }
    let left = lora.unused.iter().cloned();
    (report.waived, report.unused) =
        left.partition(|name| request.allow_unused.iter().any(|known| matches_pattern(known, name)));
    report.note_changes();
    report.notes.extend(lora.note().map(str::to_owned));
    if source.averages > 0 {
        report.notes.push(format!("{} are moving averages (EMA)", counted(source.averages, "tensor")));
    }
    let mut metadata = BTreeMap::from([("format".to_owned(), "pt".to_owned())]);
    if let Some(Ok(model)) = &source.model
        && let recipe::Family::CogVideoX(keys) = &model.family
    {
        metadata.insert(lora::ROTARY.into(), keys.rotary.name().into());
        report.notes.extend(rotary_note(model));
    }
    let mut texts = Vec::new();
    let name = match form {
        LoraForm::Diffusers => {
            let config = config(&lora).into_iter().map(|(key, value)| (format!("transformer.{key}"), value));
            metadata.insert(lora::METADATA.into(), format!("{:#}", Value::Object(config.collect())));
            if lora.layers.values().any(|layer| layer.alpha != layer.rank() as f64) {
                report.notes.push(
                    "alpha differs from the rank: load the adapter with diffusers 0.35 or later, which reads alpha from the header"
                        .into(),
                );
            }
            lora::DIFFUSERS_FILE
        }
        LoraForm::Peft => {
            texts.push((lora::PEFT_CONFIG.into(), format!("{:#}\n", Value::Object(config(&lora)))));
            lora::PEFT_FILE
        }
        LoraForm::Kohya => lora::KOHYA_FILE,
    };
    tensors.sort_by_key(|tensor| std::cmp::Reverse(tensor.to.size()));
    let files = vec![NewTensorFile { name: name.into(), metadata, tensors }];
    let target = request.target.clone();
    Ok(ConvertPlan {
        source,
        target,
        to: Form::Lora(form),
        merge: None,
        model: None,
        report,
        allow_not_finite: request.allow_not_finite,
        files,
        links: Vec::new(),
        texts,
    })
}

/// Checks that every layer of an adapter has a place in the target.
pub(super) fn check(plan: &ConvertPlan) -> Result<(), Failure> {
    let unused = &plan.report.unused;
    if unused.is_empty() {
        return Ok(());
    }
    Err(Failure::new(
        ErrorCode::TensorMismatch,
        format!("cannot convert {}", plan.source.location.path),
        format!("diffusers has no layers for {}: {}", counted(unused.len(), "tensor"), some(unused)),
        "merge the adapter into its weights, which keeps these layers: convert the weights with --merge",
    ))
}

fn target(name: &str, stored: &StoredTensor, dtype: Dtype) -> TensorToWrite {
    let segments = stored.spans.iter().cloned().map(Segment::File).collect();
    TensorToWrite::new(name, &stored.shape, stored.dtype, dtype, segments)
}

/// Returns the configuration of an adapter in the format of PEFT. The most frequent rank and alpha are the defaults, and patterns list
/// the modules that differ.
fn config(lora: &LoraFile) -> Map<String, Value> {
    let of = |value: fn(&LoraLayer) -> f64| {
        let mut counts: BTreeMap<u64, usize> = BTreeMap::new();
        lora.layers.values().for_each(|layer| *counts.entry(value(layer).to_bits()).or_default() += 1);
        let most = counts.into_iter().max_by_key(|(_, count)| *count).map_or(1.0, |(bits, _)| f64::from_bits(bits));
        let others = lora.layers.iter().filter(|(_, layer)| value(layer) != most);
        (number(most), others.map(|(module, layer)| (module.clone(), number(value(layer)))).collect::<Map<_, _>>())
    };
    let (rank, ranks) = of(|layer| layer.rank() as f64);
    let (alpha, alphas) = of(|layer| layer.alpha);
    let modules: BTreeSet<&str> = lora
        .layers
        .keys()
        .map(|module| match module.split_once("blocks.").and_then(|(_, rest)| rest.split_once('.')) {
            Some((_, rest)) => rest,
            None => module,
        })
        .collect();
    let config = json!({
        "peft_type": "LORA",
        "auto_mapping": null,
        "base_model_name_or_path": null,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "lora_alpha": alpha,
        "lora_dropout": 0.0,
        "modules_to_save": null,
        "r": rank,
        "rank_pattern": ranks,
        "alpha_pattern": alphas,
        "target_modules": modules,
        "task_type": null,
        "use_dora": false,
        "use_rslora": false,
    });
    config.as_object().cloned().unwrap_or_default()
}

/// Returns a JSON number, which is an integer if the value has no fraction.
fn number(value: f64) -> Value {
    if value.fract() == 0.0 && value.abs() < 1e15 { json!(value as i64) } else { json!(value) }
}
