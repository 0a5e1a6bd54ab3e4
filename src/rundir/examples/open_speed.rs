//! Prints how long it takes to open a run with 100,000 logged steps: `cargo run --release -p rundir --example open_speed`.

use camino::Utf8PathBuf;
use rundir::{History, LineAppender, MetricSample, RunDir, Tail};
use std::error::Error;
use std::time::Instant;

const STEPS: u64 = 100_000;

fn main() -> Result<(), Box<dyn Error>> {
    let root = Utf8PathBuf::try_from(std::env::temp_dir())?.join(format!("open-speed-{}", std::process::id()));
    std::fs::create_dir_all(&root)?;
    let run = RunDir::new(&root);
    let mut file = LineAppender::open(&run.metrics())?;
    for step in 1..=STEPS {
        file.append(&sample(step))?;
    }
    let bytes = std::fs::metadata(run.metrics())?.len();
    let mut times_ms = Vec::new();
    for _ in 0..25 {
        let start = Instant::now();
        let (mut tail, mut history) = (Tail::<MetricSample>::new(run.metrics()), History::new());
        loop {
            let batch = tail.poll()?;
            history.extend(batch.items);
            if !batch.more {
                break;
            }
        }
        times_ms.push(start.elapsed().as_secs_f64() * 1e3);
        assert_eq!(history.effective().len() as u64, STEPS);
    }
    std::fs::remove_dir_all(&root)?;
    times_ms.sort_by(f64::total_cmp);
    println!(
        "{STEPS} lines, {} MB: median {:.1} ms, best {:.1} ms, worst {:.1} ms",
        bytes / 1_000_000,
        times_ms[12],
        times_ms[0],
        times_ms[24]
    );
    Ok(())
}

fn sample(step: u64) -> MetricSample {
    let x = (step as f64 * 0.37).sin().abs();
    MetricSample {
        step,
        t: 1.8e9 + step as f64 * 0.731,
        loss: Some(f64::from(0.1 + x as f32)),
        grad_norm: Some(f64::from(0.01 + x as f32)),
        lr: 1e-4 * x,
        step_s: 0.7 + 0.01 * x,
        data_s: 0.0003 + 0.0001 * x,
        forward_s: 0.2 + 0.003 * x,
        backward_s: 0.4 + 0.004 * x,
        optimizer_s: 0.05 + 0.001 * x,
        checkpoint_s: 0.0,
        samples_per_s: 5.0 + x,
        tokens_per_s: 12345.0 + 100.0 * x,
        mem_gib_by_rank: vec![1.1 + x, 1.2 + x],
        mem_peak_gib_by_rank: vec![2.1 + x, 2.2 + x],
        step_s_by_rank: vec![0.7 + 0.01 * x, 0.71 + 0.01 * x],
        ..MetricSample::default()
    }
}
