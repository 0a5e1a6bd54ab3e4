//! Conversions that the console asks for: planned to be shown, and carried out as they were shown.

use crate::refusal::Refusal;
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{Failure, now_s};
use std::hash::{BuildHasher, RandomState};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ui::{ConvertForm, ConvertOptions, ConvertPreview, ConvertRow, Outcome, WeightType};
use weights::{ConvertPlan, ConvertRequest, Dtype, Form, Kind, LoraForm, Report};

/// How often the screen hears how far the work is.
const TELL: Duration = Duration::from_millis(200);

/// Looks what a options would do.
pub fn preview(options: &ConvertOptions) -> Result<ConvertPreview, Refusal> {
    let plan = planned(options)?;
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

/// Carries out what was shown.
///
/// # Errors
/// When the plan is another one by now, or cannot be carried out; nothing is left of it then.
pub fn convert(
    shown: &ConvertPreview,
    stop: &AtomicBool,
    tell: &dyn Fn(weights::Progress),
) -> Result<Outcome, Refusal> {
    let plan = planned(&shown.options)?;
    if plan.fingerprint() != shown.fingerprint {
        let what = format!("cannot convert {}", shown.options.source);
        let fix = "look at the preview again, and convert then";
        return Err(
            Failure::new(rundir::ErrorCode::Unclassified, what, "it has changed since it was shown", fix).into()
        );
    }
    let random = RandomState::new().hash_one(std::process::id()) as u32;
    let mut told = Instant::now();
    let done = plan.execute(shown.options.replace, now_s(), random, &mut |progress| {
        if told.elapsed() >= TELL {
            told = Instant::now();
            tell(progress);
        }
        if stop.load(Ordering::Relaxed) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    match done {
        Ok(done) => Ok(Outcome::Converted(done.target)),
        Err(_) if stop.load(Ordering::Relaxed) => Ok(Outcome::ConvertStopped(plan.target)),
        Err(failure) => Err(failure.into()),
    }
}

/// The conversion that makes weights fit to start a stage from; none when they are not of a kind that can be converted.
pub fn that_helps(path: &Utf8Path, layer: recipe::Layer) -> Option<ConvertOptions> {
    let kind = weights::identify(path).ok()?.kind;
    if !matches!(kind, Kind::Diffusers | Kind::Pipeline | Kind::Torch | Kind::Dcp) {
        return None;
    }
    let target = format!("{}-internal", path.as_str().trim_end_matches('/'));
    let layer = Some(layer).filter(|layer| *layer != recipe::Layer::None);
    Some(ConvertOptions { source: path.to_owned(), target: target.into(), layer, ..ConvertOptions::default() })
}

/// What a conversion is about, in names and values.
pub fn facts(plan: &ConvertPlan) -> Vec<(String, String)> {
    let Report { mapped, unused, waived, initialized, missing, notes } = &plan.report;
    let source = &plan.source;
    let family = source.family.map_or(String::new(), |family| format!("{family}, "));
    let counted = |names: usize| units::grouped(names as u64);
    let mut facts = vec![
        ("from".into(), format!("{} ({family}{})", source.found.path, source.found.kind)),
        (
            "to".into(),
            format!("{}, {} in {}", plan.target, units::bytes(plan.bytes()), units::counted(plan.file_count(), "file")),
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

/// What becomes of the tensors, blocks taken together; those for which it would be refused come first.
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

fn planned(options: &ConvertOptions) -> Result<ConvertPlan, Refusal> {
    let to = match options.to {
        ConvertForm::Internal => Form::Internal,
        ConvertForm::Diffusers => Form::Diffusers,
        ConvertForm::LoraDiffusers => Form::Lora(LoraForm::Diffusers),
        ConvertForm::LoraPeft => Form::Lora(LoraForm::Peft),
        ConvertForm::LoraKohya => Form::Lora(LoraForm::Kohya),
    };
    let request = ConvertRequest {
        layer: options.layer,
        dtype: options.dtype.map(|dtype| match dtype {
            WeightType::Float32 => Dtype::F32,
            WeightType::Bfloat16 => Dtype::BF16,
            WeightType::Float16 => Dtype::F16,
        }),
        merge: options.merge.as_deref().map(from_home),
        force: options.replace,
        ..ConvertRequest::new(from_home(&options.source), from_home(&options.target), to)
    };
    Ok(weights::plan_conversion(&request)?)
}

/// A path as a shell would read it: people type `~`.
fn from_home(path: &Utf8Path) -> Utf8PathBuf {
    match (path.strip_prefix("~"), std::env::var("HOME")) {
        (Ok(rest), Ok(home)) => Utf8PathBuf::from(home).join(rest),
        _ => path.to_owned(),
    }
}

/// The same on the command line.
fn command(options: &ConvertOptions) -> String {
    let mut words = vec!["vidtui convert".to_owned(), options.source.to_string(), options.target.to_string()];
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
    words.extend(options.merge.as_ref().map(|adapter| format!("--merge {adapter}")));
    words.extend(options.replace.then(|| "--force".to_owned()));
    words.join(" ")
}
