//! `vidtui export`.

use crate::args::ExportArgs;
use crate::chart_export;
use crate::curves::{self, METRICS, Metric};
use crate::output;
use crate::refusal::Refusal;
use crate::workspace::Workspace;
use rundir::Failure;

/// What a picture shows when nobody says what.
const OVERVIEW: [&str; 4] = ["loss", "lr", "grad_norm", "step_s"];

/// Writes the curves of a run as a picture or a table.
pub fn run(workspace: &Workspace, args: &ExportArgs) -> Result<(), Refusal> {
    let to = &args.out;
    let is_table = match to.extension() {
        Some("csv") => true,
        Some("svg" | "png") => false,
        _ => {
            let why = "its ending names no format";
            let fix = "end it in .svg or .png for a picture, in .csv for a table";
            return Err(Refusal::request(Failure::new(
                rundir::ErrorCode::Unclassified,
                format!("cannot export to {to}"),
                why,
                fix,
            )));
        }
    };
    let named: Vec<&Metric> = args.metric.iter().map(|name| curves::metric(name)).collect::<Result<_, _>>()?;
    let (summary, _) = workspace.summary(&workspace.find(&args.run)?)?;
    let measured = curves::read(&summary.dir)?;
    if is_table {
        let metrics = if named.is_empty() { METRICS.iter().collect() } else { named };
        rundir::write_atomic(to, curves::csv(&measured, &metrics).as_bytes())?;
    } else {
        let overview = || OVERVIEW.iter().map(|name| curves::metric(name)).collect::<Result<_, _>>();
        let metrics: Vec<&Metric> = if named.is_empty() { overview()? } else { named };
        chart_export::write(&curves::of_metrics(&summary, &measured, &metrics), to)?;
    }
    output::line(to.as_str())
}
