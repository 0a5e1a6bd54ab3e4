//! Reads the logs of each trainer in `tests/fixtures/trainer-logs`.

use proptest::prelude::*;
use recipe::OtherTrainer::{self, CogvideoxFactory, Finetrainers, OpenSora, TttVideoDit, VideoxFun};
use rundir::MetricSample;

use super::{LogEvent, LogReader, ReaderOptions};

fn log(name: &str) -> Vec<u8> {
    std::fs::read(format!("../../tests/fixtures/trainer-logs/{name}.log")).unwrap()
}

fn reader(trainer: OtherTrainer, start_step: u64, accumulation: u64) -> LogReader {
    LogReader::new(ReaderOptions { start_step, accumulation, ..ReaderOptions::new(trainer) })
}

/// Reads a log `size` bytes at a time, a second apart.
fn read(trainer: OtherTrainer, log: &[u8], start_step: u64, size: usize) -> Vec<LogEvent> {
    let mut reader = reader(trainer, start_step, 1);
    let mut now = 1000.0;
    let mut events = Vec::new();
    for piece in log.chunks(size) {
        events.extend(reader.read(piece, now));
        now += 1.0;
    }
    events.extend(reader.end(now));
    events
}

/// Reads a log of the fixtures and returns its events in short: steps as `step loss norm lr seconds`, others by their names.
fn summary(trainer: OtherTrainer, name: &str, start_step: u64) -> Vec<String> {
    let lines = |events: Vec<LogEvent>| events.iter().map(line).collect::<Vec<_>>();
    let log = log(name);
    let summary = lines(read(trainer, &log, start_step, log.len()));
    for size in [1, 7, 64] {
        assert_eq!(lines(read(trainer, &log, start_step, size)), summary, "in pieces of {size}");
    }
    summary
}

fn line(event: &LogEvent) -> String {
    let LogEvent::Metric(sample) = event else { return format!("{event:?}") };
    let MetricSample { step, loss, grad_norm, lr, step_s, data_s, mem_peak_gib_by_rank: peak, .. } = &**sample;
    let or = |value: &Option<f64>| value.map_or("-".to_owned(), |value| value.to_string());
    assert!(sample.is_from_log);
    let mut line = format!("{step}: {} {} {lr} {step_s}", or(loss), or(grad_norm));
    if *data_s > 0.0 {
        line += &format!(" data {data_s}");
    }
    if let [peak] = peak[..] {
        line += &format!(" peak {peak}");
    }
    line
}

#[test]
fn steps_of_open_sora_are_counted_from_one() {
    let want = [
        "Started",
        "1: 0.91 0.4 0.00005 2",
        "2: 0.81 0.41 0.00005 2",
        "3: 0.71 0.42 0.00005 2",
        "4: 0.61 0.43 0.00005 2",
        "Saved",
        "5: - - 0.00005 2.1",
    ];
    assert_eq!(summary(OpenSora, "open-sora-2", 0), want);
}

#[test]
fn open_sora_1_2_logs_neither_gradient_norm_nor_learning_rate() {
    let want = ["Resumed", "Started", "51: 0.45 - 0 12", "52: 0.44 - 0 12"];
    assert_eq!(summary(OpenSora, "open-sora-1.2", 50), want);
}

#[test]
fn micro_batches_of_an_accumulated_batch_of_open_sora_are_one_step() {
    let log = log("open-sora-2");
    let mut reader = reader(OpenSora, 0, 2);
    let mut events = reader.read(&log, 1000.0);
    events.extend(reader.end(1001.0));
    let steps: Vec<String> = events.iter().filter(|event| matches!(event, LogEvent::Metric(_))).map(line).collect();
    assert_eq!(steps, ["1: 0.81 0.41 0.00005 4", "2: 0.61 0.43 0.00005 4"]);
}

#[test]
fn a_step_of_finetrainers_has_its_own_loss_and_not_that_of_the_step_before() {
    let want = [
        "Started",
        "1: 0.29 0.081 0 3.1 peak 10.701",
        "2: 0.27 0.082 0 3.1 peak 10.701",
        "3: 0.25 0.083 0 3.1 peak 10.701",
        "Saving",
        "Saved",
    ];
    assert_eq!(summary(Finetrainers, "finetrainers", 0), want);
}

#[test]
fn a_log_of_cogvideox_factory_is_read() {
    let want = ["Started", "1: 0.21 - 0.00001 5", "2: 0.22 - 0.00002 5", "3: 0.23 - 0.00003 5", "Saved"];
    assert_eq!(summary(CogvideoxFactory, "cogvideox-factory", 0), want);
}

#[test]
fn a_log_of_videox_fun_is_read_from_the_step_that_was_resumed() {
    let want = ["Started", "Resumed", "101: 0.151 - 0.00002 8", "102: 0.152 - 0.00002 8", "Saved"];
    assert_eq!(summary(VideoxFun, "videox-fun", 100), want);
}

/// The programs that printed these logs ran on a CPU: `tests/fixtures/trainer-logs/README.md`.
#[test]
fn logs_that_the_programs_printed_are_read() {
    let sft = "cogvideox-factory-sft-f476c37";
    let logs = [
        (CogvideoxFactory, sft, 0),
        (CogvideoxFactory, "cogvideox-factory-sft-f476c37-resumed", 6),
        (CogvideoxFactory, "cogvideox-factory-lora-f476c37", 0),
        (VideoxFun, "videox-fun-804a425", 0),
    ];
    let read = logs.map(|(trainer, name, start)| format!("{name}\n{}", summary(trainer, name, start).join("\n")));
    insta::assert_snapshot!(read.join("\n\n"));
}

#[test]
fn a_reader_of_a_known_trainer_and_auto_read_the_same_losses() {
    for (name, trainer, start_step) in [
        ("open-sora-2", OpenSora, 0),
        ("finetrainers", Finetrainers, 0),
        ("cogvideox-factory-sft-f476c37", CogvideoxFactory, 0),
        ("videox-fun-804a425", VideoxFun, 0),
        ("ttt-video-dit", TttVideoDit, 10),
    ] {
        let log = log(name);
        let samples = |trainer| {
            let events = read(trainer, &log, start_step, log.len());
            let of = |event: LogEvent| match event {
                LogEvent::Metric(sample) => Some((sample.step, sample.loss, sample.grad_norm)),
                _ => None,
            };
            events.into_iter().filter_map(of).collect::<Vec<_>>()
        };
        assert_eq!(samples(OtherTrainer::Auto), samples(trainer), "{name}");
    }
}

#[test]
fn a_step_is_held_back_until_its_own_loss_is_shown_even_while_the_trainer_saves() {
    let mut reader = reader(CogvideoxFactory, 0, 1);
    let bar =
        |count: u64, loss: &str| format!("\rSteps:  1%|  | {count}/9 [00:05<00:40,  5.00s/it, loss={loss}, lr=1e-5]");
    let lines = |events: Vec<LogEvent>| events.iter().map(line).collect::<Vec<_>>();
    let log = [bar(1, "0.5"), bar(2, "0.5")].concat();
    assert_eq!(lines(reader.read(log.as_bytes(), 1.0)), [""; 0]);
    assert_eq!(lines(reader.pause(2.0)), ["1: 0.5 - 0.00001 5"]);
    assert_eq!(lines(reader.read(b"INFO - __main__ - Saved state to /out/checkpoint-2\n", 3.0)), ["Saved"]);
    assert_eq!(lines(reader.pause(4.0)), [""; 0]);
    assert_eq!(lines(reader.read(bar(2, "0.4").as_bytes(), 5.0)), [""; 0]);
    assert_eq!(lines(reader.pause(6.0)), ["2: 0.4 - 0.00001 5"]);
    // The same loss twice: the end of the log shows that no other follows.
    assert_eq!(lines(reader.read(bar(3, "0.4").as_bytes(), 7.0)), [""; 0]);
    assert_eq!(lines(reader.pause(8.0)), [""; 0]);
    assert_eq!(lines(reader.end(9.0)), ["3: 0.4 - 0.00001 5"]);
}

#[test]
fn a_log_of_ttt_video_dit_is_read() {
    let want = [
        "Resumed",
        "11: 0.1013 0.08 0.00001 9.8 data 0.0123",
        "12: 0.1003 0.08 0.00001 3.41 data 0.0123",
        "13: 0.0993 0.08 0.00001 3.42 data 0.0123",
        "Saving",
        "Saved",
    ];
    assert_eq!(summary(TttVideoDit, "ttt-video-dit", 10), want);
}

#[test]
fn a_bar_without_line_end_is_read_once_when_the_log_pauses() {
    let mut reader = reader(CogvideoxFactory, 0, 1);
    let bar = b"\rSteps:   0%|          | 1/9 [00:05<00:40,  5.00s/it, loss=0.5, lr=1e-5]";
    assert_eq!(reader.read(&bar[..40], 1.0), []);
    assert_eq!(reader.pause(2.0), [], "half a bar has no step");
    assert_eq!(reader.read(&bar[40..], 3.0), []);
    assert_eq!(reader.pause(4.0).iter().map(line).collect::<Vec<_>>(), ["1: 0.5 - 0.00001 5"]);
    assert_eq!(reader.pause(5.0), [], "and only once");
    assert_eq!(reader.read(b"\n", 6.0), []);
}

#[test]
fn an_evaluation_ends_with_its_log_line_or_with_the_next_step() {
    let events = |trainer, log: &str| -> Vec<String> {
        let events = read(trainer, log.as_bytes(), 0, log.len());
        events.iter().map(|event| line(event).split(' ').next().unwrap().into()).collect()
    };
    let log = "\rTraining steps:  1%|  | 1/9 [00:03<00:40,  3.00s/it, train/global_avg_loss=0.3, train/grad_norm=0.1]\n\
        INFO - Memory before validation start: {\n    \"max_memory_allocated\": 12.5\n}\n\
        INFO - Memory after validation end: {\n    \"max_memory_allocated\": 28.5\n}\n\
        \rTraining steps:  2%|  | 2/9 [00:99<00:40,  3.00s/it, train/global_avg_loss=0.3, train/grad_norm=0.1]\n";
    assert_eq!(events(Finetrainers, log), ["1:", "EvaluationStarted", "EvaluationEnded", "2:"]);
    let log = "\rSteps:  1%|  | 1/9 [00:05<00:40,  5.00s/it, loss=0.5, lr=1e-5]\n\
        INFO - __main__ - Running validation... \n Generating 1 videos with prompt: a dog.\n\
        INFO - __main__ - Running validation... \n Generating 1 videos with prompt: a cat.\n\
        \rSteps:  2%|  | 2/9 [01:05<00:40,  5.00s/it, loss=0.5, lr=1e-5]\n";
    assert_eq!(events(CogvideoxFactory, log), ["1:", "EvaluationStarted", "EvaluationEnded", "2:"]);
    let log = log.replace("loss=", "step_loss=");
    assert_eq!(events(VideoxFun, &log), ["1:", "EvaluationStarted", "EvaluationEnded", "2:"]);
}

#[test]
fn a_log_of_another_trainer_gives_no_metrics() {
    for (name, trainer) in [
        ("ttt-video-dit", OpenSora),
        ("finetrainers", VideoxFun),
        ("open-sora-2", CogvideoxFactory),
        ("videox-fun", TttVideoDit),
    ] {
        let log = log(name);
        let events = read(trainer, &log, 0, log.len());
        assert!(!events.iter().any(|event| matches!(event, LogEvent::Metric(_))), "{name} as {trainer:?}: {events:?}");
    }
}

/// The logs of the fixtures, with their trainers and the steps that they begin after.
const LOGS: [(OtherTrainer, &str, u64); 8] = [
    (OpenSora, "open-sora-1.2", 50),
    (OpenSora, "open-sora-2", 0),
    (Finetrainers, "finetrainers", 0),
    (CogvideoxFactory, "cogvideox-factory", 0),
    (VideoxFun, "videox-fun", 0),
    (TttVideoDit, "ttt-video-dit", 0),
    (CogvideoxFactory, "cogvideox-factory-sft-f476c37", 0),
    (VideoxFun, "videox-fun-804a425", 0),
];

fn steps(events: &[LogEvent]) -> Vec<u64> {
    let step = |event: &LogEvent| if let LogEvent::Metric(sample) = event { Some(sample.step) } else { None };
    events.iter().filter_map(step).collect()
}

proptest! {
    #[test]
    fn each_step_is_returned_once_from_any_pieces_of_a_log_with_pauses_between_them(
        which in 0..LOGS.len(), pieces in prop::collection::vec((1usize..400, any::<bool>()), 1..50),
    ) {
        let (trainer, name, start_step) = LOGS[which];
        let log = log(name);
        let want = steps(&read(trainer, &log, start_step, log.len()));
        prop_assert!(!want.is_empty(), "{name} has no step");
        let mut reader = reader(trainer, start_step, 1);
        let (mut events, mut rest, mut now) = (Vec::new(), &log[..], 1000.0);
        for (size, pauses) in pieces.iter().cycle() {
            let (piece, later) = rest.split_at((*size).min(rest.len()));
            events.extend(reader.read(piece, now));
            if *pauses {
                events.extend(reader.pause(now));
            }
            (rest, now) = (later, now + 1.0);
            if rest.is_empty() {
                break;
            }
        }
        events.extend(reader.end(now));
        prop_assert_eq!(steps(&events), want, "{}", name);
    }

    #[test]
    fn steps_ascend_in_a_damaged_log(
        which in 0..LOGS.len(), damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..40),
        size in 1usize..200,
    ) {
        let (trainer, name, start_step) = LOGS[which];
        let mut log = log(name);
        for (at, byte) in &damage {
            let at = at.index(log.len());
            log[at] = *byte;
        }
        let steps = steps(&read(trainer, &log, start_step, size));
        prop_assert!(steps.is_sorted_by(|a, b| a < b), "{steps:?}");
    }
}
