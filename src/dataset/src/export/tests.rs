//! Exports, read back by the readers of this crate, which know the formats of all these trainers.

use super::*;
use crate::{ManifestHeader, SourceRequest, read_source};
use std::collections::BTreeSet;
use std::ops::ControlFlow;
use std::process::Command;

struct Site {
    _keep: tempfile::TempDir,
    path: Utf8PathBuf,
    manifest: ClipManifest,
}

impl Site {
    /// Makes a site with three videos, of which one has two captions, and a picture.
    fn new() -> Self {
        let keep = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(keep.path()).unwrap().canonicalize_utf8().unwrap();
        let clip = |id: &str, file: &str, caption: &str| Clip {
            id: id.into(),
            path: path.join("data").join(file),
            caption: caption.into(),
            width: 1280,
            height: 720,
            frames: 100,
            fps: 24.0,
            ..Clip::default()
        };
        let clips = vec![
            clip("a.mp4", "a.mp4", "a \"grey\" cat,\nasleep"),
            clip("a.mp4#2", "a.mp4", "another caption"),
            clip("sub/a.mp4", "sub/a.mp4", "a dog: {braces} é"),
            Clip { excluded: Some(crate::ExclusionReason::OneFrame), ..clip("b.mp4", "b.mp4", "dropped") },
            Clip { fps: 0.0, frames: 1, ..clip("c.png", "c.png", "a picture") },
        ];
        fs::create_dir_all(path.join("data/sub")).unwrap();
        for clip in &clips {
            fs::write(&clip.path, "not read").unwrap();
        }
        let header = ManifestHeader::new(&path.join("data"), "pairs", &path.join("data"));
        Self { _keep: keep, path, manifest: ClipManifest { header, clips } }
    }

    fn request(&self, format: ExportFormat) -> ExportRequest {
        let out = self.path.join(format.name());
        ExportRequest { format, out, frames: None, size: None, force: false, programs: Programs::default() }
    }

    fn export(&self, format: ExportFormat) -> Result<Exported, Failure> {
        export(&self.request(format), &self.manifest, &KeptColumns::default(), &mut |_| ControlFlow::Continue(()))
    }
}

/// The resolved paths and captions that a source lists.
fn listed(source: &Utf8Path) -> BTreeSet<(Utf8PathBuf, String)> {
    let request = SourceRequest { source: source.to_owned(), ..SourceRequest::default() };
    let rows = read_source(&request).unwrap().rows.into_iter();
    rows.map(|row| (row.path.canonicalize_utf8().unwrap(), row.caption.unwrap())).collect()
}

#[test]
fn every_format_lists_the_usable_clips_with_their_captions() {
    let site = Site::new();
    for (format, table, has_pictures) in [
        (ExportFormat::OpenSora, "train.csv", true),
        (ExportFormat::Finetrainers, "", false),
        (ExportFormat::VideoxFun, "metadata.json", true),
        (ExportFormat::Musubi, "videos.jsonl", false),
        (ExportFormat::DiffusionPipe, "videos", true),
    ] {
        let exported = site.export(format).unwrap();
        let usable = site.manifest.usable().filter(|clip| has_pictures || clip.fps > 0.0);
        let on_one_line = format == ExportFormat::Finetrainers;
        let caption = |clip: &Clip| if on_one_line { clip.caption.replace('\n', " ") } else { clip.caption.clone() };
        let expected: BTreeSet<_> = usable.map(|clip| (clip.path.clone(), caption(clip))).collect();
        assert_eq!(listed(&site.path.join(format.name()).join(table)), expected, "{format:?}");
        assert_eq!((exported.clips, exported.left_out), (expected.len(), 4 - expected.len()), "{format:?}");
        // Nothing is replaced without a request.
        assert_eq!(site.export(format).unwrap_err().code, ErrorCode::AlreadyExists, "{format:?}");
        let forced = ExportRequest { force: true, ..site.request(format) };
        export(&forced, &site.manifest, &KeptColumns::default(), &mut |_| ControlFlow::Continue(())).unwrap();
    }
}

#[test]
fn open_sora_gets_sizes_and_scores() {
    let site = Site::new();
    let names = ["motion", "tag", "aes", "num_frames"].map(str::to_owned).to_vec();
    let row = |motion: FieldValue| {
        vec![motion, FieldValue::Text("x".into()), FieldValue::Text("5.5".into()), FieldValue::Number(1.0)]
    };
    let rows = vec![
        row(FieldValue::Number(3.25)),
        row(FieldValue::Missing),
        row(FieldValue::Number(7.0)),
        row(FieldValue::Missing),
        row(FieldValue::Missing),
    ];
    let kept = KeptColumns { names, rows };
    export(&site.request(ExportFormat::OpenSora), &site.manifest, &kept, &mut |_| ControlFlow::Continue(())).unwrap();
    let mut table = csv::Reader::from_path(site.path.join("open-sora/train.csv")).unwrap();
    let titles: Vec<String> = table.headers().unwrap().iter().map(str::to_owned).collect();
    assert_eq!(
        titles[2..],
        ["num_frames", "height", "width", "aspect_ratio", "resolution", "fps", "score_vmafmotion", "aes"]
    );
    let row: Vec<String> = table.records().next().unwrap().unwrap().iter().map(str::to_owned).collect();
    assert_eq!(row[2..], ["100", "720", "1280", "0.5625", "921600", "24", "3.25", "5.5"]);
}

#[test]
fn configurations_name_the_size_of_clips() {
    let site = Site::new();
    for (format, file, parts) in [
        (ExportFormat::Finetrainers, "training.json", &["\"data_root\"", "33"][..]),
        (
            ExportFormat::Musubi,
            "dataset.toml",
            &["resolution = [768, 512]", "target_frames = [33]", "source_fps = 24.0"],
        ),
        (ExportFormat::DiffusionPipe, "dataset.toml", &["resolutions = [[768, 512]]", "frame_buckets = [1, 33]"]),
    ] {
        let request = ExportRequest { frames: Some(33), size: Some([512, 768]), ..site.request(format) };
        export(&request, &site.manifest, &KeptColumns::default(), &mut |_| ControlFlow::Continue(())).unwrap();
        let text = fs::read_to_string(request.out.join(file)).unwrap();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    }
}

#[test]
fn ttt_video_dit_gets_videos_of_its_size_rate_and_length_and_the_texts_of_their_segments() {
    let mut site = Site::new();
    let video = site.path.join("data/a.mp4");
    fs::remove_file(&video).unwrap();
    let mut ffmpeg = Command::new("ffmpeg");
    ffmpeg.args([
        "-v",
        "error",
        "-f",
        "lavfi",
        "-i",
        "testsrc2=size=96x64:rate=25:duration=6.2",
        "-pix_fmt",
        "yuv420p",
    ]);
    assert!(ffmpeg.arg(&video).status().expect("ffmpeg is installed").success());
    site.manifest.clips.truncate(1);
    let segments = vec![format!("{}a cat", tokenizer::SCENE_START), "a dog".into()];
    site.manifest.clips[0].segments = segments.clone();
    site.export(ExportFormat::TttVideoDit).unwrap();
    let out = site.path.join("ttt-video-dit");
    let made = Programs::default().open(&out.join("videos/video_sample_0000.mp4")).unwrap();
    assert_eq!((made.probe.width, made.probe.height, made.probe.fps, made.times().len()), (720, 480, 16.0, 97));
    let index = fs::read_to_string(out.join("train.jsonl")).unwrap();
    let index: serde_json::Value = serde_json::from_str(&index).unwrap();
    assert_eq!(index["vid_emb"], "latents/video_sample_0000.pt");
    assert!(
        index["text_chunk_emb"][0].as_str().unwrap().ends_with("-start/videos/video_sample_0000-0_txt_emb.pt"),
        "{index}"
    );
    let texts: serde_json::Value = serde_json::from_str(&fs::read_to_string(out.join("texts.json")).unwrap()).unwrap();
    assert_eq!((&texts["0"]["text"], &texts["0"]["scene_start"]), (&"a cat".into(), &true.into()));
    assert_eq!((&texts["1"]["text"], &texts["1"]["scene_end"]), (&"a dog".into(), &false.into()));
    // A clip of another number of segments has another length.
    let mut other = site.manifest.clone();
    other.clips.push(Clip { segments: Vec::new(), ..other.clips[0].clone() });
    let request = ExportRequest { force: true, ..site.request(ExportFormat::TttVideoDit) };
    let failure = export(&request, &other, &KeptColumns::default(), &mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(failure.code, ErrorCode::InvalidDataset);
}

#[test]
fn the_folder_of_the_clips_and_an_empty_export_are_refused() {
    let site = Site::new();
    let request = ExportRequest { out: site.path.join("data"), ..site.request(ExportFormat::Musubi) };
    let mut go = |_| ControlFlow::Continue(());
    assert_eq!(
        export(&request, &site.manifest, &KeptColumns::default(), &mut go).unwrap_err().code,
        ErrorCode::InvalidArgument
    );
    let mut none = site.manifest.clone();
    none.clips.retain(|clip| clip.fps == 0.0);
    let request = site.request(ExportFormat::Finetrainers);
    assert_eq!(export(&request, &none, &KeptColumns::default(), &mut go).unwrap_err().code, ErrorCode::InvalidDataset);
    assert!("lerobot".parse::<ExportFormat>().unwrap_err().contains("open-sora"));
}
