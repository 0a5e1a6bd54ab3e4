//! Cuts of videos that ffmpeg makes, with known scenes.

use super::*;
use crate::{SourceRequest, read_source};
use std::process::Command;
use std::sync::OnceLock;

/// Scenes of 40, 30, 35 and 20 frames at 25 per second, with 10 black frames before the third one.
const FILTER: &str = "[1]trim=duration=1.2[m];color=black:size=160x120:rate=25:duration=0.4[k];\
     smptebars=size=160x120:rate=25:duration=1.4[s];testsrc=size=160x120:rate=25:duration=0.8[t];\
     [0][m][k][s][t]concat=n=5:v=1,format=yuv420p[v]";
const INPUTS: &str =
    "-f lavfi -i testsrc2=size=160x120:rate=25:duration=1.6 -f lavfi -i mandelbrot=size=160x120:rate=25";

struct Site {
    _keep: tempfile::TempDir,
    path: Utf8PathBuf,
}

impl Site {
    fn new() -> Self {
        let keep = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(keep.path()).unwrap().canonicalize_utf8().unwrap();
        fs::create_dir_all(path.join("videos/sub")).unwrap();
        Self { _keep: keep, path }
    }

    /// Adds the video with known scenes.
    fn video(self, name: &str) -> Self {
        static VIDEO: OnceLock<Vec<u8>> = OnceLock::new();
        let bytes = VIDEO.get_or_init(|| {
            let path = self.path.join("scenes.mp4");
            let mut ffmpeg = Command::new("ffmpeg");
            ffmpeg.args(["-v", "error"]).args(INPUTS.split(' ')).args(["-filter_complex", FILTER, "-map", "[v]"]);
            // Keyframes are at frames 0, 40, 80 and 115.
            ffmpeg.args(["-c:v", "libx264", "-force_key_frames", "1.6,3.2,4.6", "-sc_threshold", "0", "-g", "250"]);
            assert!(ffmpeg.arg(&path).status().expect("ffmpeg is installed").success());
            let bytes = fs::read(&path).unwrap();
            fs::remove_file(path).unwrap();
            bytes
        });
        fs::write(self.path.join("videos").join(name), bytes).unwrap();
        self
    }

    fn request(&self) -> CutRequest {
        let rules = CutRules { min_s: 0.5, ..CutRules::default() };
        CutRequest {
            source: self.path.join("videos"),
            out: self.path.join("clips"),
            rules,
            programs: Programs::default(),
        }
    }

    fn cut(&self) -> Result<CutReport, Failure> {
        cut(&self.request(), &mut |_| ControlFlow::Continue(()))
    }

    fn table(&self) -> Vec<Vec<String>> {
        let mut table = csv::Reader::from_path(self.path.join("clips/cuts.csv")).unwrap();
        table.records().map(|row| row.unwrap().iter().map(str::to_owned).collect()).collect()
    }
}

#[test]
fn the_clips_of_known_scenes_begin_and_end_at_their_frames() {
    let site = Site::new().video("a.mp4").video("sub/b.mp4");
    let report = site.cut().unwrap();
    assert_eq!((report.videos.len(), report.failures.len()), (2, 0));
    let CutVideoReport { clips, kept, copied, too_short, .. } = report.videos[0].clone();
    // The second scene ends before black frames, which do not begin with a keyframe.
    assert_eq!((clips, kept, copied, too_short), (4, 0, 3, 0));
    let rows = site.table();
    assert_eq!(rows.len(), 8);
    let times: Vec<(&str, &str, &str, &str)> =
        rows.iter().take(4).map(|row| (row[0].as_str(), row[2].as_str(), row[3].as_str(), row[5].as_str())).collect();
    assert_eq!(
        times,
        [
            ("a-0001.mp4", "0.000000", "1.600000", "40"),
            ("a-0002.mp4", "1.600000", "2.800000", "30"),
            ("a-0003.mp4", "3.200000", "4.600000", "35"),
            ("a-0004.mp4", "4.600000", "5.400000", "20"),
        ]
    );
    assert_eq!(rows[4][0], "sub/b-0001.mp4");
    assert_eq!(rows[4][1], site.path.join("videos/sub/b.mp4").as_str());
    for row in &rows {
        let clip = video::frame_times(&site.path.join("clips").join(&row[0])).unwrap();
        assert_eq!(clip.len().to_string(), row[5]);
    }
    // The folder can be checked once it has captions.
    fs::write(site.path.join("clips/a-0001.txt"), "a test").unwrap();
    let source = SourceRequest { source: site.path.join("clips"), ..SourceRequest::default() };
    assert_eq!(read_source(&source).unwrap().rows.len(), 8);
}

#[test]
fn a_second_call_writes_only_what_is_missing_and_replaces_nothing() {
    let site = Site::new().video("a.mp4");
    // Stop at the second clip.
    let stopped = cut(&site.request(), &mut |progress| match progress {
        CutProgress::Writing { done: 1, .. } => ControlFlow::Break(()),
        _ => ControlFlow::Continue(()),
    });
    assert_eq!(stopped.unwrap_err().code, ErrorCode::Cancelled);
    assert_eq!(site.table().len(), 1);
    let first = fs::metadata(site.path.join("clips/a-0001.mp4")).unwrap().modified().unwrap();
    let report = site.cut().unwrap();
    assert_eq!((report.videos[0].clips, report.videos[0].kept), (4, 1));
    assert_eq!(fs::metadata(site.path.join("clips/a-0001.mp4")).unwrap().modified().unwrap(), first);
    let site = site.video("c.mp4");
    let report = site.cut().unwrap();
    assert_eq!(report.videos.iter().map(|video| video.kept).collect::<Vec<_>>(), [4, 0]);
    // A third call neither measures nor writes.
    let report = cut(&site.request(), &mut |_| panic!("there is nothing to do")).unwrap();
    assert_eq!(report.videos.iter().map(|video| video.kept).collect::<Vec<_>>(), [4, 4]);
}

#[test]
fn other_rules_changed_videos_files_of_the_user_and_an_edited_table_are_refused() {
    let site = Site::new().video("a.mp4");
    fs::create_dir(site.path.join("clips")).unwrap();
    fs::write(site.path.join("clips/a-0003.mp4"), "mine").unwrap();
    assert_eq!(site.cut().unwrap_err().code, ErrorCode::AlreadyExists);
    assert_eq!(fs::read_dir(site.path.join("clips")).unwrap().count(), 3, "the file, the record and the table");
    fs::remove_file(site.path.join("clips/a-0003.mp4")).unwrap();
    site.cut().unwrap();
    let other = CutRequest { rules: CutRules { min_s: 0.6, ..CutRules::default() }, ..site.request() };
    assert_eq!(cut(&other, &mut |_| ControlFlow::Continue(())).unwrap_err().code, ErrorCode::AlreadyExists);
    let table = site.path.join("clips/cuts.csv");
    let text = fs::read_to_string(&table).unwrap();
    fs::write(&table, text.replace("num_frames", "caption")).unwrap();
    assert_eq!(site.cut().unwrap_err().code, ErrorCode::AlreadyExists);
    fs::write(&table, text).unwrap();
    fs::write(site.path.join("videos/a.mp4"), "changed").unwrap();
    assert_eq!(site.cut().unwrap_err().code, ErrorCode::AlreadyExists);
}

#[test]
fn a_damaged_video_is_reported_and_the_others_are_cut() {
    let site = Site::new().video("b.mp4");
    fs::write(site.path.join("videos/a.mp4"), "no video").unwrap();
    let report = site.cut().unwrap();
    assert_eq!((report.videos.len(), report.failures.len()), (1, 1));
    assert!(report.failures[0].what.contains("a.mp4"));
}

#[test]
fn lengths_that_exclude_each_other_and_a_folder_among_the_videos_are_refused() {
    let site = Site::new().video("a.mp4");
    let code = |request: CutRequest| cut(&request, &mut |_| ControlFlow::Continue(())).unwrap_err().code;
    let rules = |min_s, max_s, threshold| CutRules { min_s, max_s, threshold, margin_s: 0.0 };
    for rules in
        [rules(2.0, Some(1.0), 10.0), rules(-1.0, None, 10.0), rules(1.0, None, 0.0), rules(f64::NAN, None, 10.0)]
    {
        assert_eq!(code(CutRequest { rules, ..site.request() }), ErrorCode::InvalidArgument);
    }
    assert_eq!(code(CutRequest { out: site.path.join("videos/clips"), ..site.request() }), ErrorCode::InvalidArgument);
    assert_eq!(code(CutRequest { source: site.path.join("none"), ..site.request() }), ErrorCode::NotFound);
}
