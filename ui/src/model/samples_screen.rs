//! State of the Samples screen: the samples of the open run, which of them is selected, and their clips.

use crate::msg::{Clip, Size};
use rundir::{Failure, SampleSidecar};
use std::collections::BTreeMap;

/// The maximum number of clips in memory; recently shown clips appear at once when the user steps back.
const MAX_CLIPS: usize = 12;

/// The step and the prompt number of a sample.
type SampleKey = (u64, usize);

/// State of the Samples screen.
#[derive(Debug, Clone, Default)]
pub struct SamplesScreen {
    /// All complete samples of the run, by step and prompt; `None` while they load.
    pub samples: Option<Vec<SampleSidecar>>,
    /// The position of the selected prompt among the prompts that have samples.
    pub prompt: usize,
    /// The selected step; `None` follows the newest sample.
    pub step: Option<u64>,
    /// Whether earlier steps are shown beside the selected one.
    pub side_by_side: bool,
    /// Whether the videos are paused.
    pub paused: bool,
    /// The number of frames shown so far. A video shows this frame number modulo its length.
    pub frame: usize,
    /// The column at which the mouse button was pressed on a video; `None` if it was pressed elsewhere.
    pub(crate) pressed_at: Option<u16>,
    /// The clips that the shell made, or why it could not, with the requested size; oldest first.
    clips: Vec<(SampleKey, Size, Result<Clip, Failure>)>,
}

impl SamplesScreen {
    /// Returns the numbers of the prompts that have samples, ascending.
    pub fn prompts(&self) -> Vec<usize> {
        let by_prompt: BTreeMap<usize, ()> = self.samples.iter().flatten().map(|sample| (sample.index, ())).collect();
        by_prompt.into_keys().collect()
    }

    /// Returns the samples of the selected prompt, by step.
    pub fn of_prompt(&self) -> Vec<&SampleSidecar> {
        let prompts = self.prompts();
        let Some(index) = prompts.get(self.prompt.min(prompts.len().saturating_sub(1))) else { return Vec::new() };
        self.samples.iter().flatten().filter(|sample| sample.index == *index).collect()
    }

    /// Returns the position of the selected sample among those of its prompt: the sample of the selected step, or the
    /// last one before that step.
    pub fn position(&self, of_prompt: &[&SampleSidecar]) -> usize {
        let upto = self.step.map_or(of_prompt.len(), |step| of_prompt.partition_point(|sample| sample.step <= step));
        upto.saturating_sub(1)
    }

    /// Selects the sample `by` places later, or earlier if negative. If it is the newest one, later samples are
    /// followed.
    pub(crate) fn move_step(&mut self, by: isize) {
        let step = {
            let all = self.of_prompt();
            let Some(last) = all.len().checked_sub(1) else { return };
            let to = self.position(&all).saturating_add_signed(by).min(last);
            (to < last).then(|| all[to].step)
        };
        self.step = step;
    }

    /// Selects a sample by its position among those of its prompt.
    pub(crate) fn select(&mut self, place: usize) {
        let at = self.position(&self.of_prompt());
        self.move_step(place as isize - at as isize);
    }

    /// Selects the next prompt, and the first one after the last.
    pub(crate) fn turn_prompt(&mut self) {
        let count = self.prompts().len().max(1);
        self.prompt = (self.prompt.min(count - 1) + 1) % count;
    }

    /// Selects the prompt `by` places later, or earlier if negative.
    pub(crate) fn move_prompt(&mut self, by: isize) {
        let last = self.prompts().len().saturating_sub(1);
        self.prompt = self.prompt.min(last).saturating_add_signed(by).min(last);
    }

    /// Returns the selected sample.
    pub fn selected(&self) -> Option<&SampleSidecar> {
        let all = self.of_prompt();
        all.get(self.position(&all)).copied()
    }

    /// Returns the selected sample and, side by side, up to `columns - 1` earlier ones of the same prompt, oldest first.
    pub fn shown(&self, columns: usize) -> Vec<&SampleSidecar> {
        let all = self.of_prompt();
        let end = (self.position(&all) + 1).min(all.len());
        let count = if self.side_by_side { columns.max(1) } else { 1 };
        all[end.saturating_sub(count)..end].to_vec()
    }

    /// Returns the clip of a sample that was requested in this size; `None` until the shell has made it.
    pub fn clip(&self, key: SampleKey, size: Size) -> Option<&Result<Clip, Failure>> {
        let found = self.clips.iter().find(|(of, made_for, _)| *of == key && *made_for == size);
        found.map(|(_, _, clip)| clip)
    }

    /// Keeps a clip, and drops the oldest clips beyond [`MAX_CLIPS`].
    pub(crate) fn keep(&mut self, key: SampleKey, size: Size, clip: Result<Clip, Failure>) {
        self.clips.retain(|(of, made_for, _)| (*of, *made_for) != (key, size));
        self.clips.push((key, size, clip));
        let excess = self.clips.len().saturating_sub(MAX_CLIPS);
        self.clips.drain(..excess);
    }
}
