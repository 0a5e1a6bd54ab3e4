//! The report of a check: counts of usable and dropped clips, their sizes, lengths and captions.

use super::CheckRequest;
use super::columns::ColumnReport;
use super::probing::Outcome;
use crate::each_file::Results;
use crate::layouts::{CaptionFault, Layout, SourceListing};
use crate::{BucketClips, Clip, ClipManifest, ClipRow, ConditionCount, ExclusionReason};
use camino::{Utf8Path, Utf8PathBuf};
use recipe::Bucket;
use serde::Serialize;
use std::collections::{BTreeMap, HashMap};

/// The first frame count of each range of the histogram: the lengths that CogVideoX models have.
const RANGES: [usize; 7] = [2, 9, 17, 33, 49, 81, 161];

/// The facts and counts of a data set. Lengths, sizes and captions are those of usable clips.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// The folder or table.
    pub source: Utf8PathBuf,
    /// `pairs`, `frames`, `lists` or `table`.
    pub layout: &'static str,
    /// Why this layout was chosen.
    pub layout_why: String,
    /// Clips, excluded ones included.
    pub clips: usize,
    /// Clips that can be used.
    pub usable: usize,
    /// Hours of usable clips.
    pub hours: f64,
    /// Bytes of the videos of usable clips. A video with several captions counts once.
    pub bytes: u64,
    /// Lengths of usable clips. `None` if no clip is usable.
    pub lengths: Option<Lengths>,
    /// Sizes such as `1280x720`, the most frequent first.
    pub sizes: Vec<Count>,
    /// Frame rates, the most frequent first.
    pub rates: Vec<Count>,
    /// Codecs, the most frequent first.
    pub codecs: Vec<Count>,
    /// Clips whose frames are not evenly spaced.
    pub variable_rate: usize,
    /// Clips that are folders of frames.
    pub frame_folders: usize,
    /// Clips with a high dynamic range.
    pub hdr: usize,
    /// Clips whose frames consist of two fields.
    pub interlaced: usize,
    /// Clips whose pictures are rotated for display.
    pub rotated: usize,
    /// Clips whose stored pixels are not square.
    pub non_square_pixels: usize,
    /// Clips whose stream does not start at 0 s.
    pub nonzero_start: usize,
    /// Clips whose file has several video streams.
    pub several_video_streams: usize,
    /// Clips that are smaller than the requested size.
    pub enlarged: usize,
    /// Clips with a lower frame rate than requested. Their frames are repeated.
    pub repeated_frames: usize,
    /// Clips with another size or length than their table states.
    pub stated_wrong: usize,
    /// Clips that have the bytes of another file, and another caption.
    pub same_bytes: usize,
    /// The ids of these clips, grouped by their bytes.
    pub same_bytes_groups: Vec<Vec<String>>,
    /// The captions.
    pub captions: Captions,
    /// The template of captions, and the caption of the first usable clip by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template: Option<[String; 2]>,
    /// Usable clips by size and frames.
    pub histogram: Vec<Histogram>,
    /// The columns of numbers of a table.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub columns: Vec<ColumnReport>,
    /// The conditions, with the numbers of clips that do not meet them.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<ConditionCount>,
    /// Rows of the source that are no clips, because they do not meet a condition.
    pub left_out: usize,
    /// Usable clips by bucket, if the recipe has buckets.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub buckets: Vec<BucketClips>,
    /// Buckets that no clip has.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub empty_buckets: Vec<Bucket>,
    /// Every clip that would be dropped.
    pub dropped: Vec<Dropped>,
    /// Notes about the source, such as text files without a video.
    pub notes: Vec<String>,
    /// The number of video files that were checked.
    pub videos: usize,
    /// The number of these files whose results came from the cache.
    pub cached: usize,
}

/// The lengths of clips in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Lengths {
    /// The shortest.
    pub min_s: f64,
    /// The median.
    pub median_s: f64,
    /// The longest.
    pub max_s: f64,
}

/// A value, and the number of clips that have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Count {
    /// The value.
    pub value: String,
    /// Clips.
    pub clips: usize,
}

/// The captions of a data set.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Captions {
    /// Clips without a caption.
    pub missing: usize,
    /// Clips with an empty caption.
    pub empty: usize,
    /// Clips whose caption is not UTF-8.
    pub not_utf8: usize,
    /// Clips that are dropped because their caption has too many characters.
    pub too_long: usize,
    /// Usable clips that share their caption with another usable clip.
    pub doubled: usize,
    /// Characters of the median caption.
    pub median_characters: usize,
    /// Characters of the longest caption.
    pub most_characters: usize,
    /// Tokens of the median caption, if a tokenizer was given.
    pub median_tokens: Option<usize>,
    /// Tokens of the longest caption, if a tokenizer was given.
    pub most_tokens: Option<usize>,
    /// Clips whose caption has more tokens than the encoder reads. The encoder ignores the rest.
    pub cut: Option<usize>,
}

/// Clips of one size in one range of lengths.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Histogram {
    /// Pixels.
    pub width: usize,
    /// Pixels.
    pub height: usize,
    /// The fewest frames.
    pub from: usize,
    /// The most frames; `None` for the last range, which has no upper limit.
    pub to: Option<usize>,
    /// Clips.
    pub clips: usize,
}

/// A clip that would be dropped.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Dropped {
    /// The clip.
    pub id: String,
    /// Where the caption was read.
    pub origin: String,
    /// The reason in a few words.
    pub title: &'static str,
    /// The details of the reason.
    pub detail: String,
    /// The reason, for programs.
    pub reason: ExclusionReason,
}

impl Report {
    pub(super) fn new(
        manifest: &ClipManifest,
        source: &SourceListing,
        probed: &Results<Outcome>,
        request: &CheckRequest<'_>,
    ) -> Self {
        let usable: Vec<&Clip> = manifest.usable().collect();
        let count = |is: &dyn Fn(&Clip) -> bool| usable.iter().filter(|clip| is(clip)).count();
        let by_path: HashMap<&Utf8Path, &Clip> = usable.iter().map(|clip| (clip.path.as_path(), *clip)).collect();
        let mut notes = source.notes.clone();
        notes
            .extend(probed.not_kept.as_ref().map(|why| format!("the results were not kept for the next check: {why}")));
        let not_utf8 = |row: &ClipRow| match row.caption {
            Err(CaptionFault::NotUtf8(not)) => Some((row.origin.clone(), not)),
            _ => None,
        };
        if let Some((origin, not)) = source.rows.iter().find_map(not_utf8) {
            // The origin is a file of captions, or a place in a table or a list.
            let name = match source.layout {
                Layout::Pairs | Layout::Frames => origin.as_str(),
                Layout::Lists | Layout::Table => origin.split(' ').next().unwrap_or_default(),
            };
            let given = &request.source.source;
            let file = if given.is_dir() { given.join(name) } else { given.clone() };
            notes.push(format!("{origin} is not UTF-8; {}", not.fix(file.as_str())));
        }
        let frame_folders = count(&|clip| clip.frame_folder);
        if frame_folders > 0 {
            let folders = format!("{} of frames", units::counted(frame_folders, "folder"));
            notes.push(match request.rate() {
                Some(fps) => {
                    format!("{folders}: --fps is their rate, {fps}, and none of their frames is skipped or repeated")
                }
                None => format!("{folders}: their rate is not known, so they count as 0 s; --fps sets it"),
            });
        }
        let buckets = manifest.buckets();
        let target_fps = request.frames.as_ref().and_then(|choice| choice.fps);
        let same_bytes_groups = same_bytes(&usable);
        Self {
            source: manifest.header.source.clone(),
            layout: source.layout.name(),
            layout_why: source.why.clone(),
            clips: manifest.clips.len(),
            usable: usable.len(),
            hours: usable.iter().map(|clip| clip.duration_s).sum::<f64>() / 3600.0,
            bytes: by_path.values().map(|clip| clip.stamp.bytes).sum(),
            lengths: lengths(&usable),
            sizes: counts(usable.iter().map(|clip| format!("{}x{}", clip.width, clip.height))),
            rates: counts(usable.iter().filter(|clip| clip.fps > 0.0).map(|clip| rate(clip.fps))),
            codecs: counts(usable.iter().map(|clip| clip.codec.clone())),
            variable_rate: count(&|clip| clip.variable_rate),
            frame_folders,
            hdr: count(&|clip| clip.hdr),
            interlaced: count(&|clip| clip.unusual.interlaced),
            rotated: count(&|clip| clip.unusual.rotation.is_some()),
            non_square_pixels: count(&|clip| clip.unusual.sample_aspect.is_some()),
            nonzero_start: count(&|clip| clip.unusual.start_s.is_some()),
            several_video_streams: count(&|clip| clip.unusual.video_streams.is_some()),
            enlarged: request
                .size
                .map_or(0, |[height, width]| count(&|clip| clip.height < height || clip.width < width)),
            // With a tolerance of 1 %, 23.976 counts as 24.
            repeated_frames: target_fps.map_or(0, |fps| count(&|clip| clip.fps > 0.0 && clip.fps < fps * 0.99)),
            stated_wrong: source.rows.iter().filter(|row| states_otherwise(row, &by_path)).count(),
            same_bytes: same_bytes_groups.iter().map(Vec::len).sum(),
            same_bytes_groups,
            captions: captions(manifest, source, &usable, request),
            template: request
                .source
                .template
                .as_ref()
                .zip(usable.first())
                .map(|(template, first)| [template.text.clone(), first.caption.clone()]),
            histogram: histogram(&usable),
            columns: source.fields.columns.iter().filter_map(ColumnReport::new).collect(),
            conditions: source.fields.conditions.clone(),
            left_out: source.fields.left_out,
            empty_buckets: request.buckets.as_ref().map_or_else(Vec::new, |assigner| {
                assigner.unused(&buckets.iter().map(|of| of.bucket).collect::<Vec<_>>())
            }),
            buckets,
            dropped: manifest.excluded().map(|(clip, reason)| dropped(clip, reason)).collect(),
            notes,
            videos: probed.by_path.len(),
            cached: probed.cached,
        }
    }

    /// Returns the share of clips that would be dropped: 0 to 1.
    pub fn dropped_share(&self) -> f64 {
        if self.clips == 0 { 0.0 } else { self.dropped.len() as f64 / self.clips as f64 }
    }
}

fn states_otherwise(row: &crate::ClipRow, by_path: &HashMap<&Utf8Path, &Clip>) -> bool {
    let Some(clip) = by_path.get(row.path.as_path()) else { return false };
    let differs = |stated: usize, is: usize| stated != 0 && stated != is;
    let stated = row.stated;
    differs(stated.width, clip.width) || differs(stated.height, clip.height) || differs(stated.frames, clip.frames)
}

fn dropped(clip: &Clip, reason: &ExclusionReason) -> Dropped {
    Dropped {
        id: clip.id.clone(),
        origin: clip.origin.clone(),
        title: reason.title(),
        detail: reason.to_string(),
        reason: reason.clone(),
    }
}

/// Groups the clips that have the same bytes in several files, in the order of their first clips.
fn same_bytes(usable: &[&Clip]) -> Vec<Vec<String>> {
    let mut by_content: HashMap<&str, Vec<&Clip>> = HashMap::new();
    for clip in usable.iter().copied() {
        by_content.entry(&clip.content).or_default().push(clip);
    }
    let of_first = |clip: &&Clip| by_content.get(clip.content.as_str()).filter(|group| group[0].id == clip.id);
    let has_several_files = |group: &&Vec<&Clip>| group.iter().any(|clip| clip.path != group[0].path);
    let groups = usable.iter().filter_map(of_first).filter(has_several_files);
    groups.map(|group| group.iter().map(|clip| clip.id.clone()).collect()).collect()
}

fn lengths(usable: &[&Clip]) -> Option<Lengths> {
    let mut seconds: Vec<f64> = usable.iter().map(|clip| clip.duration_s).collect();
    seconds.sort_by(f64::total_cmp);
    let (min_s, max_s) = (*seconds.first()?, *seconds.last()?);
    Some(Lengths { min_s, median_s: seconds[seconds.len() / 2], max_s })
}

/// Counts values, the most frequent first.
fn counts(values: impl Iterator<Item = String>) -> Vec<Count> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    values.for_each(|value| *counts.entry(value).or_default() += 1);
    let mut counts: Vec<Count> = counts.into_iter().map(|(value, clips)| Count { value, clips }).collect();
    counts.sort_by_key(|count| std::cmp::Reverse(count.clips));
    counts
}

/// Formats a frame rate: `24`, `29.97`.
fn rate(fps: f64) -> String {
    let text = format!("{fps:.2}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn captions(manifest: &ClipManifest, source: &SourceListing, usable: &[&Clip], request: &CheckRequest<'_>) -> Captions {
    let faults = |fault| source.rows.iter().filter(|row| row.caption == Err(fault)).count();
    let mut seen: HashMap<&str, usize> = HashMap::new();
    usable.iter().for_each(|clip| *seen.entry(&clip.caption).or_default() += 1);
    let sorted = |mut numbers: Vec<usize>| {
        numbers.sort_unstable();
        numbers
    };
    let characters = sorted(usable.iter().map(|clip| clip.caption.chars().count()).collect());
    let tokens = sorted(usable.iter().filter_map(|clip| clip.tokens).collect());
    let is_counted = request.count_tokens.is_some() && !tokens.is_empty();
    let too_long = |(_, reason): &(&Clip, &ExclusionReason)| matches!(reason, ExclusionReason::CaptionTooLong { .. });
    Captions {
        missing: faults(CaptionFault::Missing),
        empty: faults(CaptionFault::Empty),
        not_utf8: source.rows.iter().filter(|row| matches!(row.caption, Err(CaptionFault::NotUtf8(_)))).count(),
        too_long: manifest.excluded().filter(too_long).count(),
        doubled: seen.values().filter(|clips| **clips > 1).sum(),
        median_characters: characters.get(characters.len() / 2).copied().unwrap_or(0),
        most_characters: characters.last().copied().unwrap_or(0),
        median_tokens: is_counted.then(|| tokens[tokens.len() / 2]),
        most_tokens: is_counted.then(|| tokens[tokens.len() - 1]),
        cut: is_counted.then(|| tokens.iter().filter(|tokens| **tokens > request.most_tokens).count()),
    }
}

fn histogram(usable: &[&Clip]) -> Vec<Histogram> {
    let mut counts: BTreeMap<(usize, usize, usize), usize> = BTreeMap::new();
    for clip in usable {
        let range = RANGES.partition_point(|from| *from <= clip.frames).saturating_sub(1);
        *counts.entry((clip.width, clip.height, range)).or_default() += 1;
    }
    let bars = counts.into_iter().map(|((width, height, range), clips)| Histogram {
        width,
        height,
        from: RANGES[range],
        to: RANGES.get(range + 1).map(|next| next - 1),
        clips,
    });
    bars.collect()
}
