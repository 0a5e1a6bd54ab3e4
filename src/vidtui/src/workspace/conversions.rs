//! Weight conversions: those that help a launch, and in the console the preview and the conversion exactly as previewed.

use super::Workspace;
use crate::command_error::CommandError;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, now_s};
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ui::{ConvertForm, ConvertOptions, ConvertPreview, ConvertRow, Outcome, WeightType};
use weights::{ConvertPlan, ConvertRequest, Dtype, Form, LoraForm, Report, SourceKind};

/// How often progress is sent to the screen.
const PROGRESS: Duration = Duration::from_millis(200);

/// Plans a conversion for the preview.
pub fn preview(workspace: &Workspace, options: &ConvertOptions) -> Result<ConvertPreview, CommandError> {
    let plan = planned(workspace, options)?;
    let refusal = plan.check(options.replace).err();
    Ok(ConvertPreview {
        command: command(options),
        facts: facts(&plan),
        rows: rows(&plan),
        bytes: plan.bytes(),
        in_the_way: plan.check(false).is_err() && plan.check(true).is_ok(),
        refusal,
        fingerprint: plan.fingerprint(),
        options: options.clone(),
    })
}

/// Converts as previewed.
///
/// # Errors
/// The plan has changed since the preview, or the conversion fails. A failed conversion leaves no files.
pub fn convert(
    workspace: &Workspace,
    shown: &ConvertPreview,
    stop: &AtomicBool,
    send: &dyn Fn(weights::WriteProgress),
) -> Result<Outcome, CommandError> {
    let plan = planned(workspace, &shown.options)?;
    if plan.fingerprint() != shown.fingerprint {
        let what = format!("cannot convert {}", shown.options.source);
        let fix = "read the new preview, then convert";
        return Err(Failure::new(
            ErrorCode::InvalidArgument,
            what,
            "source, target or options have changed since the preview",
            fix,
        )
        .into());
    }
    let random = RandomState::new().hash_one(std::process::id()) as u32;
    let mut sent = Instant::now();
    let done = plan.execute(shown.options.replace, now_s(), random, &mut |progress| {
        if sent.elapsed() >= PROGRESS {
            sent = Instant::now();
            send(progress);
        }
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match done {
        Ok(done) => Ok(Outcome::Converted(done.target)),
        Err(_) if stop.load(Ordering::Relaxed) => Ok(Outcome::ConvertStopped(plan.target)),
        Err(failure) => Err(failure.into()),
    }
}

/// Returns the kind of weights, and options for converting them to a checkpoint that a stage can start from. `None` if their format cannot
/// be converted.
pub fn that_helps(path: &Utf8Path, layer: recipe::Layer) -> Option<(SourceKind, ConvertOptions)> {
    let kind = weights::identify(path).ok()?.kind;
    if !matches!(kind, SourceKind::Diffusers | SourceKind::Pipeline | SourceKind::Torch | SourceKind::Dcp) {
        return None;
    }
    let target = format!("{}-internal", path.as_str().trim_end_matches('/'));
    let layer = Some(layer).filter(|layer| *layer != recipe::Layer::None);
    let options = ConvertOptions { source: path.to_owned(), target: target.into(), layer, ..ConvertOptions::default() };
    Some((kind, options))
}

/// Returns the command line of the conversion.
pub fn command(options: &ConvertOptions) -> String {
    let quoted = |path: &Utf8Path| plan::quote(path.as_str());
    let mut words = vec!["vidtui convert".to_owned(), quoted(&options.source), quoted(&options.target)];
    words.push(format!("--to {}", options.to.word()));
    words.extend(options.layer.map(|layer| {
        let word = match layer {
            recipe::Layer::None => "none",
            recipe::Layer::TttLinear => "ttt_linear",
            recipe::Layer::TttMlp => "ttt_mlp",
        };
        format!("--layer {word}")
    }));
    words.extend(options.dtype.map(|dtype| format!("--dtype {}", dtype.word())));
    words.extend(options.merge.as_ref().map(|adapter| format!("--merge {}", quoted(adapter.as_ref()))));
    words.extend(options.replace.then(|| "--force".to_owned()));
    words.join(" ")
}

/// Returns the properties of a conversion as names and values.
pub fn facts(plan: &ConvertPlan) -> Vec<(String, String)> {
    let Report { mapped, unused, waived, initialized, missing, notes } = &plan.report;
    let source = &plan.source;
    let family = source.family.map_or(String::new(), |family| format!("{family}, "));
    let counted = |names: usize| units::grouped(names as u64);
    let mut facts = vec![
        ("from".into(), format!("{} ({family}{})", source.location.path, source.location.kind)),
        (
            "to".into(),
            format!(
                "{}, {} in {}",
                plan.target,
                units::short_size(plan.bytes()),
                units::counted(plan.file_count(), "file")
            ),
        ),
        ("mapped".into(), counted(mapped.len())),
        ("unused".into(), counted(unused.len())),
        ("initialized".into(), counted(initialized.len())),
    ];
    if !waived.is_empty() {
        facts.push(("waived".into(), counted(waived.len())));
    }
    if !missing.is_empty() {
        facts.push(("missing".into(), counted(missing.len())));
    }
    facts.extend(notes.iter().map(|note| ("note".into(), note.clone())));
    facts
}

/// Returns the result for each tensor; tensors that differ only in the block number share a row. Tensors that make the conversion
/// fail come first.
pub fn rows(plan: &ConvertPlan) -> Vec<ConvertRow> {
    let Report { unused, waived, missing, .. } = &plan.report;
    let lists = [("(missing)", missing, true), ("(unused)", unused, true), ("(waived)", waived, false)];
    let alone = lists.into_iter().flat_map(|(word, names, wrong)| {
        names.iter().map(move |name| ConvertRow { count: 1, source: name.clone(), target: word.into(), wrong })
    });
    let patterns = plan.report.patterns().into_iter().map(|row| ConvertRow {
        count: row.count,
        source: row.source,
        target: row.target,
        wrong: false,
    });
    alone.chain(patterns).collect()
}

fn planned(workspace: &Workspace, options: &ConvertOptions) -> Result<ConvertPlan, CommandError> {
    let to = match options.to {
        ConvertForm::Internal => Form::Internal,
        ConvertForm::Diffusers => Form::Diffusers,
        ConvertForm::LoraDiffusers => Form::Lora(LoraForm::Diffusers),
        ConvertForm::LoraPeft => Form::Lora(LoraForm::Peft),
        ConvertForm::LoraKohya => Form::Lora(LoraForm::Kohya),
    };
    let weights = |given: &Utf8Path| workspace.find_weights(from_home(given).as_str());
    let request = ConvertRequest {
        layer: options.layer,
        dtype: options.dtype.map(|dtype| match dtype {
            WeightType::Float32 => Dtype::F32,
            WeightType::Bfloat16 => Dtype::BF16,
            WeightType::Float16 => Dtype::F16,
        }),
        merge: options.merge.as_deref().map(weights).transpose()?,
        force: options.replace,
        ..ConvertRequest::new(weights(&options.source)?, from_home(&options.target), to)
    };
    Ok(weights::plan_conversion(&request)?)
}

/// Expands `~`, which users type as in a shell.
fn from_home(path: &Utf8Path) -> Utf8PathBuf {
    match (path.strip_prefix("~"), std::env::var("HOME")) {
        (Ok(rest), Ok(home)) => Utf8PathBuf::from(home).join(rest),
        _ => path.to_owned(),
    }
}
