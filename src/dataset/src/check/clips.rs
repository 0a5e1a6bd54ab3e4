//! Makes the clips of a data set from its rows and the results of their probes.

use super::facts::ProbeResult;
use super::probing::Outcome;
use crate::each_file::Results;
use crate::layouts::{ClipRow, SourceListing};
use crate::{Clip, ClipManifest, ExclusionReason, FieldValue, Filter, Stamp};
use std::collections::{HashMap, HashSet};
use video::{FrameChoice, FrameMode, NotEnough, choose};

/// Makes one clip per row, in the order of the rows.
pub(super) fn clips(source: &SourceListing, probed: &Results<Outcome>, rate: Option<f64>) -> Vec<Clip> {
    let mut ids = HashSet::new();
    source.rows.iter().map(|row| clip(row, probed.by_path.get(&row.path), rate, &mut ids)).collect()
}

fn clip(row: &ClipRow, outcome: Option<&(Stamp, Outcome)>, rate: Option<f64>, ids: &mut HashSet<String>) -> Clip {
    let mut clip = Clip {
        id: unique(&row.name, ids),
        path: row.path.clone(),
        caption: row.caption.clone().unwrap_or_default(),
        segments: row.segments.clone(),
        origin: row.origin.clone(),
        ..Clip::default()
    };
    let mut of_video = row.excluded.clone();
    if let Some((stamp, Outcome { content, found })) = outcome {
        clip.stamp = *stamp;
        clip.content.clone_from(content);
        match found {
            ProbeResult::Excluded(reason) => of_video = of_video.or_else(|| Some(reason.clone())),
            ProbeResult::Video(facts) => {
                (clip.width, clip.height) = (facts.width, facts.height);
                (clip.fps, clip.duration_s, clip.frames) = (facts.fps, facts.duration_s, facts.frames);
                clip.codec.clone_from(&facts.codec);
                (clip.hdr, clip.variable_rate, clip.unusual) = (facts.hdr, facts.variable_rate, facts.unusual);
                clip.frame_folder = facts.frame_folder;
                if let Some(fps) = rate.filter(|_| clip.frame_folder) {
                    (clip.fps, clip.duration_s) = (fps, facts.frames as f64 / fps);
                }
                of_video =
                    of_video.or_else(|| (facts.frames < 2 && !facts.picture).then_some(ExclusionReason::OneFrame));
            }
        }
    }
    let of_caption = row.caption.as_ref().err().map(|fault| (*fault).into());
    clip.excluded = of_video.or(of_caption);
    clip
}

/// Leaves out the clips that do not meet a condition on a measured number. A clip that cannot be used stays, with its reason.
pub(super) fn leave_out(source: &mut SourceListing, clips: &mut Vec<Clip>, filter: &Filter) {
    let SourceListing { rows, fields, .. } = source;
    if fields.conditions.iter().all(|count| !count.is_measured) {
        return;
    }
    let mut of_rows = std::mem::take(rows).into_iter();
    clips.retain(|clip| {
        let row = of_rows.next().expect("a clip per row");
        let number = |name: &str| value(clip, &row, &fields.kept, name).number();
        let counted = filter.conditions.iter().zip(&mut fields.conditions).filter(|(_, count)| count.is_measured);
        let mut is_left_out = false;
        for (condition, count) in counted.filter(|_| clip.is_usable()) {
            is_left_out |= !count.add(condition.is_met(&number));
        }
        fields.left_out += usize::from(is_left_out);
        if !is_left_out {
            rows.push(row);
        }
        !is_left_out
    });
}

/// Returns the value of a clip in a column of its table, or else the measured number of this name.
pub(super) fn value(clip: &Clip, row: &ClipRow, kept: &[String], name: &str) -> FieldValue {
    match kept.iter().position(|kept| kept == name) {
        Some(at) => row.kept[at].clone(),
        None => measured(clip, name).map_or(FieldValue::Missing, FieldValue::Number),
    }
}

/// Returns a number of [`crate::MEASURED`]. Pictures, and folders of frames without a rate, have no rate and no duration.
fn measured(clip: &Clip, name: &str) -> Option<f64> {
    match name {
        "num_frames" => Some(clip.frames as f64),
        "height" => Some(clip.height as f64),
        "width" => Some(clip.width as f64),
        "fps" => Some(clip.fps).filter(|fps| *fps > 0.0),
        "duration_s" => Some(clip.duration_s).filter(|_| clip.fps > 0.0),
        _ => None,
    }
}

/// Returns an unused id: the name itself, or the name with `#2`, `#3`… if other clips have it.
fn unique(name: &str, ids: &mut HashSet<String>) -> String {
    let name = if name.is_empty() { "?" } else { name };
    let numbered = (2..).map(|n| format!("{name}#{n}"));
    let id = std::iter::once(name.to_owned()).chain(numbered).find(|id| !ids.contains(id)).unwrap_or_default();
    ids.insert(id.clone());
    id
}

/// Excludes videos with a high dynamic range, for an ffmpeg that cannot tone-map them.
pub(super) fn exclude_hdr(clips: &mut [Clip]) {
    for clip in clips.iter_mut().filter(|clip| clip.is_usable() && clip.hdr) {
        clip.excluded = Some(ExclusionReason::HighDynamicRange);
    }
}

/// Excludes clips that repeat the content and the caption of an earlier clip.
pub(super) fn exclude_repeated(clips: &mut [Clip]) {
    let mut seen: HashMap<(String, String), (String, camino::Utf8PathBuf)> = HashMap::new();
    for clip in clips.iter_mut().filter(|clip| clip.is_usable()) {
        let key = (clip.content.clone(), clip.caption.clone());
        match seen.get(&key) {
            Some((first, path)) if *path == clip.path => {
                clip.excluded = Some(ExclusionReason::ListedTwice { first: first.clone() });
            }
            Some((first, _)) => clip.excluded = Some(ExclusionReason::DoubledFile { first: first.clone() }),
            None => _ = seen.insert(key, (clip.id.clone(), clip.path.clone())),
        }
    }
}

impl ClipManifest {
    /// Excludes the clips that are too short for a frame choice, and includes again the clips that were too short for
    /// an earlier choice.
    pub fn exclude_short(&mut self, choice: &FrameChoice) {
        for clip in &mut self.clips {
            if matches!(clip.excluded, Some(ExclusionReason::TooShort { .. })) {
                clip.excluded = None;
            }
            if clip.is_usable() {
                clip.excluded = too_short(clip, choice);
            }
        }
    }
}

/// Returns why a clip has too few frames. The result depends only on the first time, the last time and the number of
/// frames.
fn too_short(clip: &Clip, choice: &FrameChoice) -> Option<ExclusionReason> {
    if choice.frames == 0 {
        return None;
    }
    if clip.fps <= 0.0 && !clip.frame_folder {
        // A picture.
        let (frames, needed) = (clip.frames, choice.frames);
        let is_short = frames == 1 && needed > 1;
        return is_short.then_some(ExclusionReason::TooShort { frames, needed, span_s: 0.0, needed_s: None });
    }
    let choice = &clip.choice(choice);
    // A folder of frames may have no rate. Its frames are chosen by their numbers.
    let rate = if clip.fps > 0.0 { clip.fps } else { 1.0 };
    let times: Vec<f64> = (0..clip.frames).map(|at| at as f64 / rate).collect();
    let needs_rate = !matches!(choice.mode, FrameMode::Stride | FrameMode::Linspace);
    let needed_s = choice.fps.filter(|_| needs_rate).map(|fps| (choice.frames - 1) as f64 / fps);
    let span_s = if clip.fps > 0.0 { clip.frames.saturating_sub(1) as f64 / clip.fps } else { 0.0 };
    let reason = |frames, needed| ExclusionReason::TooShort { frames, needed, span_s, needed_s };
    match choose(&times, choice) {
        Ok(_) | Err(NotEnough::Invalid(_)) => None,
        Err(NotEnough::Frames { need, have }) => Some(reason(have, need)),
        Err(NotEnough::Seconds { .. }) => {
            // Same tolerance as in `choose`: the last wanted time may be up to half a period after the last frame.
            let fps = choice.fps.unwrap_or(clip.fps);
            Some(reason((span_s * fps + 0.5) as usize + 1, choice.frames))
        }
    }
}
