//! Times the import of 1 M scalars, without writing the run: `cargo run --release -p interop --example import_speed [FILE.wandb]`. Without
//! a file, it writes and reads event files with 10 series of 100,000 steps.

use interop::{Log, map_metrics, tensorboard, wandb};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    if let Some(path) = std::env::args().nth(1) {
        let began = Instant::now();
        report(&wandb::read_file(path.as_str().into())?, began);
        return Ok(());
    }
    let folder =
        camino::Utf8PathBuf::try_from(std::env::temp_dir().join(format!("import-speed-{}", std::process::id())))?;
    let began = Instant::now();
    let mut writer = tensorboard::EventWriter::create(&folder, 1000.0, "node")?;
    for step in 1..=100_000 {
        // As SummaryWriter does: an event for each scalar.
        for tag in 0..10 {
            writer.scalars(1000.0 + step as f64, step, &[(format!("train/metric_{tag}"), step as f64)]);
        }
    }
    writer.flush()?;
    println!("wrote in {:.2} s", began.elapsed().as_secs_f64());
    let began = Instant::now();
    report(&tensorboard::read_folder(&folder)?, began);
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

fn report(log: &Log, began: Instant) {
    println!("read {} scalars in {:.2} s", log.len(), began.elapsed().as_secs_f64());
    let began = Instant::now();
    let steps = map_metrics(log).samples.len();
    println!("mapped {steps} steps in {:.2} s", began.elapsed().as_secs_f64());
}
