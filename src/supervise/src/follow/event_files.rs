//! Follows the event files of TensorBoard or W&B that a command writes, and returns their steps as metrics.

use camino::{Utf8Path, Utf8PathBuf};
use interop::{Log, Tool, map_metrics, tensorboard, wandb};
use recipe::Recipe;
use rundir::{MetricSample, log};
use std::collections::VecDeque;
use std::io;
use std::time::{Duration, Instant};

/// The files are read again at most for one part in this many of the time: they are read from their beginning, and grow.
const SHARE: u32 = 20;

/// The event files in a folder.
pub struct EventFiles {
    tool: Tool,
    folder: Utf8PathBuf,
    /// The files and their sizes when they were read.
    seen: Vec<(Utf8PathBuf, u64)>,
    /// The newest step that was returned.
    passed_on: u64,
    /// The newest step that was read, to which the tool may still add values.
    held: Option<MetricSample>,
    /// The time before which the files are not read again.
    next: Instant,
    attempt: u32,
    /// The last error, so that it is logged once.
    error: String,
}

impl EventFiles {
    /// Returns the files of a command; `None` if its recipe names no folder.
    pub fn of(recipe: &Recipe, attempt: u32, start_step: u64) -> Option<Self> {
        let folders = [(Tool::TensorBoard, &recipe.command.tensorboard), (Tool::Wandb, &recipe.command.wandb)];
        let (tool, folder) = folders.into_iter().find(|(_, folder)| !folder.as_str().is_empty())?;
        Some(Self {
            tool,
            folder: folder.clone(),
            seen: Vec::new(),
            passed_on: start_step,
            held: None,
            next: Instant::now(),
            attempt,
            error: String::new(),
        })
    }

    /// Returns the steps that are new, except the newest one while the files still grow.
    pub fn look(&mut self) -> Vec<MetricSample> {
        let now = Instant::now();
        if now < self.next {
            return Vec::new();
        }
        let found = match self.files() {
            Ok(found) => found,
            Err(error) => {
                self.report(format!("cannot list {}: {error}", self.folder));
                return Vec::new();
            }
        };
        if found == self.seen {
            return self.release();
        }
        let files: Vec<Utf8PathBuf> = found.iter().map(|(path, _)| path.clone()).collect();
        let read = self.tool.read(&files);
        self.next = now + (now.elapsed() * SHARE).min(Duration::from_secs(60));
        match read {
            Ok(read) => {
                self.seen = found;
                self.take(&read)
            }
            Err(error) => {
                self.report(error.to_string());
                Vec::new()
            }
        }
    }

    /// Returns all steps that are left, after the end of the command.
    pub fn end(&mut self) -> Vec<MetricSample> {
        self.next = Instant::now();
        let mut samples = self.look();
        samples.extend(self.release());
        samples
    }

    fn take(&mut self, log: &Log) -> Vec<MetricSample> {
        let mut samples: VecDeque<_> = map_metrics(log).samples.into();
        // The times of the files are exact. A program may log its own time of a step.
        let mut before: Option<(u64, f64)> = None;
        for sample in &mut samples {
            if let (Some((step, t)), true) = (before, sample.step_s == 0.0) {
                sample.step_s = (sample.t - t).max(0.0) / sample.step.saturating_sub(step).max(1) as f64;
            }
            before = Some((sample.step, sample.t));
        }
        samples.retain(|sample| sample.step > self.passed_on);
        samples.iter_mut().for_each(|sample| sample.attempt = self.attempt);
        self.held = samples.pop_back();
        if let Some(last) = samples.back() {
            self.passed_on = last.step;
        }
        samples.into()
    }

    /// Returns the newest step.
    fn release(&mut self) -> Vec<MetricSample> {
        let held = self.held.take();
        if let Some(held) = &held {
            self.passed_on = held.step;
        }
        held.into_iter().collect()
    }

    fn files(&self) -> io::Result<Vec<(Utf8PathBuf, u64)>> {
        let files = match self.tool {
            Tool::TensorBoard => tensorboard::event_files(&self.folder)?,
            Tool::Wandb => wandb_files(&self.folder)?,
        };
        files.into_iter().map(|path| Ok((path.clone(), path.metadata()?.len()))).collect()
    }

    fn report(&mut self, error: String) {
        if self.error != error {
            log!("{error}");
            self.error = error;
        }
    }
}

/// Returns the files of the run in a folder, or of the newest run below a folder of W&B.
fn wandb_files(folder: &Utf8Path) -> io::Result<Vec<Utf8PathBuf>> {
    let files = wandb::run_files(folder)?;
    let latest = folder.join("latest-run");
    if files.is_empty() && latest.is_dir() { wandb::run_files(&latest) } else { Ok(files) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use interop::tensorboard::EventWriter;

    fn files(folder: &Utf8Path) -> EventFiles {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/configs/valid/command.toml");
        let set = format!("command.tensorboard={folder}");
        let recipe = recipe::load(path.into(), &[set]).unwrap().recipe;
        EventFiles::of(&recipe, 3, 10).unwrap()
    }

    #[test]
    fn steps_are_returned_once_and_the_newest_only_when_the_files_are_still() {
        let keep = tempfile::tempdir().unwrap();
        let folder = Utf8Path::from_path(keep.path()).unwrap();
        let mut files = files(folder);
        let look = |files: &mut EventFiles| {
            files.next = Instant::now();
            let shown = |sample: MetricSample| (sample.attempt, sample.step, sample.loss, sample.step_s);
            files.look().into_iter().map(shown).collect::<Vec<_>>()
        };
        assert_eq!(look(&mut files), []);
        let mut writer = EventWriter::create(folder, 1000.0, "node").unwrap();
        let mut write = |step: u64| {
            writer.scalars(1000.0 + step as f64, step, &[("train/loss".to_owned(), step as f64)]);
            writer.flush().unwrap();
        };
        [10, 11, 12].into_iter().for_each(&mut write);
        assert_eq!(look(&mut files), [(3, 11, Some(11.0), 1.0)]);
        assert_eq!(look(&mut files), [(3, 12, Some(12.0), 1.0)]);
        assert_eq!(look(&mut files), []);
        write(14);
        let ended: Vec<u64> = files.end().iter().map(|sample| sample.step).collect();
        assert_eq!((ended, files.end().len()), (vec![14], 0));
    }
}
