//! Scores of videos that ffmpeg makes.

use super::*;
use std::fs;
use std::ops::ControlFlow;
use std::process::Command;
use std::sync::OnceLock;

/// The videos, each with the filter that makes it.
const VIDEOS: [(&str, &str); 6] = [
    ("moving.mp4", "testsrc2=size=192x128:rate=25:duration=1"),
    ("copy.mp4", "testsrc2=size=192x128:rate=25:duration=1,scale=96:64"),
    ("still.mp4", "smptebars=size=192x128:rate=25:duration=1"),
    ("black.mp4", "color=black:size=192x128:rate=25:duration=1"),
    ("white.mp4", "color=white:size=192x128:rate=25:duration=1"),
    ("boxed.mp4", "mandelbrot=size=192x96:rate=25,trim=duration=1,pad=192:128:0:16"),
];

struct Site {
    _keep: tempfile::TempDir,
    path: Utf8PathBuf,
}

impl Site {
    fn new() -> Self {
        static MADE: OnceLock<Vec<Vec<u8>>> = OnceLock::new();
        let keep = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(keep.path()).unwrap().canonicalize_utf8().unwrap();
        fs::create_dir(path.join("videos")).unwrap();
        let videos = MADE.get_or_init(|| {
            let make = |(name, filter): &(&str, &str)| {
                let file = path.join(name);
                let mut ffmpeg = Command::new("ffmpeg");
                ffmpeg.args(["-v", "error", "-f", "lavfi", "-i", filter, "-pix_fmt", "yuv420p", "-c:v", "libx264"]);
                assert!(ffmpeg.arg(&file).status().expect("ffmpeg is installed").success());
                fs::read(file).unwrap()
            };
            VIDEOS.iter().map(make).collect()
        });
        for ((name, _), bytes) in VIDEOS.iter().zip(videos) {
            fs::write(path.join("videos").join(name), bytes).unwrap();
        }
        Self { _keep: keep, path }
    }

    fn request(&self, source: &str, out: &str) -> ScoreRequest {
        let source = SourceRequest { source: self.path.join(source), ..SourceRequest::default() };
        ScoreRequest { cache: Some(self.path.join("cache")), ..ScoreRequest::new(source, self.path.join(out)) }
    }

    fn score(&self, source: &str, out: &str) -> ScoreReport {
        score(&self.request(source, out), &mut |_| ControlFlow::Continue(())).unwrap()
    }

    /// The values of a column of a table, by the name of the video.
    fn column(&self, table: &str, column: &str) -> BTreeMap<String, String> {
        let mut table = csv::Reader::from_path(self.path.join(table)).unwrap();
        let titles = table.headers().unwrap().clone();
        let at = titles.iter().position(|title| title == column).unwrap_or_else(|| panic!("{titles:?}"));
        let name = |row: &csv::StringRecord| Utf8Path::new(&row[0]).file_name().unwrap().to_owned();
        table.records().map(|row| row.unwrap()).map(|row| (name(&row), row[at].to_owned())).collect()
    }
}

#[test]
fn videos_with_known_properties_have_their_scores() {
    let site = Site::new();
    let report = site.score("videos", "scores.csv");
    assert_eq!((report.rows, report.videos, report.cached, report.failures.len()), (6, 6, 0, 0));
    let of = |column: &str| {
        let values = site.column("scores.csv", column);
        values.into_iter().map(|(name, value)| (name, value.parse::<f64>().unwrap())).collect::<BTreeMap<_, _>>()
    };
    let [motion, frozen, black, bright] = ["motion", "frozen", "black", "brightness"].map(of);
    assert!(motion["moving.mp4"] > 1.0 && motion["still.mp4"] < 0.05, "{motion:?}");
    assert!(frozen["still.mp4"] == 1.0 && frozen["moving.mp4"] == 0.0, "{frozen:?}");
    assert!(black["black.mp4"] == 1.0 && black["boxed.mp4"] == 0.0, "{black:?}");
    assert!(bright["white.mp4"] > 0.98 && bright["black.mp4"] < 0.02, "{bright:?}");
    let [sharp, letterbox, duplicate] = ["sharpness", "letterbox", "near_duplicate"].map(of);
    assert!(sharp["moving.mp4"] > 100.0 && sharp["white.mp4"] < 1.0, "{sharp:?}");
    assert!((letterbox["boxed.mp4"] - 0.25).abs() < 0.03 && letterbox["moving.mp4"] == 0.0, "{letterbox:?}");
    // Videos are compared in the order of their paths.
    assert!(
        duplicate["moving.mp4"] == 1.0 && duplicate["copy.mp4"] == 0.0 && duplicate["still.mp4"] == 0.0,
        "{duplicate:?}"
    );
    assert_eq!(site.column("scores.csv", "duplicate_of")["moving.mp4"], "copy.mp4");
    assert_eq!(of("num_frames")["moving.mp4"], 25.0);
}

#[test]
fn columns_of_a_table_and_its_scores_are_kept_and_the_result_can_be_filtered() {
    let site = Site::new();
    let table = "clip,text,motion,tag\nvideos/moving.mp4,\"one, two\",77,x\nvideos/still.mp4,three,,y\nvideos/none.mp4,four,5,z\n";
    fs::write(site.path.join("metadata.csv"), table).unwrap();
    let report = site.score("metadata.csv", "scored.csv");
    assert_eq!((report.kept_columns.as_slice(), report.failures.len()), (&["motion".to_owned()][..], 1));
    assert_eq!(site.column("scored.csv", "motion")["moving.mp4"], "77");
    assert_eq!(site.column("scored.csv", "motion")["still.mp4"], "");
    assert_eq!(site.column("scored.csv", "caption")["moving.mp4"], "one, two");
    assert_eq!(site.column("scored.csv", "tag")["none.mp4"], "z");
    assert_eq!(site.column("scored.csv", "frozen")["none.mp4"], "");
    let filter = Some("frozen < 0.5 and near_duplicate = 0".parse().unwrap());
    let request = SourceRequest { source: site.path.join("scored.csv"), filter, ..SourceRequest::default() };
    let rows = read_source(&request).unwrap().rows;
    assert_eq!(rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>(), ["videos/moving.mp4"]);
}

#[test]
fn a_second_call_measures_only_what_changed_and_writes_the_same_table() {
    let site = Site::new();
    site.score("videos", "a.csv");
    let report = site.score("videos", "b.csv");
    assert_eq!(report.cached, 6);
    assert_eq!(fs::read(site.path.join("a.csv")).unwrap(), fs::read(site.path.join("b.csv")).unwrap());
    fs::write(site.path.join("videos/still.mp4"), "no video").unwrap();
    let report = site.score("videos", "c.csv");
    assert_eq!((report.cached, report.failures.len()), (5, 1));
}

#[test]
fn segments_are_kept_in_lines_of_json_and_refused_in_a_csv() {
    let site = Site::new();
    let table = r#"[{"video": "videos/moving.mp4", "segments": ["one", "two"], "aesthetic": 5.5}]"#;
    fs::write(site.path.join("metadata.json"), table).unwrap();
    site.score("metadata.json", "scored.jsonl");
    let source = SourceRequest { source: site.path.join("scored.jsonl"), ..SourceRequest::default() };
    let source = read_source(&source).unwrap();
    assert_eq!(source.rows[0].segments, ["one", "two"]);
    assert!(source.fields.columns.iter().any(|column| column.name == "aesthetic"));
    for out in ["scored.csv", "scored.txt"] {
        let failure = score(&site.request("metadata.json", out), &mut |_| ControlFlow::Continue(())).unwrap_err();
        assert_eq!(failure.code, ErrorCode::InvalidArgument);
    }
}
