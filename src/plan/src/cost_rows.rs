//! The cost of a recipe as rows of text.

use recipe::{Cost, Overhead, RankMemory, Recipe, Traffic};

use units::{Unit, grouped, size};

/// Returns the cost of a recipe on its mesh as names and values, for `vidtui check` and the launch dialog.
///
/// * `cores` — the cores of this machine if all ranks run on its CPUs; otherwise the rows assume GPUs, unless `train.device` is `cpu`.
pub fn cost_rows(recipe: &Recipe, cores: Option<usize>) -> Vec<(String, String)> {
    let on_cpus = cores.map(|_| recipe.on_cpus());
    let recipe = on_cpus.as_ref().unwrap_or(recipe);
    let (cost, model) = (recipe.cost(), &recipe.model);
    let text = match model.segments() {
        1 => model.text_len.to_string(),
        n => format!("{n} × {}", model.text_len),
    };
    let trained = match cost.trainable {
        all if all == cost.params => "all trained".to_owned(),
        some => format!("{} trained", grouped(some)),
    };
    let rows = [
        ("sequence", {
            let video = format!("{} × {} video", model.token_frames(), model.tokens_per_frame());
            let tokens = grouped(cost.seq_len);
            match model.seq_len() == model.video_tokens() {
                // Blocks attend to the text, which is no part of their sequence.
                true => format!("{tokens} tokens: {video}; besides, {text} text"),
                false => format!("{tokens} tokens: {text} text, {video}"),
            }
        }),
        ("parameters", format!("{}, {trained}", grouped(cost.params))),
        ("memory", memory_row(recipe, &cost)),
        ("checkpoint", checkpoint(&cost, recipe)),
        ("traffic", traffic(&cost.traffic)),
        ("work", work(&cost, recipe)),
    ];
    let rows = rows.into_iter().chain(time(&cost, recipe, cores).map(|time| ("step time", time)));
    rows.map(|(name, value)| (name.to_owned(), value)).collect()
}

/// Returns the memory of a step; with buckets, that of the largest one.
fn memory_row(recipe: &Recipe, cost: &Cost) -> String {
    match recipe.largest_bucket() {
        None => memory(&cost.memory, recipe.overhead()),
        Some(bucket) => {
            let shape = recipe.latent_of(bucket);
            let batch = recipe.micro_batch_at(shape);
            format!("bucket {bucket} × {batch}: {}", memory(&recipe.cost_at(shape).memory, recipe.overhead()))
        }
    }
}

fn memory(memory: &RankMemory, overhead: Overhead) -> String {
    let on_node = match memory.ema_on_node {
        0 => String::new(),
        bytes => format!("; average {} in the memory of the node", size(bytes)),
    };
    let away = match memory.offloaded.total() {
        0 => String::new(),
        bytes => format!("; {} offloaded from the device", size(bytes)),
    };
    let mut parts = memory.parts();
    parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let besides = match overhead.context {
        0 => String::new(),
        _ => format!("; on a GPU {} more: {}", size(overhead.total()), listed(&overhead.parts())),
    };
    let besides = match overhead.libraries {
        0 => besides,
        _ => format!("; the process {} more: {}", size(overhead.total()), listed(&overhead.parts())),
    };
    format!("{} per rank at the peak: {}{besides}{on_node}{away}", size(memory.total()), listed(&parts))
}

fn checkpoint(cost: &Cost, recipe: &Recipe) -> String {
    let store = recipe.memory.store.on(recipe.train.device.on_gpus(true));
    let (whole, copy) = (size(cost.checkpoint_bytes), size(cost.memory.save_copy(store)));
    format!("{whole}; during a save, each rank needs {copy} of node memory")
}

fn traffic(traffic: &Traffic) -> String {
    let Traffic { all_gather, reduce_scatter, all_reduce, tensor_parallel } = *traffic;
    let parts = [
        ("all-gather", all_gather),
        ("reduce-scatter", reduce_scatter),
        ("all-reduce", all_reduce),
        ("tensor parallel", tensor_parallel),
    ];
    match parts.map(|(name, bytes)| (name, bytes as u64)) {
        none if none.iter().all(|(_, bytes)| *bytes == 0) => "none: one rank".into(),
        parts => format!("each rank sends {} per step: {}", size(traffic.total() as u64), listed(&parts)),
    }
}

/// Formats the parts that are not zero: `weights 3.4 GiB, gradients 1.2 GiB`.
fn listed(parts: &[(&str, u64)]) -> String {
    let there = parts.iter().filter(|(_, bytes)| *bytes > 0);
    there.map(|(name, bytes)| format!("{name} {}", size(*bytes))).collect::<Vec<_>>().join(", ")
}

/// Returns the estimated time of a step; `None` if the device is not known.
fn time(cost: &Cost, recipe: &Recipe, cores: Option<usize>) -> Option<String> {
    let (step_s, device) = match cores {
        Some(cores) => {
            (cost.step_s_on_cores(cores), format!("on {} of this machine", units::counted(cores, "CPU core")))
        }
        None => (cost.step_s_on_gpus(recipe)?, "on H100s, without the exchanges between ranks".to_owned()),
    };
    let time = match step_s {
        under if under < 1e-3 => "less than 1 ms".to_owned(),
        short if short < 60.0 => format!("about {}", units::value(short, Unit::Seconds)),
        long => format!("about {}", units::duration(long)),
    };
    Some(format!("{time} {device}"))
}

fn work(cost: &Cost, recipe: &Recipe) -> String {
    let shown = |flops: f64| match flops / 1e12 {
        tiny if tiny < 0.1 => format!("{:.2} GFLOP", flops / 1e9),
        small if small < 10.0 => format!("{small:.2} TFLOP"),
        large => format!("{} TFLOP", grouped(large.round() as u64)),
    };
    let ranks = recipe.mesh.world() as f64;
    format!("{} per step, {} per rank", shown(cost.step_flops), shown(cost.step_flops / ranks))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(recipe: &Recipe) -> String {
        cost_rows(recipe, None).iter().map(|(name, value)| format!("{name:<11} {value}\n")).collect()
    }

    #[test]
    fn the_rows_show_the_cost_of_the_longest_stage_and_of_a_single_rank() {
        let longest = recipe::load("../../configs/ttt-mlp/63s.toml".into(), &[]).unwrap().recipe;
        let mut alone = crate::fixtures::recipe();
        alone.mesh.dp_shard = 1;
        insta::assert_snapshot!([shown(&longest), shown(&alone)].join("\n"));
    }
}
