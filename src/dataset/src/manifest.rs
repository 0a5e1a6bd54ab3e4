//! Reads and writes the manifest of clips: a file with a header line, then one clip per line, as JSON.

use crate::{Clip, ExclusionReason};
use camino::{Utf8Path, Utf8PathBuf};
use rundir::{ErrorCode, Failure, open_regular};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

/// The newest version of the format that this build reads.
pub const SCHEMA: u32 = 1;
/// The value of `format` in the header of every manifest.
pub(crate) const FORMAT: &str = "vidtui-manifest";
/// The maximum length of the first line in bytes; it holds several paths.
const LONGEST_HEADER: u64 = 64 << 10;
/// The maximum number of clips that a failure lists.
const SHOWN: usize = 3;

/// The first line of a manifest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ManifestHeader {
    /// `vidtui-manifest`.
    pub format: String,
    /// The version of the format.
    pub schema: u32,
    /// The folder or table that was checked.
    pub source: Utf8PathBuf,
    /// The layout of the source: `pairs`, `frames`, `lists` or `table`.
    pub layout: String,
    /// The absolute folder that relative paths start at.
    pub root: Utf8PathBuf,
    /// The conditions that all clips meet; empty if there are none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub conditions: String,
    /// The template of the captions; empty if there is none.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub caption: String,
}

impl ManifestHeader {
    /// Makes the header for a source.
    pub fn new(source: &Utf8Path, layout: &str, root: &Utf8Path) -> Self {
        let (source, root) = (source.to_owned(), root.to_owned());
        Self { format: FORMAT.into(), schema: SCHEMA, source, layout: layout.into(), root, ..Self::default() }
    }
}

/// The clips of a data set, excluded ones included.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct ClipManifest {
    /// The source of the clips.
    pub header: ManifestHeader,
    /// The clips, in the order of the source.
    pub clips: Vec<Clip>,
}

impl ClipManifest {
    /// Reads a manifest, and makes the paths of clips absolute.
    ///
    /// # Errors
    /// The file cannot be read, is not a manifest or has a newer schema; or a line is not a clip or repeats an id, and the failure
    /// names this line.
    pub fn read(path: &Utf8Path) -> Result<Self, Failure> {
        let io = |error| Failure::from(rundir::Error::io("read", path, error));
        let mut file = BufReader::new(open_regular(path).map_err(io)?);
        // A manifest that an editor saved may begin with a byte order mark; all others are read line by line.
        let mut lines: Box<dyn BufRead> = match file.fill_buf().map_err(io)?.first() {
            Some(b'{') => Box::new(file),
            _ => Box::new(io::Cursor::new(rundir::read_text(path)?)),
        };
        let mut line = Vec::new();
        lines.read_until(b'\n', &mut line).map_err(io)?;
        let header = read_header(path, &line)?;
        let mut clips: Vec<Clip> = Vec::new();
        let mut seen: BTreeMap<String, usize> = BTreeMap::new();
        for number in 2.. {
            line.clear();
            if lines.read_until(b'\n', &mut line).map_err(io)? == 0 {
                break;
            }
            if line.trim_ascii().is_empty() {
                continue;
            }
            let mut clip: Clip =
                serde_json::from_slice(&line).map_err(|error| bad_line(path, number, &error.to_string()))?;
            if clip.id.is_empty() || clip.path.as_str().is_empty() {
                return Err(bad_line(path, number, "a clip needs an id and a path"));
            }
            if let Some(first) = seen.insert(clip.id.clone(), number) {
                return Err(bad_line(path, number, &format!("the id '{}' is that of line {first}", clip.id)));
            }
            clip.path = header.root.join(&clip.path);
            clips.push(clip);
        }
        Ok(Self { header, clips })
    }

    /// Returns whether the first line of a file is the header of a manifest, of any schema.
    pub fn is_one(path: &Utf8Path) -> bool {
        let mut begin = Vec::new();
        let read = open_regular(path).and_then(|file| file.take(LONGEST_HEADER).read_to_end(&mut begin));
        let text = read.ok().and_then(|_| text_file::utf8(begin).ok()).unwrap_or_default();
        let header = text.split(|byte| *byte == b'\n').next();
        let header = header.and_then(|line| serde_json::from_slice::<serde_json::Value>(line).ok());
        header.is_some_and(|header| header["format"] == FORMAT)
    }

    /// Checks that no file of the user would be replaced, such as the table that the manifest is made from. A manifest may be replaced.
    ///
    /// # Errors
    /// [`ErrorCode::AlreadyExists`] if there is a file that is not a manifest.
    pub fn refuse_to_replace(path: &Utf8Path) -> Result<(), Failure> {
        let is_file_of_user =
            path.metadata().is_ok_and(|about| about.is_file() && about.len() > 0) && !Self::is_one(path);
        if !is_file_of_user {
            return Ok(());
        }
        Err(Failure::new(
            ErrorCode::AlreadyExists,
            format!("cannot write the manifest {path}"),
            "the file exists, and it is not a manifest",
            "choose another name or folder, or move the file away",
        ))
    }

    /// Writes the manifest under a temporary name, then renames it. Equal manifests give equal bytes.
    ///
    /// # Errors
    /// The file cannot be written, for instance on a full disk; an existing manifest is then unchanged. Or the file exists and is not a
    /// manifest.
    pub fn write(&self, path: &Utf8Path) -> Result<(), Failure> {
        Self::refuse_to_replace(path)?;
        // Another check or encode may write the same manifest at the same time.
        let process = std::process::id();
        let partial = path.with_file_name(format!(".{}.{process}.partial", path.file_name().unwrap_or("manifest")));
        let write = || -> io::Result<()> {
            let mut file = BufWriter::new(File::create(&partial)?);
            write_line(&mut file, &self.header)?;
            for clip in &self.clips {
                let below = clip.path.strip_prefix(&self.header.root);
                match below {
                    Ok(below) => write_line(&mut file, &Clip { path: below.to_owned(), ..clip.clone() })?,
                    Err(_) => write_line(&mut file, clip)?,
                }
            }
            file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
            std::fs::rename(&partial, path)
        };
        write().map_err(|error| {
            // Report the first error, not that of the removal.
            let _ = std::fs::remove_file(&partial);
            rundir::Error::io("write", path, error).into()
        })
    }

    /// Returns the clips that can be used.
    pub fn usable(&self) -> impl Iterator<Item = &Clip> {
        self.clips.iter().filter(|clip| clip.is_usable())
    }

    /// Returns the excluded clips with their reasons.
    pub fn excluded(&self) -> impl Iterator<Item = (&Clip, &ExclusionReason)> {
        self.clips.iter().filter_map(|clip| Some((clip, clip.excluded.as_ref()?)))
    }

    /// Returns the share of excluded clips: 0 to 1.
    pub fn excluded_share(&self) -> f64 {
        if self.clips.is_empty() { 0.0 } else { self.excluded().count() as f64 / self.clips.len() as f64 }
    }

    /// Rejects a data set without usable clips, or whose share of excluded clips exceeds `most` (0 to 1).
    ///
    /// # Errors
    /// [`ErrorCode::TooManyDropped`], with the counts by reason and the first clips.
    pub fn refuse_if_dropped(&self, most: f64) -> Result<(), Failure> {
        let (all, dropped) = (self.clips.len(), self.excluded().count());
        let refuse = |why: String, fix: String| {
            let what = format!("{} of {} would be dropped", dropped, units::counted(all, "clip"));
            Err(Failure::new(ErrorCode::TooManyDropped, what, why, fix))
        };
        let source = &self.header.source;
        if dropped == all {
            let why = if all == 0 { "there are no clips".into() } else { self.reasons() };
            return refuse(
                why,
                format!("no clip is left: {}, then check again: vidtui data check {source}", self.correction()),
            );
        }
        if self.excluded_share() <= most {
            return Ok(());
        }
        let percent = format!("{:.1}", most * 100.0);
        let why = format!("{}; at most {} % may be dropped", self.reasons(), percent.trim_end_matches(".0"));
        let enough = (self.excluded_share() * 100.0).ceil();
        let fix = format!("{}, or accept the loss with --max-dropped {enough}%", self.correction());
        refuse(why, fix)
    }

    /// Returns what brings excluded clips back: fewer frames, if some are too short, or other data.
    fn correction(&self) -> String {
        let frames = self.clips.iter().filter_map(|clip| match clip.excluded {
            Some(ExclusionReason::TooShort { frames, .. }) => Some(frames),
            _ => None,
        });
        match frames.min() {
            // Fewer than two latent frames are an image.
            Some(shortest) if shortest > recipe::VIDEO_FRAMES => {
                let fits = recipe::nearest_clip_frames(shortest).map_or(shortest, |[below, _]| below);
                format!("take fewer frames (--frames {fits} fits the shortest clip), or correct the data")
            }
            _ => "correct the data".into(),
        }
    }

    /// Checks that each usable clip has as many captions as a model has segments.
    ///
    /// # Errors
    /// A usable clip has another number of captions; the failure names the first such clip.
    pub fn check_segments(&self, segments: usize) -> Result<(), Failure> {
        let Some(clip) = self.usable().find(|clip| clip.captions().count() != segments) else { return Ok(()) };
        let count = units::counted(clip.captions().count(), "caption");
        Err(Failure::new(
            ErrorCode::InvalidDataset,
            format!("{} has {count}", clip.id),
            format!("model.segments is {segments}: the model reads one caption per segment of 3 s"),
            "write a table with the column segments, a list with the caption of each segment, and check it again",
        ))
    }

    /// Describes the excluded clips: the counts by reason, the most frequent first, and the ids of the first clips.
    fn reasons(&self) -> String {
        let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
        for (_, reason) in self.excluded() {
            *counts.entry(reason.title()).or_default() += 1;
        }
        let mut counts: Vec<(&str, usize)> = counts.into_iter().collect();
        counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
        let counts: Vec<String> = counts.iter().map(|(title, count)| format!("{count} {title}")).collect();
        let mut shown: Vec<&str> = self.excluded().take(SHOWN).map(|(clip, _)| clip.id.as_str()).collect();
        if self.excluded().nth(SHOWN).is_some() {
            shown.push("…");
        }
        format!("{} ({})", counts.join(", "), shown.join(", "))
    }
}

fn write_line(file: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *file, value)?;
    file.write_all(b"\n")
}

fn read_header(path: &Utf8Path, line: &[u8]) -> Result<ManifestHeader, Failure> {
    let header: ManifestHeader = match serde_json::from_slice(line) {
        Ok(header) => header,
        Err(error) => return Err(not_a_manifest(path, &error.to_string())),
    };
    if header.format != FORMAT {
        return Err(not_a_manifest(path, &format!("its first line names the format '{}'", header.format)));
    }
    if header.schema > SCHEMA {
        let found = u64::from(header.schema);
        return Err(rundir::Error::Newer { path: path.to_owned(), key: "schema", found, known: SCHEMA }.into());
    }
    Ok(header)
}

fn not_a_manifest(path: &Utf8Path, why: &str) -> Failure {
    Failure::new(
        ErrorCode::Malformed,
        format!("{path} is not a manifest"),
        why,
        "make one from a folder or a table of videos: vidtui data check FOLDER --out manifest.jsonl",
    )
}

fn bad_line(path: &Utf8Path, number: usize, why: &str) -> Failure {
    Failure::new(
        ErrorCode::InvalidDataset,
        format!("cannot read line {number} of {path}"),
        why,
        "correct the line, or make the manifest again with vidtui data check",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn temp() -> (tempfile::TempDir, Utf8PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(folder.path().to_owned()).unwrap();
        (folder, path)
    }

    fn clip(root: &Utf8Path, id: &str) -> Clip {
        Clip { id: id.into(), path: root.join(id), caption: "a \"cat\"\nsleeps".into(), fps: 23.976, ..Clip::default() }
    }

    fn manifest(root: &Utf8Path, excluded: usize, all: usize) -> ClipManifest {
        let mut clips: Vec<Clip> = (0..all).map(|n| clip(root, &format!("{n}.mp4"))).collect();
        clips[..excluded].iter_mut().for_each(|clip| clip.excluded = Some(ExclusionReason::CaptionMissing));
        ClipManifest { header: ManifestHeader::new(root, "pairs", root), clips }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let (_keep, folder) = temp();
        let mut written = manifest(&folder, 1, 3);
        written.clips[1].path = "/elsewhere/1.mp4".into();
        written.clips[0].excluded =
            Some(ExclusionReason::TooShort { frames: 3, needed: 49, span_s: 0.1, needed_s: Some(6.125) });
        let path = folder.join("manifest.jsonl");
        written.write(&path).unwrap();
        assert_eq!(ClipManifest::read(&path).unwrap(), written);
        // Paths below the root are relative, so that the folder can be moved.
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(r#""path":"2.mp4""#) && text.contains(r#""path":"/elsewhere/1.mp4""#), "{text}");
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn a_table_of_clips_and_a_folder_are_not_manifests() {
        let (_keep, folder) = temp();
        let (path, table) = (folder.join("manifest.jsonl"), folder.join("metadata.jsonl"));
        manifest(&folder, 0, 1).write(&path).unwrap();
        std::fs::write(&table, "{\"video\": \"a.mp4\", \"caption\": \"a cat\"}\n").unwrap();
        let found = [&path, &table, &folder, &folder.join("none")].map(|path| ClipManifest::is_one(path));
        assert_eq!(found, [true, false, false, false]);
    }

    #[test]
    fn fields_and_reasons_of_a_newer_version_are_ignored_and_a_newer_schema_is_refused() {
        let (_keep, folder) = temp();
        let path = folder.join("manifest.jsonl");
        manifest(&folder, 0, 0).write(&path).unwrap();
        let header = std::fs::read_to_string(&path).unwrap();
        let line = r#"{"id":"a","path":"a.mp4","mood":"blue","excluded":{"kind":"too-blue","hue":240}}"#;
        std::fs::write(&path, format!("{header}\n{line}\n")).unwrap();
        let read = ClipManifest::read(&path).unwrap();
        assert_eq!(read.clips[0].excluded, Some(ExclusionReason::Other));
        std::fs::write(&path, header.replace("\"schema\":1", "\"schema\":2")).unwrap();
        assert_eq!(ClipManifest::read(&path).unwrap_err().code, ErrorCode::NewerFormat);
    }

    #[test]
    fn a_manifest_replaces_a_manifest_and_no_other_file() {
        let (_keep, folder) = temp();
        let path = folder.join("metadata.jsonl");
        let table = "{\"video\": \"a.mp4\", \"caption\": \"a cat\"}\n";
        std::fs::write(&path, table).unwrap();
        assert_eq!(manifest(&folder, 0, 1).write(&path).unwrap_err().code, ErrorCode::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), table);
        std::fs::write(&path, "").unwrap();
        manifest(&folder, 0, 1).write(&path).unwrap();
        manifest(&folder, 0, 2).write(&path).unwrap();
        assert_eq!(ClipManifest::read(&path).unwrap().clips.len(), 2);
    }

    #[test]
    fn a_manifest_that_an_editor_saved_is_read() {
        let (_keep, folder) = temp();
        let path = folder.join("manifest.jsonl");
        let written = manifest(&folder, 0, 2);
        written.write(&path).unwrap();
        let text = format!("\u{feff}{}", std::fs::read_to_string(&path).unwrap());
        let utf16 = text.encode_utf16().flat_map(u16::to_le_bytes).collect();
        for bytes in [text.into_bytes(), utf16] {
            std::fs::write(&path, bytes).unwrap();
            assert!(ClipManifest::is_one(&path));
            assert_eq!(ClipManifest::read(&path).unwrap(), written);
        }
    }

    #[test]
    fn damaged_manifests_are_refused() {
        let (_keep, folder) = temp();
        let path = folder.join("manifest.jsonl");
        manifest(&folder, 0, 0).write(&path).unwrap();
        let header = std::fs::read_to_string(&path).unwrap();
        for (text, code) in [
            (String::new(), ErrorCode::Malformed),
            ("{\"vid_emb\": 1}\n".into(), ErrorCode::Malformed),
            (format!("{header}{{\"id\":\"a\",\"pa"), ErrorCode::InvalidDataset),
            (format!("{header}{{\"id\":\"a\"}}\n"), ErrorCode::InvalidDataset),
            (format!("{header}{}", "{\"id\":\"a\",\"path\":\"b\"}\n".repeat(2)), ErrorCode::InvalidDataset),
        ] {
            std::fs::write(&path, &text).unwrap();
            assert_eq!(ClipManifest::read(&path).unwrap_err().code, code, "{text}");
        }
        assert_eq!(ClipManifest::read(&folder.join("none")).unwrap_err().code, ErrorCode::NotFound);
    }

    #[test]
    fn more_dropped_clips_than_accepted_are_refused() {
        let root = Utf8Path::new("/data");
        let code = |excluded, all, most| manifest(root, excluded, all).refuse_if_dropped(most).err().map(|e| e.code);
        assert_eq!(code(1, 20, 0.05), None);
        assert_eq!(code(2, 20, 0.05), Some(ErrorCode::TooManyDropped));
        assert_eq!(code(2, 20, 0.1), None);
        assert_eq!((code(0, 20, 0.0), code(1, 20, 0.0)), (None, Some(ErrorCode::TooManyDropped)));
        // A data set without usable clips is rejected at any accepted share.
        assert_eq!(code(2, 2, 1.0), Some(ErrorCode::TooManyDropped));
        assert_eq!(code(0, 0, 1.0), Some(ErrorCode::TooManyDropped));
        let failure = manifest(root, 3, 20).refuse_if_dropped(0.05).unwrap_err();
        assert!(failure.fix.contains("--max-dropped 15%"), "{failure}");
    }

    #[test]
    fn short_clips_are_refused_with_the_most_frames_that_all_of_them_have() {
        let mut short = manifest(Utf8Path::new("/data"), 0, 3);
        for (clip, frames) in short.clips.iter_mut().zip([33, 30]) {
            clip.excluded = Some(ExclusionReason::TooShort { frames, needed: 49, span_s: 1.0, needed_s: None });
        }
        let failure = short.refuse_if_dropped(0.05).unwrap_err();
        assert!(failure.fix.starts_with("take fewer frames (--frames 29 fits the shortest clip)"), "{failure}");
    }
}
