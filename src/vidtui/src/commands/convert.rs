//! `vidtui convert`: plans the result for every tensor, then writes it.

use crate::args::{ConvertArgs, DtypeArg, FormArg, LayerArg};
use crate::command_error::CommandError;
use crate::commands::report_latest;
use crate::commands::transfer::Transfer;
use crate::output::{self, Side, note};
use crate::workspace::Workspace;
use crate::workspace::conversions::{facts, rows};
use recipe::Layer;
use rundir::{ErrorCode, Failure, now_s};
use std::hash::{BuildHasher, RandomState};
use weights::{ConvertPlan, ConvertRequest, Converted, Dtype, Form, LoraForm, NotFinite};

/// Converts weights, or shows the plan with `--dry-run`.
pub fn run(workspace: &Workspace, args: &ConvertArgs) -> Result<(), CommandError> {
    let request = request(workspace, args)?;
    report_latest(&args.source, &request.source, args.output.json);
    let plan = weights::plan_conversion(&request)?;
    if !args.output.json {
        let text = if args.dry_run { in_full(&plan) } else { in_short(&plan) };
        // The report is the output of a dry run, and progress information otherwise.
        if args.dry_run { output::text(&text)? } else { note!("{}", text.trim_end()) }
    }
    if args.dry_run {
        if args.output.json {
            output::json(&document(&plan, None))?;
        }
        return Ok(plan.check(args.force)?);
    }
    let mut transfer = Transfer::begin();
    let random = RandomState::new().hash_one(std::process::id()) as u32;
    let done = plan.execute(args.force, now_s(), random, &mut |progress| transfer.step(progress));
    transfer.end();
    let done = done?;
    if !done.not_finite.is_empty() {
        note!("warning: {}", NotFinite::words(&done.not_finite));
    }
    if args.output.json {
        return output::json(&document(&plan, Some(&done)));
    }
    output::line(done.target.as_str())
}

fn request(workspace: &Workspace, args: &ConvertArgs) -> Result<ConvertRequest, CommandError> {
    let shard_bytes = match args.shard_gb {
        Some(gb) if gb > 0.0 && gb.is_finite() => Some((gb * 1e9) as u64),
        Some(gb) => {
            let failure = Failure::new(
                ErrorCode::InvalidArgument,
                format!("cannot use --shard-gb {gb}"),
                "the size must be greater than 0",
                "for example: --shard-gb 5",
            );
            return Err(CommandError::request(failure));
        }
        None => None,
    };
    Ok(ConvertRequest {
        source: workspace.find_weights(&args.source)?,
        target: args.target.clone(),
        to: match args.to {
            FormArg::Internal => Form::Internal,
            FormArg::Diffusers => Form::Diffusers,
            FormArg::LoraDiffusers => Form::Lora(LoraForm::Diffusers),
            FormArg::LoraPeft => Form::Lora(LoraForm::Peft),
            FormArg::LoraKohya => Form::Lora(LoraForm::Kohya),
        },
        layer: args.layer.map(|layer| match layer {
            LayerArg::None => Layer::None,
            LayerArg::TttLinear => Layer::TttLinear,
            LayerArg::TttMlp => Layer::TttMlp,
        }),
        in_channels: args.in_channels,
        dtype: args.dtype.map(|dtype| match dtype {
            DtypeArg::Float32 => Dtype::F32,
            DtypeArg::Bfloat16 => Dtype::BF16,
            DtypeArg::Float16 => Dtype::F16,
        }),
        seed: args.seed,
        allow_unused: args.allow_unused.clone(),
        allow_not_finite: args.allow_not_finite,
        force: args.force,
        shard_bytes,
        link: args.link,
        merge: args.merge.as_ref().map(|adapter| workspace.find_weights(adapter.as_str())).transpose()?,
        scale: args.scale,
        ema: args.ema.into(),
    })
}

fn in_short(plan: &ConvertPlan) -> String {
    output::facts(&facts(plan))
}

fn in_full(plan: &ConvertPlan) -> String {
    let rows: Vec<Vec<String>> =
        rows(plan).into_iter().map(|row| vec![row.count.to_string(), row.source, row.target]).collect();
    let columns = [("", Side::Right), ("source", Side::Left), ("target", Side::Left)];
    format!("{}\n{}", in_short(plan), output::table(&columns, &rows))
}

/// Returns the JSON document of a conversion that is planned or done.
pub(super) fn document(plan: &ConvertPlan, done: Option<&Converted>) -> serde_json::Value {
    let source = &plan.source;
    serde_json::json!({
        "source": { "path": source.location.path, "kind": source.location.kind, "family": source.family },
        "target": plan.target,
        "to": plan.to,
        "bytes": plan.bytes(),
        "files": plan.file_count(),
        "report": plan.report,
        "done": done.is_some(),
        "not_finite": done.map(|done| &done.not_finite),
    })
}
