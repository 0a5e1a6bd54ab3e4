//! Reads logs of `tests/fixtures/trainer-logs` and lines of other programs without the name of their trainer.

use super::*;
use proptest::prelude::*;
use recipe::OtherTrainer;

fn log(name: &str) -> Vec<u8> {
    std::fs::read(format!("../../tests/fixtures/trainer-logs/{name}.log")).unwrap()
}

fn options() -> ReaderOptions {
    ReaderOptions { ranks: 2, ..ReaderOptions::new(OtherTrainer::Auto) }
}

/// Reads a log `size` bytes at a time, a second apart.
fn read(options: ReaderOptions, log: &[u8], size: usize) -> Vec<LogEvent> {
    let mut reader = AutoReader::new(options);
    let mut now = 1000.0;
    let mut events = Vec::new();
    for piece in log.chunks(size) {
        events.extend(reader.read(piece, now));
        now += 1.0;
    }
    events.extend(reader.end(now));
    events
}

fn line(event: &LogEvent) -> String {
    let LogEvent::Metric(sample) = event else { return format!("{event:?}") };
    let mut text = format!("{}:", sample.step);
    for metric in rundir::METRICS {
        match metric.source {
            rundir::MetricSource::Step(value, _) => {
                if let Some(value) = value(sample) {
                    text += &format!(" {}={}", metric.name, (value * 1e9).round() / 1e9);
                }
            }
            rundir::MetricSource::PerRank(values) => {
                for value in values(sample) {
                    text += &format!(" {}={value}", metric.name);
                }
            }
            rundir::MetricSource::Nodes { .. } => {}
        }
    }
    for (name, value) in &sample.other {
        text += &format!(" {name:?}={}", value.map_or("-".into(), |value| value.to_string()));
    }
    text
}

fn lines(options: ReaderOptions, log: &[u8]) -> Vec<String> {
    read(options, log, log.len().max(1)).iter().map(line).collect()
}

fn of_text(log: &str) -> Vec<String> {
    lines(options(), log.as_bytes())
}

/// Returns the samples of a log, the last one of each step.
fn samples(log: &str) -> Vec<MetricSample> {
    let events = read(options(), log.as_bytes(), log.len().max(1));
    let mut samples: Vec<MetricSample> = Vec::new();
    for event in events {
        if let LogEvent::Metric(sample) = event {
            samples.pop_if(|last| last.step == sample.step);
            samples.push(*sample);
        }
    }
    samples
}

/// Returns the steps and losses.
fn losses(log: &str) -> Vec<(u64, Option<f64>)> {
    let events = read(options(), log.as_bytes(), log.len().max(1));
    let of =
        |event: LogEvent| if let LogEvent::Metric(sample) = event { Some((sample.step, sample.loss)) } else { None };
    events.into_iter().filter_map(of).collect()
}

const LOGS: [&str; 17] = [
    "transformers-5.24.0",
    "lightning-2.6.6",
    "musubi-tuner",
    "diffusion-pipe",
    "ai-toolkit",
    "fastvideo",
    "diffsynth",
    "torchtitan",
    "megatron",
    "nemo",
    "nemo-bar",
    "cogvideox-factory-sft-f476c37",
    "videox-fun-804a425",
    "open-sora-2",
    "finetrainers",
    "ttt-video-dit",
    "cogvideox-factory-sft-f476c37-resumed",
];

fn options_of(name: &str) -> ReaderOptions {
    let steps_total = (name == "diffsynth").then_some(6);
    let start_step = if name.ends_with("-resumed") { 6 } else { 0 };
    ReaderOptions { steps_total, start_step, ..options() }
}

#[test]
fn logs_are_read_without_the_name_of_their_trainer() {
    let read = LOGS.map(|name| {
        let log = log(name);
        let shown = lines(options_of(name), &log);
        for size in [1, 7, 64] {
            let in_pieces: Vec<String> = read(options_of(name), &log, size).iter().map(line).collect();
            // Without a speed in the log, the time of a step is that of the clock.
            let timeless = |lines: &[String]| {
                let without = |line: &String| {
                    line.split(' ').filter(|word| !word.starts_with("step_s=")).collect::<Vec<_>>().join(" ")
                };
                lines.iter().map(without).collect::<Vec<_>>()
            };
            assert_eq!(timeless(&in_pieces), timeless(&shown), "{name} in pieces of {size}");
        }
        format!("{name}\n{}", shown.join("\n"))
    });
    insta::assert_snapshot!(read.join("\n\n"));
}

#[test]
fn plain_lines_are_read_in_usual_spellings() {
    for log in [
        "step 1 loss 0.5 lr 1e-5\nstep 2 loss 0.4 lr 1e-5\n",
        "step: 1, loss: 0.5, lr: 1e-5\nstep: 2, loss: 0.4, lr: 1e-5\n",
        "INFO:root:[step 1/9] loss=0.5 lr=1e-05\nINFO:root:[step 2/9] loss=0.4 lr=1e-05\n",
        "2026-11-20 03:40:01 - train - INFO - iter 1 | train loss 0.5 | learning rate 1e-5\n2026-11-20 03:40:02 - train - INFO - iter 2 | train loss 0.4 | learning rate 1e-5\n",
        "{\"step\": 1, \"loss\": 0.5, \"lr\": 1e-5}\n{\"step\": 2, \"loss\": 0.4, \"lr\": 1e-5}\n",
        "{\"global_step\": 1, \"train\": {\"loss\": 0.5, \"lr\": 1e-5}}\n{\"global_step\": 2, \"train\": {\"loss\": 0.4, \"lr\": 1e-5}}\n",
        "{'step': 1, 'loss': tensor(0.5), 'lr': 1e-5}\n{'step': 2, 'loss': '0.4', 'lr': 1e-5}\n",
        "step 1: {'loss': 0.5, 'lr': 1e-5}\nstep 2: {'loss': 0.4, 'lr': 1e-5}\n",
        "Epoch [1/3], Step [1/9], Loss: 0.5000, LR: 1e-5\nEpoch [1/3], Step [2/9], Loss: 0.4000, LR: 1e-5\n",
    ] {
        assert_eq!(losses(log), [(1, Some(0.5)), (2, Some(0.4))], "{log}");
        assert!(of_text(log).iter().any(|line| line.contains("lr=0.00001")), "{log}");
    }
}

#[test]
fn units_and_own_names_are_kept() {
    let log = "iter 1: loss 2.5, time 250.00ms, mfu 35.00%, kl_loss: 0.1, mem: 2048MiB, tok/sec: 1,250.5\n\
               iter 2: loss 2.4, time 250.00ms, mfu 35.00%, kl_loss: 0.2, mem: 2048MiB, tok/sec: 1,250.5\n";
    let want = "1: loss=2.5 step_s=0.25 tokens_per_s=1250.5 mfu=0.35 mem_peak_gib=2 \"kl_loss\"=0.1";
    assert!(of_text(log).iter().any(|line| line == want), "{:?}", of_text(log));
}

#[test]
fn numbers_that_are_no_training_steps_are_not_shown() {
    for log in [
        "Validation: 10%|#  | 1/10 [00:01<00:09, 1.00s/it, loss=0.4]\rValidation: 20%|#  | 2/10 [00:02<00:08, 1.00s/it, loss=0.5]\n",
        "Caching latents: 10%|#  | 1/10 [00:01<00:09, 1.00s/it, loss=0.4]\n",
        "val step 1 loss 0.5\nval step 2 loss 0.4\n",
        "100%|####| 50/50 [00:10<00:00, 5.00it/s]\n",
        "Saving checkpoint at step 500 to /out/step-500\nstep 500 took 3.5 s\n",
        "loss 0.5\nloss 0.4\n",
        "step 7 loss 0.5 again: step 7 loss 0.5\nstep 7 loss 0.5\nstep 3\n",
        "ssh port 22, step 2 of the installation\n",
        "step 1 best loss 0.3\nstep 2 best loss 0.2\n",
        "step 10% loss 0.5\nstep 20% loss 0.4\n",
        "100/100 [====] - 1s 10ms/step - loss: 0.5 - val_loss: 0.6\n100/100 [====] - 1s 10ms/step - loss: 0.4 - val_loss: 0.5\n",
        // The order of a buffered output is not that of the bar.
        "  1%|  | 1/9 [00:01<00:09, 1.00s/it]\r  2%|  | 2/9 [00:01<00:09, 1.00s/it]\n{'loss': 0.5, 'epoch': 0.1}\n{'loss': 0.4, 'epoch': 0.2}\n  \
         3%|  | 3/9 [00:01<00:09, 1.00s/it]\r",
    ] {
        let losses = losses(log);
        // A single step at the end of a log is certain enough if no other line could have it.
        let is_one = log.starts_with("step 7") && losses == [(7, Some(0.5))];
        assert!(losses.is_empty() || is_one, "{log}: {losses:?}");
    }
}

#[test]
fn the_bar_of_a_trainer_is_its_progress_until_its_first_loss() {
    let log = log("transformers-5.24.0");
    let text = String::from_utf8(log).unwrap();
    let early = "  1%|  | 1/12 [00:01<00:09, 1.00s/it]\r  2%|  | 2/12 [00:01<00:09, 1.00s/it]\r  3%|  | 3/12 [00:01<00:09, 1.00s/it]\r";
    let options = ReaderOptions { steps_total: Some(12), ..options() };
    let late = text.split_once("{'loss': '0.7012'").unwrap().1;
    let log = format!("{early}{{'loss': '0.7012'{late}");
    let shown = lines(options, log.as_bytes());
    let formats: Vec<&String> = shown.iter().filter(|line| line.starts_with("Recognized")).collect();
    assert!(formats.len() == 2 && formats[1].contains("Python dictionaries"), "{shown:?}");
    assert!(shown.iter().any(|line| line.starts_with("2: step_s=1")), "{shown:?}");
    assert!(shown.iter().any(|line| line.starts_with("6: loss=0.7012")), "{shown:?}");
    assert!(shown.iter().any(|line| line.starts_with("12: loss=0.6967")), "{shown:?}");
}

#[test]
fn patterns_describe_lines_that_are_not_known() {
    let pattern = |text: &str| recipe::LogPattern { pattern: recipe::Pattern::new(text).unwrap() };
    let patterns = vec![
        pattern(r"^it (?P<step>\d+) .*total (?P<loss>\S+) in (?P<step_ms>\d+)"),
        pattern(r"peak (?P<mem_mib>\d+) kl (?P<kl>\S+)"),
    ];
    let options = ReaderOptions { patterns, ..options() };
    let log =
        "step 1 loss 9\nstep 2 loss 9\nit 1 of 9, total 0.5 in 250\npeak 2048 kl 0.1\nit 2 of 9, total nan in 250\n";
    let want = ["1: loss=0.5 step_s=0.25 mem_peak_gib=2 \"kl\"=0.1", "2: loss=NaN step_s=0.25"];
    let shown = lines(options.clone(), log.as_bytes());
    assert_eq!(shown[1..], want, "{shown:?}");
    // A log that pauses between the two lines gives the step twice. The later one counts.
    let mut reader = AutoReader::new(options);
    let mut events = reader.read(b"it 1 of 9, total 0.5 in 250\n", 1.0);
    events.extend(reader.pause(2.0));
    events.extend(reader.read(b"peak 2048 kl 0.1\n", 3.0));
    assert_eq!(events.iter().skip(1).map(line).collect::<Vec<_>>(), ["1: loss=0.5 step_s=0.25", want[0]]);
}

#[test]
fn only_names_after_the_step_are_values_of_their_own() {
    let line = |step| {
        format!("2026-11-20 10:00:01.123 | INFO     | __main__:train:42 - step {step} loss: 0.{step} best: 0.25\n")
    };
    let shown = of_text(&[line(1), line(2)].concat());
    assert_eq!(shown[1..], ["1: loss=0.1 \"best\"=0.25", "2: loss=0.2 \"best\"=0.25"], "{shown:?}");
}

#[test]
fn a_bar_that_begins_again_counts_on_from_the_epoch_before() {
    let bar = |count: u64, loss: &str| format!("\rtrain:  1%|  | {count}/20 [00:05<00:40,  5.00s/it, loss={loss}]");
    // The last drawing of the first epoch is missing.
    let log = [bar(10, "0.5"), bar(19, "0.4"), bar(1, "0.3"), bar(20, "0.2"), bar(1, "0.1")].concat() + "\n";
    let want = [(10, Some(0.5)), (19, Some(0.4)), (21, Some(0.3)), (40, Some(0.2)), (41, Some(0.1))];
    assert_eq!(losses(&log), want);
    // A bar that begins again in the middle is another attempt of the program, whose steps are not certain.
    let log = [bar(5, "0.5"), bar(10, "0.4"), bar(1, "0.3"), bar(11, "0.2")].concat() + "\n";
    assert_eq!(losses(&log), [(5, Some(0.5)), (10, Some(0.4)), (11, Some(0.2))]);
}

#[test]
fn a_loss_that_is_not_finite_is_shown_as_such() {
    let log = "step 1 loss 0.5\nstep 2 loss nan\nstep 3 loss inf\n";
    assert_eq!(losses(log), [(1, Some(0.5)), (2, None), (3, None)]);
    assert_eq!(losses("{\"step\": 1, \"loss\": null}\n{\"step\": 2, \"loss\": 0.5}\n"), [(1, None), (2, Some(0.5))]);
}

#[test]
fn lines_that_name_validation_in_any_place_give_no_training_loss() {
    for marked in [
        "val step 2 loss 0.9",
        "[eval] step 2 loss 0.9",
        "step 2 | val | loss: 0.9",
        "step=2 split=val loss=0.9",
        "step 2 (validation) loss 0.9",
        "step 2 val loss 0.9",
        "{\"split\": \"val\", \"step\": 2, \"loss\": 0.9}",
        "{'mode': 'eval', 'step': 2, 'loss': 0.9}",
    ] {
        let train = if marked.starts_with('{') {
            ["{\"step\": 1, \"loss\": 0.5}", "{\"step\": 2, \"loss\": 0.4}", "{\"step\": 3, \"loss\": 0.3}"]
        } else {
            ["step 1 loss 0.5", "step 2 loss 0.4", "step 3 loss 0.3"]
        };
        let shown = of_text(&format!("{}\n{}\n{marked}\n{}\n", train[0], train[1], train[2]));
        let want = ["1: loss=0.5", "2: loss=0.4 validation_loss=0.9", "3: loss=0.3"];
        assert_eq!(shown[1..], want, "{marked}");
    }
}

#[test]
fn names_of_nodes_and_jobs_are_no_words_of_validation() {
    assert_eq!(losses("[test-node-1] step 1 loss 0.5\n[test-node-1] step 2 loss 0.4\n").len(), 2);
    assert_eq!(losses("my_test_lora:  1%|  | 1/9 [00:05<00:40,  5.00s/it, loss=0.5]\n").len(), 1);
}

#[test]
fn the_loss_of_validation_belongs_to_its_step() {
    let log = "step 1 loss 0.5\nstep 2 loss 0.4\nvalidation step 2 loss 0.7\nstep 3 loss 0.3\n";
    let lines = of_text(log);
    assert!(lines.contains(&"2: loss=0.4 validation_loss=0.7".to_owned()), "{lines:?}");
    assert!(lines.contains(&"3: loss=0.3".to_owned()), "{lines:?}");
}

#[test]
fn a_log_without_steps_is_reported_once_and_steps_after_it_are_still_read() {
    let mut log = "loading\n".repeat(FIRST_LINES as usize + 5);
    let reported = |log: &str| of_text(log).iter().filter(|line| line.starts_with("NotRecognized")).count();
    assert_eq!((reported(&log), reported("")), (1, 0));
    log += "step 1 loss 0.5\nstep 2 loss 0.4\n";
    assert_eq!((reported(&log), losses(&log).len()), (1, 2));
}

#[test]
fn a_bar_with_new_values_is_returned_when_the_log_pauses() {
    let mut reader = AutoReader::new(options());
    let steps = |events: Vec<LogEvent>| {
        events.iter().filter(|event| matches!(event, LogEvent::Metric(_))).map(line).collect::<Vec<_>>()
    };
    let bar = |count: u64, tail: &str| format!("\rSteps:  1%|  | {count}/9 [00:05<00:40,  5.00s/it{tail}]");
    assert!(steps(reader.read([bar(0, ""), bar(1, "")].concat().as_bytes(), 1.0)).is_empty());
    assert!(steps(reader.pause(2.0)).is_empty(), "there is no loss yet");
    assert!(steps(reader.read(bar(1, ", loss=0.5").as_bytes(), 3.0)).is_empty());
    assert_eq!(steps(reader.pause(4.0)), ["1: loss=0.5 step_s=5"]);
    assert!(steps(reader.read(bar(2, ", loss=0.5").as_bytes(), 5.0)).is_empty());
    assert!(steps(reader.pause(6.0)).is_empty(), "it is still the loss of step 1");
    assert!(steps(reader.read(bar(2, ", loss=0.4").as_bytes(), 7.0)).is_empty());
    assert_eq!(steps(reader.pause(8.0)), ["2: loss=0.4 step_s=5"]);
}

proptest! {
    #[test]
    fn each_step_is_returned_in_order_from_any_pieces_of_a_damaged_log(
        which in 0..LOGS.len(), size in 1usize..200,
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
    ) {
        let mut log = log(LOGS[which]);
        for (at, byte) in &damage {
            let at = at.index(log.len());
            log[at] = *byte;
        }
        let of = |event: &LogEvent| if let LogEvent::Metric(sample) = event { Some(sample.step) } else { None };
        let steps: Vec<u64> = read(options(), &log, size).iter().filter_map(of).collect();
        // A step is returned again when its validation loss is known.
        prop_assert!(steps.is_sorted(), "{:?}", steps);
    }
}

/// The recipes of `configs/others` whose logs are recognized: a log of the program, its number of steps, and whether it has a loss.
const RECIPES: [(&str, &str, usize, bool); 8] = [
    ("musubi-tuner", "musubi-tuner", 3, true),
    ("diffusion-pipe", "diffusion-pipe", 4, true),
    ("ai-toolkit", "ai-toolkit", 5, true),
    ("diffsynth", "diffsynth", 6, false),
    ("fastvideo", "fastvideo", 6, true),
    ("torchtitan", "torchtitan", 4, true),
    ("diffusers", "cogvideox-factory-lora-f476c37", 6, true),
    ("transformers", "transformers-5.24.0", 6, true),
];

#[test]
fn the_logs_of_programs_are_read_with_their_recipes() {
    for (name, of, steps, has_loss) in RECIPES {
        let path = format!("../../configs/others/{name}.toml");
        // The bar of DiffSynth-Studio counts as progress if it has the steps of the recipe.
        let set: &[String] = if name == "diffsynth" { &["train.steps=6".into()] } else { &[] };
        let recipe = recipe::load(path.as_str().into(), set).unwrap().recipe;
        let options = ReaderOptions {
            steps_total: recipe.train.length.steps(),
            ranks: recipe.mesh.world(),
            patterns: recipe.command.patterns.clone(),
            ..ReaderOptions::new(recipe.command.adapter)
        };
        let log = log(of);
        let events = read(options, &log, 64);
        let samples: BTreeMap<u64, MetricSample> = events
            .into_iter()
            .filter_map(|event| if let LogEvent::Metric(sample) = event { Some((sample.step, *sample)) } else { None })
            .collect();
        assert_eq!(samples.len(), steps, "{name}");
        assert!(samples.values().all(|sample| sample.loss.is_some() == has_loss), "{name}");
        // torchtitan logs no time of a step: its first step may have been there before, and the second one begins the measurement.
        assert!(samples.values().skip(2).all(|sample| sample.step_s > 0.0), "{name}");
    }
}

#[test]
fn losses_of_json_that_are_not_finite_keep_their_steps() {
    let log: String = ["0.5", "0.25", "NaN", "-Infinity", "null"]
        .iter()
        .enumerate()
        .map(|(at, loss)| format!("{{\"note\": \"NaN \\\" Infinity\\\\\", \"step\": {}, \"loss\": {loss}}}\n", at + 1))
        .collect();
    let samples = samples(&log);
    assert_eq!(samples.iter().map(|sample| sample.step).collect::<Vec<_>>(), [1, 2, 3, 4, 5]);
    assert_eq!(samples.iter().filter(|sample| sample.loss.is_none() && !sample.has_no_loss).count(), 3);
}

#[test]
fn steps_of_several_that_begin_again_in_each_epoch_are_added_up() {
    let line = |epoch: u64, step: u64| format!("Epoch [{epoch}/3], Step [{step}/100], Loss: 0.{epoch}{step:03}\n");
    let log: String = (1..=3).flat_map(|epoch| (1..=3).map(move |part| line(epoch, 30 * part))).collect();
    let steps: Vec<u64> = samples(&log).iter().map(|sample| sample.step).collect();
    assert_eq!(steps, [30, 60, 90, 130, 160, 190, 230, 260, 290]);
}

#[test]
fn memory_is_read_by_names_with_a_unit() {
    let samples =
        samples("step 1 loss 0.5 mem_gib 12.5\nstep 2 loss 0.4 memory_mib: 2048\nstep 3 loss 0.3 mem_gib 1\n");
    let memory: Vec<Vec<f64>> = samples.into_iter().map(|sample| sample.mem_peak_gib_by_rank).collect();
    assert_eq!(memory, [[12.5], [2.0], [1.0]]);
}
