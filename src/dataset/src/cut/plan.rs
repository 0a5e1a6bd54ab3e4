//! Decides from the measured frames of a video where its scenes begin and end.

use serde::{Deserialize, Serialize};
use std::ops::Range;
use video::FrameChange;

/// The share of black pixels, in percent, from which a frame is black.
const BLACK: f64 = 98.0;
/// The number of black frames that separate two scenes. A single one may be a flash.
const BLACK_FRAMES: usize = 2;

/// Where a video is cut.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct CutRules {
    /// The score from which a frame begins a scene, 0 to 100; see [`FrameChange::score`].
    pub threshold: f64,
    /// Shorter scenes are left out, in seconds.
    pub min_s: f64,
    /// Longer scenes are divided into clips of equal length, in seconds. `None`: no limit.
    pub max_s: Option<f64>,
    /// The time that is left out on both sides of a cut, in seconds.
    pub margin_s: f64,
}

impl Default for CutRules {
    fn default() -> Self {
        Self { threshold: 8.0, min_s: 1.0, max_s: None, margin_s: 0.0 }
    }
}

/// A clip of a video.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Scene {
    /// Its frames.
    pub frames: Range<usize>,
    /// The time of its first frame, in seconds from the first frame of the video.
    pub start_s: f64,
    /// The time of the frame after its last one.
    pub end_s: f64,
    /// The score of its first frame; 0 if it begins with the video, after black frames, or because the scene was divided.
    pub score: f64,
}

/// The clips of a video, and the number of scenes that are too short.
pub(super) struct Scenes {
    pub clips: Vec<Scene>,
    pub too_short: usize,
}

/// Finds the scenes of a video. `times` are those of its frames.
pub(super) fn scenes(changes: &[FrameChange], times: &[f64], rules: &CutRules) -> Scenes {
    // The last frame is shown as long as the frame before it.
    let last = times.len() - 1;
    let end = times[last] + if last > 0 { times[last] - times[last - 1] } else { 0.0 };
    let at = |frame: usize| times.get(frame).copied().unwrap_or(end);
    let mut found = Scenes { clips: Vec::new(), too_short: 0 };
    for piece in pieces(changes, rules.threshold) {
        // Half a microsecond is lost when times are written.
        let (from, to) = (at(piece.start) + rules.margin_s - 1e-6, at(piece.end) - rules.margin_s + 1e-6);
        let start = if piece.start == 0 { 0 } else { times.partition_point(|time| *time < from) };
        let stop = if piece.end == times.len() {
            piece.end
        } else {
            (0..=piece.end).rfind(|frame| at(*frame) <= to).unwrap_or(0)
        };
        if start >= stop {
            found.too_short += 1;
            continue;
        }
        for frames in divide(start..stop, &at, rules) {
            let (start_s, end_s) = (at(frames.start) - times[0], at(frames.end) - times[0]);
            if end_s - start_s < rules.min_s - 1e-6 {
                found.too_short += 1;
                continue;
            }
            let is_cut = frames.start == start && changes[piece.start].score >= rules.threshold && piece.start > 0;
            let score = if is_cut { changes[piece.start].score } else { 0.0 };
            found.clips.push(Scene { frames, start_s, end_s, score });
        }
    }
    found
}

/// Divides the frames at cuts and at black frames, which are left out.
fn pieces(changes: &[FrameChange], threshold: f64) -> Vec<Range<usize>> {
    let mut is_black = vec![false; changes.len()];
    let mut run = 0;
    for (frame, change) in changes.iter().enumerate() {
        run = if change.black >= BLACK { run + 1 } else { 0 };
        if run >= BLACK_FRAMES {
            is_black[frame + 1 - run..=frame].fill(true);
        }
    }
    let mut pieces = Vec::new();
    let mut start = None;
    for frame in 0..=changes.len() {
        let is_end = frame == changes.len() || is_black[frame];
        let is_cut = !is_end && changes[frame].score >= threshold;
        if let Some(from) = start
            && (is_end || is_cut)
        {
            pieces.push(from..frame);
            start = None;
        }
        if !is_end && start.is_none() {
            start = Some(frame);
        }
    }
    pieces
}

/// Divides a scene that is too long: into clips of equal length, or of the largest length if equal clips were too short.
fn divide(scene: Range<usize>, at: &dyn Fn(usize) -> f64, rules: &CutRules) -> Vec<Range<usize>> {
    let seconds = at(scene.end) - at(scene.start);
    let Some(max_s) = rules.max_s.filter(|max_s| seconds > max_s + 1e-6) else { return vec![scene] };
    let divided = |each: f64| {
        let mut clips = Vec::new();
        let mut start = scene.start;
        while start < scene.end {
            let wanted = at(scene.start) + each * (clips.len() + 1) as f64;
            let longest = at(start) + max_s + 1e-6;
            // At least one frame, and no clip is longer than the limit.
            let fits = |stop: &usize| at(*stop) <= longest && at(*stop) <= wanted + 1e-6;
            let stop = (start + 1..=scene.end).take_while(fits).last().unwrap_or(start + 1);
            clips.push(start..stop);
            start = stop;
        }
        clips
    };
    let least = (seconds / max_s - 1e-9).ceil() as usize;
    // Clips end at frames, so that one more may be needed than the seconds need.
    let equal = (least..=least + 2).map(|count| (count, seconds / count as f64));
    let equal = equal.filter(|(_, each)| *each >= rules.min_s);
    let mut equal = equal.map(|(count, each)| (count, divided(each)));
    equal.find(|(count, clips)| clips.len() <= *count).map_or_else(|| divided(max_s), |(_, clips)| clips)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Frames at 10 per second: `|` is a cut before the frame, `#` a black frame.
    fn found(video: &str, rules: CutRules) -> (Vec<(usize, usize)>, usize) {
        let mut changes: Vec<FrameChange> = Vec::new();
        let mut score = 0.0;
        for sign in video.chars() {
            match sign {
                '|' => score = 50.0,
                sign => {
                    changes.push(FrameChange {
                        score,
                        black: if sign == '#' { 100.0 } else { 3.0 },
                        ..FrameChange::default()
                    });
                    score = 0.0;
                }
            }
        }
        let times: Vec<f64> = (0..changes.len()).map(|at| 3.0 + at as f64 / 10.0).collect();
        let Scenes { clips, too_short } = scenes(&changes, &times, &rules);
        (clips.into_iter().map(|clip| (clip.frames.start, clip.frames.end)).collect(), too_short)
    }

    #[test]
    fn a_video_is_cut_at_scores_and_at_black_frames() {
        let rules = CutRules { min_s: 0.1, ..CutRules::default() };
        assert_eq!(found("......", rules), (vec![(0, 6)], 0));
        assert_eq!(found("|...|...", rules), (vec![(0, 3), (3, 6)], 0));
        assert_eq!(found("##..|##...##", rules), (vec![(2, 4), (6, 9)], 0));
        // A single black frame is a flash.
        assert_eq!(found("..#..", rules), (vec![(0, 5)], 0));
        assert_eq!(found("####", rules), (vec![], 0));
        assert_eq!(found(".", rules).1, 1, "a single frame has no length");
    }

    #[test]
    fn short_scenes_are_left_out_long_ones_divided_and_margins_are_at_cuts_only() {
        let rules = CutRules { min_s: 0.3, ..CutRules::default() };
        assert_eq!(found("...|..|....", rules), (vec![(0, 3), (5, 9)], 1));
        let margin = CutRules { margin_s: 0.1, ..rules };
        assert_eq!(found(".....|.....|....", margin), (vec![(0, 4), (6, 9), (11, 14)], 0));
        assert_eq!(found(".....|..|....", margin), (vec![(0, 4), (8, 11)], 1));
        let max = CutRules { max_s: Some(0.4), ..rules };
        assert_eq!(found("..........|....", max), (vec![(0, 3), (3, 6), (6, 10), (10, 14)], 0));
        // Three equal parts would be too short.
        let strict = CutRules { max_s: Some(0.4), min_s: 0.4, ..rules };
        assert_eq!(found("..........", strict), (vec![(0, 4), (4, 8)], 1));
    }

    #[test]
    fn a_clip_has_the_score_of_its_cut_and_times_from_the_first_frame() {
        let changes: Vec<FrameChange> = (0..20)
            .map(|at| FrameChange { score: if at == 12 { 42.0 } else { 1.0 }, ..FrameChange::default() })
            .collect();
        let times: Vec<f64> = (0..20).map(|at| 5.0 + f64::from(at) * 0.5).collect();
        let rules = CutRules { max_s: Some(3.0), ..CutRules::default() };
        let clips = scenes(&changes, &times, &rules).clips;
        let shown: Vec<_> = clips.iter().map(|clip| (clip.start_s, clip.end_s, clip.score)).collect();
        assert_eq!(shown, [(0.0, 3.0, 0.0), (3.0, 6.0, 0.0), (6.0, 8.0, 42.0), (8.0, 10.0, 0.0)]);
    }
}
